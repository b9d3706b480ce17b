"""Distributions against torch.distributions, hand-computed numbers and their own samples."""

import pytest
import torch
from torch.distributions import Categorical

from reverie.nn.distributions import Categoricals, safe_log, softmax
from reverie.nn.functional import unimix_probs
from reverie.nn.number_distributions import TwoHot
from reverie.objectives.transforms import symexp_bins


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def test_what_has_no_probability_left_has_a_logarithm():
    probs = softmax(torch.tensor([[200.0, 0.0], [0.0, 1.0]])).requires_grad_()
    assert probs[0, 1] == 0
    log = safe_log(probs)
    (log * probs.detach()).sum().backward()
    torch.testing.assert_close(log[1], probs[1].log())
    assert torch.isfinite(log).all()
    torch.testing.assert_close(probs.grad, torch.tensor([[1.0, 0.0], [1.0, 1.0]]))


def test_categoricals_of_equal_size_with_unimix():
    """Each is mixed with the uniform distribution over its own classes."""
    logits = torch.randn(7, 6)
    dist, index = Categoricals(logits, (3, 3), unimix=0.2), torch.randint(0, 3, (7, 2))
    known = Categorical(probs=0.8 * logits.view(7, 2, 3).softmax(-1) + 0.2 / 3)
    found = dist.probs, dist.log_prob_index(index), dist.entropy()
    torch.testing.assert_close(found, (known.probs, known.log_prob(index).sum(-1), known.entropy().sum(-1)))


def test_categoricals_of_unequal_size_are_independent_choices():
    logits = torch.randn(5, 2 + 4)
    dist = Categoricals(logits, (2, 4), unimix=0.2)
    parts = [unimix_probs(logits[:, :2], 0.2), unimix_probs(logits[:, 2:], 0.2)]
    action = torch.tensor([[0, 1, 0, 0, 1, 0]] * 5).float()
    torch.testing.assert_close(dist.log_prob(action), parts[0][:, 1].log() + parts[1][:, 2].log())
    torch.testing.assert_close(dist.entropy(), sum(-(p * p.log()).sum(-1) for p in parts))
    samples = torch.stack([dist.sample() for _ in range(300)])
    assert samples.shape == (300, 5, 6)
    assert {(int(x[..., :2].sum()), int(x[..., 2:].sum())) for x in samples.flatten(0, 1)} == {(1, 1)}


@pytest.mark.parametrize("unimix", [0.0, 0.1])
def test_what_was_read_without_gradients_has_them_later(unimix):
    logits = torch.randn(5, 4, requires_grad=True)
    dist = Categoricals(logits, (4,), unimix)
    with torch.no_grad():
        dist.entropy()
    (dist.probs.square().sum() + dist.entropy().sum()).backward()
    assert (logits.grad != 0).all()


def test_an_absent_index_counts_nothing():
    dist = Categoricals(torch.randn(1, 6), (3, 3))
    torch.testing.assert_close(dist.log_prob_index(torch.tensor([[1, -1]])), dist.log_probs[:, 1])


def test_two_targets_at_once_are_the_sum_of_both_losses(either):
    bins, value, other = symexp_bins(41), 30 * torch.randn(5, 7), 30 * torch.randn(5, 7)
    logits = torch.randn(5, 7, 41, requires_grad=True)
    both = TwoHot(logits, bins).loss(value, other, 0.3)
    apart = TwoHot(logits, bins).loss(value) + 0.3 * TwoHot(logits, bins).loss(other)
    torch.testing.assert_close(both, apart)
    weight = torch.rand(5, 7)
    found, expected = (torch.autograd.grad((weight * x).sum(), logits)[0] for x in (both, apart))
    torch.testing.assert_close(found, expected)
