"""Loading an agent from its run: what must be given again, and runs that cannot be loaded."""

import pickle
import shutil
from dataclasses import dataclass

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from reverie.agent.loading import load
from reverie.api import train_config as train
from reverie.core.errors import EnvError, RunError
from reverie.nn.encoder import EncoderConfig
from tiny_configs import CONFIG, settings


def test_load_without_a_run_or_a_checkpoint(trained, copied):
    with pytest.raises(RunError, match=r"there is no such folder\. Did you mean 'cartpole'"):
        load(trained.parent / "cartpol")
    with pytest.raises(RunError, match=r"config\.yaml is a file: expected a run folder"):
        load(trained / "config.yaml")
    newest = load(trained)
    assert load(trained, checkpoint=newest.step).checkpoint == newest.checkpoint
    shutil.rmtree(copied / "checkpoints")
    with pytest.raises(RunError, match="has no checkpoint yet"):
        load(copied)


def test_an_environment_from_python_that_has_no_name_must_be_given_again(corridor, tmp_path):
    config = (corridor / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(config.replace("env: corridor_env:Corridor", "env: Corridor"))
    with pytest.raises(RunError, match=r"trained with env = Corridor.*reverie\.load\(run, env=\.\.\.\)"):
        load(tmp_path)


class CartPoleSpaces(gymnasium.Env[np.ndarray, int]):
    """The spaces of CartPole-v1 and nothing else."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = spaces.Discrete(2)


def test_where_the_environment_is_not_installed_its_spaces_are_enough(trained, copied):
    config = copied / "config.yaml"
    config.write_text(config.read_text().replace("id: CartPole-v1", "id: not_here:CartPole-v1"))
    with pytest.raises(EnvError, match=r"'not_here' cannot be imported .*reverie\.load\(run, env=Spaces\)"):
        load(copied, trust_code=True)
    obs = np.ones((5, 4), np.float32)
    torch.manual_seed(0)
    actions, _ = load(trained).act(obs)
    torch.manual_seed(0)
    alone = load(copied, env=CartPoleSpaces)
    np.testing.assert_array_equal(alone.act(obs)[0], actions)
    assert pickle.loads(pickle.dumps(alone)).act(obs[0])[0] in CartPoleSpaces.action_space


@dataclass(frozen=True, kw_only=True)
class OwnEncoderConfig(EncoderConfig):
    """An encoder of the user's."""

    depth: int = 2
    units: int = 12
    layers: int = 1


def test_an_own_encoder_must_be_given_again(tmp_path):
    algo = CONFIG.algo.merge({"encoder": OwnEncoderConfig()})
    train(settings(steps=60).merge({"algo": algo}), run=tmp_path / "run")
    with pytest.raises(RunError, match=r"algo\.encoder = .*OwnEncoderConfig.*algo=\.\.\."):
        load(tmp_path / "run")
    assert load(tmp_path / "run", algo=algo).config.algo == algo
