"""What a run says of the rewards in recorded data before it begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reverie
from d4rl_files import write
from reverie.algos.crr import CRRConfig
from reverie.core.discover import algorithm_config
from reverie.training.messages import rewards_far_from_1

STEPS = 40
PENDULUM, HALFCHEETAH = -16.3, 10.0
"""The largest rewards of these environments, by size."""
ON_DATA: dict[str, Any] = {"updates": 1, "eval_env": "none", "console": False, "tensorboard": False, "threads": 1,
                           "data.estimate_updates": 0}  # fmt: skip


def recorded(folder: Path, rewards: np.ndarray, *, terminal: bool = True) -> Path:
    """One episode of two actions that are classes, with these rewards ``[STEPS]``."""
    rng, last = np.random.default_rng(0), np.arange(STEPS) == STEPS - 1
    seen = rng.normal(size=(STEPS + 1, 2)).astype(np.float32)
    values = {"observations": seen[:-1], "next_observations": seen[1:], "actions": rng.integers(2, size=STEPS),
              "rewards": rewards.astype(np.float32), "terminals": last & terminal,
              "timeouts": last & (not terminal)}  # fmt: skip
    return write(folder / "data.hdf5", values)


def said_of(tmp_path: Path, algorithm: str, **more: Any) -> list[str]:
    said: list[str] = []
    reverie.train(algorithm, data=tmp_path / "data.hdf5", run=tmp_path / "run", say=said.append, **ON_DATA | more)
    return said


def test_a_run_says_that_rewards_are_far_from_what_its_settings_fit(tmp_path: Path) -> None:
    recorded(tmp_path, np.full(STEPS, 100.0))
    assert (
        "the rewards are far from 1: 100 as root mean square of those that are not 0. algo.filter is in units of "
        "values and its default fits rewards near 1, so discrete_crr may learn badly. Pass --algo.reward-scale "
        "'factor(0.01)', or set algo.filter to fit"
    ) in said_of(tmp_path, "discrete_crr")


def test_sparse_rewards_are_as_large_as_those_that_are_not_0(tmp_path: Path) -> None:
    recorded(tmp_path, np.where(np.arange(STEPS) == 5, 0.1, 0.0))  # 0.016 as root mean square of all
    assert not [line for line in said_of(tmp_path, "discrete_crr") if "far from 1" in line]


@pytest.mark.parametrize("name", ["iql", "crr", "cql", "discrete_crr", "discrete_cql"])
def test_rewards_of_usual_environments_are_not_remarked_on(name: str) -> None:
    config: Any = algorithm_config(name)()
    for size in (0.0, 1.0, abs(PENDULUM), HALFCHEETAH):
        assert rewards_far_from_1(config, size) == ""
    for size, factor in ((0.01, "factor(100)"), (31.0, "factor(0.1)"), (1e6, "factor(1e-06)")):
        assert factor in rewards_far_from_1(config, size)
        scaled = config.merge({"reward_scale": factor})
        assert rewards_far_from_1(scaled, size) == ""
    assert rewards_far_from_1(config.merge({"reward_scale": "return_std(None)"}), 1e6) == ""


def test_a_scale_that_does_not_fit_is_named_and_a_changed_setting_is_trusted() -> None:
    config = CRRConfig().merge({"reward_scale": "factor(10)"})
    assert "1000 as root mean square of those that are not 0, after scaling by 10." in rewards_far_from_1(config, 100)
    assert rewards_far_from_1(config.merge({"filter": "binary"}), 100) == ""


@pytest.mark.parametrize("name", ["bc", "td3_bc", "bcq", "discrete_bcq", "dreamer_v3"])
def test_algorithms_without_such_a_setting_take_all_rewards(name: str) -> None:
    config: Any = algorithm_config(name)()
    assert rewards_far_from_1(config, 1e6) == ""


SAME = "all rewards are 1 and no episode ends terminally, so by these data every policy is worth the same, and at best"
NOTHING = "all rewards are 0, so by these data every policy is worth the same, and at best"


def test_imitation_needs_no_rewards(tmp_path: Path) -> None:
    recorded(tmp_path, np.ones(STEPS), terminal=False)
    assert not [line for line in said_of(tmp_path, "bc") if "every policy" in line]
