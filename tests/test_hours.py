"""A run of so many hours: what is chosen by the cost of its learner, and what the user has set."""

from __future__ import annotations

from typing import Any

import pytest

from reverie.core.types import Window
from reverie.experiment import resolve
from reverie.experiment.bench import Cost
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.config_layers import base_config
from reverie.experiment.hours import TimedLearner, fit_ratio_and_length, fit_size

UPDATE_S = {"nano": 0.1, "1m": 0.25, "12m": 2.0}


def timed(config: ExperimentConfig, size: str = "nano") -> TimedLearner:
    """A Dreamer whose updates take as long as those of ``size``, and whose steps take 2 ms."""
    cost = Cost(update_s=UPDATE_S[size], turn_s=0.004, env_step_s=0.001)
    return TimedLearner(config, Window(batch=16, length=32), cost, None)


def chosen(algorithm: str, hours: float, **explicit: Any) -> tuple[int, float, str]:
    """The length, the updates per env step and the size that are chosen."""
    values = {name.replace("__", "."): value for name, value in explicit.items()}
    config = base_config(algorithm, "Mine-v0", device="cpu").merge({"env.id": "Mine-v0", **values})
    learner, size = fit_size(timed(resolve.complete_settings(config, values)), hours, timed)
    config = fit_ratio_and_length(learner, hours).config
    return config.steps, config.updates_per_step(learner.window), size


@pytest.mark.parametrize(
    ("hours", "explicit", "expected"),
    [
        (1.0, {}, (69_000, 0.5, "nano")),
        (0.1, {}, (50_000, 0.052, "nano")),
        (0.1, {"replay_ratio": 0.4}, (9_100, 0.4, "nano")),
        (2.0, {}, (57_000, 0.5, "1m")),
        (20.0, {}, (72_000, 0.5, "12m")),
        (1.0, {"steps": 5_000}, (5_000, 0.41, "12m")),
    ],
)
def test_hours_choose_size_then_ratio_then_length(
    hours: float, explicit: dict[str, Any], expected: tuple[int, float, str]
) -> None:
    assert chosen("dreamer_v3", hours, **explicit) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("preset", "explicit", "expected"),
    [
        ("cpu", [], (4, 512)),
        ("cpu", ["env.num"], (1, 2048)),
        ("ppo", [], (1, 2048)),
        ("ppo_minigrid+cpu", [], (16, 128)),
    ],
)
def test_on_policy_learners_have_as_many_environments_as_cores(
    monkeypatch: pytest.MonkeyPatch, preset: str, explicit: list[str], expected: tuple[int, int]
) -> None:
    monkeypatch.setattr(resolve, "num_cores", lambda: 6)
    config = resolve.complete_settings(base_config("ppo", "Mine-v0", preset), explicit)
    assert (config.env.num, config.algo.rollout) == expected
