"""The slot of one environment in a vector: takes requests, answers or fails, and can be restarted after a crash."""

from __future__ import annotations

import contextlib
import pickle
import random
import re
import sys
import time
import traceback
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np

from reverie.core.errors import DataError, EnvError, ReverieError
from reverie.core.logger import logger
from reverie.core.specs import ActionSpec, ObsPart
from reverie.envs import flat_env, wrappers
from reverie.envs.flat_env import FlatEnv
from reverie.envs.limits import DeclaredBounds
from reverie.envs.make import ChangedError
from reverie.envs.snapshot import load_state, save_state

Maker = Callable[[], FlatEnv]
CLOSE_SECONDS = 5.0
"""Seconds for workers to finish their work when they are closed, before they are killed."""
LONGEST_WAIT = 60.0
FIRST_ATTEMPTS, SAME_FAILURES = 5, 3
"""Consecutive failures that end restarts: before the first step; with the same error."""
CHECK_ADVICE = "Check the environment with `reverie check-env`, in Python reverie.check_env"


class EnvSpecs(NamedTuple):
    """The specs of a new environment, and its declared limits."""

    obs_spec: dict[str, ObsPart]
    action_spec: ActionSpec
    bounds: dict[str, DeclaredBounds]
    max_episode_steps: int | None
    """Maximum episode length that it declares."""
    frames_per_action: int
    """The frame skip of the environment is counted."""
    packages: dict[str, str]
    """Versions of its packages."""


class EnvFailure(Exception):
    """An environment failed: the ``error`` to report, and the environment's own traceback, or ""."""

    def __init__(self, error: ReverieError, trace: str = "") -> None:
        super().__init__(str(error))
        self.error = error
        self.trace = trace


class Slot:
    """One environment of a vector, in this process: ``send`` does the work at once, but ``receive`` takes the steps.

    A GPU makes its updates during a step, since they are started between the two.
    Each ``start`` and ``send`` is followed by one ``receive``. After a failure every ``receive`` raises it again, until
    the environment is restarted.
    """

    env: FlatEnv
    """Set by ``start``."""

    def __init__(self, number: int, make: Maker, owns_rng: bool = False) -> None:
        """``owns_rng``: the global generators of this process belong to the environment."""
        self._number, self._starts, self._make, self._owns_rng = number, 0, make, owns_rng
        self._preserve_rng: Callable[[object], AbstractContextManager[object]]
        self._preserve_rng = contextlib.nullcontext if owns_rng else preserve_torch_rng
        self.rows: dict[str, np.ndarray] = {}
        """Arrays to which its observations are written, ``[*shape]`` each."""
        self._failed: EnvFailure | None = None
        self._result: Any = None
        self._next_action: np.ndarray | None = None  # of the step to take

    def start(self) -> None:
        """Start making the environment; ``receive`` then returns ``EnvSpecs``."""
        self._failed = None
        self._starts += 1
        self.send("start")

    def send(self, request: str, *args: Any) -> None:
        """Request ``reset(seed)``, ``step(action)``, ``snapshot()``, ``restore(x)``, or a method of ``FlatEnv``."""
        if request == "step":
            self._next_action = args[0]
        elif self._failed is None:
            self._perform_safely(request, *args)

    def _perform_safely(self, request: str, *args: Any) -> None:
        """Perform a request; a failure is raised by ``receive``."""
        try:
            self._result = self._perform(request, *args)
        except ReverieError as error:
            self._failed = EnvFailure(error, _env_traceback(error))

    def _perform(self, request: str, *args: Any) -> Any:
        if request == "step":
            return self.env.step_into(args[0], self.rows)
        if request == "reset":
            if self._owns_rng and args[0] is not None:
                random.seed(args[0])
                np.random.seed(args[0] % 2**32)  # noqa: NPY002 - third-party environments draw from it
            with self._preserve_rng(("reset", self._number, self.env.episode)):
                return self.env.reset_into(args[0], self.rows)
        if request == "start":
            with self._preserve_rng(("start", self._number, self._starts)):
                self.env = self._make()
            env = self.env
            return EnvSpecs(
                env.obs_spec, env.action_spec, env.bounds, env.max_episode_steps, env.frames_per_action, env.packages
            )
        if request == "snapshot":
            generators = (random.getstate(), np.random.get_state())  # noqa: NPY002
            return save_state(self.env, generators if self._owns_rng else None)
        if request == "restore":
            generators, why = load_state(self.env, *args)
            if self._owns_rng and generators is not None:
                random.setstate(generators[0])
                np.random.set_state(generators[1])  # noqa: NPY002
            return why
        return getattr(self.env, request)(*args)

    def receive(self) -> Any:
        """Return the result of the last ``start`` or ``send``, or raise ``EnvFailure``."""
        action, self._next_action = self._next_action, None
        if action is not None and self._failed is None:
            self._perform_safely("step", action)
        if self._failed is not None:
            raise self._failed
        return self._result

    @property
    def executed_action(self) -> np.ndarray:
        """The flat action ``[A]`` of the step just received, if its ``Outcome`` says that it was not the policy's."""
        return self.env.executed_action

    def fail(self, failed: EnvFailure) -> None:
        """Remove the environment; every ``receive`` raises ``failed`` until it is restarted."""
        self.stop()
        self._failed = failed

    def dismiss(self) -> None:
        """Ask the environment to close once its current request is done, without waiting."""

    def stop(self, seconds: float = CLOSE_SECONDS) -> None:
        """Remove the environment within this many ``seconds``. Can be called twice."""
        with contextlib.suppress(Exception, SystemExit):
            self.env.close()


def close(slots: Sequence[Slot], seconds: float = CLOSE_SECONDS) -> None:
    """Close all ``slots`` at the same time; pending answers are dropped."""
    for slot in slots if seconds else ():
        slot.dismiss()
    deadline = time.monotonic() + seconds
    for slot in slots:
        slot.stop(max(0.0, deadline - time.monotonic()))


def _env_traceback(error: BaseException) -> str:
    """Return the traceback of an environment's error, without frames of reverie; "" if reverie raised the error."""
    cause = error.__cause__ or error
    if isinstance(cause, ReverieError):
        return ""
    frames = [f for f in traceback.extract_tb(cause.__traceback__) if f.filename not in LIBRARY_FILES]
    lines = [*traceback.format_list(frames), *traceback.format_exception_only(cause)]
    return "Traceback (most recent call last):\n" + "".join(lines).rstrip()


def _failure_text(failed: EnvFailure) -> str:
    """Return the error of a failure, with the environment's traceback if there is one."""
    return f"{failed.error}\n{failed.trace}" if failed.trace else str(failed.error)


def _failure_key(failed: EnvFailure) -> str:
    """Return text that equal failures share: the traceback, or the invalid value and its step; "" if there is none.

    A worker process that died or timed out has none.
    """
    if failed.trace or not isinstance(failed.error, DataError):
        return failed.trace
    return re.sub(r" of episode \d+", "", str(failed.error))


LIBRARY_FILES = (__file__, flat_env.__file__, wrappers.__file__)


@contextlib.contextmanager
def preserve_torch_rng(name: object) -> Iterator[None]:
    """Restore PyTorch's global CPU generator on exit, in case an environment seeds it.

    Otherwise the learner's random numbers would repeat. Inside, it is seeded with a function of its state and of
    ``name``, so that two resets do not draw the same numbers.
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


# ---------------------------------------------------------------- restarts


def derive_seeds(seed: int, num: int) -> list[int]:
    """Return ``num`` independent seeds of 31 bits, a function of ``seed``."""
    return [int(state_word) >> 1 for state_word in np.random.SeedSequence(seed).generate_state(num)]


def restart_seed(seed: int, restarts: int) -> int:
    """Return the seed for restart number ``restarts`` (from 1) of an environment that started with ``seed``."""
    return int(np.random.SeedSequence([seed, restarts]).generate_state(1)[0]) >> 1


class Restarter:
    """Restarts environments of ``slots`` that crash, hang or return invalid values; each must have ``specs``.

    At most ``max_failures`` failures within ``window`` seconds are tolerated, all environments together. An environment
    is not restarted after ``FIRST_ATTEMPTS`` failures before its first step, or after ``SAME_FAILURES`` equal failures
    without a complete episode in between.
    """

    def __init__(
        self, slots: Sequence[Slot], specs: EnvSpecs, seeds: list[int], max_failures: int, window: float
    ) -> None:
        self.count: int = 0
        """Number of restarts since this object was created."""
        self.has_stepped: list[bool] = [False] * len(seeds)
        """Whether an environment has ever taken a step."""
        self.works: list[bool] = [True] * len(seeds)
        """Whether an environment has taken a step since its last start."""
        self._in_vain = [0] * len(seeds)  # consecutive starts without a step
        self.failures: list[list[str]] = [[] for _ in seeds]
        """Failures of each environment since its last complete episode, as text that equal failures share."""
        self.requests: dict[tuple[str, str], tuple[Any, ...]] = {}
        """The latest request of each name by ``VectorEnv.call`` and ``set_attr``, repeated after a restart."""
        self.retry_at: dict[int, float] = {}
        """Restart time of each environment that is down, by its number, on this object's clock."""
        self.specs = specs
        self._slots, self._max_failures, self._window = slots, max_failures, window
        self._clock, self._sleep = time.monotonic, time.sleep
        self._past: deque[float] = deque()  # times of failures in the window
        self.set_seeds(seeds)

    def set_seeds(self, seeds: list[int]) -> None:
        """Record that the environments start over with ``seeds``."""
        self.seeds: list[int] = list(seeds)
        self._tries = [0] * len(seeds)

    def take_down(self, number: int, failed: EnvFailure) -> None:
        """Remove environment ``number``, which has ``failed``, until its restart.

        EnvError if there are too many failures.
        """
        seconds = self._wait(number, failed)
        waiting = f" in {seconds:g} seconds" if seconds else ""
        logger.warning(f"restarting a failed environment{waiting}: {failed.error}")
        self._slots[number].fail(failed)
        self.retry_at[number] = self._clock() + seconds

    def check_any_works(self, failures: Mapping[int, EnvFailure]) -> None:
        """Raise the first of ``failures`` if each of several environments has failed before any has taken a step."""
        if len(failures) == len(self._slots) > 1 and not any(self.has_stepped):
            failed = failures[0]
            raise type(failed.error)(
                f"all {len(failures)} environments have failed before their first step. {CHECK_ADVICE}. The first "
                f"failure: {_failure_text(failed)}"
            ) from failed

    def restart_due(self) -> None:
        """Restart the environments that are due. Sleeps only while all environments are down."""
        while self.retry_at:
            are_all_down = len(self.retry_at) == len(self._slots)
            if are_all_down and (seconds := min(self.retry_at.values()) - self._clock()) > 0:
                self._sleep(seconds)
            due = [number for number, timestamp in self.retry_at.items() if timestamp <= self._clock()]
            for number in due:
                self._restart(number)
            if not due and not are_all_down:
                return

    def _restart(self, number: int) -> None:
        """Restart environment ``number`` at the first row of an episode; if this fails, it stays down."""
        del self.retry_at[number]
        self.count += 1
        try:
            self._start(number)
        except EnvFailure as failed:
            self.take_down(number, failed)

    def _wait(self, number: int, failed: EnvFailure) -> float:
        """Count a failure of environment ``number``; return the seconds to wait before it is started again.

        Wait only if it fails again before it has taken a step, for 1, 2, 4, ... up to 60 seconds. Never wait if it has
        never taken a step, since there is no observation to repeat.
        """
        if isinstance(failed.error, ChangedError):
            raise failed.error from failed
        timestamp = self._clock()
        while self._past and timestamp - self._past[0] >= self._window:
            self._past.popleft()
        self._past.append(timestamp)
        text = _failure_text(failed)
        if len(self._past) > self._max_failures:
            if not self._max_failures:
                raise type(failed.error)(text) from failed
            raise EnvError(
                f"{len(self._past)} environment failures within {timestamp - self._past[0]:.0f} seconds: at most "
                f"env.restarts = {self._max_failures} are allowed within env.restart_window = {self._window:g} "
                f"seconds. {CHECK_ADVICE}, or allow more restarts with --env.restarts. The last failure: {text}"
            ) from failed
        failures = self.failures[number]
        failures.append(_failure_key(failed))
        if failures[-1] and failures[-SAME_FAILURES:] == [failures[-1]] * SAME_FAILURES:
            raise EnvError(
                f"an environment has failed {SAME_FAILURES} times in a row for the same reason, so it is not restarted "
                f"again. {CHECK_ADVICE}. The last failure: {text}"
            ) from failed
        in_vain = self._in_vain[number] = 0 if self.works[number] else self._in_vain[number] + 1
        self.works[number] = False
        if self.has_stepped[number]:
            return min(2.0 ** (in_vain - 1), LONGEST_WAIT) if in_vain else 0.0
        if in_vain + 1 >= FIRST_ATTEMPTS:
            raise EnvError(
                f"an environment has failed {FIRST_ATTEMPTS} times in a row before its first step, so it is not "
                f"restarted. {CHECK_ADVICE}. The last failure: {text}"
            ) from failed
        return 0.0

    def _start(self, number: int) -> None:
        slot = self._slots[number]
        self._tries[number] += 1
        slot.start()
        if slot.receive()[:2] != self.specs[:2]:
            raise EnvFailure(EnvError("the restarted environment has different spaces than before."))
        for (request, name), args in self.requests.items():
            slot.send(request, name, *args)
            slot.receive()
        slot.send("reset", restart_seed(self.seeds[number], self._tries[number]))
        slot.receive()

    def snapshot(self, number: int, ended: bool, state: bytes | None) -> bytes | None:
        """Return the ``state`` of environment ``number`` with its ``ended``, seed and number of restarts."""
        return None if state is None else pickle.dumps((ended, self.seeds[number], self._tries[number], state))

    def restore(self, number: int, snapshot: bytes, ended: bool) -> str:
        """Restore environment ``number`` from ``snapshot``; return "" or why it cannot.

        If this fails, the environment is made again.
        """
        slot = self._slots[number]
        was_ended, seed, tries, state = pickle.loads(snapshot)
        if was_ended != ended:
            return "it was taken at a different row"
        why = failure = ""
        try:
            slot.send("restore", state)
            why = slot.receive()
        except EnvFailure as failed:
            failure = str(failed)
        if not why:
            self.seeds[number], self._tries[number] = seed, tries
        if failure:
            slot.stop()
            with contextlib.suppress(EnvFailure):  # the next step raises the error again
                self._start(number)
        return failure or why
