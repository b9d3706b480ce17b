"""Numbers of objectives/transforms.py, by hand or by a slow definition."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reverie.nn.number_distributions import TwoHot
from reverie.objectives.transforms import exp, symexp, symexp_bins, symlog, two_hot


def dense(target, bins):
    """The two weights in their places among all bins."""
    index, weight = two_hot(target, bins)
    return torch.zeros(*target.shape, len(bins)).scatter_add_(-1, index, weight)


@given(st.floats(-1e6, 1e6))
def test_symexp_inverts_symlog(x):
    y = symexp(symlog(torch.tensor(x, dtype=torch.float64)))
    assert float(y) == pytest.approx(x, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("count", "zeros"), [(2, 0), (6, 2), (41, 1), (255, 1)])
def test_bins_are_symmetric_to_the_last_bit(count, zeros):
    bins = symexp_bins(count)
    assert torch.equal(bins, -bins.flip(0))
    assert (bins.diff() >= 0).all()
    assert (len(bins), int((bins == 0).sum())) == (count, zeros)
    assert float(bins[-1]) == pytest.approx(math.expm1(20), rel=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_two_hot_does_not_hide_what_is_not_finite(bad):
    _, weight = two_hot(torch.tensor([1.0, bad]), symexp_bins(41))
    assert torch.isfinite(weight[0]).all()
    assert torch.isnan(weight[1]).any()


def slow_two_hot(x, bins):
    """The definition, one number at a time."""
    x, places = np.clip(x, bins[0], bins[-1]), np.eye(len(bins))
    k = min(max(i for i, b in enumerate(bins) if b <= x), len(bins) - 2)
    share = (x - bins[k]) / (bins[k + 1] - bins[k])
    return (1 - share) * places[k] + share * places[k + 1]


NUMBERS = st.floats(-1000, 1000, width=32) | st.sampled_from([-(2.0**40), 2.0**40])  # these are beyond all bins


@given(st.lists(NUMBERS, min_size=1, max_size=5), st.sampled_from([8, 9, 41, 255]))
def test_two_hot_against_definition(values, count):
    bins = symexp_bins(count)
    got = dense(torch.tensor(values, dtype=torch.float32), bins).numpy()
    ends = float(bins[0]), float(bins[-1])
    for x, row in zip(np.array(values), got, strict=True):
        np.testing.assert_allclose(row, slow_two_hot(x, bins.numpy().astype(np.float64)), atol=2e-5)
        assert row.sum() == pytest.approx(1, abs=1e-5)
        assert (row @ bins.numpy()) == pytest.approx(x.clip(*ends), rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("count", [254, 255])
def test_uniform_probabilities_predict_exactly_zero(count):
    assert torch.equal(TwoHot(torch.zeros(7, count), symexp_bins(count)).mean(), torch.zeros(7))


def test_the_mean_of_two_hot_logits_is_that_of_their_probabilities():
    torch.manual_seed(0)
    logits, bins = torch.randn(5, 41), torch.linspace(-3, 3, 41)
    torch.testing.assert_close(TwoHot(logits, bins).mean(), (torch.softmax(logits, -1) * bins).sum(-1))


def test_exp_is_the_exponential():
    x = torch.linspace(-20, 20, 10_001, dtype=torch.float64, requires_grad=True)
    y = exp(x)
    torch.testing.assert_close(y, x.exp(), rtol=1e-14, atol=0)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], x.exp(), rtol=1e-14, atol=0)
    torch.testing.assert_close(exp(x.detach().float()).double(), x.exp(), rtol=3e-6, atol=0)
    assert exp(torch.tensor([-torch.inf, torch.inf])).tolist() == [0.0, torch.inf]
    assert exp(torch.tensor(torch.nan)).isnan()
