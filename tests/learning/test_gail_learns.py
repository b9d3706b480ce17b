"""Imitation without rewards recovers what an expert does, where that is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import reverie
from reverie.envs.dummy import Look
from trained_run import played

SETTINGS: dict[str, Any] = {
    "replay_ratio": 1, "learning_starts": 100, "random_steps": 200, "env.num": 4, "env.vectorization": "sync",
    "eval_episodes": 30, "eval_envs": 30, "threads": 1, "seed": 0, "console": False, "tensorboard": False,
    "replay.capacity": 20_000, "algo.batch_size": 128, "algo.discount": 0.9, "algo.networks.units": (64, 64),
    "algo.actor_lr": 1e-3, "algo.critic_lr": 1e-3, "algo.tau": 0.02, "algo.discriminator.units": (64, 64),
    "algo.temperature": 0.1, "algo.temperature_lr": 0.0,
}  # fmt: skip


def test_choices_are_imitated(tmp_path: Path) -> None:
    """Best 10, by chance 5: what to do is in a picture."""
    data = played(Look(), lambda obs: int(obs[0, -1, 0] > 0), tmp_path / "expert.hdf5", 30, rewarded=False)
    more = {"algo.networks.encoder": "minatar(8)", "algo.discriminator.encoder": "minatar(8)", "algo.batch_size": 64}
    result = reverie.train(
        "gail", env="reverie/Look-v0", data=data, run=tmp_path / "run", steps=400,
        **SETTINGS | more,
    )  # fmt: skip
    assert result.evaluation is not None
    assert np.mean(result.evaluation.scores) >= 9.0
