"""Rows from real vector environments, serial and in processes: flags, rewards, seeds, errors."""

from __future__ import annotations

import functools

import env_zoo
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.envs.config import EnvConfig
from reverie.envs.dummy import Count
from reverie.envs.vector import make_env


def rows(env, count, action=None):
    """``count`` rows after a reset, each field stacked to [T, N, ...]."""
    action = torch.zeros(env.num_envs, env.action_spec.width) if action is None else action
    steps = [env.reset()] + [env.step(action) for _ in range(count - 1)]
    flags = {f: torch.stack([getattr(s, f) for s in steps]) for f in ("reward", "is_first", "is_last", "is_terminal")}
    return {key: torch.stack([s.obs[key] for s in steps]) for key in steps[0].obs} | flags


def test_rewards_are_also_there_as_they_were_given(make):
    env = make(functools.partial(env_zoo.Scripted, spaces.Discrete(2), [0, 1, 1], rewards=[0.0, 0.1, 0.7]))
    env.reset()
    assert env.exact_rewards == [0.0]
    for exact in (0.1, 0.7):
        step = env.step(torch.zeros(1, env.action_spec.width))
        assert env.exact_rewards == [exact]
        assert step.reward.tolist() == [float(np.float32(exact))]
    env.restore(env.snapshot(), step)
    assert env.exact_rewards == []


@given(ends=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5)), min_size=1, max_size=3))
@settings(max_examples=15, deadline=None)
def test_rows_of_any_endings(ends):
    queue = list(ends)
    env = make_env(EnvConfig(num=len(ends)), seed=0, factory=lambda: Count(*queue.pop(0)))
    check_endings(rows(env, 15, torch.tensor([[0.0, 1.0]]).expand(len(ends), 2)), ends)


def check_endings(got, ends):
    assert got["reward"].dtype == torch.float32
    assert got["is_first"].dtype == got["is_last"].dtype == got["is_terminal"].dtype == torch.bool
    for i, (terminate_at, truncate_at) in enumerate(ends):
        terminal = 0 < terminate_at <= truncate_at
        length = terminate_at if terminal else truncate_at
        time = torch.arange(15) % (length + 1)
        assert (got["observation"][:, i, 0] == time).all()
        assert (got["is_first"][:, i] == (time == 0)).all()
        assert (got["is_last"][:, i] == (time == length)).all()
        assert (got["is_terminal"][:, i] == (time == length) & torch.tensor(terminal)).all()
        assert (got["reward"][:, i] == (time > 0)).all()


def test_time_limit_is_never_terminal_and_replaces_the_registered_one(make):
    got = rows(make(id="CartPole-v1", time_limit=4), 11)
    assert got["is_last"][:, 0].int().tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0]
    assert not got["is_terminal"].any()
    longer = rows(make(id="MountainCar-v0", time_limit=250), 253)
    assert longer["is_last"][:, 0].nonzero().ravel().tolist() == [250]


def test_reset_in_the_middle_starts_all_over(make):
    env = make(functools.partial(Count, truncate_at=3), num=2)
    env.reset()
    for _ in range(3):
        step = env.step(torch.zeros(2, 2))
    assert step.is_last.all()
    assert env.reset().is_first.all()
    step = env.step(torch.zeros(2, 2))
    assert not step.is_first.any()
    assert step.obs["observation"].tolist() == [[1], [1]]


def test_steps_do_not_change_when_the_next_is_taken(make):
    env = make(functools.partial(Count, truncate_at=9))
    first = env.reset()
    second = env.step(torch.zeros(1, 2))
    env.step(torch.zeros(1, 2))
    assert (first.obs["observation"].item(), second.obs["observation"].item()) == (0, 1)


ZOO = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (5, 6, 3), np.uint8),
        "depth": spaces.Box(0.0, 1.0, (5, 6, 1), np.float32),
        "joints": spaces.Box(-np.inf, np.inf, (2, 3), np.float64),
        "gear": spaces.Discrete(3, start=1),
        "slots": spaces.MultiDiscrete([2, 5]),
        "lamps": spaces.MultiBinary(4),
        "note": spaces.Text(6, min_length=0),
        "nested": spaces.Tuple((spaces.Discrete(2), spaces.Dict({"x": spaces.Box(-1, 1, ())}))),
    }
)


@pytest.mark.parametrize("vector", ["serial", "process"])
def test_every_kind_of_space_through_shared_memory(make, vector):
    ZOO.seed(3)
    samples = [ZOO.sample() for _ in range(4)]
    env = make(functools.partial(env_zoo.Scripted, ZOO, samples, truncated=(3,)), num=2, vector=vector)
    got = rows(env, 4)
    for key, part in env.obs_spec.items():
        assert got[key].shape == (4, 2, *part.shape)
        assert str(got[key].dtype) == f"torch.{part.dtype}"
    for t, sample in enumerate(samples):
        for i in range(2):
            np.testing.assert_array_equal(got["camera"][t, i], sample["camera"])
            np.testing.assert_allclose(got["joints"][t, i], sample["joints"], rtol=1e-6)
            assert got["gear"][t, i] == sample["gear"] - 1
            assert got["slots"][t, i].tolist() == sample["slots"].tolist()
            assert got["nested/0"][t, i] == sample["nested"][0]


def test_actions_arrive_unflattened(make):
    space = spaces.Dict({"a": spaces.Discrete(3, start=1), "b": spaces.Box(-4.0, 4.0, (2,))})
    inner = env_zoo.Scripted(spaces.Discrete(2), [0], action_space=space)
    env = make(inner)
    env.reset()
    env.step(torch.tensor([[0.0, 0.0, 1.0, 0.5, -9.0]]))
    assert inner.actions[0]["a"] == 3
    assert inner.actions[0]["b"].tolist() == [2.0, -4.0]


def test_seeds_are_derived_and_repeatable(make):
    one = rows(make(env_zoo.Seeded, seed=5, num=3), 9)["observation"]
    two = rows(make(env_zoo.Seeded, seed=5, num=3), 9)["observation"]
    other = rows(make(env_zoo.Seeded, seed=6, num=3), 9)["observation"]
    assert (one == two).all()
    assert not (one == other).any()
    assert len(set(one[0].ravel().tolist())) == 3
    assert (one[0] != one[6]).all()  # a new episode is a new draw


def test_render(make):
    env = make(id="CartPole-v1", num=2, render=True)
    env.reset()
    frame = env.render()
    assert frame.dtype == np.uint8
    assert frame.shape == (400, 600, 3)
