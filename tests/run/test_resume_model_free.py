"""A run of a model-free agent that was stopped in the middle of an episode is the run that never stopped."""

from __future__ import annotations

import dataclasses
import itertools
import math
import signal
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from resumed_runs import Walk, assert_same
from reverie.algos.a2c import A2CConfig
from reverie.algos.base import Algorithm
from reverie.algos.ddpg import DDPGConfig
from reverie.algos.dqn import DQNConfig
from reverie.algos.fql import FQLConfig
from reverie.algos.ppo import PPOConfig
from reverie.algos.td3 import TD3Config
from reverie.api import train_config as train
from reverie.core.errors import DataError, RunError
from reverie.core.types import Batch, Update
from reverie.datasets.format_detection import open_reader
from reverie.experiment.build import build
from reverie.experiment.config import ExperimentConfig
from tiny_configs import SETTINGS

COMMON = {k: v for k, v in SETTINGS.items() if k != "algo"} | {
    "steps": 90, "threads": 1, "learning_starts": 10, "random_steps": 15, "env.id": "Push", "replay.capacity": 120,
    "schedule.save_every": 30, "algo.batch_size": 4, "algo.batch_length": 3, "algo.networks.units": (8,),
}  # fmt: skip
ALGORITHMS = {
    "drift, fixed and stopped before": (
        DDPGConfig(),
        {
            "algo.normalize_obs": "fixed(44)", "random_steps": 45, "learning_starts": 45,
            "algo.reward_scale": "factor(0.1)", "algo.value_estimator": "td_lambda(0.5)",
            "algo.exploration": "ornstein_uhlenbeck(0.2, 0.3, 0.01, 60)",
        },
    ),
    "running": (
        TD3Config(),
        {"algo.normalize_obs": "running", "algo.reward_scale": "return_std", "algo.frame_stack": 3,
         "algo.frame_stack_keys": ".*"},
    ),
    "chunks": (FQLConfig(), {"algo.chunk_size": 2, "algo.flow_steps": 2, "replay_ratio": 0.5}),
    "dqn": (
        DQNConfig(),
        {"algo.dueling": True, "algo.double": True, "replay.fractions.uniform": 0.0, "replay.fractions.priority": 1.0,
         "algo.exploration": "epsilon_greedy(1.0, 0.1, 60)", "algo.target_update_interval": 7, "replay_ratio": 0.5,
         "algo.intrinsic_reward": "rnd(units=8)"},
    ),
    "dqn, lstm": (DQNConfig(), {"algo.networks.memory": "lstm(4)", "algo.networks.burn_in": 2, "algo.frame_stack": 2,
                                "algo.frame_stack_keys": ".*", "algo.target_update_interval": 7}),
    "ppo": (PPOConfig(), {
        "algo.normalize_obs": "running", "algo.reward_scale": "return_std", "algo.frame_stack": 3,
        "algo.frame_stack_keys": ".*",
        "algo.intrinsic_reward": "rnd(units=8)",
        "algo.target_kl": 0.02, "algo.lr": [[0, 1e-3], [200, 1e-4]], "algo.clip_range": [[0, 0.2], [200, 0.1]],
    }),
    "a2c, gru": (A2CConfig(), {"algo.networks.memory": "gru(4)", "algo.batch_length": 3}),
}  # fmt: skip
ROLLOUTS = {"algo.batch_size": 6, "algo.rollout": 9, "algo.batch_length": 1}


class Push(Walk):
    """The random walk, pushed by a real number."""

    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return super().step(float(action[0]))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.nightly if name in ("drift, fixed and stopped before", "a2c, gru") else ())
    for name in ALGORITHMS  # the others resume bit for bit what these do; tests/twin crosses them all
])  # fmt: skip
def test_a_run_that_was_stopped_ends_as_one_that_was_not(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    algo, own = ALGORITHMS[name]
    common = COMMON | own
    if algo.on_policy:
        idle = ("learning_starts", "random_steps", "replay_ratio", "replay", "replay.capacity")
        common = {k: v for k, v in COMMON.items() if k not in idle} | ROLLOUTS | own
        common |= {"algo.epochs": 2} if name.startswith("ppo") else {"algo.batch_size": 1}
    config, env = ExperimentConfig(algo=algo).merge(common), Walk if "dqn" in name else Push
    monkeypatch.setattr(Walk, "steps_of_all", 0)
    monkeypatch.setattr(Walk, "stop_at", 10**9)
    train(config, env=env, run=tmp_path / "whole")
    monkeypatch.setattr(Walk, "steps_of_all", 0)
    monkeypatch.setattr(Walk, "stop_at", 41)
    stopped = train(config, env=env, run=tmp_path / "run")
    assert (stopped.signal, stopped.env_steps < 90) == (signal.SIGTERM, True)
    monkeypatch.setattr(Walk, "stop_at", 10**9)
    train(config, env=env, run=tmp_path / "run")
    assert_same(tmp_path / "run", tmp_path / "whole")
    if algo.on_policy:
        with pytest.raises(DataError, match=r"without stored rows.* --replay.store-path FOLDER"):
            open_reader(tmp_path / "run")


def test_a_run_whose_weights_broke_goes_on_from_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy acts with them before any loss is made of them."""
    config, run = ExperimentConfig(algo=DDPGConfig()).merge(COMMON | {"eval_episodes": 0}), tmp_path / "run"
    train(config.merge({"steps": 40}), env=Push, run=run)

    good = Algorithm.update

    def broken(self: Algorithm, batch: Batch) -> Update:
        update = good(self, batch)
        for parameter in self.parameters():
            parameter.data.fill_(math.nan)
        return update

    with monkeypatch.context() as patch:
        patch.setattr(Algorithm, "update", broken)
        with pytest.raises(RunError, match="are not finite after update"):
            train(config, env=Push, run=run)
    assert list((run / "checkpoints").glob("diverged-*"))
    assert train(config, env=Push, run=run).env_steps >= 90


def test_a_broken_loss_names_its_weights_and_keeps_its_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ExperimentConfig(algo=DDPGConfig()).merge(COMMON | {"eval_episodes": 0, "steps": 40})
    good, numbers = Algorithm.update, itertools.count()

    def broken(self: Algorithm, batch: Batch) -> Update:
        update = good(self, batch)
        batch.reward.fill_(float(next(numbers)))  # the batches share their memory
        for parameter in self.parameters():
            parameter.data.fill_(math.nan)
        return dataclasses.replace(update, metrics={"loss/critic": torch.tensor(math.nan)})

    monkeypatch.setattr(Algorithm, "update", broken)
    message = r"loss/critic became nan at update 1, and weights in .* batch\.safetensors"
    with pytest.raises(RunError, match=message):
        train(config, env=Push, run=tmp_path)
    (folder,) = (tmp_path / "checkpoints").glob("diverged-*")
    assert not load_file(folder / "batch.safetensors")["reward"].any()  # that of the first update


ANNEALED = {
    "epsilon": (DQNConfig(), Walk, {"algo.exploration": "epsilon_greedy(1.0, 0.05, 100)"}),
    "noise": (DDPGConfig(), Push, {"algo.exploration": "gaussian(1.0, 0.05, 100)"}),
    "of stacks": (TD3Config(), Push, {"algo.exploration": "ornstein_uhlenbeck(final_sigma=0.01, anneal_steps=100)",
                                      "algo.frame_stack": 3, "algo.frame_stack_keys": ".*"}),
}  # fmt: skip


@pytest.mark.parametrize(("name", "nums"), zip(ANNEALED, [(1, 3), (3, 2), (3, 1)], strict=True))
def test_annealing_goes_on_with_another_number_of_environments(name: str, nums: tuple[int, int]) -> None:
    algo, env, own = ANNEALED[name]
    config = ExperimentConfig(algo=algo).merge(COMMON | own | {"eval_episodes": 0})
    one, other = (build(config.merge({"env.num": num}), env).collector for num in nums)
    assert one is not None
    assert other is not None
    for _ in range(50):
        one.collect()
    other.load_state_dict(one.state_dict())
    before, after = (getattr(c.state, "state", c.state).steps for c in (one, other))
    assert before.sum() == after.sum() == one.env_steps > 40
    assert after.shape == (nums[1],)
    assert after.dtype is before.dtype
    for _ in range(5):
        other.collect()
    assert getattr(other.state, "state", other.state).steps.sum() == other.env_steps > one.env_steps
