"""Values are brought into what rewards can add up to, and nothing within is touched."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.core.specs import ObsPart
from reverie.core.types import FLAGS, Batch, Step
from reverie.nn.preprocess import Preprocessor
from reverie.nn.reward_scaling import Affine, ReturnBounds, ReturnStd

NONE = torch.zeros(1, dtype=torch.bool)


def fitted(rewards: list[float], discount: float) -> ReturnBounds:
    bounds, first = ReturnBounds(discount), torch.arange(len(rewards) + 1)[None] == 0  # that row has no reward
    bounds.fit(torch.tensor([[0.0, *rewards]]), first)
    return bounds


@pytest.mark.parametrize(("rewards", "discount", "expected"), [
    ([1.0], 0.99, [1.0, 100.0]),  # CartPole: at least the reward at hand, at most 1 for ever
    ([-16.0, -0.5], 0.99, [-1600.0, -0.5]),  # Pendulum: never above its best reward
    ([-1.0, 2.0, 0.0], 0.99, [-100.0, 200.0]), ([0.0], 0.99, [0.0, 0.0]),
    ([1.0], 1.0, [1.0, 1e30]),  # rewards that never end bound nothing on their side
])  # fmt: skip
def test_by_hand(rewards, discount, expected):
    assert fitted(rewards, discount)(torch.tensor([-1e30, 1e30])).tolist() == pytest.approx(expected, rel=1e-5)


def test_before_any_reward_nothing_is_bounded():
    value = torch.tensor([-1e30, 1e30])
    bounds = ReturnBounds(0.9)
    assert bounds(value).tolist() == value.tolist()
    bounds.add(torch.tensor([5.0]), ~NONE)  # the first row of an episode has no reward
    assert bounds(value).tolist() == value.tolist()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=30), st.floats(0.0, 0.999), st.integers(1, 200),
       st.integers(0, 2**31))  # fmt: skip
def test_no_return_is_outside(rewards, discount, length, seed):
    """Of any episode made of these rewards, however long."""
    earned = np.random.default_rng(seed).choice(np.array(rewards), length)
    total = float((earned * discount ** np.arange(length)).sum())
    found = float(fitted(rewards, discount)(torch.tensor([total], dtype=torch.float64)))
    assert math.isclose(found, total, rel_tol=1e-5, abs_tol=1e-5)


def test_rows_that_are_lived_widen_it():
    bounds = fitted([1.0], 0.5)
    bounds.add(torch.tensor([3.0, -9.0]), torch.tensor([False, True]))
    assert bounds.bounds.tolist() == [1.0, 6.0]
    bounds.add(torch.tensor([-2.0]), NONE)
    assert bounds.bounds.tolist() == [-4.0, 6.0]
    bounds.fit(torch.tensor([[1.0]]), torch.tensor([[False]]))
    assert bounds.bounds.tolist() == [1.0, 2.0]


def test_a_first_row_has_no_reward_however_rewards_are_shifted():
    """By the convention of rows; the bounds are of the shifted rewards."""
    spec = {"x": ObsPart(kind="vector", shape=(1,), dtype="float32")}
    learns = Preprocessor(spec, reward_scale=Affine(0.5, -1.0), discount=0.5, bound_values=True)
    flags = {name: torch.tensor([[name == "is_first", False, False]]) for name in FLAGS}
    columns = {"obs/x": torch.zeros(1, 3, 1), "action": torch.zeros(1, 3, 1), "reward": torch.tensor([[0.0, 4.0, 0.0]])}
    rows = Batch.from_columns(columns | flags, torch.tensor([0]))
    assert learns(rows).reward.tolist() == [[0.0, 1.0, -1.0]]
    learns.fit(rows)
    assert learns.range is not None
    assert learns.range.bounds.tolist() == [-2.0, 2.0]


def test_bounds_follow_the_scale_of_rewards():
    """The factor of running statistics changes with new rows, so that of earlier extremes does too."""
    spec = {"x": ObsPart(kind="vector", shape=(1,), dtype="float32")}
    learns = Preprocessor(spec, reward_scale=ReturnStd(None, std=5.0), discount=0.5, bound_values=True)
    assert learns.scaler is not None
    assert learns.range is not None
    for reward in (3.0, -9.0, 200.0):
        flags = {name: torch.tensor([False]) for name in FLAGS}
        learns.update_statistics(Step(obs={"x": torch.zeros(1, 1)}, reward=torch.tensor([reward]), **flags))
    torch.testing.assert_close(learns.range.bounds, 2 * learns.scaler(torch.tensor([-9.0, 200.0])))
