"""The slot of one environment in a vector: it gets requests, answers or fails, and can be started again."""

from __future__ import annotations

import contextlib
import sys
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import numpy as np

from reverie.core.errors import ReverieError
from reverie.core.specs import ActionSpec, ObsPart
from reverie.envs import flat, wrappers
from reverie.envs.flat import FlatEnv
from reverie.envs.snapshot import load_state, save_state

Maker = Callable[[], FlatEnv]
PATIENCE = 5.0
"""Seconds that workers have to finish what they are doing when they are closed, before they are killed."""


class EnvSpecs(NamedTuple):
    """The specs of a new environment."""

    obs_spec: dict[str, ObsPart]
    action_spec: ActionSpec


class Failed(Exception):
    """An environment failed: the ``error`` to report, and the environment's own traceback, empty if there is none."""

    def __init__(self, error: ReverieError, trace: str = "") -> None:
        super().__init__(str(error))
        self.error = error
        self.trace = trace


class Slot(Protocol):
    """One environment of a vector. Each ``start`` and ``send`` is followed by one ``receive``.

    After a failure every ``receive`` raises it again, until the environment is started again.
    """

    def start(self) -> None:
        """Begin to make the environment; ``receive`` then returns ``EnvSpecs``."""

    def send(self, what: str, *args: Any) -> None:
        """Request ``reset(seed)``, ``step(action)``, ``logged()``, ``frame()``, ``snapshot()`` or ``restore(x)``."""

    def receive(self) -> Any:
        """Return the result of the last ``start`` or ``send``, or raise ``Failed``."""

    def dismiss(self) -> None:
        """Ask the environment to end once its current request is done, without waiting."""

    def stop(self, seconds: float = PATIENCE) -> None:
        """Remove the environment, at the latest in so many ``seconds``. May be called twice."""


class LocalSlot:
    """An environment in this process. ``send`` does the work at once."""

    env: FlatEnv
    """Set by ``start``."""

    def __init__(self, number: int, make: Maker) -> None:
        self._number, self._starts, self._make = number, 0, make
        self.rows: dict[str, np.ndarray] = {}
        """Arrays that its observations are written to, each ``[*shape]``."""
        self._failed: Failed | None = None
        self._result: Any = None

    def start(self) -> None:
        self._failed = None
        self._starts += 1
        self._try("start", ())

    def send(self, what: str, *args: Any) -> None:
        """Do what is requested; keep its result or failure for ``receive``."""
        if self._failed is None:
            self._try(what, args)

    def _try(self, what: str, args: tuple[Any, ...]) -> None:
        try:
            self._result = self._perform(what, args)
        except ReverieError as error:
            self._failed = Failed(error, trace_of(error))

    def _perform(self, what: str, args: tuple[Any, ...]) -> Any:
        if what == "step":
            return self.env.step_into(args[0], self.rows)
        if what == "reset":
            with self._kept(("reset", self._number, self.env.episode)):
                return self.env.reset_into(args[0], self.rows)
        if what == "start":
            with self._kept(("start", self._number, self._starts)):
                self.env = self._make()
            return EnvSpecs(self.env.obs_spec, self.env.action_spec)
        if what == "snapshot":
            return save_state(self.env)
        return load_state(self.env, *args)[1] if what == "restore" else getattr(self.env, what)()

    @staticmethod
    def _kept(name: object) -> AbstractContextManager[None]:
        return generator_kept(name)

    def receive(self) -> Any:
        if self._failed is not None:
            raise self._failed
        return self._result

    def dismiss(self) -> None:
        """Do nothing."""

    def stop(self, seconds: float = PATIENCE) -> None:
        with contextlib.suppress(Exception):
            self.env.close()


def close(slots: Sequence[Slot], seconds: float = PATIENCE) -> None:
    """Close all ``slots`` at the same time; answers that are due are dropped."""
    for slot in slots if seconds else ():
        slot.dismiss()
    deadline = time.monotonic() + seconds
    for slot in slots:
        slot.stop(max(0.0, deadline - time.monotonic()))


def trace_of(error: BaseException) -> str:
    """Return the traceback of an environment's error, without our own frames; "" if we raised the error ourselves."""
    cause = error.__cause__ or error
    if isinstance(cause, ReverieError):
        return ""
    frames = [f for f in traceback.extract_tb(cause.__traceback__) if f.filename not in OURS]
    lines = [*traceback.format_list(frames), *traceback.format_exception_only(cause)]
    return "Traceback (most recent call last):\n" + "".join(lines).rstrip()


OURS = (__file__, flat.__file__, wrappers.__file__)


@contextlib.contextmanager
def generator_kept(name: object) -> Iterator[None]:
    """Put PyTorch's global CPU generator back: seeded by an environment, it would repeat the learner's random numbers.

    Inside, it is seeded with a function of its state and of ``name``: otherwise two resets would draw the same.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(zlib.crc32(repr(name).encode(), zlib.crc32(before.numpy())))
    try:
        yield
    finally:
        torch.set_rng_state(before)
