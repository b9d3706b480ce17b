"""Environments in worker processes: how they start, answer and end, and the error when one dies.

Actions and observations are in shared memory, so a step sends a few bytes each way; everything else is pickled. This
file must not import torch: each worker would spend seconds and hundreds of megabytes on it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import random
import select
import signal
import struct
import sys
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from ctypes import c_uint8
from multiprocessing.connection import Connection, wait
from multiprocessing.util import Finalize
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper, clear_mpi_env_vars

from reverie.core.errors import EnvError, ReverieError
from reverie.core.signals import SIGNALS
from reverie.envs.flat import FlatEnv, Outcome, Rows
from reverie.envs.make import put_away
from reverie.envs.slot import EnvSpecs, Failed, Maker, Slot, generator_kept, trace_of
from reverie.envs.snapshot import load_state, save_state

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
"""Environment variables that numerical libraries read when they are loaded. By default they start one thread per core,
in each worker."""

PATIENCE = 5.0
"""Seconds that workers have to finish what they are doing when they are closed, before they are killed."""

MOMENT = 1.0
"""Least seconds to wait for a worker whose time is already up: it may have been suspended with this process."""

STEP = struct.Struct("<cq")
"""A request for a step: ``MARK``, the turn."""
STEPPED = struct.Struct("<cqd??")
"""The answer to it: ``MARK``, the turn, the reward, terminated, truncated."""
MARK = b"\0"
"""A byte with which no pickle begins."""


class Column(NamedTuple):
    """One observation key of N environments, or their actions, in shared memory."""

    memory: Any
    shape: tuple[int, ...]
    dtype: str

    def array(self) -> np.ndarray:
        """Return a view of that memory, ``[N, ...]``; ``shape`` includes N."""
        return np.frombuffer(self.memory, np.uint8).view(self.dtype).reshape(self.shape)


def shared(context: Any, shape: tuple[int, ...], dtype: str) -> Column:
    """Allocate shared memory of this ``shape`` for processes of the multiprocessing ``context``."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return Column(context.RawArray(c_uint8, size), shape, dtype)


class Line:
    """One end of a pipe. Every message begins with the number of a turn, which an answer repeats.

    All methods raise OSError or EOFError if the other end is closed.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._poll = None if not hasattr(select, "poll") else select.poll()
        if self._poll is not None:  # Connection.poll makes a new selector each time, which takes ten times as long
            self._poll.register(pipe.fileno(), select.POLLIN)
        self.close = pipe.close

    def step(self, turn: int) -> None:
        """Request a step with the action in shared memory."""
        self._pipe.send_bytes(STEP.pack(MARK, turn))

    def stepped(self, turn: int, outcome: Outcome) -> None:
        """Answer ``step`` once the observation is in shared memory."""
        self._pipe.send_bytes(STEPPED.pack(MARK, turn, *outcome))

    def say(self, *said: Any) -> None:
        """Send any other message, the number of the turn first."""
        self._pipe.send_bytes(pickle.dumps(said, pickle.HIGHEST_PROTOCOL))

    def asked(self) -> tuple[int, str, tuple[Any, ...]]:
        """Wait for a request; return the turn, what is requested, and its arguments (none for ``step``)."""
        said = self._pipe.recv_bytes()
        return (STEP.unpack(said)[1], "step", ()) if said[:1] == MARK else pickle.loads(said)

    def answered(self) -> tuple[int, bool, Any]:
        """Wait for an answer; return the turn, whether the request succeeded, and its result or its error."""
        said = self._pipe.recv_bytes()
        if said[:1] != MARK:
            answer: tuple[int, bool, Any] = pickle.loads(said)
            return answer
        _, turn, *outcome = STEPPED.unpack(said)
        return turn, True, tuple(outcome)

    def ready(self, seconds: float) -> bool:
        """Return whether a message, or the end of the pipe, arrives within ``seconds``."""
        return self._pipe.poll(seconds) if self._poll is None else bool(self._poll.poll(1000 * seconds))


def workers(makers: list[Maker], timeout: float) -> tuple[list[Slot], dict[str, np.ndarray]]:
    """Return a slot with a worker process for each of ``makers``, and the shared observations by key, ``[N, *shape]``.

    Their shapes are those of an environment that is made in this process and closed again.

    Raises:
        EnvError: an environment could not be made.
    """
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        # The server imports it once; workers then start in milliseconds.
        context.set_forkserver_preload([__name__])
    with generator_kept("probe"):
        probe = makers[0]()
    spec, width, num = probe.obs_spec, probe.action_spec.width, len(makers)
    put_away(probe)
    columns = {key: shared(context, (num, *part.shape), part.dtype) for key, part in spec.items()}
    actions = shared(context, (num, width), "float32")
    arrays = {key: column.array() for key, column in columns.items()}
    return [WorkerSlot(context, i, make, columns, actions, timeout) for i, make in enumerate(makers)], arrays


class WorkerSlot:
    """An environment in a worker process, which is killed if it does not answer in time."""

    def __init__(
        self, context: Any, number: int, make: Maker, columns: dict[str, Column], actions: Column, timeout: float
    ) -> None:
        self.process: Any = None
        self._context, self._number, self._timeout = context, number, timeout
        self._work = (number, CloudpickleWrapper(make), columns, actions)
        self._action = actions.array()[number]
        self._line: Line | None = None
        self._owner = os.getpid()
        self._made = False
        self._failed: Failed | None = None
        self._turn, self._sent = 0, 0.0

    def start(self) -> None:
        """Start a process, which makes the environment."""
        self._failed, self._made = None, False
        self._turn, self._sent = 0, time.monotonic()
        near, far = self._context.Pipe()
        self._line = Line(near)
        try:
            with environment_variables(ONE_THREAD), clear_mpi_env_vars():
                self.process = self._context.Process(target=_work, args=(*self._work, far), daemon=True)
                _add_running(self)  # first: after Ctrl-C in between, the end of this process would wait for the worker
                self.process.start()
        except OSError as error:
            self.kill()
            said = f"environment {self._number}: its worker process could not be started: {error}"
            self._failed = Failed(EnvError(said))
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

    def stop(self) -> None:
        """Ask the process to end, and kill it after ``PATIENCE`` seconds."""
        close([self])

    def dismiss(self) -> bool:
        """Ask the process to end once it has finished its current request; return whether there is one."""
        if self._line is None or self._owner != os.getpid():
            return False
        with contextlib.suppress(OSError):
            self._line.say(0, "close", ())
        return True

    def kill(self) -> None:
        """Kill the process. A process forked from this one only lets go of it."""
        if self._line is not None:
            self._line.close()
            self._line = None
            if self._owner == os.getpid() and self.process is not None and self.process.pid is not None:
                self.process.kill()
                self.process.join()
            RUNNING.discard(self)


def close(slots: Iterable[Slot]) -> None:
    """Close all ``slots`` at the same time; answers that are due are dropped."""
    slots = list(slots)
    running = [slot for slot in slots if isinstance(slot, WorkerSlot) and slot.dismiss()]
    deadline = time.monotonic() + PATIENCE
    for slot in running:
        slot.process.join(max(0.0, deadline - time.monotonic()))
    kill(slots)


def kill(slots: Iterable[Slot]) -> None:
    """Close ``slots`` without waiting for workers, whatever they are doing."""
    for slot in slots:
        slot.kill() if isinstance(slot, WorkerSlot) else slot.stop()


RUNNING: weakref.WeakSet[WorkerSlot] = weakref.WeakSet()
"""Slots of this process whose workers run."""
ENDING: dict[int, Finalize] = {}
"""The finalizer that kills workers, by the process that has started some."""


def _add_running(slot: WorkerSlot) -> None:
    """Remember ``slot``, and let multiprocessing kill what is left when this process ends.

    Its own way is SIGTERM, which workers ignore, and to wait for them.
    """
    if os.getpid() not in ENDING:
        ENDING[os.getpid()] = Finalize(None, _end_all, exitpriority=0)
    RUNNING.add(slot)


def _end_all() -> None:
    for slot in list(RUNNING):
        slot.kill()


@contextlib.contextmanager
def environment_variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for processes that are started inside; afterwards they are as before."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({name: value} if value is not None else {})


def why_at_start() -> str:
    """Return a hint for a worker that died before it had made its environment."""
    script = getattr(sys.modules["__main__"], "__file__", None)
    if script is not None and not os.path.exists(script):
        return f" It could not import '{script}'. Save the script as a file, or use env.vector = 'serial'."
    return (
        " It died during start-up: a script that starts worker processes must do so under "
        "`if __name__ == \"__main__\":`, or use env.vector = 'serial'."
    )


# ---------------------------------------------------------------- in the worker


def _work(number: int, make: Maker, columns: dict[str, Column], actions: Column, pipe: Connection) -> None:
    """Run a worker: make its environment, then answer requests until ``close`` or until the parent is gone."""
    _leave_signals_to_the_parent()
    os.environ.update(ONE_THREAD)  # a forkserver that was started earlier lacks them
    line = Line(pipe)
    rows = {key: column.array()[number, ...] for key, column in columns.items()}
    with contextlib.suppress(EOFError, OSError):
        try:
            env = make()
        except Exception as error:
            line.say(0, *_failure(number, error))
            return
        line.say(0, True, EnvSpecs(env.obs_spec, env.action_spec))
        _serve(number, env, rows, actions.array()[number], line)
        put_away(env)


def _leave_signals_to_the_parent() -> None:
    """Do nothing on Ctrl-C, SIGTERM, SIGUSR1 and SIGHUP, which whole jobs get: the parent decides when workers end.

    Only Ctrl-C is ignored (SIG_IGN). The others get an empty handler, as programs that an environment starts would
    inherit SIG_IGN and could not be ended.
    """
    for number in SIGNALS:
        if number == signal.SIGINT:
            signal.signal(number, signal.SIG_IGN)
        elif signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def _serve(number: int, env: FlatEnv, rows: Rows, action: np.ndarray, line: Line) -> None:
    while True:
        turn, what, args = line.asked()
        try:
            if what == "step":
                line.stepped(turn, env.step_into(action.copy(), rows))
            elif what == "close":
                return
            else:
                line.say(turn, True, _answer(env, rows, what, args))
        except OSError:
            raise
        except Exception as error:
            line.say(turn, *_failure(number, error))


def _answer(env: FlatEnv, rows: Rows, what: str, args: tuple[Any, ...]) -> Any:
    """Do what is requested. The global generators of Python and NumPy belong to the environment here."""
    if what == "reset":
        if (seed := args[0]) is not None:
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002 - third-party environments draw from it
        return env.reset_into(seed, rows)
    if what == "snapshot":
        return save_state(env, (random.getstate(), np.random.get_state()))  # noqa: NPY002
    if what == "restore":
        generators, why = load_state(env, *args)
        if not why and generators is not None:
            random.setstate(generators[0])
            np.random.set_state(generators[1])  # noqa: NPY002
        return why
    return getattr(env, what)()


def _failure(number: int, error: Exception) -> tuple[bool, tuple[ReverieError, str]]:
    """Return a failed answer: ``error`` as a type that every process can unpickle, and its traceback."""
    known = error if isinstance(error, ReverieError) else EnvError(f"environment {number}: {error!r}")
    return False, (known, trace_of(error))
