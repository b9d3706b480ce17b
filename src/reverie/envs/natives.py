"""State of emulators and simulators that pickle cannot save completely: Atari and MuJoCo.

Their packages are not imported here: values are recognised by the names of their classes.
"""

from __future__ import annotations

import hashlib
import math
import pickle
import sys
from typing import Any, Protocol

FORGOTTEN = 1e-12
"""Tolerated probability that the last action of an Atari emulator is still being repeated."""


class Native(Protocol):
    """Saves the state of one kind of object as bytes, and loads it into a new one."""

    def save(self, value: Any) -> bytes:
        """Return the state of ``value``, which goes on as if nothing had happened."""

    def load(self, value: Any, state: bytes) -> None:
        """Load ``state`` into the new ``value``."""


def find(value: object) -> Native | None:
    """Return how to save the state of ``value``; None if pickle can."""
    kind = type(value)
    return KINDS.get((kind.__module__.split(".")[0], kind.__name__))


class _Atari:
    """The emulator of the Arcade Learning Environment (ALE).

    Its saved state lacks the last action, which sticky actions repeat. That action is found by trial: it is repeated
    from here on until the random generator (part of the state) first lets another action through. Every candidate after
    which the emulator reaches the same state as the original is the last action, or is equivalent to it.
    """

    def save(self, value: Any) -> bytes:
        state, frames, action = value.cloneState(include_rng=True), self._frames(value), 0
        if frames and not value.game_over():
            after = self._after(value, frames)
            value.restoreState(state)
            action = self._last_action(value, state, frames, after)
            self._give(value, state, action, frames)
        return pickle.dumps((state, action))

    def load(self, value: Any, state: bytes) -> None:
        saved, action = pickle.loads(state)
        value.reset_game()
        self._give(value, saved, action, self._frames(value))

    def _frames(self, ale: Any) -> int:
        """Return the number of frames after which a new action has almost surely replaced the last one."""
        sticky = ale.getFloat("repeat_action_probability")
        return math.ceil(math.log(FORGOTTEN) / math.log(sticky)) if sticky > 0.0 else 0

    def _last_action(self, ale: Any, state: Any, frames: int, after: bytes) -> int:
        for action in range(len(ale.getLegalActionSet())):
            self._give(ale, state, action, frames)
            if self._after(ale, frames) == after:
                return action
        ale.restoreState(state)
        raise ValueError("no action reproduces the next state of the emulator")

    def _give(self, ale: Any, state: Any, action: int, frames: int) -> None:
        """Put the emulator in ``state``, with ``action`` as its last action."""
        if frames:
            ale.reset_game()
            for _ in range(frames):
                ale.act(action)
        ale.restoreState(state)

    def _after(self, ale: Any, frames: int) -> bytes:
        for _ in range(frames):
            ale.act(0)
        return pickle.dumps(ale.cloneState(include_rng=True))


class _MujocoData:
    """MuJoCo's data, including derived fields: contact forces of the last step are used in the next."""

    def save(self, value: Any) -> bytes:
        return pickle.dumps(value)

    def load(self, value: Any, state: bytes) -> None:
        sys.modules["mujoco"].mj_copyData(value, value.model, pickle.loads(state))


class _MujocoModel:
    """MuJoCo's model: only its hash is saved, as a new environment has the same model unless somebody changed it."""

    def save(self, value: Any) -> bytes:
        return hashlib.sha256(pickle.dumps(value)).digest()

    def load(self, value: Any, state: bytes) -> None:
        if self.save(value) != state:
            raise ValueError("the MuJoCo model differs from the saved one")


KINDS: dict[tuple[str, str], Native] = {
    ("ale_py", "ALEInterface"): _Atari(),
    ("mujoco", "MjData"): _MujocoData(),
    ("mujoco", "MjModel"): _MujocoModel(),
}
