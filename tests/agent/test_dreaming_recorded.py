"""Dreams beside recorded episodes: nothing is played, and no environment is needed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import reverie
from reverie.agent.dreaming import dream
from reverie.core.errors import ConfigError, DataError, EnvError
from tiny import NETWORKS


@pytest.fixture(scope="module")
def offline(pendulum: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world model of recorded data, without an environment; tests copy it."""
    run = tmp_path_factory.mktemp("runs") / "offline"
    options: dict[str, Any] = {"algo.batch_size": 2, "algo.batch_length": 8, "env": "none"}
    options |= {f"algo.{part}": value for part, value in NETWORKS.items()}
    options |= {"data.estimate_updates": 0, "tensorboard": False, "console": False, "threads": 1}
    reverie.train("dreamer_v3", data=pendulum, updates=3, run=run, **options)
    return run


@pytest.fixture
def run(offline: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(offline, tmp_path / "run"))


def test_recorded_episodes_need_no_environment(run: Path, pendulum: Path) -> None:
    agent = reverie.load(run)
    with pytest.raises(
        EnvError, match=r"no environment to play episodes in\. .* predict recorded episodes instead: --data"
    ):
        dream(agent)
    report = dream(agent, context=5, horizon=9, sequences=3, data=pendulum)
    assert report.sequences == 3
    assert {len(error) for error in report.errors.values()} == {9}
    arrays = np.load(report.files["arrays"])
    for number in range(3):
        episode = agent.episode(number).rows(0, 14)
        np.testing.assert_array_equal(arrays["truth/observation"][number], episode.obs["observation"][0])
        np.testing.assert_array_equal(arrays["truth/reward"][number], episode.reward[0])
        np.testing.assert_array_equal(arrays["action"][number], episode.action[0])
    numbers = json.loads(report.files["numbers"].read_text())
    assert (numbers["data"], numbers["episodes"]) == (str(pendulum), [0, 1, 2])
    assert numbers["checkpoint"] == agent.checkpoint.name
    assert (numbers["updates"], "env_steps" in numbers, "actions" in numbers) == (3, False, False)


def test_what_does_not_fit_is_refused(run: Path, cartpole: Path, pendulum: Path) -> None:
    agent = reverie.load(run)
    with pytest.raises(DataError, match=r"does not fit the agent: observation 'observation' is vector \(4,\)"):
        dream(agent, data=cartpole)
    with pytest.raises(ConfigError, match="actions = 'sample' with data: recorded episodes are predicted under"):
        dream(agent, data=pendulum, actions="sample")
    assert not (run / "dream").exists()


def test_rows_that_a_run_collected(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    agent = reverie.load(run)
    torch.manual_seed(3)
    expected = torch.get_rng_state()
    report = dream(agent, context=3, horizon=4, sequences=2, data=run)
    assert torch.equal(torch.get_rng_state(), expected)
    assert "video" in report.files  # drawn by the run's environment
    assert json.loads(report.files["numbers"].read_text())["env_steps"] == agent.step
