"""Experiments: settings that fit, environments from Python, and evaluations that disturb nothing."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import reverie
from reverie.agent.loading import load
from reverie.api import train_config as train
from reverie.core.errors import ConfigError, EnvError
from reverie.core.types import Window
from reverie.datasets.detect import open_reader
from reverie.experiment import config as experiments
from reverie.experiment.build import build
from reverie.experiment.config import ExperimentConfig
from reverie.log.metrics import read_metrics
from shared_generators import Lucky, Paying, Shared
from tiny import FEW, settings

# ---------------------------------------------------------------- settings


def test_train_ratio_is_replay_ratio_in_other_units() -> None:
    window = Window(batch=16, length=64, context=1)
    assert ExperimentConfig(train_ratio=512).ratio(window) == 0.5
    assert ExperimentConfig(replay_ratio=0.25).ratio(window) == 0.25
    assert ExperimentConfig().ratio(window) == experiments.DEFAULT_REPLAY_RATIO


def test_a_learner_that_could_never_start_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"learning_starts = 999 windows.*learning would never start"):
        build(settings(learning_starts=999, replay__capacity=200))


# ---------------------------------------------------------------- environments from Python


class Paid(gymnasium.Env[Any, Any]):
    """Each step earns 5; an episode has four of them."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    closed = False

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self.t, self.lock = 0, threading.Lock()  # which cannot be copied
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return np.zeros(2, np.float32), 5.0, self.t == 4, False, {}

    def close(self) -> None:
        self.closed = True


def test_an_instance_has_its_true_rewards_and_stays_open(tmp_path: Path) -> None:
    env = Paid()
    clipped = settings(steps=20, env__num=1, env__clip_reward="sign", eval_episodes=2)
    result = train(clipped, env=env, run=tmp_path / "run")
    assert result.evaluation is not None
    assert result.evaluation.scores == [20.0, 20.0]  # never clipped where agents are judged
    agent = reverie.load(tmp_path / "run", env=env)
    assert agent.evaluate(3).scores == [20.0] * 3
    assert not env.closed
    with pytest.raises(ConfigError, match=r"actions = 'modes': expected 'mode' or 'sample'\. Did you mean 'mode'"):
        agent.evaluate(1, actions="modes")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="actions = 3"):
        agent.act(np.zeros(2, np.float32), actions=3)  # type: ignore[arg-type]


class Alone(Paid):
    """A simulator that can run only once."""

    running = False

    def __init__(self) -> None:
        if Alone.running:
            raise OSError("port in use")
        Alone.running = True

    def close(self) -> None:
        Alone.running = False


def test_where_only_one_can_run_all_is_closed() -> None:
    config = settings(env__num=1, eval_envs=1, schedule__eval_every=0)
    with pytest.raises(EnvError, match="port in use"):
        build(config, env=Alone)
    assert not Alone.running
    build(config.merge({"eval_episodes": 0}), env=Alone).close()
    assert not Alone.running


def test_arguments_are_handed_to_the_class(tmp_path: Path) -> None:
    result = reverie.train("td3", env=Paying, run=tmp_path / "a", env_options={"kwargs": {"pay": 3.0}}, **FEW)
    assert result.evaluation is not None
    assert result.evaluation.scores == [21.0, 21.0]
    assert load(tmp_path / "a", env=Paying).evaluate(1).scores == [21.0]
    with pytest.raises(
        EnvError, match=r"with env\.kwargs = .*: TypeError: .* got an unexpected keyword argument 'pays'"
    ):
        reverie.train("td3", env=Paying, run=tmp_path / "b", env_options={"kwargs": {"pays": 3.0}}, **FEW)
    with pytest.raises(ConfigError, match=r"env\.kwargs = .* with an environment instance: expected .* no kwargs"):
        reverie.train("td3", env=Paying(), run=tmp_path / "b", env_options={"kwargs": {"pay": 3.0}}, **FEW)
    assert not (tmp_path / "b").exists()


# ---------------------------------------------------------------- evaluations


def test_evaluation_does_not_disturb_training(tmp_path: Path) -> None:
    def losses(name: str, every: int) -> dict[str, float]:
        train(settings(schedule__eval_every=every, schedule__log_every=0), run=tmp_path / name)
        rows = read_metrics(tmp_path / name / "metrics.jsonl")
        return next({k: v for k, v in row.items() if k.startswith("loss/")} for row in rows if "loss/reward" in row)

    assert losses("never", 0) == losses("often", 30)


def test_evaluation_does_not_disturb_an_environment_that_draws_from_everybodys_generators(tmp_path: Path) -> None:
    def rows(name: str, every: int) -> bytes:
        run = tmp_path / name
        more: dict[str, Any] = {
            "console": False,
            "tensorboard": False,
            "eval_episodes": 1,
            "schedule.eval_every": every,
        }
        reverie.train("td3", env=Shared, run=run, steps=60, replay_ratio=0, random_steps=5, **more)
        return b"".join(part["obs/observation"].tobytes() for part in open_reader(str(run)).parts())

    assert rows("never", 0) == rows("often", 20)


@pytest.mark.parametrize("vector", ["serial", "process"])
def test_an_evaluation_of_what_draws_from_everybodys_generators_is_the_same_again(tmp_path: Path, vector: str) -> None:
    options = {"vector": vector}
    scores = [
        reverie.train("td3", env=Lucky, run=tmp_path / name, env_options=options, **FEW).evaluation.scores
        for name in ("once", "again")
    ]
    assert scores[0] == scores[1]
    assert len(set(scores[0])) == 2
