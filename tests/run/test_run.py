"""A run from beginning to end: one seed for everything, its files, and where it goes on."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import yaml
from gymnasium.envs.classic_control import CartPoleEnv

import reverie
from reverie.algos.dqn import DQN
from reverie.algos.dreamer_v3 import DreamerV3, DreamerV3Config
from reverie.api import train_config as train
from reverie.core import wall_clock
from reverie.core.errors import ConfigError, EnvError, ReverieError, RunError
from reverie.experiment.config import ExperimentConfig
from reverie.log.jsonl import read_metrics
from reverie.nn import exploration
from tiny_configs import FEW, SETTINGS, settings


def test_a_run_leaves_its_files(trained: Path) -> None:
    saved = yaml.safe_load((trained / "config.yaml").read_text())
    assert saved["schema"] == 1
    assert saved["algorithm"] == "dreamer_v3"
    assert saved["experiment"]["env"]["id"] == "CartPole-v1"
    assert ExperimentConfig().merge(saved["experiment"]) == settings(steps=200, experience="online")
    evaluation = json.loads((trained / "eval.json").read_text())
    assert len(evaluation["scores"]) == 2
    assert evaluation["score"]["mean"] == pytest.approx(np.mean(evaluation["scores"]))
    assert evaluation["deterministic"] is True
    rows = read_metrics(trained / "metrics.jsonl")
    assert rows[-1]["eval/score"] == evaluation["score"]["mean"]
    assert {"loss/reward", "counters/updates", "time/env_steps_per_second"} <= set().union(*rows)
    assert (trained / "curve.png").stat().st_size > 1000
    assert [path.name for path in (trained / "checkpoints").glob("step-*")]
    assert not list(trained.rglob("*.part*"))


def test_an_existing_run_is_continued(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = Path("run")
    shutil.copytree(trained, run)
    before = read_metrics(run / "metrics.jsonl")
    result = train(settings(steps=300), run=run)
    assert said[0].startswith("continuing run from env step ")  # the path as it was given
    assert result.env_steps >= 300
    rows = read_metrics(run / "metrics.jsonl")
    assert rows[: len(before)] == before
    updates = [row["counters/updates"] for row in rows if "counters/updates" in row]
    assert updates == sorted(updates)
    assert updates[-1] > before[-2]["counters/updates"] > 0


# ---------------------------------------------------------------- what cannot be trained


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"env__id": "Acrobot-v1"}, r"contains a run with environment 'CartPole-v1', not 'Acrobot-v1'"),
        (
            {"algo__rssm__deter": 64},
            r"started with different settings: algo\.rssm\.deter: \d+ -> 64\. The checkpoint .* does not fit them: "
            r"restore these settings, or start another run\.$",
        ),
    ],
)
def test_another_runs_folder_is_left_alone(trained: Path, tmp_path: Path, more: dict[str, Any], message: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(ReverieError, match=message):
        train(settings(**more), run=run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


class Unsavable(DreamerV3):
    def extra_state(self) -> dict[str, Any]:
        return {**super().extra_state(), "draws": [random.Random(0)]}


@dataclass(frozen=True, kw_only=True)
class UnsavableConfig(DreamerV3Config):
    """Settings of a learner whose state no checkpoint can hold."""


UnsavableConfig.learner = Unsavable


def test_a_state_that_no_checkpoint_can_hold_is_told_before_the_first_step(tmp_path: Path) -> None:
    algo = UnsavableConfig().merge(SETTINGS["algo"])
    with pytest.raises(RunError, match=r"cannot save algo/draws/0: .* not Random\.$"):
        train(settings().merge({"algo": algo}), run=tmp_path / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "more",
    [{"env__id": "CartPole-v99"}, {"replay__capacity": 10}, {"learning_starts": 5000}, {"algo__rssm__deter": 33}],
)
def test_nothing_is_created_before_everything_was_checked(tmp_path: Path, more: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, EnvError)):
        train(settings(**more), run=tmp_path / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("how", [shutil.rmtree, lambda path: path.rename(path.with_name("elsewhere"))])
@pytest.mark.parametrize("at", [15, 63])
def test_a_folder_that_is_gone_ends_the_run_with_an_error_and_its_agent_saved(
    tmp_path: Path, at: int, how: Any
) -> None:
    """During training, and during the evaluation at its end."""
    run, left = tmp_path / "run", [at]

    class Gone(CartPoleEnv):
        def step(self, action: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                how(run)
            return super().step(action)

    with pytest.raises(RunError, match=r"run was deleted or moved while the run was writing to it"):
        reverie.train("dqn", env=Gone, run=run, **FEW | {"steps": 60, "envs": 1})
    assert reverie.load(run, env=Gone).step >= 60 or at < 60


class Watched(CartPoleEnv):
    """A step takes a second on the watch ``now``, in training and in evaluations."""

    now: ClassVar[list[float]] = [0.0]

    def step(self, action: Any) -> Any:
        self.now[0] += 1.0
        return super().step(action)


HOURS = {"envs": 1, "env.max_episode_steps": 20, "learning_starts": 16, "algo.lr": [[0, 1e-3], [9000, 1e-4]],
         "algo.exploration": "epsilon_greedy(1.0, 0.1, 9000)", "eval_episodes": 2, "schedule.eval_every": "100s",
         "console": False, "tensorboard": False}  # fmt: skip


@pytest.mark.parametrize(("steps", "is_ended_by_time"), [(10_000, True), (100, False)])
def test_a_run_of_hours_ends_in_time_and_its_schedules_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, is_ended_by_time: bool
) -> None:
    rates, chances, now = list[float](), list[float](), Watched.now
    update, choose = DQN.update, exploration.epsilon_greedy
    monkeypatch.setattr(wall_clock, "monotonic", lambda: now[0])
    rate_of = lambda dqn: float(next(iter(dqn._ramps.values()))[0])  # noqa: E731
    monkeypatch.setattr(DQN, "update", lambda dqn, b: (update(dqn, b), rates.append(rate_of(dqn)))[0])
    monkeypatch.setattr(
        exploration, "epsilon_greedy", lambda *choice: (chances.append(float(choice[2])), choose(*choice))[1]
    )
    started, run = now[0], tmp_path / "run"
    result = reverie.train("dqn", env=Watched, run=run, steps=steps, hours=0.25, **HOURS)
    assert (result.env_steps < steps) == is_ended_by_time
    assert now[0] - started < 900
    assert result.evaluation is not None
    assert (run / "checkpoints" / "best").exists()
    progress = 1.0 if is_ended_by_time else steps / 10_000  # 9000 steps of schedules are later
    assert (chances[-1], rates[-1]) == (
        pytest.approx(max(0.1, 1 - progress), abs=0.01), pytest.approx(max(1e-4, 1e-3 * (1 - progress)), rel=0.02)
    )  # fmt: skip
