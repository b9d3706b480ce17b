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
# A gradient through the world model, before that is learned and far ahead, would drive actions to their bounds.
THROUGH = SMALL | {
    "random_steps": 300, "learning_starts": 300, "algo.horizon": 3, "algo.discount": 0.5, "algo.noise": 0.3,
    "algo.actor.continuous": "tanh_normal(0.1, 0.0)", "algo.actor_optim.lr": 2e-4,
}  # fmt: skip
V1 = THROUGH | {"algo.kl": "free(0.5)"}
GAUSSIAN = THROUGH | {
    "algo.kl": "balanced(0.8, 0.5)", "algo.rssm.latent": "gaussian('sigmoid2')", "algo.entropy": 0.0,
    "algo.slow_every": 20, "algo.rewards": "identity",
}  # fmt: skip


@pytest.mark.parametrize(
    ("algorithm", "env", "small", "steps", "least"),
    [
        ("dreamer_v2", "reverie/Count-v0", V2, 800, 9.5),  # best 10, by chance 5: the episode ends by the clock
        ("dreamer_v2", "reverie/Look-v0", V2, 1600, 8.5),  # best 10, by chance 5: what to do is in the picture
        ("dreamer_v2", "reverie/Match-v0", GAUSSIAN, 1600, -25.0),  # best 0, -53 without looking, -160 at worst
        ("dreamer_v1", "reverie/Match-v0", V1, 1600, -25.0),
    ],
)
def test_solved(algorithm, env, small, steps, least, tmp_path):
    settings = small | {"steps": steps, "schedule.eval_every": 100, "stop_score": least + 0.05 * abs(least)}
    result = reverie.train(algorithm, env=env, preset="cpu", run=tmp_path / "run", **settings)
    mean = sum(result.evaluation.scores) / len(result.evaluation.scores)
    assert mean >= least
