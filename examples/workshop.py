"""A workshop: what can be made depends on what is there, which a mask tells, a penalty, or nothing."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

ITEMS = ("wood", "plank", "stick", "stone", "table", "pickaxe", "furnace", "gem")
ROOM = (2, 3, 2, 2, 1, 1, 1, 1)
"""How many of each item fit into the workshop."""
RECIPES: tuple[tuple[str, dict[str, int], dict[str, int]], ...] = (
    ("wood", {}, {}),
    ("plank", {"wood": 1}, {}),
    ("stick", {"plank": 1}, {}),
    ("table", {"plank": 2}, {}),
    ("pickaxe", {"stick": 1, "plank": 1}, {"table": 1}),
    ("stone", {}, {"pickaxe": 1}),
    ("furnace", {"stone": 1}, {"table": 1, "stone": 2}),
    ("gem", {"stone": 1, "wood": 1}, {"furnace": 1}),
    ("", {"wood": 1}, {}),
    ("", {"plank": 1}, {}),
    ("", {"stick": 1}, {}),
    ("", {"stone": 1}, {}),
)
"""Of each action: the item made (none: things are thrown away), what it takes, and what must be there beside that."""
LENGTH = 40
BEST = float(len(ITEMS))


class Workshop(gymnasium.Env[np.ndarray, int]):
    """The first of each item is worth 1. A gem takes 16 actions at least, and ends the episode; so do 40 actions.

    ``tell``: what is told of illegal actions, which change nothing. ``mask``: which they are, in the info; ``penalty``:
    each costs 0.1; ``nothing``.
    """

    observation_space = gymnasium.spaces.Box(0, 1, (2 * len(ITEMS) + 1,), np.float32)
    action_space = gymnasium.spaces.Discrete(len(RECIPES))

    def __init__(self, tell: str = "mask") -> None:
        self.tell = tell

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.there, self.made, self.time = dict.fromkeys(ITEMS, 0), set[str](), 0
        return self.seen(), self.info()

    def legal(self, action: int) -> bool:
        """Return whether ``action`` can be taken now."""
        item, takes, needs = RECIPES[action]
        enough = all(self.there[name] >= max(takes.get(name, 0), needs.get(name, 0)) for name in takes | needs)
        return enough and (not item or self.there[item] < ROOM[ITEMS.index(item)])

    def info(self) -> dict[str, Any]:
        """Return the info: with ``mask``, the legal actions."""
        flags = np.array([self.legal(action) for action in range(len(RECIPES))], np.int8)
        return {"action_mask": flags} if self.tell == "mask" else {}

    def seen(self) -> np.ndarray:
        """Return what is there, what was made before, and the time, all in 0..1."""
        there = [self.there[name] / room for name, room in zip(ITEMS, ROOM, strict=True)]
        return np.array([*there, *(name in self.made for name in ITEMS), self.time / LENGTH], np.float32)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.time += 1
        reward = 0.0
        if self.legal(int(action)):
            item, takes, _ = RECIPES[int(action)]
            for name, count in takes.items():
                self.there[name] -= count
            if item:
                self.there[item] += 1
                reward = float(item not in self.made)
                self.made.add(item)
        elif self.tell == "mask":
            raise ValueError(f"action {action} is illegal")
        else:
            reward = -0.1 if self.tell == "penalty" else 0.0
        return self.seen(), reward, "gem" in self.made, self.time >= LENGTH, self.info()


for _tell in ("mask", "penalty", "nothing"):
    gymnasium.register(f"Workshop-{_tell}-v0", entry_point=Workshop, kwargs={"tell": _tell})
