"""An environment whose legal actions depend on its state, and that fails where another one is taken."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

SPACES: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(6, start=2),
    "multi_discrete": spaces.MultiDiscrete([3, 4]),
    "dict": spaces.Dict({"move": spaces.Discrete(3), "hands": spaces.MultiBinary(2), "force": spaces.Box(-2, 3, (2,))}),
}
CLASSES: dict[str, dict[str, list[int]]] = {
    "discrete": {"action": [6]}, "multi_discrete": {"action": [3, 4]}, "dict": {"move": [3], "hands": [2, 2]},
}  # fmt: skip
"""Of the choices of each action that has some."""


class Masked(gymnasium.Env[Any, Any]):
    """Legal are, of each choice of c classes, the classes k with (k + place) even, or all if ``everything``."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    place = 0

    def __init__(
        self,
        tell: Literal["info", "method", "observation", "none"] = "info",
        actions: str = "discrete",
        everything: bool = False,
        length: int = 12,
    ) -> None:
        self.tell, self.everything, self.length = tell, everything, length
        self.action_space, self.classes = SPACES[actions], CLASSES[actions]
        board = spaces.Box(-1, 1, (3,), np.float32)
        mask = spaces.Box(0, 1, (self._flat().size,), np.int8)
        told = tell == "observation"
        self.observation_space = spaces.Dict({"observation": board, "action_mask": mask}) if told else board
        if tell == "method":
            self.action_masks = self._structured

    def _legal(self, classes: int) -> np.ndarray:
        return np.array([self.everything or (k + self.place) % 2 == 0 for k in range(classes)], np.int8)

    def _masks(self) -> dict[str, np.ndarray]:
        return {name: np.concatenate([*map(self._legal, counts)]) for name, counts in self.classes.items()}

    def _structured(self) -> Any:
        return self._masks().get("action", self._masks())

    def _flat(self) -> np.ndarray:
        return np.concatenate([*self._masks().values()])

    def _shown(self) -> tuple[Any, dict[str, Any]]:
        board = np.array([self.place % 2, self.place / (self.length + 1), self.target], np.float32)
        obs = {"observation": board, "action_mask": self._flat()} if self.tell == "observation" else board
        return obs, {"action_mask": self._structured()} if self.tell == "info" else {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin at a random place."""
        super().reset(seed=seed)
        self.place, self.steps = int(self.np_random.integers(2)), 0
        self.target = float(self.np_random.integers(2))
        return self._shown()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move on by one place; reward for the highest legal class of the first choice where the target is 1."""
        if isinstance(action, dict):
            taken = [action["move"], *action["hands"]]
        else:
            taken = np.ravel(action) - getattr(self.action_space, "start", 0)
        counts = [classes for several in self.classes.values() for classes in several]
        for index, classes in zip(taken, counts, strict=True):
            if not self._legal(classes)[index]:
                raise ValueError(f"class {index} of {classes} is illegal at place {self.place}")
        best = np.flatnonzero(self._legal(counts[0]))[-1 if self.target else 0]
        self.place, self.steps = self.place + 1, self.steps + 1
        obs, info = self._shown()
        return obs, float(taken[0] == best), self.steps >= self.length, False, info


for _actions in SPACES:
    gymnasium.register(f"Masked-{_actions}-v0", entry_point=Masked, kwargs={"actions": _actions})
