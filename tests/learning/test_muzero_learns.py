"""MuZero plays perfectly where perfect play is known."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import reverie
from reverie.envs.board_games import NimRules

SMALL = {
    "env.num": 16, "env.vectorization": "sync", "threads": 1, "seed": 0, "console": False, "tensorboard": False,
    "replay_ratio": 0.25, "learning_starts": 100, "algo.batch_size": 64, "algo.lr": 3e-3, "algo.unroll": 3,
    "algo.networks.units": (64,), "algo.networks.encoder_units": (32,), "algo.networks.max_value": 1.0,
    "algo.networks.bins": 21, "replay.capacity": 20_000,
}  # fmt: skip


def test_nim_is_played_perfectly(tmp_path):
    """From each position with a winning move; a random mover finds one in a third of them."""
    own = {"env.kwargs": {"heaps": (2, 3), "opening_moves": 2}, "algo.batch_length": 7, "algo.discount": 1.0}
    own |= {"algo.value_estimator": "td1", "algo.q_range_floor": 2.0, "eval_episodes": 0, "steps": 2000}
    reverie.train("muzero", env="reverie/Nim-v0", run=tmp_path / "run", preset="muzero", **SMALL | own)
    agent = reverie.load(tmp_path / "run")
    strength = NimRules((2, 3)).measure_strength(lambda obs: np.asarray(agent.act(dict(obs))[0]))
    assert strength["optimal_moves_hard"] == 1.0


class Corridor(gymnasium.Env[Any, Any]):
    """Six cells; the reward is at the far end, where the episode ends, and a clock of 30 steps."""

    observation_space = spaces.Box(0, 1, (6,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell = self.clock = 0
        return np.eye(6, dtype=np.float32)[0], {}

    def step(self, action):
        self.cell, self.clock = min(max(self.cell + 2 * int(action) - 1, 0), 5), self.clock + 1
        over = self.cell == 5
        return np.eye(6, dtype=np.float32)[self.cell], float(over), over, self.clock == 30, {}


def test_a_reward_at_the_end_of_a_corridor_is_found(tmp_path):
    """Values grow from cell to cell, up to 1."""
    own = {"algo.batch_length": 8, "algo.value_estimator": "n_step(6)", "algo.discount": 0.9, "steps": 2000}
    own |= {"eval_episodes": 0, "algo.num_simulations": 8}
    reverie.train("muzero", env=Corridor, run=tmp_path / "run", **SMALL | own)
    agent = reverie.load(tmp_path / "run")
    values, actions = agent.value(np.eye(6, dtype=np.float32)), agent.act(np.eye(6, dtype=np.float32))[0]
    assert actions[:5].tolist() == [1, 1, 1, 1, 1]
    assert (np.diff(values[:5]) > 0).all()
    np.testing.assert_allclose(values[4:], [1, 0], atol=0.1)  # nothing follows the last
