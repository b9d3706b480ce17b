"""Goals that are hardly ever achieved by chance are learned in hindsight."""

import pytest

import reverie

SETTINGS = {
    "steps": 1600, "replay_ratio": 0.5, "learning_starts": 100, "env.num": 4, "eval_episodes": 50, "eval_envs": 50,
    "threads": 1, "seed": 0, "console": False, "tensorboard": False, "replay.capacity": 20_000, "algo.lr": 2e-3,
    "algo.batch_size": 64, "algo.networks.units": (128,), "algo.tau": 0.05, "algo.target_update_interval": 1,
    "algo.discount": 0.95, "algo.exploration": "epsilon_greedy(1.0, 0.1, 1000)",
}  # fmt: skip


@pytest.mark.parametrize(("hindsight", "least", "most"), [("future", 0.9, 1.0), (None, 0.0, 0.2)])
def test_bits_are_flipped(hindsight, least, most, tmp_path):
    """Ten of them, within ten steps."""
    settings = SETTINGS | {"replay.hindsight": hindsight}
    result = reverie.train("dqn", env="reverie/BitFlip-v0", run=tmp_path / "run", **settings)
    assert least <= result.evaluation.info_means()["success_rate"] <= most
