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


class Masked(gymnasium.Env[Any, Any]):
    """Legal are, of each choice of c classes, the classes k with (k + place) even, or all if ``everything``."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(
        self,
        tell: Literal["info", "method", "observation", "none"] = "info",
        actions: str = "discrete",
        everything: bool = False,
        length: int = 12,
    ) -> None:
        self.tell, self.everything, self.length = tell, everything, length
        self.action_space = SPACES[actions]
        board = spaces.Box(-1, 1, (3,), np.float32)
        self.observation_space = board
        if tell == "observation":
            self.observation_space = spaces.Dict(
                {"observation": board, "action_mask": spaces.Box(0, 1, (self._flat().size,), np.int8)}
            )
        if tell == "method":
            self.action_masks = self._structured

    def _choices(self) -> dict[str, list[int]]:
        space = self.action_space
        if isinstance(space, spaces.Discrete):
            return {"action": [int(space.n)]}
        if isinstance(space, spaces.MultiDiscrete):
            return {"action": space.nvec.tolist()}
        return {"move": [3], "hands": [2, 2]}

    def _legal(self, classes: int) -> np.ndarray:
        return np.ones(classes, np.int8) if self.everything else (np.arange(classes) + self.place) % 2 == 0

    def _structured(self) -> Any:
        masks = {key: [self._legal(c).astype(np.int8) for c in counts] for key, counts in self._choices().items()}
        if "action" in masks:
            return np.concatenate(masks["action"])
        return {"move": masks["move"][0], "hands": np.concatenate(masks["hands"])}

    place = 0

    def _flat(self) -> np.ndarray:
        return np.concatenate([self._legal(c) for counts in self._choices().values() for c in counts]).astype(np.int8)

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
        space = self.action_space
        if isinstance(space, spaces.Dict):
            taken = [(int(action["move"]), 3), *((int(bit), 2) for bit in action["hands"])]
        elif isinstance(space, spaces.Discrete):
            taken = [(int(action) - int(space.start), int(space.n))]
        else:
            taken = list(zip(action.tolist(), space.nvec.tolist(), strict=True))
        for index, classes in taken:
            if not self._legal(classes)[index]:
                raise ValueError(f"class {index} of {classes} is illegal at place {self.place}")
        first, classes = taken[0]
        best = int(np.flatnonzero(self._legal(classes))[-1 if self.target else 0])
        self.place, self.steps = self.place + 1, self.steps + 1
        obs, info = self._shown()
        return obs, float(first == best), self.steps >= self.length, False, info


for _actions in SPACES:
    gymnasium.register(f"Masked-{_actions}-v0", entry_point=Masked, kwargs={"actions": _actions})
