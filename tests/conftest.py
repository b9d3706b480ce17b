"""What all tests share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
import torch

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(autouse=True)
def _one_thread():
    """Small tensors are faster on one thread, and tests then do not fight over cores."""
    torch.set_num_threads(1)


@pytest.fixture
def golden():
    """Open a recording by file name."""
    return lambda name: np.load(GOLDEN / name)


def recorded(env: gymnasium.Env[Any, Any], act: Callable[[], Any], path: Path) -> Path:
    """Four episodes in D4RL's form."""
    rows: dict[str, list[Any]] = {name: [] for name in ("observations", "actions", "rewards", "terminals", "timeouts",
                                                         "next_observations")}  # fmt: skip
    for seed in range(4):
        obs, terminated, truncated = env.reset(seed=seed)[0], False, False
        while not (terminated or truncated):
            action = act()
            after, reward, terminated, truncated, _ = env.step(action)
            values = (obs, action, reward, terminated, truncated, after)
            for name, value in zip(rows, values, strict=True):
                rows[name].append(value)
            obs = after
    with h5py.File(path, "w") as file:
        for name, values in rows.items():
            file[name] = np.array(values)
    return path


@pytest.fixture(scope="session")
def pendulum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random actions on Pendulum-v1, of which half would go beyond [-1, 1]."""
    env, rng = gymnasium.make("Pendulum-v1", max_episode_steps=40), np.random.default_rng(0)
    path = tmp_path_factory.mktemp("data") / "pendulum.hdf5"
    return recorded(env, lambda: rng.uniform(-2, 2, 1).astype(np.float32), path)


@pytest.fixture(scope="session")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random actions on CartPole-v1."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("data") / "cartpole.hdf5"
    return recorded(gymnasium.make("CartPole-v1"), lambda: rng.integers(2), path)
