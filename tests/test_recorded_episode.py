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
from reverie.core.errors import ConfigError, DataError
from reverie.core.types import Batch, Window
from reverie.datasets.dataset import DatasetConfig, dataset_config, open_recorded

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


def test_its_tensors_are_of_the_types_of_sampled_batches(cartpole: Path) -> None:
    data = DatasetConfig(path=str(cartpole))
    with contextlib.closing(open_recorded(data)) as recorded:
        drawn = data.build(recorded, window=Window(batch=1, length=2), seed=0).sample()
        found = recorded.episode(0)
    for name in ("action", "reward", "is_first", "is_last", "is_terminal", "weight", "index"):
        assert getattr(found, name).dtype == getattr(drawn, name).dtype, name
        assert getattr(found, name).shape[2:] == getattr(drawn, name).shape[2:], name
    assert {key: x.dtype for key, x in found.obs.items()} == {key: x.dtype for key, x in drawn.obs.items()}


@pytest.mark.parametrize("number", [4, -5, 100])
def test_an_episode_that_does_not_exist_is_told(pendulum: Path, number: int) -> None:
    with pytest.raises(ConfigError, match=rf"episode = {number}: .*has 4 episodes, 0 to 3, or -4 to -1 from the end"):
        episode(DatasetConfig(path=str(pendulum)), number)


@pytest.mark.parametrize("number", [1.0, "1", None, True])
def test_a_number_that_is_none_is_told(pendulum: Path, number: Any) -> None:
    with pytest.raises(ConfigError, match="expected a whole number, 0 for the first episode"):
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


def test_an_agent_gives_episodes_of_other_data(dreamer: reverie.Agent, cartpole: Path) -> None:
    found = [dreamer.episode(1, data) for data in (
        cartpole, str(cartpole), DatasetConfig(path=str(cartpole))
    )]  # fmt: skip
    for one in found[1:]:
        assert torch.equal(one.obs["observation"], found[0].obs["observation"])
        assert torch.equal(one.action, found[0].action)


def test_data_of_something_else_are_refused(dreamer: reverie.Agent, pendulum: Path) -> None:
    with pytest.raises(DataError, match=r"does not fit the environment CartPole-v1"):
        dreamer.episode(0, pendulum)
    with pytest.raises(ConfigError, match=r"^data = 7 \(int\): expected a path"):
        dreamer.episode(0, 7)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="there is no dataset at nowhere"):
        dreamer.episode(0, "nowhere")


def test_a_run_on_data_alone_gives_episodes_of_these(pendulum: Path, tmp_path: Path) -> None:
    more: dict[str, Any] = {"algo.networks.units": (8,), "updates": 2, "env": "Pendulum-v1"}
    reverie.train("td3", data=pendulum, run=tmp_path / "run", say=quiet, **SMALL, **more)
    batch = reverie.load(tmp_path / "run").episode(3)
    assert torch.equal(batch.reward, episode(DatasetConfig(path=str(pendulum)), 3).reward)
    assert batch.action.abs().max() <= 1


def test_settings_of_data_are_taken_as_they_are(pendulum: Path) -> None:
    given = DatasetConfig(path=str(pendulum), time_limit=3)
    assert dataset_config(given, "mmap") is given
    assert dataset_config(pendulum, "mmap") == DatasetConfig(path=str(pendulum), storage="mmap")
