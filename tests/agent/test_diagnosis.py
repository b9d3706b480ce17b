"""Why a run did not learn, by its own measurements."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import reverie
from reverie.agent.diagnosis import action_reasons, explain_failure, is_above, likely_reasons
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


def test_rewards_saturated_actions_unnormalized_observations_and_few_updates(tmp_path: Path) -> None:
    small, starts = {"batch_size": 32, "networks": {"units": (32,)}}, {"learning_starts": 50, "random_steps": 50}
    result = reverie.train("td3", steps=200, algo=small, run=tmp_path / "run", **starts, **QUIET)
    reasons = list(likely_reasons(result.agent, result))
    assert [reason.split(":")[0] for reason in reasons] == [
        "all rewards are equal",
        "actions are saturated",
        "observations are far from 1 in size ('observation' 3.01e+05), and not normalized",
        "few updates",
    ]
    assert "1 in 199 steps" in reasons[0]
    assert reasons[1].endswith("--algo.normalize-obs running")
    assert f": {result.updates:,}, where the preset plans " in reasons[3]
    text = explain_failure(result.agent.config, result)
    assert re.match(r"The mean return 20\.00 is not above 20\.00, that of random actions in \d+ episodes\.\n", text)
    assert text.count("\n") == 4


def test_learning_never_started(tmp_path: Path) -> None:
    settings = QUIET | {"env": "CartPole-v1", "learning_starts": 59}  # windows have more rows
    result = reverie.train("dqn", steps=60, run=tmp_path / "run", **settings)
    assert next(likely_reasons(result.agent, result)).startswith("learning never started: 0 updates in 60 env steps")


@pytest.mark.parametrize(("chosen", "expected"), [([1] * 99 + [0], ""), ([1] * 100, "one action is always chosen: 1")])
def test_a_policy_that_always_chooses_the_same(tmp_path: Path, chosen: list[int], expected: str) -> None:
    class Agent:
        action_spec = ActionSpec(parts={"action": ActionPart(kind="categorical", classes=(2,))})
        config = base_config("dqn", "CartPole-v1")

    reasons = list(action_reasons(Agent(), np.eye(2)[chosen], normalize=False))  # type: ignore[arg-type]
    assert [reason[: len(expected)] for reason in reasons] == [expected] * bool(expected)


def test_above_random_is_by_more_than_chance() -> None:
    random = [0.0, 2.0, 1.0, 1.0]
    assert is_above(Evaluation(scores=[3.0, 3.0], lengths=[1, 1], mode="eval"), random)
    assert not is_above(Evaluation(scores=[0.0, 3.0], lengths=[1, 1], mode="eval"), random)
