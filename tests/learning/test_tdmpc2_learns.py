"""TD-MPC2 solves an environment whose best return is known, and its policy alone does after it."""

from dataclasses import replace

import pytest

import reverie

SMALL = {
    "replay_ratio": 0.5, "learning_starts": 200, "random_steps": 200, "env.num": 4, "env.vectorization": "sync",
    "eval_episodes": 10, "eval_envs": 10, "threads": 1, "seed": 0, "console": False, "tensorboard": False,
    "replay.capacity": 20_000, "algo.batch_size": 64, "algo.discount": 0.9, "algo.tau": 0.02, "algo.lr": 5e-4,
    "algo.encoder_lr": 5e-4, "algo.num_samples": 24, "algo.num_elites": 8, "algo.num_policy_samples": 4,
    "algo.iterations": 2,
    "algo.networks": {"units": (64, 64), "latent": 32, "encoder_units": (64,), "num_critics": 2},
}  # fmt: skip


@pytest.mark.nightly  # plans and updates equal recordings of the authors' code: tests/parity/tdmpc2.py
def test_solved_by_planning_and_by_the_policy(tmp_path):
    """Best 0, -53 without looking, -160 at worst: the action is the target that is seen, in units of the space."""
    settings = SMALL | {"steps": 1200, "schedule.eval_every": 200, "stop_score": -3.0}
    result = reverie.train("tdmpc2", env="reverie/Match-v0", run=tmp_path / "run", **settings)
    scores = result.evaluation.scores
    assert sum(scores) / len(scores) >= -6.0
    agent = reverie.load(tmp_path / "run")
    objective = agent.algo.objective
    objective.cfg = replace(objective.cfg, use_planning=False)
    alone = agent.evaluate(episodes=10).scores
    assert sum(alone) / len(alone) >= -20.0
