"""Importance sampling against sums worked out by hand."""

import math

import pytest
import torch

from reverie.objectives.importance import (
    cumulative_ratios,
    doubly_robust,
    effective_sample_size,
    weighted_importance_sampling,
)

STEPS, TERMINAL = torch.tensor([2, 1, 1]), torch.tensor([True, True, False])
RATIO = torch.tensor([[2, 0.5], [3, 99], [1, 99]], dtype=torch.float64)  # pi / mu of each step; 99 is beyond the end
REWARD = torch.tensor([[1, 4], [2, 0], [5, 0]], dtype=torch.float64)
HALF = 0.5
"""The discount."""


def rho() -> torch.Tensor:
    return cumulative_ratios(RATIO.log(), STEPS, TERMINAL)


def test_ratios_stay_after_a_terminal_end_and_are_0_where_nothing_is_known():
    torch.testing.assert_close(rho(), torch.tensor([[2 / 3, 1 / 3], [1, 1], [1 / 3, 0]], dtype=torch.float64))
    assert effective_sample_size(RATIO.log(), STEPS) == pytest.approx(5**2 / (1 + 9 + 1))  # of 2 * 0.5, 3 and 1


def test_weighted_importance_sampling_by_hand():
    first, second = (2 * 1 + 3 * 2 + 1 * 5) / 6, (1 * 4 + 3 * 0) / 4
    assert weighted_importance_sampling(rho(), REWARD, HALF).tolist() == pytest.approx([first + HALF * second])
    times = torch.tensor([[1, 0, 1], [0, 2, 1]], dtype=torch.float64)  # how often each episode counts
    expected = [(2 * 1 + 1 * 5) / 3 + HALF * 4, (2 * 3 * 2 + 1 * 5) / 7]
    assert weighted_importance_sampling(rho(), REWARD, HALF, times).tolist() == pytest.approx(expected)


def test_the_doubly_robust_estimate_by_hand():
    error = torch.tensor([[0.1, 0.2], [-0.3, 0], [0.4, 0]], dtype=torch.float64)
    start = torch.tensor([1, 2, 6], dtype=torch.float64)
    found = doubly_robust(rho(), error, start, HALF, torch.tensor([[1, 1, 1], [2, 0, 1]], dtype=torch.float64))
    once = 3 + (2 * 0.1 - 3 * 0.3 + 1 * 0.4) / 6 + HALF * (1 * 0.2) / 4
    assert found.tolist() == pytest.approx([once, 8 / 3 + (4 * 0.1 + 0.4) / 5 + HALF * 0.2])
    assert doubly_robust(rho(), error, start, HALF).tolist() == pytest.approx([once])


def test_what_the_policy_never_does_and_ratios_that_no_float_holds():
    never = torch.full((3, 2), -math.inf, dtype=torch.float64)
    assert weighted_importance_sampling(cumulative_ratios(never, STEPS, TERMINAL), REWARD, HALF).tolist() == [0.0]
    assert effective_sample_size(never, STEPS) == 0.0
    steps, ended = torch.tensor([900, 900]), torch.tensor([True, True])
    unlikely = torch.tensor([[-9.0], [-9.001]], dtype=torch.float64).expand(2, 900)  # e^-8100
    assert effective_sample_size(unlikely, steps) == pytest.approx((1 + math.exp(-0.9)) ** 2 / (1 + math.exp(-1.8)))
    assert weighted_importance_sampling(
        cumulative_ratios(unlikely, steps, ended), torch.ones(2, 900).double(), 1.0
    ).item() == (pytest.approx(900))
