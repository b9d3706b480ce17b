"""Emulators and simulators whose state pickle does not see, or would lose: Atari's, and MuJoCo's.

Nothing of theirs is imported here: what a value is, the name of its class says.
"""

from __future__ import annotations

import hashlib
import math
import pickle
import sys
from collections.abc import Iterator
from typing import Any, Protocol


class Native(Protocol):
    """How the state of one kind of object is had as bytes, and given to a fresh one."""

    def take(self, value: Any) -> bytes:
        """The state of ``value``."""
        ...

    def give(self, value: Any, state: bytes) -> None:
        """Make ``state`` that of the fresh ``value``."""
        ...


def find(value: object) -> Native | None:
    """How the state of ``value`` is had, if it is one of these."""
    kind = type(value)
    return KINDS.get((kind.__module__.split(".")[0], kind.__name__))


class _Atari:
    """The Arcade Learning Environment's emulator.

    Its own state lacks the action that is taken again when the sticky ones strike. It is found by trying: from here
    on, all actions are the last one until the generator (which is part of the state) first lets another through. The
    action after which the emulator is then in the same state is the last one, or as good as that.
    """

    FORGOTTEN = 1e-12  # how probable it may be that the last action is still taken

    def take(self, value: Any) -> bytes:
        state, sticky = value.cloneState(include_rng=True), value.getFloat("repeat_action_probability")
        action = 0
        if sticky > 0.0 and not value.game_over():
            action = self._last_action(value, state, self._frames(sticky))
            self._give(value, state, action, self._frames(sticky))
        return pickle.dumps((state, action))

    def give(self, value: Any, state: bytes) -> None:
        saved, action = pickle.loads(state)
        sticky = value.getFloat("repeat_action_probability")
        value.reset_game()
        self._give(value, saved, action, self._frames(sticky) if sticky > 0.0 else 0)

    def _frames(self, sticky: float) -> int:
        """After how many frames an action that was once sent has surely been taken."""
        if sticky >= 0.9:
            raise ValueError("actions that stick for good cannot be found")
        return math.ceil(math.log(self.FORGOTTEN) / math.log(sticky))

    def _last_action(self, ale: Any, state: Any, frames: int) -> int:
        after = self._after(ale, frames)
        ale.restoreState(state)
        for action in range(len(ale.getLegalActionSet())):
            self._give(ale, state, action, frames)
            if self._after(ale, frames) == after:
                return action
        ale.restoreState(state)
        raise ValueError("no action leads to where the emulator goes on to")

    def _give(self, ale: Any, state: Any, action: int, frames: int) -> None:
        """Be in ``state`` after ``action``."""
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
    """MuJoCo's data: everything, with what is derived, since the last step's contact forces are seen in the next."""

    def take(self, value: Any) -> bytes:
        return pickle.dumps(value)

    def give(self, value: Any, state: bytes) -> None:
        sys.modules["mujoco"].mj_copyData(value, value.model, pickle.loads(state))


class _MujocoModel:
    """MuJoCo's model, which is the same in the fresh environment unless somebody has changed it."""

    def take(self, value: Any) -> bytes:
        return hashlib.sha256(pickle.dumps(value)).digest()

    def give(self, value: Any, state: bytes) -> None:
        if self.take(value) != state:
            raise ValueError("its MuJoCo model was changed after it was made")


def _kinds() -> Iterator[tuple[tuple[str, str], Native]]:
    yield ("ale_py", "ALEInterface"), _Atari()
    yield ("mujoco", "MjData"), _MujocoData()
    yield ("mujoco", "MjModel"), _MujocoModel()


KINDS: dict[tuple[str, str], Native] = dict(_kinds())
