"""Action masks of last rows: learners bootstrap from truncated ones, so nothing stands in for their masks."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import reverie
from env_steps import play
from reverie.agent.recording import record_agent
from reverie.core.errors import DataError, EnvError
from reverie.datasets.options import RecordConfig
from reverie.envs.config import EnvConfig
from reverie.envs.slot_vector_env import make_vector_env
from tiny_configs import FEW


class Legal(gymnasium.Env):
    """Episodes of three steps. Class t % 3 is illegal in row t; ``at_end`` tells what the last row's mask is."""

    action_space = spaces.Discrete(3)

    def __init__(self, source="method", terminal=True, at_end="mask"):
        self.source, self.terminal, self.at_end = source, terminal, at_end
        board = spaces.Box(-1, 9, (1,), np.float32)
        is_seen = source == "observation"
        self.observation_space = spaces.Dict(board=board, action_mask=spaces.MultiBinary(3)) if is_seen else board
        if source == "method":
            self.action_masks = self._mask

    def _mask(self):
        if self.t == 3 and self.at_end != "mask":
            if self.at_end == "raises":
                raise RuntimeError("the game is over")
            return np.zeros(3, np.int8)
        return np.array([(self.t + k) % 3 > 0 for k in range(3)], np.int8)

    def _obs(self):
        board = np.full(1, self.t, np.float32)
        has_mask = not (self.t == 3 and self.at_end == "missing")
        mask = {"action_mask": self._mask()} if self.source != "method" and has_mask else {}
        return ({"board": board} | mask, {}) if self.source == "observation" else (board, mask)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._obs()

    def step(self, action):
        self.t += 1
        obs, info = self._obs()
        return obs, 1.0, self.terminal and self.t == 3, not self.terminal and self.t == 3, info


ENDS = [("method", "mask"), ("info", "mask"), ("observation", "mask"), ("method", "raises"), ("method", "zeros"),
        ("info", "zeros"), ("info", "missing"), ("observation", "zeros"), ("observation", "missing")]  # fmt: skip


def last_mask(source, terminal, at_end):
    """Return the mask of the first last row."""
    env = make_vector_env(EnvConfig(), seed=0, factory=lambda: Legal(source, terminal, at_end))
    step = env.reset()
    while not step.is_last[0]:
        step = env.step(torch.eye(3)[1:2])
    return step.obs["action_mask"][0].tolist()


@pytest.mark.parametrize(("source", "at_end"), ENDS)
def test_a_last_row_has_its_own_mask_or_is_terminal(source, at_end):
    expected = [0, 1, 1] if at_end == "mask" else [1, 1, 1]
    assert last_mask(source, True, at_end) == expected
    if at_end == "mask":
        assert last_mask(source, False, at_end) == expected
        return
    message = "failed in a truncated row" if at_end == "raises" else "is missing|leaves no legal action"
    with pytest.raises((DataError, EnvError), match=f"environment 0 .* step 3.*({message})"):
        last_mask(source, False, at_end)


def test_a_method_that_fails_at_a_time_limit_ends_the_run_although_failures_are_restarted():
    env = make_vector_env(EnvConfig(restarts=9), seed=0, factory=lambda: Legal("method", False, "raises"))
    play(env, 3, torch.eye(3)[1:2])
    with pytest.raises(EnvError, match=r"failed in a truncated row with RuntimeError: the game is over"):
        env.step(torch.eye(3)[1:2])


def test_an_episode_is_recorded_though_the_method_of_a_game_that_is_over_fails(tmp_path):
    reverie.train("dqn", env=lambda: Legal(at_end="raises"), run=tmp_path / "run", **FEW)
    agent = reverie.load(tmp_path / "run", env=lambda: Legal(at_end="raises"))
    record_agent(agent, str(tmp_path / "data"), RecordConfig(episodes=2))
    masks = agent.load_episode(0, tmp_path / "data").obs["action_mask"][0]
    assert masks.int().tolist() == [[0, 1, 1], [1, 1, 0], [1, 0, 1], [1, 1, 1]]
