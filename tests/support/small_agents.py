"""Agents that have learned nothing, in an environment of random observations of every kind."""

import functools

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from reverie.agent.agent import Agent
from reverie.envs.flat_env import make_flat
from reverie.experiment.config import ExperimentConfig

OBS = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (8, 8, 3), np.uint8), "state": spaces.Box(-9, 9, (2, 2), np.float32),
        "more": spaces.Box(-1, 1, (), np.float32), "token": spaces.MultiDiscrete([3, 4], start=[1, 0]),
    }
)  # fmt: skip
ACTIONS = {
    "discrete": spaces.Discrete(3, start=5),
    "multi_discrete": spaces.MultiDiscrete([1, 2]),
    "continuous": spaces.Dict({"b": spaces.Box(-2, 6, (1,)), "a": spaces.Box(-1, 1, (2,), np.float64)}),
    "mixed": spaces.Dict({"b": spaces.Box(-5, 5, (1,), np.int16), "a": spaces.Discrete(2)}),
}


class Noise(gymnasium.Env):
    """Shows random observations, in episodes of seven steps; tells which actions are legal if ``masks``."""

    observation_space = OBS

    def __init__(self, actions, masks=False, seeing=True):
        self.action_space, self.masks = ACTIONS[actions], masks
        if not seeing:
            self.observation_space = spaces.Dict({key: OBS[key] for key in ("state", "more")})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.left = 7
        return self.shown()

    def step(self, action):
        assert self.action_space.contains(action)
        self.left -= 1
        obs, info = self.shown()
        return obs, float(self.np_random.normal()), False, self.left == 0, info

    def shown(self):
        info = {}
        if self.masks:
            width = [3] if isinstance(self.action_space, spaces.Discrete) else [1, 2]
            info["action_mask"] = np.concatenate([np.eye(n)[self.np_random.integers(n)] for n in width]).astype(np.int8)
        return self.observation_space.sample(), info


def agent_of(algo, actions, tmp_path, masks=False, seeing=True, **env):
    """An agent that has learned nothing, but whose weights are all drawn at random."""
    config = ExperimentConfig(algo=algo).merge({"env.id": "Noise", **{f"env.{k}": v for k, v in env.items()}})
    make = functools.partial(Noise, actions, masks, seeing)
    flat = make_flat(config.env, make, 0, False)
    learner = algo.build(flat.obs_spec, flat.action_spec, "cpu", 1)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    if (preprocess := getattr(learner, "preprocess", None)) is not None and preprocess.normalizer is not None:
        preprocess.normalizer.add({"state": torch.randn(99, 2, 2) * 5 + 2, "more": torch.rand(99)})
    return Agent(config, learner, flat, make, None, tmp_path, tmp_path / "step-0", 40)
