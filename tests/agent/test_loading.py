"""Loading an agent from its run: what must be given again, and runs that cannot be loaded."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from reverie.agent.loading import load
from reverie.api import train_config as train
from reverie.core.errors import EnvError, RunError
from reverie.nn.encoder import EncoderConfig
from tiny import CONFIG, settings


def test_load_without_a_run_or_a_checkpoint(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"there is no such folder\. Did you mean 'cartpole'"):
        load(trained.parent / "cartpol")
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(RunError, match="has no checkpoint yet"):
        load(run)


def test_an_environment_from_python_that_has_no_name_must_be_given_again(corridor: Path, tmp_path: Path) -> None:
    config = (corridor / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(config.replace("env: corridor:Corridor", "env: Corridor"))
    with pytest.raises(RunError, match=r"trained with env = Corridor.*reverie\.load\(run, env=\.\.\.\)"):
        load(tmp_path)


class CartPoleSpaces(gymnasium.Env[np.ndarray, int]):
    """The spaces of CartPole-v1 and nothing else."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = spaces.Discrete(2)


def test_where_the_environment_is_not_installed_its_spaces_are_enough(trained: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "copy"
    shutil.copytree(trained, elsewhere)
    config = (elsewhere / "config.yaml").read_text()
    (elsewhere / "config.yaml").write_text(config.replace("id: CartPole-v1", "id: not_here:CartPole-v1"))
    with pytest.raises(EnvError, match=r"'not_here' cannot be imported .*reverie\.load\(run, env=Spaces\)"):
        load(elsewhere, trust=True)
    obs = np.ones((5, 4), np.float32)
    torch.manual_seed(0)
    actions, _ = load(trained).act(obs)
    torch.manual_seed(0)
    alone = load(elsewhere, env=CartPoleSpaces)
    np.testing.assert_array_equal(alone.act(obs)[0], actions)
    assert pickle.loads(pickle.dumps(alone)).act(obs[0])[0] in CartPoleSpaces.action_space


@dataclass(frozen=True, kw_only=True)
class OwnEncoderConfig(EncoderConfig):
    """An encoder of the user's."""

    depth: int = 2
    units: int = 12
    layers: int = 1


def test_an_own_encoder_must_be_given_again(tmp_path: Path) -> None:
    algo = CONFIG.algo.merge({"encoder": OwnEncoderConfig()})
    train(settings(steps=60).merge({"algo": algo}), run=tmp_path / "run")
    with pytest.raises(RunError, match=r"algo\.encoder = .*OwnEncoderConfig.*algo=\.\.\."):
        load(tmp_path / "run")
    agent = load(tmp_path / "run", algo=algo)  # type: ignore[arg-type]
    assert agent.config.algo == algo
