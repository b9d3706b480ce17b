"""One recorded episode as a batch, to look inside an agent."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

import reverie
from reverie.core.types import Batch
from reverie.datasets.dataset import DatasetConfig, open_recorded

SMALL: dict[str, Any] = {"threads": 1, "eval_episodes": 1, "tensorboard": False, "console": False}


def quiet(text: str) -> None:
    pass


def episode(data: DatasetConfig, number: int) -> Batch:
    with contextlib.closing(open_recorded(data)) as recorded:
        return recorded.episode(number)


def test_an_episode_is_what_was_recorded(pendulum: Path) -> None:
    with h5py.File(pendulum) as file:
        seen, done, reward = (np.asarray(file[name]) for name in ("observations", "actions", "rewards"))
    batch = episode(DatasetConfig(path=str(pendulum)), 2)
    assert batch.shape == (1, 41)
    rows = slice(80, 120)
    np.testing.assert_array_equal(batch.obs["observation"][0, :-1], seen[rows])
    np.testing.assert_allclose(batch.action[0, :-1], done[rows] / np.abs(done).max(), atol=0.02)
    np.testing.assert_array_equal(batch.reward[0, 1:], reward[rows].astype(np.float32))
    assert batch.reward[0, 0] == 0
    assert batch.is_first[0].nonzero().tolist() == [[0]]
    assert batch.is_last[0].nonzero().tolist() == [[40]]
    assert batch.index.tolist() == [2]


def test_a_run_on_data_alone_gives_episodes_of_these(pendulum: Path, tmp_path: Path) -> None:
    more: dict[str, Any] = {"algo.networks.units": (8,), "updates": 2, "env": "Pendulum-v1"}
    reverie.train("td3", data=pendulum, run=tmp_path / "run", **SMALL, **more)
    batch = reverie.load(tmp_path / "run").episode(3)
    assert torch.equal(batch.reward, episode(DatasetConfig(path=str(pendulum)), 3).reward)
    assert batch.action.abs().max() <= 1
