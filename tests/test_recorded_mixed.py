"""Recorded and collected rows in one run must be of one task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium import spaces
from gymnasium.wrappers import RescaleAction, TransformReward

import reverie
from reverie.core.errors import ConfigError
from reverie.datasets.reader import About
from reverie.datasets.recorded_env import TOLD_APART, check_mixed, lacking
from reverie.envs.config import EnvConfig
from reverie.envs.task import written

FEW: dict[str, Any] = {
    "threads": 1, "eval_episodes": 0, "tensorboard": False, "console": False, "learning_starts": 10, "random_steps": 10,
    "algo.batch_size": 8, "algo.batch_length": 2, "algo.networks.units": (8,),
}  # fmt: skip


def about(**told: Any) -> About:
    space = spaces.Box(-1, 1, (1,))
    return About(observation=space, action=space, **told)


@pytest.mark.parametrize(
    ("was", "now", "name"),
    [
        ({"action_repeat": 2}, {}, "action_repeat"),
        ({"action_repeat": 4, "pool_frames": 2}, {"action_repeat": 4}, "pool_frames"),
        ({"clip_reward": "sign"}, {}, "clip_reward"),
        ({"clip_reward": "sign"}, {"clip_reward": "sign"}, ""),
        ({"noop_max": 30, "time_limit": 9, "num": 4}, {}, ""),
        ({}, {}, ""),
    ],
)
def test_settings_that_change_what_rows_mean(was: dict[str, Any], now: dict[str, Any], name: str) -> None:
    data, env = about(env_settings=was), EnvConfig().merge(now)
    if not name:
        check_mixed(data, env)
        return
    assert name in TOLD_APART
    said = rf"env\.{name} = {getattr(env, name)}: the rows were recorded with env\.{name} = {was[name]}, .*Set env\."
    with pytest.raises(ConfigError, match=said):
        check_mixed(data, env)


def test_two_tasks_are_not_mixed_in_silence(tmp_path: Path) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    few = {"steps": 30, **FEW}
    reverie.train("td3", "Pendulum-v1", run=data, env_options={"action_repeat": 2}, **few)
    with pytest.raises(ConfigError, match=r"env\.action_repeat = 1: the rows were recorded with .* = 2, and"):
        reverie.train("td3", "Pendulum-v1", data=data, run=run, experience="mixed", **few)
    assert not run.exists()


def spec_of(env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    text, _ = written(env.spec) if env.spec is not None else ("", "")
    found: dict[str, Any] = json.loads(text)
    return found


def test_wrappers_of_the_environment_are_compared() -> None:
    plain, scaled = gymnasium.make("Pendulum-v1"), RescaleAction(gymnasium.make("Pendulum-v1"), -1, 1)
    data = about(env="mine:Pendulum-v1", env_spec=spec_of(scaled))
    assert lacking(data, plain.spec) == ["gymnasium.wrappers.transform_action:RescaleAction"]
    assert lacking(data, scaled.spec) == lacking(data, None) == []
    assert lacking(data, gymnasium.spec("CartPole-v1")) == []  # chosen by its id
    assert lacking(about(env="Pendulum-v1"), TransformReward(plain, float).spec) == []
