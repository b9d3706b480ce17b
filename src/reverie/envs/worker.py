"""Environments in worker processes: how they start, answer and end, and the error when one dies.

This file must not import torch: each worker would spend seconds and hundreds of megabytes on it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
import weakref
from collections.abc import Iterable
from multiprocessing.connection import Connection, wait
from multiprocessing.util import Finalize
from typing import Any

import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper, clear_mpi_env_vars

from reverie.core.errors import ConfigError, EnvError, ReverieError
from reverie.envs.base import put_away
from reverie.envs.slot import Failed, Inside, Maker, Slot, trace_of
from reverie.envs.undisturbed import generator_kept
from reverie.envs.worker_pipe import Column, Line, shared
from reverie.envs.worker_setup import (
    deferred_signals,
    environment_variables,
    leave_signals_to_the_parent,
    why_at_start,
)

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
"""Environment variables that numerical libraries read when they are loaded. By default they start one thread per core,
in each worker. With the start method fork, libraries that this process has loaded keep their number of threads.
"""

PATIENCE = 5.0
"""Seconds that workers have to finish what they are doing when they are closed, before they are killed."""

MOMENT = 1.0
"""Least seconds to wait for a worker whose time is already up: it may have been suspended with this process."""


def workers(method: str, makers: list[Maker], timeout: float) -> tuple[list[Slot], dict[str, np.ndarray]]:
    """Return a slot with a worker process for each of ``makers``, and the shared observations by key, ``[N, *shape]``.

    Their shapes are those of an environment that is made in this process and closed again.

    Raises:
        ConfigError: this system does not have the start ``method``.
        EnvError: an environment could not be made.
    """
    known = multiprocessing.get_all_start_methods()
    if method == "auto":
        method = "forkserver" if "forkserver" in known else "spawn"
    if method not in known:
        raise ConfigError(f"env.start_method = {method!r}: expected one of auto, {', '.join(known)} on this system.")
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        # The server imports it once; workers then start in milliseconds.
        context.set_forkserver_preload([__name__])
    with generator_kept("probe"):
        probe = makers[0]()
    spec, width = probe.obs_spec, probe.action_spec.width
    put_away(probe)
    num = len(makers)
    columns = {key: shared(context, (num, *part.shape), part.dtype) for key, part in spec.items()}
    actions = shared(context, (num, width), "float32")
    arrays = {key: column.array() for key, column in columns.items()}
    return [WorkerSlot(context, i, make, columns, actions, timeout) for i, make in enumerate(makers)], arrays


class WorkerSlot:
    """An environment in a worker process, which is killed if it does not answer in time."""

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
        """Start a process, which makes the environment."""
        self._failed, self._made = None, False
        self._turn, self._sent = 0, time.monotonic()
        near, far = self._context.Pipe()
        self._line = Line(near)
        # Deferred for fork alone: it is quick, and the other methods run no callbacks in this process.
        deferred = deferred_signals() if self._context.get_start_method() == "fork" else contextlib.nullcontext()
        try:
            with environment_variables(ONE_THREAD), clear_mpi_env_vars(), deferred:
                self.process = self._context.Process(target=_work, args=(*self._work, far), daemon=True)
                _add_running(self)  # first: after Ctrl-C in between, the end of this process would wait for the worker
                self.process.start()
        except OSError as error:
            self.kill()
            self._failed = Failed(
                EnvError(f"environment {self._number}: its worker process could not be started: {error}")
            )
        far.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at the end of the interpreter
            self.kill()

    def send(self, what: str, *args: Any) -> None:
        """Send a request to the process, without waiting."""
        if self._failed is not None or self._line is None:
            return
        self._turn, self._sent = self._turn + 1, time.monotonic()
        with contextlib.suppress(OSError):  # ``receive`` reports a process that is gone
            if what == "step":
                self._action[:] = args[0]
                self._line.step(self._turn)
            else:
                self._line.say(self._turn, what, args)

    def receive(self) -> Any:
        """Wait for the answer to the last ``start`` or ``send``; raise its ``Failed``."""
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
            while turn != self._turn:  # skips the answers to interrupted requests
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
            f"environment {self._number} timed out: no response from its worker process within "
            f"env.timeout = {self._timeout:g} seconds"
        )

    def _lost(self) -> EnvError:
        """Return the error for a worker that ended without an answer."""
        deadline = time.monotonic() + PATIENCE
        while (code := self.process.exitcode) is None and time.monotonic() < deadline:
            wait([self.process.sentinel], timeout=PATIENCE)
            time.sleep(0.001)  # the sentinel is ready a moment before the exit code is
        self.kill()
        memory = " It was killed (SIGKILL), probably because memory ran out." if code == -signal.SIGKILL else ""
        return EnvError(
            f"the worker process of environment {self._number} died (exit code {code}); its output, if any, is above."
            f"{memory}{'' if self._made else why_at_start()}"
        )

    def stop(self, last: bool = False) -> None:
        """Ask the process to end, and kill it after ``PATIENCE`` seconds."""
        if self._line is not None:
            self.dismiss()
            self.process.join(PATIENCE)
            self.kill()

    def dismiss(self) -> None:
        """Ask the process to end once it has finished its current request; do not wait."""
        if self._line is not None:
            with contextlib.suppress(OSError):
                self._line.say(0, "close", ())

    def kill(self) -> None:
        """Kill the process."""
        if self._line is not None:
            self._line.close()
            self._line = None
            if self.process is not None and self.process.pid is not None:  # None if it was not started
                self.process.kill()
                self.process.join()
            RUNNING.discard(self)

    @property
    def running(self) -> bool:
        """Return whether a process was started that is not closed yet."""
        return self._line is not None

    def forget(self) -> None:
        """Close the pipe in a process forked from the worker's parent, which must not end the worker."""
        if self._line is not None:
            self._line.close()
            self._line = None


def close(slots: Iterable[Slot]) -> None:
    """Close all ``slots`` at the same time; answers that are due are dropped."""
    slots = list(slots)
    running = [slot for slot in slots if isinstance(slot, WorkerSlot) and slot.running]
    for slot in running:
        slot.dismiss()
    deadline = time.monotonic() + PATIENCE
    for slot in running:
        slot.process.join(max(0.0, deadline - time.monotonic()))
        slot.kill()
    for each in slots:
        each.stop(last=True)


def kill(slots: Iterable[Slot]) -> None:
    """Close ``slots`` without waiting for workers, whatever they are doing."""
    for slot in slots:
        if isinstance(slot, WorkerSlot):
            slot.kill()
        else:
            slot.stop(last=True)


RUNNING: weakref.WeakSet[WorkerSlot] = weakref.WeakSet()
"""Slots of this process whose workers run."""
ENDING: list[Finalize] = []
"""The finalizer that kills workers, once this process has started one."""


def _add_running(slot: WorkerSlot) -> None:
    """Remember ``slot``, and let multiprocessing kill what is left when this process ends.

    Its own way is SIGTERM, which workers ignore, and to wait for them.
    """
    if not ENDING:
        ENDING.append(Finalize(None, _end_all, exitpriority=0))
    RUNNING.add(slot)


def _end_all() -> None:
    for slot in list(RUNNING):
        slot.kill()


def _forget_all() -> None:
    """Let go of the parent's workers in a forked process: it must neither end them nor hold their pipes open."""
    for slot in list(RUNNING):
        slot.forget()
    RUNNING.clear()
    ENDING.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def _work(number: int, make: Maker, columns: dict[str, Column], actions: Column, pipe: Connection) -> None:
    """Run a worker: make its environment, then answer requests until ``close`` or until the parent is gone."""
    leave_signals_to_the_parent()
    os.environ.update(ONE_THREAD)  # a forkserver that was started earlier lacks them
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
    """Return a failed answer: ``error`` as a type that every process can unpickle, and its traceback."""
    known = error if isinstance(error, ReverieError) else EnvError(f"environment {number}: {error!r}")
    return False, (known, trace_of(error))
