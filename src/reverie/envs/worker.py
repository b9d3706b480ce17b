"""Environments in worker processes: how they start, and what is said when one dies.

This file must not import torch: each worker would spend seconds and hundreds of megabytes on it.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.async_vector_env import _async_worker

from reverie.core.errors import ConfigError, EnvError
from reverie.envs.flat import FlatEnv


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
    return _Workers(
        makers,
        copy=False,
        autoreset_mode=AutoresetMode.NEXT_STEP,
        context=method,
        worker=_worker,  # type: ignore[arg-type]  # Gymnasium hands over eight arguments and declares six
    )


class _Workers(AsyncVectorEnv):
    """Gymnasium's worker processes; one that dies at its start is named."""

    def _check_spaces(self) -> None:
        try:
            super()._check_spaces()  # type: ignore[no-untyped-call]  # Gymnasium's own
        except (EOFError, OSError) as error:
            raise lost(self) from error
        except Exception:
            end(self)
            raise


def _worker(index: int, make: Callable[[], FlatEnv], pipe: Connection, *rest: Any) -> None:
    """Gymnasium's worker, but Ctrl-C is the parent's to handle, and an environment that cannot be made says why."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
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
