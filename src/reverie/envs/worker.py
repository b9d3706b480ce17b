"""Environments in worker processes: start, requests, shutdown, and the error when a worker dies.

Actions and observations are in shared memory, so a step sends only a few bytes each way; everything else is pickled.
"""

from __future__ import annotations

import contextlib
import multiprocessing.util
import os
import pickle
import select
import signal
import struct
import threading
import time
from collections.abc import Iterator
from ctypes import c_uint8
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext, ForkServerContext
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from subprocess import _args_from_interpreter_flags as python_flags  # type: ignore[attr-defined]
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper, clear_mpi_env_vars

from reverie.core.errors import EnvError
from reverie.core.signals import SIGNALS
from reverie.envs.flat_env import Outcome
from reverie.envs.interventions import POLICY
from reverie.envs.make import close_quietly
from reverie.envs.slot import CLOSE_SECONDS, EnvFailure, Maker, Slot, preserve_torch_rng

SINGLE_THREAD_VARS = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
"""Environment variables of numerical libraries, which by default start one thread per core in each worker."""
MIN_WAIT = 1.0
"""Minimum seconds to wait for a worker after its timeout: it may have been suspended together with this process."""
STARTUP_ADVICE = (
    ' It died during start-up: a script that starts worker processes must do so under `if __name__ == "__main__":`, '
    "or use {}."
)
CHILDREN_ADVICE = (
    ". The environment starts processes of its own, which a worker process cannot: set env.vectorization = 'sync'"
)
STEP = struct.Struct("<cqd??B")
"""A step, or the answer to it: ``STEP_MARK``, the turn, the reward, terminated, truncated, whose action it was."""
STEP_MARK = b"\0"
"""A byte that cannot begin a pickle."""

# Python's processes would import its own modules from the current folder, which can be a stranger's.
multiprocessing.util._args_from_interpreter_flags = lambda: ["-P", *python_flags()]  # type: ignore[attr-defined]

NOT_TAKEN = Outcome()


class SharedColumn(NamedTuple):
    """One observation key of N environments, or their actions, in shared memory; ``shape`` includes N."""

    memory: Any
    shape: tuple[int, ...]
    dtype: str

    def array(self) -> np.ndarray:
        """Return a view of the memory, ``[N, ...]``."""
        return np.frombuffer(self.memory, np.uint8).view(self.dtype).reshape(self.shape)


def allocate_shared(context: BaseContext, shape: tuple[int, ...], dtype: str) -> SharedColumn:
    """Allocate shared memory of this ``shape`` for processes of the multiprocessing ``context``."""
    return SharedColumn(context.RawArray(c_uint8, int(np.prod(shape)) * np.dtype(dtype).itemsize), shape, dtype)


class PipeEnd:
    """One end of a pipe. Every message begins with a turn number, which the answer repeats.

    All methods raise OSError or EOFError if the other end is closed.
    """

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self._poll = select.poll()  # Connection.poll creates a new selector each time, which takes ten times as long
        self._poll.register(pipe.fileno(), select.POLLIN)

    def step(self, turn: int, outcome: Outcome = NOT_TAKEN) -> None:
        """Request a step with the action in shared memory, or answer it once the observation is written."""
        self.pipe.send_bytes(STEP.pack(STEP_MARK, turn, *outcome))

    def send(self, *message: object) -> None:
        """Send any other message: the turn, the request or "done" or "failed", and arguments or the result."""
        self.pipe.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def receive(self) -> tuple[int, str, Any]:
        """Wait for a message; return the turn, its kind, and its arguments or result."""
        data = self.pipe.recv_bytes()
        if data[:1] != STEP_MARK:
            message: tuple[int, str, Any] = pickle.loads(data)
            return message
        step = STEP.unpack(data)
        return step[1], "step", Outcome(*step[2:])

    def ready(self, seconds: float) -> bool:
        """Return whether a message, or the end of the pipe, arrives within ``seconds``."""
        return bool(self._poll.poll(1000 * seconds))


def end_unguarded_worker() -> None:
    """End this process without a word if it is a worker that runs the user's script again: the parent reports it."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(1)


def make_worker_slots(makers: list[Maker], timeout: float) -> tuple[list[Slot], dict[str, np.ndarray]]:
    """Return a slot with a worker process for each of ``makers``, and the shared observations by key, ``[N, *shape]``.

    An environment that is made in this process and closed again determines the shapes.
    """
    end_unguarded_worker()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # the server imports it once; workers then start in milliseconds
    with preserve_torch_rng("probe"):
        probe = makers[0]()
    spec, width, num = probe.obs_spec, probe.action_spec.width, len(makers)
    close_quietly(probe)
    columns = {key: allocate_shared(context, (num, *part.shape), part.dtype) for key, part in spec.items()}
    actions = allocate_shared(context, (num, width), "float32")
    slots: list[Slot] = [WorkerSlot(context, i, make, columns, actions, timeout) for i, make in enumerate(makers)]
    return slots, {key: column.array() for key, column in columns.items()}


class WorkerSlot(Slot):
    """An environment in a worker process, which is killed if it does not answer in time."""

    def __init__(
        self,
        context: ForkServerContext,
        number: int,
        make: Maker,
        columns: dict[str, SharedColumn],
        actions: SharedColumn,
        timeout: float,
    ) -> None:
        super().__init__(number, make)
        self.process: Any = None
        self._context, self._timeout = context, timeout
        self._task = (number, CloudpickleWrapper(make), columns, actions)
        self._action: np.ndarray = actions.array()[number]
        self._line: PipeEnd | None = None
        self._end: Finalize
        self._made = False
        self._turn, self._sent = 0, 0.0

    def start(self) -> None:
        """Start the worker process, which makes the environment."""
        self._failed, self._made = None, False
        self._turn, self._sent = 0, time.monotonic()
        near, far = self._context.Pipe()
        self.process = self._context.Process(target=_worker_main, args=(*self._task, far), daemon=True)
        # First: after Ctrl-C in between, this process would wait at exit for a worker that ignores SIGTERM.
        self._end = Finalize(self, _end, (self.process, near), exitpriority=0)
        with _one_thread(), clear_mpi_env_vars():
            self.process.start()
        self._line = PipeEnd(near)
        far.close()

    def send(self, request: str, *args: object) -> None:
        """Send a request to the worker process, without waiting."""
        if self._failed is not None or self._line is None:
            return
        self._turn, self._sent = self._turn + 1, time.monotonic()
        with contextlib.suppress(OSError):  # ``receive`` reports a process that has ended
            if request == "step":
                self._action[:] = args[0]
                self._line.step(self._turn)
            else:
                self._line.send(self._turn, request, args)

    def receive(self) -> Any:
        if self._failed is None:
            try:
                return self._answer()
            except EnvFailure as failed:
                self._failed = failed
        raise self._failed

    def _answer(self) -> Any:
        assert self._line is not None
        turn = -1
        try:
            while turn != self._turn:  # skips the answers to interrupted requests
                if self._timeout:
                    seconds_left = self._sent + self._timeout - time.monotonic()
                    if not self._line.ready(max(seconds_left, min(self._timeout, MIN_WAIT))):
                        self.stop(0.0)
                        late = f"no response from its worker process within env.timeout = {self._timeout:g} seconds"
                        raise EnvFailure(EnvError(f"environment {self._number} timed out: {late}"))
                turn, status, result = self._line.receive()
        except (EOFError, OSError):  # which say less
            raise EnvFailure(self._death_error()) from None
        if status == "failed":
            raise EnvFailure(*result)
        self._made = True
        return result

    @property
    def executed_action(self) -> np.ndarray:
        return self._action

    def _death_error(self) -> EnvError:
        self.process.join(CLOSE_SECONDS)
        code = self.process.exitcode
        self.stop(0.0)
        memory = " It was killed (SIGKILL), probably because memory ran out." if code == -signal.SIGKILL else ""
        start = "" if self._made else STARTUP_ADVICE.format("env.vectorization = 'sync'")
        return EnvError(
            f"the worker process of environment {self._number} died (exit code {code}); its output, if any, is above."
            f"{memory}{start}"
        )

    def dismiss(self) -> None:
        if self._line is not None:
            with contextlib.suppress(OSError):
                self._line.send(0, "close", ())

    def stop(self, seconds: float = CLOSE_SECONDS) -> None:
        """Ask the process to end, and kill it after this many ``seconds``."""
        if self._line is None:
            return
        if seconds:
            self.dismiss()
            self.process.join(seconds)
        self._line = None
        self._end()


def _end(process: BaseProcess, pipe: Connection) -> None:
    pipe.close()
    if process.pid is not None:
        process.kill()
        process.join()


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in SINGLE_THREAD_VARS}
    os.environ.update(SINGLE_THREAD_VARS)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({name: value} if value is not None else {})


# ---------------------------------------------------------------- in the worker


def exit_after_parent() -> None:
    """Exit soon after the parent process has ended, even if an environment hangs."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        time.sleep(CLOSE_SECONDS)  # for the environment to close
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _worker_main(
    number: int, make: Maker, columns: dict[str, SharedColumn], actions: SharedColumn, pipe: Connection
) -> None:
    """Run a worker: make its environment, then answer requests until ``close`` or until the parent has ended."""
    for signal_number in SIGNALS:  # sent to whole jobs: the parent ends the workers after its checkpoint
        # Child processes of an environment would inherit SIG_IGN; they should only ignore Ctrl-C.
        signal.signal(signal_number, signal.SIG_IGN if signal_number == signal.SIGINT else lambda *_: None)
    exit_after_parent()
    os.environ.update(SINGLE_THREAD_VARS)  # missing if the forkserver was started earlier
    line, slot, action = PipeEnd(pipe), Slot(number, make, owns_rng=True), actions.array()[number]
    slot.rows = {key: column.array()[number, ...] for key, column in columns.items()}
    turn, request, args = 0, "start", ()
    slot.start()
    with contextlib.suppress(EOFError, OSError):
        while request != "close":
            try:
                result = slot.receive()
            except EnvFailure as failed:
                advice = CHILDREN_ADVICE if "daemonic processes" in str(failed.error) else ""
                line.send(turn, "failed", (type(failed.error)(f"{failed.error}{advice}"), failed.trace))
            else:
                if request == "step":
                    if result.actor != POLICY:
                        action[:] = slot.executed_action
                    line.step(turn, result)
                else:
                    line.send(turn, "done", result)
            turn, request, args = line.receive()
            if request == "step":
                slot.send("step", action.copy())
            elif request != "close":
                slot.send(request, *args)
    slot.stop()
