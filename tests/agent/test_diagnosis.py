"""Why a run did not learn, by its own measurements."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import reverie
from reverie.agent import diagnosis
from reverie.agent.diagnosis import action_reasons, explain_failure, is_above
from reverie.core.specs import ActionPart, ActionSpec
from reverie.experiment.config_layers import base_config
from reverie.run.evaluate import Evaluation


class Kelvin(gymnasium.Env):
    """A drifting temperature, in millikelvin; its reward is always the same."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.obs(), {}

    def obs(self) -> np.ndarray:
        return 300_000 + 5_000 * self.np_random.normal(size=2).astype(np.float32)

    def step(self, action: Any) -> Any:
        return self.obs(), 1.0, False, False, {}


gymnasium.register("Kelvin-v0", entry_point=Kelvin, max_episode_steps=20)
QUIET: dict[str, Any] = {"env": "Kelvin-v0", "console": False, "tensorboard": False, "eval_episodes": 2}


@pytest.fixture(autouse=True)
def shorten_play(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "PLAY_SECONDS", 0.3)


def reasons_of(result: reverie.TrainResult) -> list[str]:
    """The reasons of a run, without their numbers."""
    lines = explain_failure(result).splitlines()
    assert re.match(
        r"The mean return [-.\d]+ is not clearly above [-.\d]+, that of random actions in \d+ episodes\.$", lines[0]
    )
    assert lines[1] == "Likely reasons:"
    return [line.split(". ", 1)[1] for line in lines[2:]]


def test_equal_rewards_unnormalized_observations_and_saturated_actions(tmp_path: Path) -> None:
    small, starts = {"batch_size": 32, "networks": {"units": (32,)}}, {"learning_starts": 50, "random_steps": 50}
    noisy = {"exploration": "gaussian(1.0)"}  # so that few of the recorded actions are saturated
    result = reverie.train("td3", steps=200, algo=small | noisy, run=tmp_path / "run", **starts, **QUIET)
    rewards, observations, actions = reasons_of(result)
    assert rewards.startswith("all rewards are equal: 1 in 199 steps")
    assert re.match(
        r"observations are far from 1 in size \('observation' 3.01e\+05\), and not normalized", observations
    )
    assert re.match(r"actions are saturated: 100% .* Try a smaller --algo.actor-lr$", actions)


def test_few_updates(tmp_path: Path) -> None:
    """PPO has no replay ratio."""
    small = {"rollout": 32, "batch_size": 32, "epochs": 1}
    result = reverie.train("ppo", steps=64, algo=small, run=tmp_path / "run", **QUIET | {"env.num": 1})
    assert re.match(r"few updates: 2, where the preset plans [\d,]+. More --steps$", reasons_of(result)[-1])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"learning_starts": 50, "algo.batch_length": 30},
            "successive rows of an episode, and episodes have 21 at most",
        ),
        ({"learning_starts": 59}, "it starts after 59 windows of"),
        ({"replay_ratio": 0.0}, "the replay ratio is 0. A larger --replay-ratio"),
    ],
)
def test_learning_never_started(tmp_path: Path, settings: dict[str, Any], expected: str) -> None:
    result = reverie.train("td3", steps=60, run=tmp_path / "run", **QUIET | {"learning_starts": 50} | settings)
    reason = reasons_of(result)[0]
    assert reason.startswith("learning never started: 0 updates in 60 env steps; ")
    assert expected in reason


@pytest.mark.parametrize(("chosen", "expected"), [([1] * 99 + [0], ""), ([1] * 100, "one action is always chosen: 1")])
def test_a_policy_that_always_chooses_the_same(chosen: list[int], expected: str) -> None:
    class Agent:
        action_spec = ActionSpec(parts={"action": ActionPart(kind="categorical", classes=(2,))})
        config = base_config("dqn", "CartPole-v1")

    reasons = list(action_reasons(Agent(), np.eye(2)[chosen]))  # type: ignore[arg-type]
    assert [reason[: len(expected)] for reason in reasons] == [expected] * bool(expected)


def test_above_random_is_by_more_than_chance() -> None:
    random = [0.0, 2.0, 1.0, 1.0]
    assert is_above(Evaluation(scores=[3.0, 3.0], lengths=[1, 1], mode="eval"), random)
    assert not is_above(Evaluation(scores=[0.0, 3.0], lengths=[1, 1], mode="eval"), random)
