"""What the tests of trained agents share."""

import shutil
from pathlib import Path

import pytest

import reverie
from corridor_env import Corridor
from reverie.api import train_config as train
from reverie.experiment.config import ExperimentConfig
from tiny_configs import FEW, SMALL


@pytest.fixture
def copied(trained, tmp_path):
    """A copy of a finished run, which tests may change."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture(scope="session")
def nano(tmp_path_factory):
    """A run of ten rows on CartPole that never learned."""
    run = tmp_path_factory.mktemp("runs") / "nano"
    reverie.train("dreamer_v3", env="CartPole-v1", size="nano", run=run, **FEW)
    return run


@pytest.fixture(scope="session")
def corridor(tmp_path_factory):
    """A run on an environment that was given as a class."""
    run = tmp_path_factory.mktemp("runs") / "corridor"
    config = ExperimentConfig().merge(SMALL).merge({"env.id": "Corridor"})
    train(config, env=Corridor, run=run)
    return run
