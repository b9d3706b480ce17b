"""How the environments of a vector are started: all of them at first, and a failed one again."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable

import numpy as np

from reverie.core.errors import ConfigError, EnvError
from reverie.core.signature import differences, signature
from reverie.core.words import Say
from reverie.envs import worker
from reverie.envs.base import EnvConfig
from reverie.envs.failures import Failures
from reverie.envs.slot import Failed, LocalSlot, Made, Maker, Slot

Started = tuple[list[Slot], Made, dict[str, np.ndarray]]
"""The slots, the specs of their environments, and the arrays of observations by key, ``[N, *shape]``."""


def derive_seeds(seed: int, num: int) -> list[int]:
    """Return ``num`` independent seeds of 31 bits, a function of ``seed``.

    Raises:
        ConfigError: ``seed`` is negative.
    """
    if seed < 0:
        raise ConfigError(f"seed = {seed}: expected at least 0.")
    return [int(word) >> 1 for word in np.random.SeedSequence(seed).generate_state(num)]


def seed_after(seed: int, restarts: int) -> int:
    """Return the seed for restart number ``restarts`` (from 1) of an environment that began with ``seed``."""
    return int(np.random.SeedSequence([seed, restarts]).generate_state(1)[0]) >> 1


def start_serial(config: EnvConfig, makers: list[Maker], instance: bool) -> Started:
    """Start environments in this process. ``instance``: it is a single one, which stays open between restarts.

    Raises:
        EnvError: one cannot be made, they have different spaces, or two are the same object.
    """
    slots = [LocalSlot(number, make, config.timeout, keep=instance) for number, make in enumerate(makers)]
    made = _made(config, list(slots))
    if len({id(slot.inside.env.unwrapped) for slot in slots if slot.inside}) < len(makers):
        worker.close(slots)
        raise EnvError(
            f"the environment factory returned the same environment twice, but env.num = {len(makers)}. "
            "Create a new environment in each call."
        )
    arrays = {key: np.zeros((len(makers), *part.shape), part.dtype) for key, part in made.obs_spec.items()}
    for number, slot in enumerate(slots):
        slot.rows.update({key: array[number, ...] for key, array in arrays.items()})
    return list(slots), made, arrays


def start_workers(config: EnvConfig, makers: list[Maker]) -> Started:
    """Start environments in worker processes, one each.

    Raises:
        ConfigError: this system does not have the start method.
        EnvError: one cannot be made, or they have different spaces.
    """
    slots, arrays = worker.workers(config.start_method, makers, config.timeout)
    return slots, _made(config, slots), arrays


def _made(config: EnvConfig, slots: list[Slot]) -> Made:
    """Start all ``slots`` and return their specs, which must be the same."""
    try:
        for slot in slots:
            slot.start()
        made: list[Made] = [slot.receive() for slot in slots]
    except Failed as failed:
        worker.close(slots)
        raise failed.error from failed
    except BaseException:  # such as Ctrl-C
        worker.kill(slots)
        raise
    for number, each in enumerate(made):
        if found := differences(signature(*made[0]), signature(*each), ("environment 0", f"environment {number}")):
            worker.close(slots)
            raise EnvError(f"the environments have different spaces: {'; '.join(found)}.")
    return made[0]


class Restarts:
    """Restarts failed environments of ``slots`` as often as ``failures`` allows; each must have the specs ``made``.

    ``count`` is the number of restarts since this object was made.
    """

    def __init__(
        self,
        slots: list[Slot],
        made: Made,
        seeds: list[int],
        failures: Failures,
        say: Say,
        sleep: Callable[[float], None],
    ) -> None:
        self.count = 0
        self.lived = [False] * len(slots)  # which have taken at least one step
        self._slots, self._made, self._failures, self._say, self._sleep = slots, made, failures, say, sleep
        self.seeded(seeds)

    def seeded(self, seeds: list[int]) -> None:
        """Note that the environments begin anew with ``seeds``."""
        self._seeds, self._tries = list(seeds), [0] * len(seeds)

    def again(self, number: int, failed: Failed) -> None:
        """Restart environment ``number``, which has ``failed``, until it shows the first row of an episode.

        Raises:
            EnvError, DataError: there were more failures than are tolerated.
        """
        slot = self._slots[number]
        while True:
            seconds = self._failures.add(number, failed)
            if not self.lived[number]:  # more likely a mistake in it than bad luck, which nobody should wait for
                seconds = min(seconds, 1.0)
            waiting = f" in {seconds:g} seconds" if seconds else ""
            self._say(f"restarting a failed environment{waiting}: {failed.error}")
            slot.stop()
            if seconds:
                self._sleep(seconds)
            self._tries[number] += 1
            self.count += 1
            try:
                self._start(slot, seed_after(self._seeds[number], self._tries[number]))
                return
            except Failed as failure:
                failed = failure

    def _start(self, slot: Slot, seed: int) -> None:
        slot.start()
        if slot.receive() != self._made:
            raise Failed(EnvError("the restarted environment has different spaces than before."))
        slot.send("reset", seed)
        slot.receive()

    def signed(self, number: int, ended: bool, inside: bytes | None) -> bytes | None:
        """Return the snapshot ``inside`` of environment ``number`` with its ``ended``, seed and number of restarts."""
        return None if inside is None else pickle.dumps((ended, self._seeds[number], self._tries[number], inside))

    def restore(self, number: int, snapshot: bytes, ended: bool) -> str:
        """Let environment ``number`` go on from ``snapshot``; return "", or why it cannot be used.

        An environment that fails is made anew and seeded as after a restart.
        """
        slot = self._slots[number]
        try:
            then, seed, tries, inside = pickle.loads(snapshot)
        except Exception as error:
            return f"it cannot be read ({type(error).__name__}: {error})"
        if then != ended:
            return "it was taken at a different row"
        try:
            slot.send("restore", inside)
            why: str = slot.receive()
        except Failed as failed:
            self._seeds[number], self._tries[number] = seed, tries + 1
            slot.stop()
            with contextlib.suppress(Failed):  # its next step raises it again
                self._start(slot, seed_after(seed, tries + 1))
            return str(failed)
        if not why:
            self._seeds[number], self._tries[number] = seed, tries
        return why
