"""Restarts of failed environments: how many, when, and with which seeds."""

from __future__ import annotations

import contextlib
import pickle
import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from reverie.core.errors import EnvError, ReverieError
from reverie.core.logger import logger
from reverie.envs.slot import EnvSpecs, Failed, Slot

LONGEST_WAIT = 60.0


def derive_seeds(seed: int, num: int) -> list[int]:
    """Return ``num`` independent seeds of 31 bits, a function of ``seed``."""
    return [int(word) >> 1 for word in np.random.SeedSequence(seed).generate_state(num)]


def seed_after(seed: int, restarts: int) -> int:
    """Return the seed for restart number ``restarts`` (from 1) of an environment that began with ``seed``."""
    return int(np.random.SeedSequence([seed, restarts]).generate_state(1)[0]) >> 1


class RestartBudget:
    """Tolerates at most ``most`` failures within ``window`` seconds, all environments of a vector together."""

    def __init__(self, most: int, window: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._window, self._clock = most, window, clock
        self._past: deque[tuple[float, int]] = deque()  # time and environment number

    def add(self, number: int, failed: Failed) -> float:
        """Count a failure of environment ``number``; return the seconds to wait before it is started again.

        The first failure of an environment in the window needs no wait, the next ones 1, 2, 4, ... up to 60 seconds.
        """
        now = self._clock()
        while self._past and now - self._past[0][0] >= self._window:
            self._past.popleft()
        before = sum(1 for _, who in self._past if who == number)
        self._past.append((now, number))
        if len(self._past) > self._most:
            raise self._too_many(failed) from failed
        return min(2.0 ** (before - 1), LONGEST_WAIT) if before else 0.0

    def _too_many(self, failed: Failed) -> ReverieError:
        text = f"{failed.error}\n{failed.trace}" if failed.trace else str(failed.error)
        if not self._most:
            return type(failed.error)(text)
        return EnvError(
            f"{len(self._past)} environment failures within {self._past[-1][0] - self._past[0][0]:.0f} seconds: at "
            f"most env.restarts = {self._most} are allowed within env.restart_window = {self._window:g} seconds. Mend "
            f"the environment, or allow more with --env.restarts. The last failure: {text}"
        )


class Restarter:
    """Restarts failed environments of ``slots`` as often as ``budget`` allows; each must have the specs ``made``."""

    def __init__(self, slots: Sequence[Slot], made: EnvSpecs, seeds: list[int], budget: RestartBudget) -> None:
        self.count: int = 0
        """Number of restarts since this object was made."""
        self.has_stepped: list[bool] = [False] * len(slots)
        self.made = made
        self._slots, self._budget, self._sleep = slots, budget, time.sleep
        self.seeded(seeds)

    def seeded(self, seeds: list[int]) -> None:
        """Note that the environments begin anew with ``seeds``."""
        self.seeds: list[int] = list(seeds)
        self._tries = [0] * len(seeds)

    def again(self, number: int, failed: Failed) -> None:
        """Restart environment ``number``, which has ``failed``, until it shows the first row of an episode."""
        while True:
            seconds = self._budget.add(number, failed)
            if not self.has_stepped[number]:  # more likely a mistake in it than bad luck, which nobody should wait for
                seconds = min(seconds, 1.0)
            waiting = f" in {seconds:g} seconds" if seconds else ""
            logger.warning(f"restarting a failed environment{waiting}: {failed.error}")
            self._slots[number].stop()
            if seconds:
                self._sleep(seconds)
            self.count += 1
            try:
                return self._start(number)
            except Failed as failure:
                failed = failure

    def _start(self, number: int) -> None:
        slot = self._slots[number]
        self._tries[number] += 1
        slot.start()
        if slot.receive() != self.made:
            raise Failed(EnvError("the restarted environment has different spaces than before."))
        slot.send("reset", seed_after(self.seeds[number], self._tries[number]))
        slot.receive()

    def signed(self, number: int, ended: bool, state: bytes | None) -> bytes | None:
        """Return the ``state`` of environment ``number`` with its ``ended``, seed and number of restarts."""
        return None if state is None else pickle.dumps((ended, self.seeds[number], self._tries[number], state))

    def restore(self, number: int, snapshot: bytes, ended: bool) -> str:
        """Let environment ``number`` go on from ``snapshot``; return "", or why it cannot be used.

        An environment that fails is made anew and seeded as after a restart.
        """
        slot = self._slots[number]
        then, seed, tries, state = pickle.loads(snapshot)
        if then != ended:
            return "it was taken at a different row"
        why, failure = "", None
        try:
            slot.send("restore", state)
            why = slot.receive()
        except Failed as failed:
            failure = failed
        if not why:
            self.seeds[number], self._tries[number] = seed, tries
        if failure is not None:
            slot.stop()
            with contextlib.suppress(Failed):  # its next step raises it again
                self._start(number)
        return str(failure or why)
