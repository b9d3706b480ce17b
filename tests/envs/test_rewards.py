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


@pytest.mark.parametrize("reward", [2, 2.0, np.float32(2), np.int64(2), np.array([2.0]), torch.tensor(2.0)])
def test_one_number_of_any_type(reward):
    assert number(reward) == 2.0
    assert type(number(reward)) is float


@pytest.mark.parametrize("reward", ["1.5", [1.0, 2.0], np.nan, 1e39])
def test_a_reward_is_one_number_that_float32_holds(reward):
    with pytest.raises(DataError, match=r"the reward is .*: expected a (finite float32 )?number"):
        number(reward)


@pytest.mark.parametrize("kind", [bool, int, np.bool_, lambda x: np.array([x]), torch.tensor])
def test_one_flag_of_any_type(kind):
    assert flag("terminated", kind(True)) is True
    assert flag("terminated", kind(False)) is False


@pytest.mark.parametrize("ends", ["False", [False, True]])
def test_what_is_no_flag_is_refused(ends):
    with pytest.raises(DataError, match=r"terminated is .*: expected a bool, whether"):
        flag("terminated", ends)


@pytest.mark.parametrize("repeat", [1, 2])
def test_the_error_says_which_environment_and_step(repeat):
    env = env_zoo.Scripted(spaces.Discrete(2), [0, 1], rewards=[0.0, None])
    flat = env_zoo.Seen(make_flat(EnvConfig(id="Odd-v0", action_repeat=repeat), lambda: env, 0, False))
    flat.reset()
    with pytest.raises(DataError, match=r"environment 0.*step 1.*the reward is None: expected a number"):
        flat.step(np.zeros(2, np.float32))


def test_rewards_of_repeats_are_summed_whatever_their_type():
    env = env_zoo.Scripted(spaces.Discrete(2), [0, 1, 1], rewards=[0.0, np.array([1.5]), torch.tensor(2)])
    flat = env_zoo.Seen(make_flat(EnvConfig(id="Odd-v0", action_repeat=2), lambda: env, 0, False))
    flat.reset()
    assert flat.step(np.zeros(2, np.float32))[1] == 3.5
