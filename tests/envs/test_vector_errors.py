"""What goes wrong in one of N environments is answered with its number, the step and the value."""

from __future__ import annotations

import functools

import env_zoo
import pytest
import torch
from gymnasium import spaces

from reverie.core.errors import ConfigError, DataError, EnvError
from reverie.envs.config import EnvConfig
from reverie.envs.vector import make_env


def test_nan_names_env_key_step_and_value(make):
    env = make(env_zoo.nan_in_second, num=2, restarts=0)
    env.reset()
    env.step(torch.zeros(2, 2))
    with pytest.raises(
        DataError, match=r"environment [01] .*step 2 of episode 1: observation 'a' is nan at index \(1,\)"
    ):
        env.step(torch.zeros(2, 2))


@pytest.mark.parametrize(
    ("factory", "options", "message"),
    [
        (env_zoo.OldReset, {}, r"reset\(\) returned one value of type int: expected 2 values \(obs"),
        (env_zoo.Seedless, {}, r"argument 'seed'. Define reset\(self, \*, seed=None, options=None\)"),
        (env_zoo.OldStep, {}, r"step\(\) returned 4 values: expected 5 values .*shimmy"),
        (env_zoo.OldStep, {"action_repeat": 2}, r"step 1 of episode 1: step\(\) returned 4 values.*shimmy"),
        (env_zoo.OldStep, {"time_limit": 9}, r"step 1 .*a wrapper of Gymnasium found not enough values.*shimmy"),
    ],
)
def test_environments_of_old_gym_are_told_apart(make, factory, options, message):
    env = make(factory, restarts=0, **options)
    with pytest.raises(DataError, match=message):
        env.reset() and env.step(torch.zeros(1, 2))


def test_an_observation_outside_its_space_in_the_second_env(make):
    good = functools.partial(env_zoo.Scripted, spaces.Discrete(3), [0, 0, 0])
    bad = functools.partial(env_zoo.Scripted, spaces.Discrete(3), [0, 7])
    queue = [good, bad]
    env = make(lambda: queue.pop(0)(), num=2, restarts=0)
    env.reset()
    with pytest.raises(DataError, match=r"environment 1 .*step 1 .*'observation' is 7; its space declares 0..2"):
        env.step(torch.zeros(2, 2))


def test_a_crash_surfaces_with_its_message(make):
    env = make(env_zoo.Crashing, num=2, vector="process", restarts=0)
    env.reset()
    env.step(torch.zeros(2, 2))
    env.step(torch.zeros(2, 2))
    with pytest.raises(
        EnvError, match=r"environment [01] .*step 3 .*Unpicklable: a wheel and an axle .*env_zoo.py:\d+"
    ):
        env.step(torch.zeros(2, 2))


def test_a_worker_that_cannot_be_made_says_why():
    with pytest.raises(
        EnvError, match=r"environment [01] .*could not be created: OSError: no licence for a second seat"
    ):
        make_env(EnvConfig(num=2, vector="process"), seed=0, factory=env_zoo.only_in_main)


def test_instances(make):
    instance = env_zoo.Seeded()
    assert make(instance).reset().is_first.all()
    with pytest.raises(ConfigError, match=r"env.num = 2, .* with an environment instance"):
        make(instance, num=2)
    with pytest.raises(ConfigError, match=r"env.vector = 'process'"):
        make(instance, vector="process")
    with pytest.raises(EnvError, match="returned the same environment twice"):
        make(lambda: instance, num=2)


def test_actions_that_do_not_fit(make):
    env = make(num=2)
    env.reset()
    with pytest.raises(DataError, match=r"shape \(2, 3\): expected \[N, A\] = \(2, 2\)"):
        env.step(torch.zeros(2, 3))
    with pytest.raises(DataError, match=r"the action for environment 1 is \[0.0, nan\]"):
        env.step(torch.tensor([[0.0, 0.0], [0.0, float("nan")]]))
