"""What the tests of the page share: runs so small that they take a second."""

from __future__ import annotations

from pathlib import Path

import pytest

from reverie.api import train_config as train
from reverie.core.words import say_nothing
from reverie.experiment import ExperimentConfig
from tiny import FEW, SMALL


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of DreamerV3, which has two checkpoints, and one of DQN."""
    import reverie

    where = tmp_path_factory.mktemp("runs")
    config = ExperimentConfig().merge(SMALL).merge({"env.id": "CartPole-v1", "schedule.save_every": 30})
    train(config, run=where / "dreamer", say=say_nothing)
    reverie.train("dqn", env="CartPole-v1", run=where / "dqn", **FEW)
    return where
