"""What all peers of `on_policy.py` need: environments with the rewards, actions and images of ours, and ramps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ale_py
import gymnasium
import minatar.gym
import numpy as np
import torch
from gymnasium import wrappers
from torch import Tensor, nn

gymnasium.register_envs(ale_py)
minatar.gym.register_envs()


class Fire(gymnasium.Wrapper):
    """Begins each episode with FIRE, as Atari's games want it."""

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self.env.reset(**kwargs)
        obs, _, terminated, truncated, info = self.env.step(1)
        return self.env.reset(**kwargs) if terminated or truncated else (obs, info)


def wrapped(env: gymnasium.Env, factor: float, atari: bool = False) -> gymnasium.Env:
    """Actions of [-1, 1] and smaller rewards, as our policy and learner see them; images ``[C, H, W]``."""
    if atari:  # life loss as everywhere else, four gray frames, the signs of rewards
        env = Fire(wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=4, terminal_on_life_loss=True))
        env = wrappers.TransformReward(wrappers.FrameStackObservation(env, 4), np.sign)
    elif isinstance(env.observation_space, gymnasium.spaces.Dict):  # MiniGrid's: its symbols alone
        env = wrappers.TransformObservation(env, lambda obs: obs["image"], env.observation_space["image"])
    if not atari and env.observation_space.shape is not None and len(env.observation_space.shape) == 3:
        planes = gymnasium.spaces.Box(0, 255, np.roll(env.observation_space.shape, 1), np.float32)
        env = wrappers.TransformObservation(env, lambda obs: obs.transpose(2, 0, 1).astype(np.float32), planes)
    if isinstance(env.action_space, gymnasium.spaces.Box):
        env = wrappers.RescaleAction(env, -1.0, 1.0)
    return env if factor == 1 else wrappers.TransformReward(env, lambda reward: factor * reward)


def raw(s: dict[str, Any]) -> dict[str, Any]:
    """What `gymnasium.make` is given: each frame of Atari's games, all of them random by their beginning alone."""
    return {"frameskip": 1, "repeat_action_probability": 0.0} if s.get("atari", False) else {}


def made(s: dict[str, Any]) -> gymnasium.Env:
    """One environment of the settings; normalized ones as CleanRL wraps them."""
    env = wrapped(gymnasium.make(s["env"], **raw(s)), s["factor"], s.get("atari", False))
    if s["normalize"]:
        env = wrappers.NormalizeObservation(env)
        env = wrappers.TransformObservation(env, lambda obs: np.clip(obs, -10, 10), env.observation_space)
        env = wrappers.NormalizeReward(env, gamma=s["discount"])
        env = wrappers.TransformReward(env, lambda reward: float(np.clip(reward, -10, 10)))
    return env


class Pictures(nn.Module):
    """Convolutions ``[channels, kernel, stride]``, each with a ReLU, and all their outputs as one vector."""

    def __init__(self, space: gymnasium.spaces.Box, filters: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.scale = 255.0 if space.dtype == np.uint8 else 1.0
        layers: list[nn.Module] = []
        channels = space.shape[0]
        for count, kernel, stride in filters:
            convolution = nn.Conv2d(channels, count, kernel, stride)
            nn.init.orthogonal_(convolution.weight, 2**0.5)
            nn.init.zeros_(convolution.bias)
            layers += [convolution, nn.ReLU()]
            channels = count
        self.layers = nn.Sequential(*layers, nn.Flatten(-3))
        self.size: int = self.layers(torch.zeros(space.shape)).numel()

    def forward(self, obs: Tensor) -> Tensor:
        """Images ``[..., C, H, W]`` of any number to vectors."""
        flat = obs.reshape(-1, *obs.shape[-3:]).float() / self.scale
        return self.layers(flat).reshape(*obs.shape[:-3], self.size)


def ramp(points: Any, steps: int) -> Callable[[float], float]:
    """What gives a number, or one that falls with the steps taken; asked with the part of the steps that is left."""
    if isinstance(points, float):
        return lambda left: points
    at, values = zip(*points, strict=True)
    return lambda left: float(np.interp((1 - left) * steps, at, values))
