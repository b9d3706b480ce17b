"""On-policy agents solve environments whose best returns are known: by numbers, choices and memory; and CartPole."""

import pytest
import torch

import reverie
from device_vectors import match_task

SMALL = {
    "env.num": 8, "env.vectorization": "sync", "eval_episodes": 30, "eval_envs": 30, "threads": 1, "seed": 0,
    "console": False, "tensorboard": False, "algo.discount": 0.9, "schedule.eval_every": 1000,
}  # fmt: skip
PPO = {"algo.rollout": 32, "algo.batch_size": 64, "algo.lr": 3e-3, "algo.epochs": 8}


@pytest.mark.parametrize(
    ("name", "env", "goal", "own"),
    [
        ("ppo", "reverie/Match-v0", -8.0, PPO | {"algo.networks.log_std": -0.7}),  # best 0, without looking -53
        ("a2c", "reverie/Count-v0", 9.0, {"algo.lr": 1e-2}),  # best 10, by chance 5
        ("impala", "reverie/Count-v0", 9.0, {"algo.lr": 1e-2, "algo.rollout": 5}),
        ("ppo", "reverie/Cue-v0", 0.9, PPO | {  # best 1, without memory 0
            "algo.networks.memory": "lstm(16)", "algo.batch_length": 8, "algo.discount": 0.99}),
    ],
)  # fmt: skip
def test_solved(name, env, goal, own, tmp_path):
    result = reverie.train(name, env=env, run=tmp_path / "run", **SMALL | own | {"steps": 20_000, "stop_score": goal})
    assert sum(result.evaluation.scores) / len(result.evaluation.scores) >= goal - 0.2 * abs(goal)
    assert result.env_steps < 20_000


@pytest.mark.nightly
def test_cartpole_is_solved_with_its_preset(tmp_path):
    """Of 500 at most."""
    quick = {"schedule.eval_every": 2500, "stop_score": 475.0, "console": False, "tensorboard": False}
    result = reverie.train("ppo", env="CartPole-v1", run=tmp_path / "run", seed=0, **quick)
    assert result.env_steps <= 40_000
    assert sum(result.evaluation.scores) / len(result.evaluation.scores) >= 450


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cartpole_is_solved_in_float16(tmp_path):
    quick = {"schedule.eval_every": 2500, "stop_score": 475.0, "console": False, "tensorboard": False}
    quick |= {"device": "cuda", "algo.precision": "float16"}
    result = reverie.train("ppo", env="CartPole-v1", run=tmp_path / "run", seed=0, **quick)
    assert sum(result.evaluation.scores) / len(result.evaluation.scores) >= 450


@pytest.mark.parametrize(
    ("name", "own"),
    [
        pytest.param("ppo", {}, marks=pytest.mark.nightly),
        pytest.param(
            "dqn", {"env.num": 16, "train_freq": 16, "replay_ratio": 0.125, "learning_starts": 200, "random_steps": 200,
                    "algo.lr": 2e-3, "algo.batch_size": 64, "algo.exploration": "epsilon_greedy(1.0, 0.1, 1000)"},
            marks=pytest.mark.nightly,
        ),
    ],
)  # fmt: skip
def test_an_environment_in_jax_is_solved(name, own, tmp_path):
    pytest.importorskip("jax")
    from reverie.envs.jax_vector import JaxVector

    task = match_task()
    options = SMALL | (PPO if name == "ppo" else {}) | {"env.vectorization": "native", "stop_score": 7.5} | own
    result = reverie.train(
        name, env=lambda num_envs: JaxVector(task, num_envs), run=tmp_path / "run", steps=6_000, **options
    )
    assert sum(result.evaluation.scores) / len(result.evaluation.scores) >= 7.5
