"""Environments in worker processes: how they start and end, and what is said when one dies.

This file must not import torch: each worker would spend seconds and hundreds of megabytes on it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState, _async_worker

from reverie.core.errors import ConfigError, EnvError, ReverieError
from reverie.envs.flat import FlatEnv

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
"""What numerical libraries read when they are loaded. Left to themselves they start a thread a core in each worker.

With the start method fork, those that this process has loaded keep their threads.
"""

PATIENCE = 5.0
"""Seconds that a worker has to answer a last step that nobody will ask for, before it is ended."""


def start(method: str, makers: list[Callable[[], FlatEnv]]) -> AsyncVectorEnv:
    """One worker process for each of ``makers``, observations in shared memory.

    Raises:
        ConfigError: this system has no such start ``method``.
        EnvError: an environment could not be made, or its worker died.
    """
    known = multiprocessing.get_all_start_methods()
    if method == "auto":
        method = "forkserver" if "forkserver" in known else "spawn"
    if method not in known:
        raise ConfigError(f"env.start_method = {method!r}: this system has {', '.join(known)}.")
    if method == "forkserver":
        # Imported once, by the server: workers then start in milliseconds.
        multiprocessing.get_context(method).set_forkserver_preload([__name__])
    with _environment(ONE_THREAD):
        return _Workers(
            makers,
            copy=False,
            autoreset_mode=AutoresetMode.NEXT_STEP,
            context=method,
            worker=_worker,  # type: ignore[arg-type]  # Gymnasium hands over eight arguments and declares six
        )


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
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


class _Workers(AsyncVectorEnv):
    """Gymnasium's worker processes; one that dies at its start is named, and a busy one does not hold up the end."""

    def _check_spaces(self) -> None:
        try:
            super()._check_spaces()  # type: ignore[no-untyped-call]  # Gymnasium's own
        except (EOFError, OSError) as error:
            raise lost(self) from error
        except Exception:
            end(self)
            raise

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """End the workers. What they say to a step that is under way, nobody asks any more."""
        if self._state is AsyncState.WAITING_STEP:
            terminate = terminate or not self._answered()
            self._state = AsyncState.DEFAULT
        super().close_extras(timeout, terminate)

    def _answered(self) -> bool:
        """Whether the step under way came to an end in time, be it with an error."""
        try:
            self.step_wait(PATIENCE)
        except ReverieError:
            return True
        except multiprocessing.TimeoutError:
            return False
        return True


def _worker(index: int, make: Callable[[], FlatEnv], pipe: Connection, *rest: Any) -> None:
    """Gymnasium's worker, but Ctrl-C is the parent's to handle, and an environment that cannot be made says why."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(ONE_THREAD)  # for libraries that a server of an earlier time has not loaded yet
    try:
        env = make()
    except Exception as error:
        pipe.recv()  # the parent asks first
        errors = rest[2]
        errors.put((index, EnvError, f"worker {index}: {error}", ""))
        pipe.send((None, False))
        return
    _async_worker(index, lambda: env, pipe, *rest)


def lost(envs: AsyncVectorEnv) -> EnvError:
    """The error for a worker that ended without a word; the other workers are ended too."""
    wait([process.sentinel for process in envs.processes], timeout=5)
    dead = [(number, p.exitcode) for number, p in enumerate(envs.processes) if not p.is_alive()]
    number, code = dead[0] if dead else (None, None)
    end(envs)
    return EnvError(
        f"the worker process of environment {number} died (exit code {code}); what it printed is above. If it died at "
        'its start: a script that makes worker processes must do so under `if __name__ == "__main__":`, or use '
        "start_method='fork'. A code of -9 usually means that memory ran out."
    )


def end(envs: SyncVectorEnv | AsyncVectorEnv) -> None:
    """End what is left of a vector of environments, without asking them."""
    for process in getattr(envs, "processes", []):
        process.terminate()
        process.join()
    envs.closed = True
