"""Goals that are never achieved by chance are learned in hindsight."""

import pytest

import reverie

SETTINGS = {
    "steps": 6000, "replay_ratio": 0.5, "learning_starts": 200, "env.num": 4, "eval_episodes": 50, "eval_envs": 50,
    "threads": 1, "seed": 0, "console": False, "tensorboard": False, "replay.capacity": 20_000, "algo.lr": 1e-3,
    "algo.batch_size": 128, "algo.networks.units": (128,), "algo.tau": 0.05, "algo.target_update_interval": 1,
    "algo.discount": 0.95, "algo.exploration": "epsilon_greedy(1.0, 0.1, 2000)", "env.kwargs": {"bits": 10},
}  # fmt: skip


@pytest.mark.parametrize("hindsight", ["future", None])
def test_bits_are_flipped(hindsight, tmp_path):
    settings = SETTINGS | {"replay.hindsight": hindsight, "schedule.eval_every": 500, "stop_score": -4.2}
    result = reverie.train("dqn", env="reverie/BitFlip-v0", run=tmp_path / "run", **settings)
    success = result.evaluation.info_means()["success_rate"]
    assert success > 0.95 if hindsight else success < 0.3
