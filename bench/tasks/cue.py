"""Memory of a cue, which a policy without memory can keep in where it stands."""

from __future__ import annotations

import gymnasium
import numpy as np

from .base import Task, box, numbers

LENGTH, SHOWN, WIDTH = 12, 2, 3.0


class Cue(Task):
    """See a cue at the entrance of a corridor, and leave at its end by the door on the left or on the right.

    Observes how far the robot is, where it stands between the walls, and the cue: -1 or 1, and 0 after two steps. Each
    step goes forward, and to the left, straight on, or to the right. At the end the robot earns 1 on the side of the
    cue, -1 on the other one, and 0 in the middle.
    """

    steps = LENGTH

    def __init__(self) -> None:
        self.observation_space = box([0, -WIDTH, -1], [LENGTH, WIDTH, 1])
        self.action_space = gymnasium.spaces.Discrete(3)

    def begin(self) -> None:
        self.cue = float(self.np_random.choice([-1, 1]))
        self.place = float(self.np_random.uniform(-0.5, 0.5))

    def act(self, action: int) -> tuple[float, bool]:
        drift = 0.3 * self.np_random.normal()
        self.place = float(np.clip(self.place + (int(action) - 1) + drift, -WIDTH, WIDTH))
        ends = self.time == LENGTH
        side = 0.0 if abs(self.place) < 1 else np.sign(self.place)
        return float(side * self.cue) if ends else 0.0, ends

    def observe(self) -> np.ndarray:
        return numbers(self.time, self.place, self.cue if self.time < SHOWN else 0)

    def heuristic(self, obs: np.ndarray) -> int:
        _, place, cue = obs
        return 1 + int(np.sign(cue or place))
