"""DreamerV1 and V2 solve environments whose best returns are known: from numbers, from pictures, with real actions."""

import pytest

import reverie

SMALL = {
    "replay_ratio": 0.5, "learning_starts": 64, "random_steps": 64, "env.num": 4, "eval_episodes": 30, "eval_envs": 30,
    "threads": 1, "seed": 0, "console": False, "tensorboard": False, "replay.capacity": 20_000, "algo.batch_size": 8,
    "algo.batch_length": 16, "algo.horizon": 8, "algo.rssm.deter": 64, "algo.rssm.hidden": 32, "algo.rssm.stoch": 8,
    "algo.encoder.units": (32,), "algo.decoder.units": (32,), "algo.encoder.depth": 8, "algo.decoder.depth": 8,
    "algo.encoder.kernels": (4, 3), "algo.decoder.kernels": (4, 2), "algo.model_optim.lr": 2e-3,
    "algo.actor_optim.lr": 1e-3, "algo.critic_optim.lr": 2e-3,
    **{f"algo.{part}.units": 32 for part in ("reward", "cont", "actor", "critic")},
    **{f"algo.{part}.layers": 2 for part in ("reward", "cont", "actor", "critic")},
}  # fmt: skip
V2 = SMALL | {"algo.rssm.latent": "categorical(8)", "algo.slow_every": 20, "algo.rewards": "identity"}
V1 = SMALL | {"algo.kl": "free(0.5)", "algo.actor.continuous": "tanh_normal(0.1, 0.0)", "algo.actor_optim.lr": 5e-4}


@pytest.mark.parametrize(
    ("algorithm", "env", "steps", "least"),
    [
        ("dreamer_v2", "reverie/Count-v0", 800, 9.5),  # best 10, by chance 5: the episode ends by the clock
        ("dreamer_v2", "reverie/Look-v0", 1600, 8.5),  # best 10, by chance 5: what to do is in the picture
        ("dreamer_v2", "reverie/Match-v0", 1600, -25.0),  # best 0, -53 without looking: through the world model
        ("dreamer_v1", "reverie/Match-v0", 1600, -25.0),
    ],
)
def test_solved(algorithm, env, steps, least, tmp_path):
    settings = (V1 if algorithm == "dreamer_v1" else V2) | {"steps": steps, "schedule.eval_every": 100}
    settings |= {"stop_score": least + 0.05 * abs(least)}
    result = reverie.train(algorithm, env=env, preset=f"{algorithm}_cpu", run=tmp_path / "run", **settings)
    mean = sum(result.evaluation.scores) / len(result.evaluation.scores)
    assert mean >= least
