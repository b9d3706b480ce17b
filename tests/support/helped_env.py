"""An environment in which somebody replaces every third action, and says so by any convention.

Worker processes import it, so nothing here imports reverie or torch.
"""

import enum

import gymnasium
import numpy as np
from gymnasium import spaces


class TeleopEvents(enum.Enum):
    """As LeRobot has them."""

    IS_INTERVENTION = "is_intervention"
    SUCCESS = "success"


def told_only_then(key):
    return lambda action, is_replaced: {key: action} if is_replaced else {}


CONVENTIONS = {
    "never": lambda action, is_replaced: {},
    "filter": told_only_then("executed_action"),
    "hil_serl": told_only_then("intervene_action"),
    "gym_hil": lambda action, is_replaced: {"is_intervention": is_replaced, "teleop_action": action},
    "old_gym_hil": lambda action, is_replaced: {"is_intervention": is_replaced, "action_intervention": action},
    "lerobot": lambda action, is_replaced: {
        TeleopEvents.IS_INTERVENTION: is_replaced, TeleopEvents.SUCCESS: False, "teleop_action": action,
    },
    "flagged": lambda action, is_replaced: {"executed_action": action, "is_intervention": is_replaced},
}  # fmt: skip
SPACES = {
    "box": spaces.Box(np.float32([-2, -2]), np.float32([3, 3])),
    "discrete": spaces.Discrete(4, start=2),
    "dict": spaces.Dict({"move": spaces.Discrete(3), "force": spaces.Box(-2, 3, (2,))}),
}
REPLACED = {"box": np.float32([-1, 1]), "discrete": 5, "dict": {"move": 2, "force": np.float32([0.5, -1.5])}}
FLAT = {"box": [-0.6, 0.2], "discrete": [0, 0, 0, 1], "dict": [0.0, -0.8, 0, 0, 1]}


class Helped(gymnasium.Env):
    """Episodes of 5 steps, in which somebody replaces every third action; observations count all steps."""

    def __init__(self, convention="hil_serl", space="box", replacement=None):
        self.tell, self.replacement = CONVENTIONS[convention], REPLACED[space] if replacement is None else replacement
        self.observation_space, self.action_space = spaces.Box(0, 1e6, (1,)), SPACES[space]
        self.count = self.time = 0

    def _obs(self):
        return np.float32([self.count])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._obs(), {}

    def step(self, action):
        is_replaced = self.count % 3 == 1
        self.count, self.time = self.count + 1, self.time + 1
        info = self.tell(self.replacement if is_replaced else action, is_replaced)
        return self._obs(), 0.0, self.time % 5 == 0, False, info
