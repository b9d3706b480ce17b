"""Goals that are hardly ever achieved by chance are learned in hindsight."""

import reverie

SETTINGS = {
    "steps": 1600, "replay_ratio": 0.5, "learning_starts": 100, "env.num": 4, "eval_episodes": 50, "eval_envs": 50,
    "threads": 1, "seed": 0, "console": False, "tensorboard": False, "replay.capacity": 20_000, "algo.lr": 2e-3,
    "algo.batch_size": 64, "algo.networks.units": (128,), "algo.tau": 0.05, "algo.target_update_interval": 1,
    "algo.discount": 0.95, "algo.exploration": "epsilon_greedy(1.0, 0.1, 1000)",
}  # fmt: skip


def test_bits_are_flipped(tmp_path):
    """Ten of them, within ten steps. Without hindsight, the success rate is below 0.2."""
    settings = SETTINGS | {"replay.hindsight": "future"}
    result = reverie.train("dqn", env="reverie/BitFlip-v0", run=tmp_path / "run", **settings)
    assert result.evaluation.info_means()["success_rate"] >= 0.9
