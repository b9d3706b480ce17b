"""Environments in worker processes: how they start, answer and end, and what is said when one dies.

This file must not import torch: each worker would spend seconds and hundreds of megabytes on it.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import signal
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper, clear_mpi_env_vars

from reverie.core.errors import ConfigError, EnvError, ReverieError
from reverie.envs.line import Column, Line, shared
from reverie.envs.slot import Failed, Inside, Maker, Slot, trace_of

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
"""What numerical libraries read when they are loaded. Left to themselves they start a thread a core in each worker.

With the start method fork, those that this process has loaded keep their threads.
"""

PATIENCE = 5.0
"""Seconds that workers have to answer a last step that nobody will ask for, before they are ended."""

MOMENT = 1.0
"""Seconds that a worker has to answer when it is asked long after its time was up: it may have been stopped as we."""


def workers(method: str, makers: list[Maker], timeout: float) -> tuple[list[Slot], dict[str, np.ndarray]]:
    """One slot with a worker process for each of ``makers``, and where they will write observations, ``[N, *shape]``.

    What is seen is learned from an environment in this process, which is closed again.

    Raises:
        ConfigError: this system has no such start ``method``.
        EnvError: an environment could not be made.
    """
    known = multiprocessing.get_all_start_methods()
    if method == "auto":
        method = "forkserver" if "forkserver" in known else "spawn"
    if method not in known:
        raise ConfigError(f"env.start_method = {method!r}: this system has {', '.join(known)}.")
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        # Imported once, by the server: workers then start in milliseconds.
        context.set_forkserver_preload([__name__])
    probe = makers[0]()
    spec, width = probe.obs_spec, probe.action_spec.width
    probe.close()
    num = len(makers)
    columns = {key: shared(context, (num, *part.shape), part.dtype) for key, part in spec.items()}
    actions = shared(context, (num, width), "float32")
    arrays = {key: column.array() for key, column in columns.items()}
    return [WorkerSlot(context, i, make, columns, actions, timeout) for i, make in enumerate(makers)], arrays


class WorkerSlot:
    """An environment in a process of its own, which is ended if it does not answer in time."""

    def __init__(
        self,
        context: Any,
        number: int,
        make: Maker,
        columns: dict[str, Column],
        actions: Column,
        timeout: float,
    ) -> None:
        self.process: Any = None
        self.rows: dict[str, np.ndarray] = {}
        self._context, self._number, self._timeout = context, number, timeout
        self._work = (number, CloudpickleWrapper(make), columns, actions)
        self._action = actions.array()[number]
        self._line: Line | None = None
        self._made = False
        self._failed: Failed | None = None
        self._turn, self._sent = 0, 0.0

    def start(self) -> None:
        """Begin a process, which makes the environment."""
        self._failed, self._made = None, False
        self._turn, self._sent = 0, time.monotonic()
        near, far = self._context.Pipe()
        self._line = Line(near)
        # Of this method alone: a forked process holds our end of its pipe too, and would not notice that we are gone.
        ours = near if self._context.get_start_method() == "fork" else None
        try:
            with _environment(ONE_THREAD), clear_mpi_env_vars():
                self.process = self._context.Process(target=_work, args=(*self._work, far, ours), daemon=True)
                self.process.start()
        except OSError as error:
            self._line = None
            self._failed = Failed(EnvError(f"environment {self._number}: no worker process can be started: {error}"))
        else:
            RUNNING.add(self)
        far.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # of an interpreter that is about to end
            self.kill()

    def send(self, what: str, *args: Any) -> None:
        """Ask the process, and do not wait."""
        if self._failed is not None or self._line is None:
            return
        self._turn, self._sent = self._turn + 1, time.monotonic()
        with contextlib.suppress(OSError):  # that it is gone is said where the answer is asked for
            if what == "step":
                self._action[:] = args[0]
                self._line.step(self._turn)
            else:
                self._line.say(self._turn, what, args)

    def receive(self) -> Any:
        """Wait for the answer."""
        if self._failed is None:
            try:
                return self._answer()
            except Failed as failed:
                self._failed = failed
        raise self._failed

    def _answer(self) -> Any:
        assert self._line is not None
        turn = -1
        try:
            while turn != self._turn:  # an answer to something earlier was never asked for: that was interrupted
                if self._timeout:
                    left = self._sent + self._timeout - time.monotonic()
                    if not self._line.ready(max(left, min(self._timeout, MOMENT))):
                        self.kill()
                        raise Failed(self._overdue())
                turn, well, answer = self._line.answered()
        except (EOFError, OSError) as error:
            raise Failed(self._lost()) from error
        if not well:
            raise Failed(*answer)
        self._made = True
        return answer

    def _overdue(self) -> EnvError:
        return EnvError(
            f"environment {self._number} hangs: no answer from its worker process within {self._timeout:g} seconds"
        )

    def _lost(self) -> EnvError:
        """The error for a worker that ended without a word."""
        wait([self.process.sentinel], timeout=5)
        code = self.process.exitcode
        self.kill()
        start = (
            "It died at its start: a script that makes worker processes must do so under "
            "`if __name__ == \"__main__\":`, or use start_method='fork'. "
        )
        return EnvError(
            f"the worker process of environment {self._number} died (exit code {code}); what it printed is above. "
            f"{'' if self._made else start}A code of -9 usually means that memory ran out."
        )

    def stop(self, last: bool = False) -> None:
        """Ask the process to end, and end it if it does not."""
        if self._line is not None:
            self.dismiss()
            self.process.join(PATIENCE)
            self.kill()

    def dismiss(self) -> None:
        """Ask the process to end once it has come to an end with what it is at."""
        if self._line is not None:
            with contextlib.suppress(OSError):
                self._line.say(0, "close", ())

    def kill(self) -> None:
        """End the process without asking it."""
        if self._line is not None:
            self._line.close()
            self._line = None
            self.process.kill()
            self.process.join()
            RUNNING.discard(self)


def close(slots: Iterable[Slot]) -> None:
    """End ``slots``, together and quickly: what they say to a step that is under way, nobody asks any more."""
    slots = list(slots)
    running = [slot for slot in slots if isinstance(slot, WorkerSlot)]
    for slot in running:
        slot.dismiss()
    deadline = time.monotonic() + PATIENCE
    for slot in running:
        slot.process.join(max(0.0, deadline - time.monotonic()))
        slot.kill()
    for each in slots:
        each.stop(last=True)


RUNNING: weakref.WeakSet[WorkerSlot] = weakref.WeakSet()


def _end_all(owner: int = os.getpid()) -> None:
    """Workers that are still there when this process ends: its own way of ending them is a signal that they ignore."""
    if os.getpid() == owner:
        for slot in list(RUNNING):
            slot.kill()


atexit.register(_end_all)


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for processes that are started meanwhile; this one's are then as before."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _work(
    number: int, make: Maker, columns: dict[str, Column], actions: Column, pipe: Connection, theirs: Connection | None
) -> None:
    """A worker: makes its environment, then answers until it is told to end, or nobody is there any more."""
    _leave_signals_to_the_parent()
    os.environ.update(ONE_THREAD)  # for libraries that a server of an earlier time has not loaded yet
    if theirs is not None:
        theirs.close()
    line = Line(pipe)
    rows = {key: column.array()[number, ...] for key, column in columns.items()}
    with contextlib.suppress(EOFError, OSError):
        try:
            inside = Inside(make(), rows, alone=True)
        except Exception as error:
            line.say(0, *_failure(number, error))
            return
        line.say(0, True, inside.made())
        _serve(number, inside, actions.array()[number], line)
        with contextlib.suppress(Exception):
            inside.env.close()


def _serve(number: int, inside: Inside, action: np.ndarray, line: Line) -> None:
    while True:
        turn, what, args = line.asked()
        if what == "close":
            return
        try:
            answer = inside.step(action.copy()) if what == "step" else getattr(inside, what)(*args)
        except Exception as error:
            line.say(turn, *_failure(number, error))
        else:
            line.stepped(turn, answer) if what == "step" else line.say(turn, True, answer)


def _failure(number: int, error: Exception) -> tuple[bool, tuple[ReverieError, str]]:
    """``error`` as a type that every process knows."""
    known = error if isinstance(error, ReverieError) else EnvError(f"environment {number}: {error!r}")
    return False, (known, trace_of(error))


def _leave_signals_to_the_parent() -> None:
    """Ctrl-C, what schedulers send to all processes of a job, the end of a terminal: the parent decides about workers.

    Not ignored, except for Ctrl-C: a program that an environment starts would inherit that, and could not be ended.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    nothing: Callable[..., None] = lambda *_: None  # noqa: E731
    for name in ("SIGTERM", "SIGUSR1", "SIGHUP"):
        if hasattr(signal, name) and signal.getsignal(getattr(signal, name)) is not signal.SIG_IGN:
            signal.signal(getattr(signal, name), nothing)
