"""Learning while a person takes over, in tasks whose best returns are known."""

import functools
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import reverie

EXAMPLES = str(Path(__file__).parents[2] / "examples")


class Line(gymnasium.Env):
    """A dot on a line earns -|x|, and so -0.6 in 20 steps at best; by chance -30.

    ``share``: of all steps in which a clumsy person goes right, 4 at a time.
    """

    observation_space, action_space = spaces.Box(-10, 10, (1,), np.float32), spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, share=0.0):
        self.share = share

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.time, self.left = self.np_random.uniform(-1.5, 1.5), 0, 0
        return np.float32([self.x]), {}

    def step(self, action):
        if self.left == 0 and self.np_random.random() < self.share / 4 / (1 - self.share):
            self.left = 4
        executed = np.float32([1.0]) if self.left else np.clip(action, -1, 1)
        info = {"intervene_action": executed} if self.left else {}
        self.left, self.time = max(0, self.left - 1), self.time + 1
        self.x = float(np.clip(self.x + 0.4 * executed[0], -10, 10))
        return np.float32([self.x]), -abs(self.x), False, self.time == 20, info


def test_ppo_learns_despite_a_clumsy_person(tmp_path):
    """With the person's actions in its losses, it scores less than -6."""
    result = reverie.train(
        "ppo", env=functools.partial(Line, 0.25), eval_env=Line, run=tmp_path / "run", steps=10_000, seed=0, threads=1,
        console=False, tensorboard=False, eval_episodes=50,
        **{"env.num": 8, "env.vectorization": "sync", "eval_envs": 50, "schedule.eval_every": 0, "algo.discount": 0.9,
           "algo.rollout": 32, "algo.batch_size": 64, "algo.lr": 3e-3, "algo.epochs": 8},
    )  # fmt: skip
    assert np.mean(result.evaluation.scores) > -2


@pytest.mark.nightly  # half a minute of ours, too
def test_half_a_minute_of_a_person_opens_the_door(monkeypatch, tmp_path):
    """600 steps of the script; alone, SAC never succeeds (``bench/human.json``)."""
    monkeypatch.syspath_prepend(EXAMPLES)
    from helped import Helper, learn

    helper = Helper(0, budget=600)
    assert learn(helper, 0)["steps"] is not None
    assert helper.budget == 0
