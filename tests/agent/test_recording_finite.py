"""Rewards and observations that are not finite end a recording, with the step where they came."""

from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from reverie.agent.observer import Observer
from reverie.agent.recording import RecordConfig, play
from reverie.core.errors import DataError
from reverie.envs.config import EnvConfig
from reverie.envs.flat import make_flat


class Scripted(gymnasium.Env):
    """Three steps with observations and rewards from lists."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, seen, rewards):
        self.seen, self.rewards, self.time = seen, rewards, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.seen[0], {}

    def step(self, action):
        self.time += 1
        return self.seen[self.time], self.rewards[self.time], self.time == 3, False, {}


@pytest.mark.parametrize(
    ("at", "obs", "reward", "said"),
    [
        (2, 1.0, np.nan, "the reward is nan: expected a finite float32 number"),
        (3, 1.0, 1e39, "the reward is 1e[+]39"),
        (2, np.nan, 1.0, "observation 'observation' is nan at index"),
        (3, np.inf, 1.0, "observation 'observation' is inf at index"),  # which no action follows
    ],
)
@pytest.mark.parametrize("frames", [1, 2])
def test_what_is_not_finite_is_not_recorded(at, obs, reward, said, frames):
    seen, rewards = [np.full(1, t, np.float32) for t in range(4)], [1.0] * 4
    seen[at][0], rewards[at] = obs, reward
    env = Scripted(seen, rewards)
    config = EnvConfig(frame_stack=frames)
    observer = Observer(make_flat(config, lambda: env, 0, False), config)

    def act(obs, state, actions, action_mask=None):
        state = state or observer.stacks(1)
        observer(obs, *state, env.time == 0)
        return 0, state

    with pytest.raises(DataError, match=said):
        play(
            SimpleNamespace(act=act, observer=observer), env, RecordConfig(episodes=1), np.random.default_rng(), 0, None
        )
