"""Training from Python: by name or by objects, one at a time, and nothing of the caller's is changed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

import reverie
from corridor import Corridor
from reverie.agent.loading import load
from reverie.algos.dreamer_v3 import DreamerV3Config
from reverie.experiment.config import ExperimentConfig
from tiny import NETWORKS, SMALL, settings


def test_train_with_configuration_objects(tmp_path: Path) -> None:
    algo = DreamerV3Config(batch_size=2, batch_length=8, horizon=3).merge(NETWORKS)
    more = {key: value for key, value in SMALL.items() if key not in ("algo", "env")}
    result = reverie.train(algo, env=Corridor, run=tmp_path / "a", **more)
    assert load(result.run, env=Corridor).config.algo == algo
    config = ExperimentConfig().merge(SMALL)
    assert reverie.train(config, run=tmp_path / "b").reason == "finished"


def test_threads_are_those_of_before_afterwards(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        reverie.train(settings(steps=1, eval_episodes=0, threads=1), run=tmp_path / "run")
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


class Drawing:
    """A sink that uses the generators that belong to nobody."""

    def write(self, values: Any, step: int) -> None:
        torch.rand(3), np.random.rand(3), random.random()  # noqa: NPY002

    def close(self) -> None:
        torch.manual_seed(0)


def test_a_training_leaves_the_generators_of_others_alone_and_the_other_way_round(tmp_path: Path) -> None:
    def weights(name: str, **more: Any) -> dict[str, torch.Tensor]:
        reverie.train(settings(steps=60, eval_episodes=0), run=tmp_path / name, **more)
        return load(tmp_path / name).algo.state_dict()

    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    random.seed(3)
    expected = [float(torch.rand(1)), float(np.random.rand()), random.random()]  # noqa: NPY002
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    random.seed(3)
    alone = weights("alone")
    assert [float(torch.rand(1)), float(np.random.rand()), random.random()] == expected  # noqa: NPY002
    beside = weights("beside", sinks=[Drawing()])
    torch.testing.assert_close(beside, alone, rtol=0, atol=0)


def test_two_trainings_at_once_are_refused(tmp_path: Path, said: list[str]) -> None:
    class Nested(Drawing):
        def write(self, values: Any, step: int) -> None:
            reverie.train(settings(steps=60), run=tmp_path / "inner")

    reverie.train(settings(steps=60), run=tmp_path / "outer", sinks=[Nested()])
    assert any("Nested cannot write: RunError: another training is running in this process" in line for line in said)
    assert not (tmp_path / "inner").exists()
    reverie.train(settings(steps=60, eval_episodes=0), run=tmp_path / "next")  # once it is over


def test_check_env_suggests_what_suits_the_spaces() -> None:
    """Without a preset for the environment, quick learners where there are no images; with one, its own."""
    for name, env in {"sac": "Pendulum-v1", "dqn": "FrozenLake-v1", "dreamer_v3": "CartPole-v1"}.items():
        report = reverie.check_env(env, steps=50)
        assert (report.algorithm, report.hours) == (name, None)
    report = reverie.check_env(Corridor, env_options={"time_limit": 4}, steps=50)
    assert report.algorithm == "dreamer_v3"
    assert max(report.facts["lengths"]) <= 4
