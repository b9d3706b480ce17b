"""The slot of one environment in a vector: it gets requests, answers or fails, and can be started again.

This file must not import torch: it is imported in worker processes.
"""

from __future__ import annotations

import contextlib
import random
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from reverie.core.errors import EnvError, ReverieError
from reverie.core.specs import ActionSpec, ObsPart
from reverie.envs import answers, flat, timeout
from reverie.envs.episode_info import Logged
from reverie.envs.flat import FlatEnv
from reverie.envs.snapshot import put, take
from reverie.envs.timeout import ALARM, Overdue
from reverie.envs.undisturbed import generator_kept, handlers_kept

Rows = Mapping[str, np.ndarray]
Maker = Callable[[], FlatEnv]


class Made(NamedTuple):
    """The specs of a new environment."""

    obs_spec: dict[str, ObsPart]
    action_spec: ActionSpec


class Failed(Exception):
    """An environment failed: the ``error`` to report, and the environment's own traceback, empty if there is none."""

    def __init__(self, error: ReverieError, trace: str = "") -> None:
        super().__init__(str(error))
        self.error, self.trace = error, trace


class Slot(Protocol):
    """One environment of a vector. Each ``start`` and ``send`` is followed by one ``receive``.

    After a failure every ``receive`` raises it again, until the environment is started again.
    """

    rows: dict[str, np.ndarray]
    """Arrays that its observations are written to, each ``[*shape]``; empty for a worker, which writes itself."""

    def start(self) -> None:
        """Begin to make the environment; ``receive`` then returns ``Made``."""
        ...

    def send(self, what: str, *args: Any) -> None:
        """Call the method ``what`` of ``Inside``."""
        ...

    def receive(self) -> Any:
        """Return the result of the last ``start`` or ``send``.

        Raises:
            Failed: the environment raised, died, or took too long.
        """
        ...

    def stop(self, last: bool = False) -> None:
        """Remove the environment, whatever its state. May be called twice. ``last``: it will not be started again."""
        ...


class Inside:
    """The methods that a slot can call, in the process where its environment lives.

    ``alone``: the process has no other purpose, so that the global generators of Python and NumPy belong to the
    environment.
    """

    def __init__(self, env: FlatEnv, rows: Rows, alone: bool) -> None:
        self.env, self._rows, self._alone = env, rows, alone

    def made(self) -> Made:
        """Return the environment's specs."""
        return Made(self.env.obs_spec, self.env.action_spec)

    def reset(self, seed: int | None) -> tuple[float, bool, bool]:
        """Start an episode; return reward 0, terminated and truncated. If ``alone``, also seed global generators."""
        if self._alone and seed is not None:
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002 - third-party environments draw from it
        obs, _ = self.env.reset(seed=seed)
        for key, array in obs.items():
            self._rows[key][...] = array
        return 0.0, False, False

    def step(self, action: np.ndarray) -> tuple[float, bool, bool]:
        """Take ``action`` ``[A]``; return reward, terminated, truncated. The observation is written to ``rows``."""
        obs, reward, terminated, truncated, _ = self.env.step(action)
        for key, array in obs.items():
            self._rows[key][...] = array
        return reward, terminated, truncated

    def logged(self) -> Logged:
        """Return the numbers to log of the episode that has just ended."""
        return self.env.logged()

    def frame(self) -> np.ndarray | None:
        """Return a rendering, uint8 ``[H, W, 3]``, or None."""
        return self.env.frame()

    def snapshot(self) -> bytes | None:
        """Return everything the environment needs to go on; None if it cannot be saved."""
        # Environments that call np.random.rand() draw from the legacy generator.
        shared = (random.getstate(), np.random.get_state()) if self._alone else None  # noqa: NPY002
        return take(self.env, shared)

    def restore(self, snapshot: bytes) -> str:
        """Go on from ``snapshot``; return "", or why it cannot be used.

        Raises:
            EnvError: it does not fit, and the environment is left half restored.
        """
        shared, why = put(self.env, snapshot)
        if not why and self._alone and shared is not None:
            random.setstate(shared[0])
            np.random.set_state(shared[1])  # noqa: NPY002
        return why


class LocalSlot:
    """An environment in this process. ``send`` does the work at once."""

    def __init__(self, number: int, make: Maker, timeout: float, keep: bool) -> None:
        """``keep``: ``make`` always returns the same environment, which must stay open to be started again."""
        self._number, self._starts = number, 0
        self.rows: dict[str, np.ndarray] = {}
        self.inside: Inside | None = None
        self._make, self._timeout, self._keep = make, timeout, keep
        self._failed: Failed | None = None
        self._answer: Any = None

    def start(self) -> None:
        """Make the environment."""
        self._failed = None
        self._answer = self._limited(self._made)

    def _made(self) -> Made:
        self._starts += 1
        # At first nothing handles signals yet.
        again = handlers_kept() if self._starts > 1 else contextlib.nullcontext()
        with again, generator_kept("start", self._number, self._starts):
            self.inside = Inside(self._make(), self.rows, alone=False)
        return self.inside.made()

    def send(self, what: str, *args: Any) -> None:
        """Call the method; keep its result or failure for ``receive``."""
        if self._failed is None:
            call = self._reset if what == "reset" else getattr(self.inside, what)
            self._answer = self._limited(call, *args)

    def _reset(self, seed: int | None) -> Any:
        assert self.inside is not None
        with handlers_kept(), generator_kept("reset", self._number, self.inside.env.episode):
            return self.inside.reset(seed)

    def receive(self) -> Any:
        """Return the result of the last ``start`` or ``send``, or raise its ``Failed``."""
        if self._failed is not None:
            raise self._failed
        return self._answer

    def _limited(self, call: Callable[..., Any], *args: Any) -> Any:
        try:
            before = ALARM.begin(self._timeout)
            try:
                return call(*args)
            finally:
                ALARM.end(before)
        except ReverieError as error:
            self._failed = Failed(error, trace_of(error))
        except SystemExit as error:
            self._failed = Failed(EnvError(f"an environment called sys.exit({error.code!r})"), trace_of(error))
        except Overdue as error:
            self._failed = Failed(EnvError(f"an environment timed out: {error}"), trace_of(error))

    def stop(self, last: bool = False) -> None:
        """Close the environment, unless it must stay open to be started again."""
        inside, self.inside = self.inside, None
        if inside is not None and (last or not self._keep):
            with contextlib.suppress(Exception, Overdue):
                before = ALARM.begin(self._timeout)
                try:
                    inside.env.close()
                finally:
                    ALARM.end(before)


def trace_of(error: BaseException) -> str:
    """Return the traceback of an environment's error, without our own frames; "" if we raised the error ourselves."""
    cause = error.__cause__ or error
    if isinstance(cause, ReverieError):
        return ""
    frames = [f for f in traceback.extract_tb(cause.__traceback__) if f.filename not in OURS]
    lines = [*traceback.format_list(frames), *traceback.format_exception_only(cause)]
    return "Traceback (most recent call last):\n" + "".join(lines).rstrip()


OURS = (__file__, answers.__file__, flat.__file__, timeout.__file__)
