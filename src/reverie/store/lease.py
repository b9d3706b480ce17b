"""The lease of a store behind a URL, which lets one run at a time write. Local folders use file locks instead.

``lease.json`` lies beside the manifest. It names its owner and the time at which the owner last renewed it. The owner
checks and renews it before it writes rows and before it writes the manifest; if another run has taken the lease, the
owner stops writing. A run may take a lease if one of these holds:

- there is none;
- its owner is the same run on the same machine, or a process of this machine that has ended;
- its owner writes the very segment that is to be resumed;
- it has not been renewed for ``EXPIRES`` seconds, by the clocks of the two hosts.

Where the place supports conditional writes, only one of two simultaneous attempts succeeds. Elsewhere the lease is read
before and after it is written: two runs may then both believe for a moment that they own it, and one of them finds
out before it writes its next rows.
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
from reverie.core.words import Say
from reverie.store.objects import LEASE, Objects

EXPIRES = 120.0
"""Seconds without renewal after which any run may take a lease."""
RENEWS = 20.0
"""Age in seconds from which on the owner renews its lease."""
TRIES = 5
"""Number of attempts to write the lease, each of which fails if another run writes it at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The contents of a lease: who owns it."""

    id: str
    """Random identifier of one open ``Store``."""
    run: str = ""
    """Folder of the run; "" for none."""
    host: str = ""
    machine: str = ""
    """Identifies one boot of the host and one PID namespace (container) on it; see ``machine()``."""
    pid: int = 0
    segment: str = ""
    """Id of the segment that is being written."""
    since: float = 0.0
    """Unix time at which the lease was taken."""
    time: float = 0.0
    """Unix time at which the lease was last renewed."""

    def __str__(self) -> str:
        run = f"the run {self.run}" if self.run else "another run"
        return f"{run} (process {self.pid} on host {self.host})"

    def gone(self) -> bool:
        """Return True if the owner was a process of this machine and has ended."""
        if self.machine != machine() or os.name != "posix":
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:  # it exists, and belongs to another user
            pass
        return False


class Lease:
    """The right to write to a store, which one process at a time has."""

    def __init__(self, objects: Objects, run: str, say: Say, clock: Callable[[], float] = time.time) -> None:
        """Prepare a lease; nothing is read or written yet.

        Args:
            objects: the place of the store.
            run: the folder of the run that wants to write; "" for none.
            say: gets a sentence when the lease of another run is taken over.
            clock: returns the Unix time in seconds.
        """
        self.objects, self.say, self.clock = objects, say, clock
        self.me = Owner(id=uuid.uuid4().hex, run=run, host=socket.gethostname(), machine=machine(), pid=os.getpid())
        self.held = False

    def take(self, segment: str = "") -> None:
        """Become the owner.

        ``segment`` is the id of the segment to be resumed; its lease is taken over without waiting.

        Raises:
            RunError: another run owns the lease; the message says which, and when it expires.
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
                    self.say(f"the store {self.objects.where}: took over the lease of {owner}, last renewed "
                             f"{self._age(owner):.0f} s ago")  # fmt: skip
                return
        raise RunError(f"several runs are writing to the store {self.objects.where}: choose another with replay.store.")

    def hold(self, segment: str | None = None) -> None:
        """Check that the lease is still ours; renew it if it is due or if ``segment`` (an id) has changed.

        Raises:
            RunError: another run has taken it.
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
        raise RunError(f"several runs are writing to the store {self.objects.where}: this one has stopped doing so.")

    def release(self) -> None:
        """Delete the lease if it is still ours, so that other runs need not wait."""
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
        """Return the version tag of the lease ("" if there is none), and its owner if the file can be parsed."""
        tag = self.objects.tag(LEASE)  # read first: if the lease changes in between, a write with this tag is refused
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
            f"the store {self.objects.where} is in use by {owner}, which renewed its lease {age:.0f} s ago. Wait until "
            "it has finished, or choose another store with replay.store. If that run is dead, try again in "
            f"{max(1.0, EXPIRES - age):.0f} s, or resume it: a run can take over its own lease at once."
        )

    def _lost(self, owner: Owner) -> RunError:
        ago = max(0.0, self.clock() - owner.since)
        return RunError(
            f"the store {self.objects.where} was taken over by {owner} {ago:.0f} s ago: either it resumed the "
            f"segment of this run, or this run did not renew its lease for {EXPIRES:.0f} s. This run no longer "
            "writes to it. Stop one of the two runs, or continue this one with another replay.store."
        )


def machine() -> str:
    """Return an identifier of the host, its current boot and the PID namespace (container) of this process."""
    name = socket.gethostname()
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{name} {boot} {os.readlink('/proc/self/ns/pid')}"
    return name
