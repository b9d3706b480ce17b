"""Who may write to a store behind a URL: a lease beside its manifest, where no system could hold a lock.

``lease.json`` names its owner and when that last said so. The owner renews it while it is there, and looks at it
before it writes rows and before it writes the manifest; whose lease another has taken stops writing. A lease is taken
where there is none, where its owner was the same run or the process is gone from this machine, where the very segment
that its owner writes is resumed, and where it has not been renewed for ``EXPIRES`` seconds. Times are those of the
hosts' own clocks.

Places that can write under a condition let one of two win who want it at the same moment. Elsewhere what is there is
looked at before and after: then two may believe for a moment that they own it, and one of them finds out before its
next rows.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from reverie.core.errors import RunError
from reverie.data.store.objects import LEASE, Objects

EXPIRES = 120.0
"""Seconds without renewal after which anybody may take a lease."""
RENEWS = 20.0
"""Seconds after which its owner renews it."""
TRIES = 5
"""So often others may come first while this one looks whether they are to be respected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """What a lease says."""

    id: str
    """Of whoever writes: of one store that was opened, and no other."""
    run: str = ""
    """Its run folder."""
    host: str = ""
    machine: str = ""
    """The host until it is started again, and which of its processes see each other's numbers."""
    pid: int = 0
    segment: str = ""
    """The id of the segment that it writes."""
    since: float = 0.0
    """Unix time at which it took the lease."""
    time: float = 0.0
    """Unix time at which it last renewed it."""

    def __str__(self) -> str:
        run = f"the run {self.run}" if self.run else "another run"
        return f"{run} (process {self.pid} on host {self.host})"

    def gone(self) -> bool:
        """Whether it was a process of this machine, and is no more."""
        if self.machine != machine() or os.name != "posix":
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:  # somebody else's
            pass
        return False


class Lease:
    """The right to write to a store, which one at a time has."""

    def __init__(
        self, objects: Objects, run: str, say: Callable[[str], None], clock: Callable[[], float] = time.time
    ) -> None:
        """Nothing is read or written yet.

        Args:
            objects: the place of the store.
            run: the folder of the run that wants to write; "" for none.
            say: gets a sentence when the lease of another run is taken over.
            clock: Unix time in seconds.
        """
        self.objects, self.say, self.clock = objects, say, clock
        self.me = Owner(id=uuid.uuid4().hex, run=run, host=socket.gethostname(), machine=machine(), pid=os.getpid())
        self.held = False

    def take(self, segment: str = "") -> None:
        """Become the owner. ``segment`` is the id of the one that is resumed; its owner need not be waited for.

        Raises:
            RunError: another has it; says who, since when, and when that ends.
        """
        if self.held:
            self.hold()
            return
        for _ in range(TRIES):
            tag, owner = self._read()
            if owner is not None and not self._free(owner, segment):
                raise self._refused(owner)
            self.me = replace(self.me, segment=segment, since=self.clock())
            if self._write(tag):
                self.held = True
                if owner is not None and owner.run != self.me.run:
                    self.say(f"the store {self.objects.where}: the lease of {owner}, last renewed "
                             f"{self._age(owner):.0f} s ago, is taken over")  # fmt: skip
                return
        raise RunError(f"the store {self.objects.where} is wanted by several runs at once: choose another place.")

    def hold(self, segment: str | None = None) -> None:
        """See that it is still ours, and renew it when that is due, or when ``segment`` is another than it says.

        Raises:
            RunError: it was taken by another.
        """
        changed = segment is not None and segment != self.me.segment
        if segment is not None:
            self.me = replace(self.me, segment=segment)
        for _ in range(TRIES):
            tag, owner = self._read()
            if owner is not None and owner.id != self.me.id:
                raise self._lost(owner)
            if owner is not None and not changed and self._age(owner) < RENEWS:
                return
            if self._write(tag):
                return
        raise RunError(f"the store {self.objects.where} is wanted by several runs at once: this one stops writing.")

    def release(self) -> None:
        """Let others have it at once."""
        if self.held:
            self.held = False
            _, owner = self._read()
            if owner is not None and owner.id == self.me.id:
                self.objects.delete([LEASE])

    def _free(self, owner: Owner, segment: str) -> bool:
        same = bool(self.me.run) and (owner.run, owner.machine) == (self.me.run, self.me.machine)
        resumed = bool(segment) and owner.segment == segment
        return owner.id == self.me.id or same or resumed or self._age(owner) >= EXPIRES or owner.gone()

    def _age(self, owner: Owner) -> float:
        return max(0.0, self.clock() - owner.time)

    def _read(self) -> tuple[str, Owner | None]:
        """What tells the lease that is there from others, "" if there is none; and whose it is, if that can be read."""
        tag = self.objects.tag(LEASE)  # first: if it changes before it is read, no write will be let through
        try:
            said = json.loads(self.objects.get(LEASE)) if tag else None
            return tag, Owner(**said) if said else None
        except (FileNotFoundError, ValueError, TypeError):
            return tag, None

    def _write(self, tag: str) -> bool:
        me = replace(self.me, time=self.clock())
        return self.objects.swap(LEASE, json.dumps(asdict(me), indent=1).encode(), tag)

    def _refused(self, owner: Owner) -> RunError:
        age = self._age(owner)
        return RunError(
            f"the store {self.objects.where} is being written by {owner}, which last said so {age:.0f} s ago. Wait for "
            f"its end, or choose another place with replay.store. If that run is dead, try again in "
            f"{max(1.0, EXPIRES - age):.0f} s, or resume it: it takes its own lease over at once."
        )

    def _lost(self, owner: Owner) -> RunError:
        ago = max(0.0, self.clock() - owner.since)
        return RunError(
            f"the store {self.objects.where} was taken over by {owner} {ago:.0f} s ago: either it resumed what this "
            f"run was writing, or this run had not been heard of for {EXPIRES:.0f} s. Nothing more is written from "
            "here. Stop one of the two, or let this one go on with another replay.store."
        )


def machine() -> str:
    """The host until it is started again, and whose processes are seen from here: those of this container."""
    name = socket.gethostname()
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{name} {boot} {os.readlink('/proc/self/ns/pid')}"
    return name
