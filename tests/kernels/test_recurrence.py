"""Whole sequences in C against the RSSM's definition."""

import pytest
import torch
from sequence_filter import UNEVEN, assert_dreams_as_defined, assert_hands_nan_on, assert_observes_as_defined, filtered

from reverie.kernels.compiler import load_kernels

pytestmark = pytest.mark.skipif(load_kernels() is None, reason="no C compiler")

SIZES = {"V": {"deter": 512, "hidden": 64, "stoch": 32, "classes": 4}} | UNEVEN


@pytest.fixture(params=SIZES)
def case(request):
    """A model, rows of three sequences of six steps, and where they start."""
    torch.manual_seed(0)
    return filtered(SIZES[request.param])


@pytest.mark.parametrize("threads", [1, 2])
def test_observing_and_its_gradients(case, threads):
    torch.set_num_threads(threads)
    assert_observes_as_defined(case)


def test_observing_without_gradient_is_the_same(case):
    rssm, *rows = case
    found = []
    for mode in (torch.enable_grad, torch.no_grad):
        torch.manual_seed(1)
        with mode():
            found.append(rssm.observe(*rows)[0])
    assert all(map(torch.equal, *found))


def test_gradients_that_come_in_any_layout(case):
    rssm, *rows = case
    latent, _ = rssm.observe(*rows)
    grad = torch.randn(6, 3, rssm.cfg.deter).transpose(0, 1)
    found = [torch.autograd.grad(latent.deter, rows[1], g, retain_graph=True)[0] for g in (grad, grad.contiguous())]
    assert torch.equal(*found)


@pytest.mark.parametrize("rows", [1, 31, 70])
def test_dreaming(case, rows):
    assert_dreams_as_defined(case[0], rows)


def test_nan_is_handed_on(case):
    assert_hands_nan_on(case)
