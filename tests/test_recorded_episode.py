"""One recorded episode as a batch, to look inside an agent."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import reverie
from reverie.core.errors import ConfigError
from reverie.core.types import Batch
from reverie.datasets.dataset import DatasetConfig, open_recorded

SMALL: dict[str, Any] = {"threads": 1, "eval_episodes": 1, "tensorboard": False, "console": False}


def quiet(text: str) -> None:
    pass


def episode(data: DatasetConfig, number: int) -> Batch:
    with contextlib.closing(open_recorded(data)) as recorded:
        return recorded.episode(number)


@pytest.fixture(scope="module")
def dreamer(tmp_path_factory: pytest.TempPathFactory) -> reverie.Agent:
    """A small DreamerV3 that has collected rows on CartPole."""
    run = tmp_path_factory.mktemp("runs") / "run"
    options: dict[str, Any] = {
        "steps": 120, "envs": 1, "learning_starts": 100, "algo.batch_size": 2, "algo.batch_length": 4,
    }  # fmt: skip
    reverie.train("dreamer_v3", env="CartPole-v1", preset="cpu", run=run, say=quiet, **SMALL, **options)
    return reverie.load(run)


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


def test_episodes_count_from_the_end_as_well(pendulum: Path) -> None:
    data = DatasetConfig(path=str(pendulum))
    for number in range(4):
        one, two = episode(data, number), episode(data, number - 4)
        assert one.index == two.index == number
        assert torch.equal(one.obs["observation"], two.obs["observation"])
    assert not torch.equal(episode(data, 0).reward, episode(data, -1).reward)


@pytest.mark.parametrize("number", [4, -5, 100])
def test_an_episode_that_does_not_exist_is_told(pendulum: Path, number: int) -> None:
    with pytest.raises(ConfigError, match=rf"episode = {number}: .*has 4 episodes, 0 to 3, or -4 to -1 from the end"):
        episode(DatasetConfig(path=str(pendulum)), number)


def test_an_agent_gives_the_episodes_that_it_collected(dreamer: reverie.Agent) -> None:
    first = dreamer.episode(0)
    b, t = first.shape
    assert (b, bool(first.is_first[0, 0]), bool(first.is_last[0, -1])) == (1, True, True)
    assert first.reward.sum() == t - 1  # CartPole answers each action with 1
    dreamt = dreamer.algo.dream(first, 3)
    assert dreamt["reward"].shape == (1, t)
    assert dreamt["inside/deter"].shape[:2] == (1, t)
    assert dreamer.episode(-1).index > 0


def test_a_run_on_data_alone_gives_episodes_of_these(pendulum: Path, tmp_path: Path) -> None:
    more: dict[str, Any] = {"algo.networks.units": (8,), "updates": 2, "env": "Pendulum-v1"}
    reverie.train("td3", data=pendulum, run=tmp_path / "run", say=quiet, **SMALL, **more)
    batch = reverie.load(tmp_path / "run").episode(3)
    assert torch.equal(batch.reward, episode(DatasetConfig(path=str(pendulum)), 3).reward)
    assert batch.action.abs().max() <= 1
