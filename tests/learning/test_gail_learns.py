"""Imitation without rewards recovers what an expert does, where that is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

import reverie
from played import played
from reverie.envs.dummy import Look, Match

SETTINGS: dict[str, Any] = {
    "replay_ratio": 1, "learning_starts": 100, "random_steps": 200, "env.num": 4, "env.vector": "serial",
    "eval_episodes": 30, "eval_envs": 30, "threads": 1, "seed": 0, "console": False, "tensorboard": False,
    "replay.capacity": 20_000, "algo.batch_size": 128, "algo.discount": 0.9, "algo.networks.units": (64, 64),
    "algo.actor_lr": 1e-3, "algo.critic_lr": 1e-3, "algo.tau": 0.02, "algo.discriminator.units": (64, 64),
    "algo.temperature": 0.1, "algo.temperature_lr": 0.0,
}  # fmt: skip


class Lies(Match):
    """Asks for the target in [-1, 1] and says the opposite of what that earns, which nobody should learn from."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def step(self, action: np.ndarray) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, -reward, *rest


def test_numbers_are_imitated(tmp_path: Path) -> None:
    """Of what is lost, which the environment calls a gain: 0 at best, 53 without looking, 160 at most."""
    data = played(Lies(), lambda obs: obs.copy(), tmp_path / "expert.hdf5", 30, rewarded=False)
    more = {"algo.gradient_penalty": 0.1, "algo.discriminator_lr": 3e-3, "steps": 1100}
    result = reverie.train(
        "gail", env=Lies, data=data, run=tmp_path / "run", say=lambda text: None, **SETTINGS | more
    )  # fmt: skip
    assert result.evaluation is not None
    assert np.mean(result.evaluation.scores) < 6.0


def test_choices_are_imitated(tmp_path: Path) -> None:
    """Best 10, by chance 5: what to do is in a picture."""
    data = played(Look(), lambda obs: int(obs[0, -1, 0] > 0), tmp_path / "expert.hdf5", 30, rewarded=False)
    more = {"algo.networks.encoder": "minatar(8)", "algo.discriminator.encoder": "minatar(8)", "algo.batch_size": 64}
    result = reverie.train(
        "gail", env="reverie/Look-v0", data=data, run=tmp_path / "run", steps=400, say=lambda text: None,
        **SETTINGS | more,
    )  # fmt: skip
    assert result.evaluation is not None
    assert np.mean(result.evaluation.scores) >= 9.0
