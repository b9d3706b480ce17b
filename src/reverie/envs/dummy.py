"""Small environments with known best returns, to test learners.

==================  ======================  ==============  ==========================================
id                  observes                acts            best return
==================  ======================  ==============  ==========================================
reverie/BitFlip-v0  bits, bits as the goal  Discrete(10)    1 minus the number of wrong bits (else -10)
reverie/Count-v0    vector, time            Discrete(2)     one for each step: the length of an episode
reverie/Cue-v0      vector, a cue at first  Discrete(2)     1 (by chance 0, without memory 0)
reverie/Grid-v0     image 8x8x3             Discrete(4)     1 (a random walk finds the goal now and then)
reverie/Look-v0     image 8x8x1             Discrete(2)     10 (by chance 5)
reverie/Match-v0    vector, a target        Box(-2, 2)      0 (without looking -53 on average)
==================  ======================  ==============  ==========================================
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from reverie.envs.wrappers import Reset, Stepped


class _Timed(gymnasium.Env[np.ndarray, Any]):
    """An environment that counts the steps of an episode."""

    _time = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self._time = 0
        return self._begin(), {}

    def _begin(self) -> np.ndarray:
        raise NotImplementedError


class BitFlip(gymnasium.Env[Any, Any]):
    """Flips one of ``bits`` bits in each step until they equal a goal, within ``bits`` steps: reward -1, 0 at the goal.

    Source: Andrychowicz et al. 2017, Hindsight Experience Replay, section 3.1.
    """

    def __init__(self, bits: int = 10) -> None:
        self._time = 0
        self._state = self._goal = np.zeros(bits, np.int8)
        self.observation_space: spaces.Dict = spaces.Dict(
            {name: spaces.MultiBinary(bits) for name in ("observation", "achieved_goal", "desired_goal")}
        )
        self.action_space: spaces.Discrete = spaces.Discrete(bits)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self._time = 0
        self._state, self._goal = self.np_random.integers(2, size=(2, len(self._state)), dtype=np.int8)
        return self._obs(), {}

    def step(self, action: int) -> Stepped:
        self._time += 1
        self._state[action] ^= 1
        reward = float(self.compute_reward(self._state, self._goal, {}))
        return self._obs(), reward, reward == 0, self._time == len(self._state), {"is_success": reward == 0}

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: object) -> np.ndarray:
        """Return the rewards ``[...]`` of goals ``[..., bits]``."""
        return self.compute_terminated(achieved_goal, desired_goal, info) - 1.0

    def compute_terminated(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: object) -> np.ndarray:
        """Return whether goals ``[..., bits]`` are achieved, ``[...]``."""
        return np.asarray(np.equal(achieved_goal, desired_goal).all(-1))

    def _obs(self) -> dict[str, np.ndarray]:
        state = self._state.copy()
        return {"observation": state, "achieved_goal": state, "desired_goal": self._goal.copy()}


class Count(_Timed):
    """Observes the number of steps, ``[1]``; action 1 earns 1.

    Ends at ``terminate_at`` or ``truncate_at``; 0: never.
    """

    def __init__(self, terminate_at: int = 0, truncate_at: int = 10) -> None:
        self._terminate_at = terminate_at
        self._truncate_at = truncate_at
        self.observation_space: spaces.Box = spaces.Box(0.0, np.inf, (1,), np.float32)
        self.action_space: spaces.Discrete = spaces.Discrete(2)

    def step(self, action: int) -> Stepped:
        self._time += 1
        terminated, truncated = self._time == self._terminate_at, self._time == self._truncate_at
        return self._begin(), float(action), terminated, truncated, {}

    def _begin(self) -> np.ndarray:
        return np.array([self._time], np.float32)


class Cue(_Timed):
    """Observes ``[cue, asked]``: the cue, -1 or +1, once.

    ``delay`` steps later the right action earns 1, the other -1.
    """

    def __init__(self, delay: int = 3) -> None:
        self._delay = delay
        self._cue = 0
        self.observation_space: spaces.Box = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space: spaces.Discrete = spaces.Discrete(2)

    def _begin(self) -> np.ndarray:
        self._cue = int(self.np_random.integers(2))
        return np.array([2 * self._cue - 1, 0], np.float32)

    def step(self, action: int) -> Stepped:
        """Advance one step; the action counts only when the cue is asked for."""
        answered = self._time == self._delay
        self._time += 1
        reward = (1.0 if action == self._cue else -1.0) if answered else 0.0
        return np.array([0, self._time == self._delay], np.float32), reward, answered, False, {}


class Grid(_Timed):
    """Move a green dot to a red one on ``size`` x ``size`` pixels within ``3 * size`` steps, for a reward of 1."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012  # an instance variable in Gymnasium
    MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))

    def __init__(self, size: int = 8, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self._size = size
        self._here = self._goal = (0, 0)
        self.observation_space: spaces.Box = spaces.Box(0, 255, (size, size, 3), np.uint8)
        self.action_space: spaces.Discrete = spaces.Discrete(4)

    def _begin(self) -> np.ndarray:
        start, goal = self.np_random.choice(self._size**2, size=2, replace=False)
        self._here, self._goal = divmod(int(start), self._size), divmod(int(goal), self._size)
        return self._obs()

    def step(self, action: int) -> Stepped:
        self._time += 1
        down, right = self.MOVES[action]
        edge = self._size - 1
        self._here = (min(max(self._here[0] + down, 0), edge), min(max(self._here[1] + right, 0), edge))
        arrived = self._here == self._goal
        return self._obs(), float(arrived), arrived, self._time >= 3 * self._size, {}

    def render(self) -> np.ndarray | None:
        """Return the board, enlarged eight times; None without a render mode."""
        return self._obs().repeat(8, axis=0).repeat(8, axis=1) if self.render_mode == "rgb_array" else None

    def _obs(self) -> np.ndarray:
        board = np.zeros((self._size, self._size, 3), np.uint8)
        board[self._goal] = (255, 0, 0)
        board[self._here] = (0, 255, 0)
        return board


class Look(_Timed):
    """Lights the left (0) or right (1) half of an image, ten times: reward 1 each time the action matches."""

    def __init__(self) -> None:
        self._side = 0
        self.observation_space: spaces.Box = spaces.Box(0, 255, (8, 8, 1), np.uint8)
        self.action_space: spaces.Discrete = spaces.Discrete(2)

    def step(self, action: int) -> Stepped:
        self._time += 1
        reward = float(action == self._side)
        return self._begin(), reward, False, self._time == 10, {}

    def _begin(self) -> np.ndarray:
        self._side = int(self.np_random.integers(2))
        picture = np.zeros((8, 8, 1), np.uint8)
        picture[:, 4 * self._side : 4 * self._side + 4] = 255
        return picture


class Match(_Timed):
    """Observes a target in [-1, 1] that the action should match, ten times: reward -16 * distance^2, at least -16.

    Actions lie in [-2, 2], so that an agent that does not scale its actions misses the target.
    """

    def __init__(self) -> None:
        self._target = 0.0
        self.observation_space: spaces.Box = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space: spaces.Box = spaces.Box(-2.0, 2.0, (1,), np.float32)

    def step(self, action: np.ndarray) -> Stepped:
        self._time += 1
        reward = -min(16.0, 16.0 * (float(action[0]) - self._target) ** 2)
        return self._begin(), reward, False, self._time == 10, {}

    def _begin(self) -> np.ndarray:
        target = self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)
        self._target = float(target[0])
        return target
