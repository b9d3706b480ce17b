"""What the tests of trained agents share."""

from __future__ import annotations

from pathlib import Path

import pytest

from corridor import Corridor
from reverie.api import train_config as train
from reverie.experiment.config import ExperimentConfig
from tiny import SMALL


@pytest.fixture(scope="session")
def corridor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on an environment that was given as a class."""
    run = tmp_path_factory.mktemp("runs") / "corridor"
    config = ExperimentConfig().merge(SMALL).merge({"env.id": "Corridor"})
    train(config, env=Corridor, run=run)
    return run
