"""DreamerV3 solves environments whose best returns are known, from numbers, from pictures and with real actions."""

import pytest

import reverie

SMALL = {
    "replay_ratio": 0.5, "learning_starts": 64, "env.num": 4, "eval_episodes": 30, "eval_envs": 30, "threads": 1,
    "seed": 0, "console": False, "tensorboard": False, "replay.capacity": 20_000, "algo.batch_size": 8,
    "algo.batch_length": 16, "algo.horizon": 8, "algo.optim.lr": 2e-3, "algo.optim.warmup": 50, "algo.rssm.deter": 64,
    "algo.rssm.hidden": 32, "algo.rssm.stoch": 8, "algo.rssm.classes": 8, "algo.encoder.units": 32,
    "algo.encoder.depth": 8, "algo.decoder.units": 32, "algo.decoder.depth": 8, "algo.actor.units": 32,
    "algo.critic.units": 32, "algo.reward.units": 32, "algo.cont.units": 32,
}  # fmt: skip


@pytest.mark.parametrize(
    ("env", "steps", "least"),
    [
        ("reverie/Count-v0", 1200, 9.5),  # best 10, by chance 5: the episode ends by the clock, rewards go on
        ("reverie/Look-v0", 1200, 8.5),  # best 10, by chance 5: what to do is in the picture
        ("reverie/Match-v0", 2000, -25.0),  # best 0, -53 without looking, -160 at worst: actions are scaled
    ],
)
def test_solved(env, steps, least, tmp_path):
    settings = SMALL | {"steps": steps, "schedule.eval_every": 100, "stop_score": least + 0.05 * abs(least)}
    result = reverie.train("dreamer_v3", env=env, preset="cpu", run=tmp_path / "run", **settings)
    mean = sum(result.evaluation.scores) / len(result.evaluation.scores)
    assert mean >= least
