"""A run from beginning to end: one seed for everything, its files, and where it goes on."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from gymnasium.envs.classic_control import CartPoleEnv

import reverie
from reverie.agent.loading import load
from reverie.algos.dreamer_v3 import DreamerV3, DreamerV3Config
from reverie.api import train_config as train
from reverie.core.errors import ConfigError, EnvError, ReverieError, RunError
from reverie.core.types import Batch
from reverie.experiment import bench
from reverie.experiment import build as build_module
from reverie.experiment.config import ExperimentConfig
from reverie.log.jsonl import read_metrics
from reverie.run.folder import read_saved_config
from tiny import FEW, SETTINGS, settings


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
            r"started with different settings: algo\.rssm\.deter: \d+ -> 64\. .* does not fit these .*mismatch",
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


def test_timing_the_learner_first_changes_nothing_but_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    def weights(name: str, **more: Any) -> dict[str, Any]:
        torch.set_num_threads(2)
        said.clear()
        train(settings(eval_episodes=0, **more), run=tmp_path / name)
        assert any(" take about 1 min besides the environment" in line for line in said) == (name == "timed")
        torch.set_num_threads(1)
        return dict(load(tmp_path / name).algo.state_dict()["model"])

    def timed(learner: DreamerV3, batch: Batch, *_: Any) -> tuple[float, float]:
        learner.update(batch)
        return 0.01, 1.0

    monkeypatch.setattr(bench, "update_seconds", timed)
    plain = weights("plain", steps=60, threads=1)
    monkeypatch.setattr(build_module, "SHORT_RUN_UPDATES", 0)
    after = weights("timed", steps=60)
    assert all(torch.equal(plain[key], after[key]) for key in plain)
    train(settings(steps=70, eval_episodes=0), run=tmp_path / "timed")
    assert read_saved_config(tmp_path / "timed").experiment["threads"] == 1


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


def test_a_run_of_hours_has_the_steps_that_fit_and_ends_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "MAX_SECONDS", 0.5)
    config = settings(hours=0.001, steps=5_000_000, eval_episodes=1, console=False)
    result = train(config, run=tmp_path / "run")
    saved = read_saved_config(tmp_path / "run").experiment
    assert saved["hours"] == 0.001
    assert 1 <= result.env_steps <= saved["steps"] + 4 < 5_000_000
