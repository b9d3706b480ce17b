"""Rewards and ends of episodes as environments may give them."""

from __future__ import annotations

import env_zoo
import numpy as np
import pytest
import torch
from gymnasium import spaces

from reverie.core.errors import DataError
from reverie.envs.config import EnvConfig
from reverie.envs.flat import make_flat
from reverie.envs.wrappers import flag, number


@pytest.mark.parametrize(
    "reward", [2, 2.0, True + 1, np.float32(2), np.int64(2), np.array(2.0), np.array([2.0]), torch.tensor(2.0)]
)
def test_one_number_of_any_type(reward):
    assert number(reward) == 2.0
    assert type(number(reward)) is float


@pytest.mark.parametrize("reward", ["1.5", None, [1.0, 2.0], np.zeros((0,)), {"r": 1.0}, 1j])
def test_anything_else_is_no_reward(reward):
    with pytest.raises(DataError, match=r"the reward is .*: expected a number"):
        number(reward)


@pytest.mark.parametrize("reward", [np.nan, -np.inf, 1e39, np.float16(np.inf), np.float32(np.nan), np.array([1e300])])
def test_a_reward_is_a_number_that_float32_holds(reward):
    with pytest.raises(DataError, match=r"the reward is .*: expected a finite float32 number"):
        number(reward)


@pytest.mark.parametrize("repeat", [1, 2])
def test_the_error_says_which_environment(repeat):
    env = env_zoo.Scripted(spaces.Discrete(2), [0, 1], rewards=[0.0, None])
    flat = make_flat(EnvConfig(id="Odd-v0", action_repeat=repeat), lambda: env, 0, False)
    rows = {"observation": np.zeros((), np.int64)}
    flat.reset_into(None, rows)
    with pytest.raises(DataError, match=r"environment 0.*step 1.*the reward is None: expected a number"):
        flat.step_into(np.zeros(flat.action_spec.width, np.float32), rows)


def test_rewards_of_repeats_are_summed_whatever_their_type():
    rewards = [0.0, np.array([1.5]), torch.tensor(2)]
    env = env_zoo.Scripted(spaces.Discrete(2), [0, 1, 1], rewards=rewards)
    flat = make_flat(EnvConfig(id="Odd-v0", action_repeat=2), lambda: env, 0, False)
    rows = {"observation": np.zeros((), np.int64)}
    flat.reset_into(None, rows)
    assert flat.step_into(np.zeros(flat.action_spec.width, np.float32), rows)[0] == 3.5


@pytest.mark.parametrize("kind", [bool, int, np.bool_, np.array, lambda x: np.array([x]), torch.tensor])
def test_one_flag_of_any_type(kind):
    assert flag("terminated", kind(True)) is True
    assert flag("terminated", kind(False)) is False


@pytest.mark.parametrize("ends", ["False", None, [False, True], np.zeros(2, bool), {}])
@pytest.mark.parametrize("repeat", [1, 2])
def test_what_is_no_flag_is_named_with_its_environment(ends, repeat):
    class Odd(env_zoo.Scripted):
        def step(self, action):
            return *super().step(action)[:2], ends, False, {}

    env = Odd(spaces.Discrete(2), [0, 1, 1], rewards=[0.0, 0.0, 0.0])
    flat = make_flat(EnvConfig(id="Odd-v0", action_repeat=repeat), lambda: env, 0, False)
    rows = {"observation": np.zeros((), np.int64)}
    flat.reset_into(None, rows)
    with pytest.raises(DataError, match=r"environment 0.*step 1 of.*: terminated is .*: expected a bool, whether"):
        flat.step_into(np.zeros(flat.action_spec.width, np.float32), rows)
