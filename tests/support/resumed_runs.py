"""Runs on a random walk that are stopped and go on, and whether two of them are the same."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from reverie.algos.dqn import DQNConfig
from reverie.api import train_config as train
from reverie.experiment.config import ExperimentConfig
from reverie.run.checkpoint import Checkpoints, read_checkpoint
from reverie.run.result import TrainResult
from reverie.store.store import ReplayStore
from tiny_configs import SETTINGS

CONFIG = ExperimentConfig().merge(SETTINGS).merge(
    {
        **{"steps": 100, "threads": 1, "learning_starts": 10, "env.id": "Walk", "replay.capacity": 120},
        "schedule.save_every": 30,
    }
)  # fmt: skip


QUICK = ExperimentConfig(algo=DQNConfig()).merge(
    {k: v for k, v in SETTINGS.items() if k != "algo"} | {"threads": 1, "replay_ratio": 0.0}
)
"""Settings of a run that only collects."""


class Walk(gymnasium.Env[Any, Any]):
    """A random walk with a hidden velocity that ends at random; sends SIGTERM to its process when told to."""

    observation_space = gymnasium.spaces.Box(-1000, 1000, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    stop_at = 10**9
    steps_of_all = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.x, self.v = np.zeros(2), 0.0
        return self._seen(), {}

    def _seen(self) -> np.ndarray:
        return np.array([*self.x, np.random.random()], np.float32)  # noqa: NPY002 - as environments of others do

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.v += self.np_random.normal() + action - 0.5
        self.x += self.v, 1.0
        Walk.steps_of_all += 1
        if Walk.steps_of_all == Walk.stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return self._seen(), float(self.v), bool(self.np_random.random() < 0.05), False, {}


def run_until(
    run: Path, stop_at: int, monkeypatch: pytest.MonkeyPatch, env: Any = Walk, callbacks: Any = (), **more: Any
) -> TrainResult:
    """Interrupted at that step of the environments."""
    with monkeypatch.context() as patch:
        patch.setattr(Walk, "stop_at", stop_at)
        patch.setattr(Walk, "steps_of_all", 0)
        result = train(CONFIG.merge(more), env=env, run=run, callbacks=callbacks)
    assert result.signal == signal.SIGTERM
    return result


def everything(run: Path) -> dict[str, Any]:
    """All that a finished run has learned and lived."""
    newest = Checkpoints(run / "checkpoints").latest()
    assert newest is not None
    found = dict(leaves(read_checkpoint(newest, ["algo", "random", "replay"])))
    found |= {file.name: np.load(file) for file in (newest / "replay").glob("*.npy")}
    rows = stored(ReplayStore(run / "replay")) if (run / "replay").exists() else {}  # on-policy runs store none
    return found | {f"{name} stored": column for name, column in rows.items()}


def stored(store: ReplayStore) -> dict[str, np.ndarray]:
    """All rows of the newest segment and its ancestors, ``[N, n, ...]``."""
    chunks = [chunk.rows for part in store.ancestor_parts(store.segments[-1].name) for chunk in store.read(*part)]
    return {name: np.concatenate([rows[name] for rows in chunks], 1) for name in chunks[0]}


def leaves(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{name}/{key}")
    else:
        yield name, value


def assert_same(run: Path, other: Path) -> None:
    a, b = everything(run), everything(other)
    assert a.keys() == b.keys()
    for name, value in a.items():
        if name == "/replay/segment":  # no two are called the same
            continue
        expected = b[name]
        same = np.array_equal(value, expected) if isinstance(value, np.ndarray | torch.Tensor) else value == expected
        assert same, name


def assert_rows_in_tail(run: Path) -> None:
    newest = Checkpoints(run / "checkpoints").latest()
    assert newest is not None
    assert read_checkpoint(newest, ["replay"])["replay"]["tail"]["reward"].shape[1] > 0
