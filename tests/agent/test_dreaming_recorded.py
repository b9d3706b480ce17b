"""Dreams beside recorded episodes: nothing is played, and no environment is needed."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import reverie
from played import played
from reverie.agent.dreaming import dream
from reverie.cli import main
from reverie.core.errors import ConfigError, DataError, EnvError, RunError
from reverie.core.words import say_nothing
from tiny import NETWORKS


@pytest.fixture(scope="module")
def offline(pendulum: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world model of recorded data, without an environment; tests copy it."""
    run = tmp_path_factory.mktemp("runs") / "offline"
    options: dict[str, Any] = {"algo.batch_size": 2, "algo.batch_length": 8, "env": "none"}
    options |= {f"algo.{part}": value for part, value in NETWORKS.items()}
    options |= {"data.estimate_updates": 0, "tensorboard": False, "console": False, "threads": 1}
    reverie.train("dreamer_v3", data=pendulum, updates=3, run=run, say=say_nothing, **options)
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
    report = dream(agent, context=5, horizon=9, sequences=3, data=pendulum, say=say_nothing)
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


def test_long_episodes_are_preferred(run: Path, tmp_path: Path) -> None:
    lengths = iter([3, 10, 2, 8, 9])  # steps; an episode has one row more

    class Short(gymnasium.Wrapper[Any, Any, Any, Any]):
        def reset(self, **more: Any) -> Any:
            self.left = next(lengths)
            return self.env.reset(**more)

        def step(self, action: Any) -> Any:
            self.left -= 1
            obs, reward, _, _, info = self.env.step(action)
            return obs, reward, False, self.left == 0, info

    rng = np.random.default_rng(0)
    env = Short(gymnasium.make("Pendulum-v1"))
    data = played(env, lambda obs: rng.uniform(-2, 2, 1).astype(np.float32), tmp_path / "short.hdf5", 5)
    agent = reverie.load(run)
    report = dream(agent, context=5, horizon=4, sequences=6, data=data, say=say_nothing)
    assert json.loads(report.files["numbers"].read_text())["episodes"] == [1, 3, 4]
    assert {len(error) for error in report.errors.values()} == {4}
    for sequences, horizon, expected in ((1, 4, [1]), (2, 5, [1, 4]), (2, 6, [1]), (1, 30, [1])):
        report = dream(agent, context=5, horizon=horizon, sequences=sequences, data=data, say=say_nothing)
        assert json.loads(report.files["numbers"].read_text())["episodes"] == expected
        assert {len(error) for error in report.errors.values()} == {min(horizon, 6)}
    with pytest.raises(RunError, match="none of 5 episodes is longer than context = 20 rows"):
        dream(agent, context=20, data=data, say=say_nothing)


def test_what_does_not_fit_is_refused(run: Path, cartpole: Path, pendulum: Path) -> None:
    agent = reverie.load(run)
    with pytest.raises(DataError, match=r"does not fit the agent: observation 'observation' is vector \(4,\)"):
        dream(agent, data=cartpole)
    with pytest.raises(ConfigError, match="actions = 'sample' with data: recorded episodes are predicted under"):
        dream(agent, data=pendulum, actions="sample")
    with pytest.raises(ConfigError, match=r"data = 7 \(int\): expected a path"):
        dream(agent, data=7)  # type: ignore[arg-type]
    assert not (run / "dream").exists()


def test_on_the_command_line(run: Path, pendulum: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["dream", str(run), "--context", "5", "--sequences", "9"]
    assert main([*args, "--data", str(pendulum)]) == 0
    said = capsys.readouterr().out
    assert re.search(
        r"pendulum\.hdf5, step-\d+: 4 dreams of 9 \(the others were shorter, or there were no more\), "
        r"\d+ steps each, after 5 rows",
        said,
    )
    assert re.search(r"^reward +\S+ \(\S+\)", said, re.MULTILINE)
    assert main([*args, "--data.time-limit", "40"]) == 1
    assert "--time-limit without --data: nothing is read" in capsys.readouterr().err


def test_rows_that_a_run_collected(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    agent = reverie.load(run)
    torch.manual_seed(3)
    expected = torch.get_rng_state()
    report = dream(agent, context=3, horizon=4, sequences=2, data=run, say=say_nothing)
    assert torch.equal(torch.get_rng_state(), expected)
    assert "video" in report.files  # drawn by the run's environment
    assert json.loads(report.files["numbers"].read_text())["env_steps"] == agent.step
