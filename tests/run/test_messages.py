"""What a run says of itself before it begins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import reverie
from reverie.core.types import Window
from reverie.distributed.launch import learner_share
from reverie.experiment import describe
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.settings import make_preset
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
    planned = [config.merge({"steps": steps}).planned_updates(window) for steps in (268, 269, 300)]
    assert planned == [0, 1, 32]


@pytest.mark.parametrize(("algo", "length"), [("dqn", 4), ("dqn", 64), ("ppo", 8)])
def test_the_planned_updates_of_one_of_two_learners_are_those_of_the_run(algo: str, length: int) -> None:
    """Each learner has its share of the environments and of what learning starts after, but all env steps count."""
    two = {"learners": 2, "steps": 1000, "learning_starts": 101, "env.num": 4, "algo.batch_size": 32}
    config = make_preset(algo).merge(two | ({"algo.rollout": 24, "algo.batch_length": 8} if algo == "ppo" else {}))
    whole = Window(batch=32, length=length) if algo == "dqn" else Window(batch=4, length=8, rollout=24, epochs=2)
    share = config.merge(learner_share(config, cast(Any, SimpleNamespace(count=2, rank=0))))
    half = replace(whole, batch=whole.batch // 2)
    alone = config.merge({"learners": 1}).planned_updates(whole)
    assert abs(share.planned_updates(half) - alone) <= 1
    assert alone >= 60


def test_a_run_that_learns_too_late_says_so(tmp_path: Path, said: list[str]) -> None:
    late = FEW | {"steps": 60, "learning_starts": 59, "replay_ratio": 0.5, "eval_episodes": 0}
    assert reverie.train("dqn", env="CartPole-v1", run=tmp_path / "run", **late).updates == 0
    assert "no updates were made: learning starts after 59 of 60 env steps" in " ".join(said)
