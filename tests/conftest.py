"""What all tests share."""

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


@pytest.fixture(scope="session")
def pendulum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random actions on Pendulum-v1, of which half would go beyond [-1, 1]."""
    env, rng = gymnasium.make("Pendulum-v1", max_episode_steps=40), np.random.default_rng(0)
    rows: dict[str, list[Any]] = {name: [] for name in ("observations", "actions", "rewards", "terminals", "timeouts",
                                                         "next_observations")}  # fmt: skip
    for seed in range(4):
        obs, over = env.reset(seed=seed)[0], False
        while not over:
            action = rng.uniform(-2, 2, 1).astype(np.float32)
            after, reward, terminated, over, _ = env.step(action)
            values = (obs, action, reward, terminated, over, after)
            for name, value in zip(rows, values, strict=True):
                rows[name].append(value)
            obs = after
    path = tmp_path_factory.mktemp("data") / "pendulum.hdf5"
    with h5py.File(path, "w") as file:
        for name, values in rows.items():
            file[name] = np.array(values)
    return path
