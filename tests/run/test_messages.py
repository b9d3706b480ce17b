"""What a run says of itself before it begins."""

from __future__ import annotations

from pathlib import Path

import pytest

import reverie
from reverie.core.types import Window
from reverie.experiment import describe
from reverie.experiment.config import ExperimentConfig
from tiny_configs import FEW


def test_two_lines_name_what_is_trained_and_where(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(describe, "available_memory", lambda: 8_000_000_000)
    run = tmp_path / "run"
    reverie.train("dqn", env="CartPole-v1", run=run, **FEW | {"steps": 1000, "eval_episodes": 0})
    assert said == [
        f"dqn (preset dqn_cartpole): 0.02M parameters on cpu, in {run}",
        "1,000 env steps, 0 updates, replay up to 32.00 kB of 8.00 GB available",
    ]


def test_the_planned_updates_begin_when_a_batch_exists() -> None:
    """16 windows of 64 rows in 4 streams exist after 16 + 4 * 63 steps."""
    values = {"learning_starts": 16, "replay_ratio": 1.0, "env.num": 4}
    config, window = ExperimentConfig().merge(values), Window(batch=16, length=64)
    planned = [config.merge({"steps": steps}).planned_counts(window) for steps in (268, 269, 300)]
    assert planned == [(0, 67), (1, 67), (32, 75)]


def test_a_run_that_learns_too_late_says_so(tmp_path: Path, said: list[str]) -> None:
    late = FEW | {"steps": 60, "learning_starts": 59, "replay_ratio": 0.5, "eval_episodes": 0}
    assert reverie.train("dqn", env="CartPole-v1", run=tmp_path / "run", **late).updates == 0
    assert "no updates were made: learning starts after 59 of 60 env steps" in " ".join(said)
