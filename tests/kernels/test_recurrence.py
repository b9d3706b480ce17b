"""Whole sequences in C against the RSSM's own loop, step by step."""

import pytest
import torch
from filtering import drawer, filtered, gradients, numbers

from reverie.kernels.compiler import kernels
from reverie.nn.layers import MLP

pytestmark = pytest.mark.skipif(kernels() is None, reason="no C compiler")

SIZES = {
    "V": {"deter": 512, "hidden": 64, "stoch": 32, "classes": 4},
    "odd": {"deter": 72, "hidden": 40, "stoch": 3, "classes": 7, "blocks": 3},
    "one block": {"deter": 33, "hidden": 33, "stoch": 1, "classes": 2, "blocks": 1},
}


@pytest.fixture(params=SIZES)
def case(request):
    """A model, rows of three sequences of six steps, and where they start."""
    torch.manual_seed(0)
    return filtered(SIZES[request.param])


@pytest.mark.parametrize("threads", [1, 2])
def test_observing_and_its_gradients(case, threads):
    rssm, start, embed, action, is_first = case
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        torch.manual_seed(1)
        fast = rssm.observe(start, embed, action, is_first)
        slow = rssm.observe(start, embed, action, is_first, drawer(numbers(1, 6, 3, rssm.cfg.stoch)))
        for ours, theirs in zip((*fast[0], fast[1]), (*slow[0], slow[1]), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
        for ours, theirs in zip(
            gradients(rssm, (embed, action), *fast), gradients(rssm, (embed, action), *slow), strict=True
        ):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()))
    finally:
        torch.set_num_threads(before)


def test_observing_without_gradient_is_the_same(case):
    rssm, start, embed, action, is_first = case
    torch.manual_seed(1)
    with_grad, _ = rssm.observe(start, embed, action, is_first)
    with torch.no_grad():
        torch.manual_seed(1)
        without, _ = rssm.observe(start, embed, action, is_first)
    assert torch.equal(with_grad.deter, without.deter)
    assert torch.equal(with_grad.stoch, without.stoch)


def test_gradients_that_come_in_any_layout(case):
    rssm, start, embed, action, is_first = case
    latent, _ = rssm.observe(start, embed, action, is_first)
    grad = torch.randn(6, 3, rssm.cfg.deter)
    a = torch.autograd.grad(latent.deter, embed, grad.transpose(0, 1), retain_graph=True)[0]
    b = torch.autograd.grad(latent.deter, embed, grad.transpose(0, 1).contiguous())[0]
    assert torch.equal(a, b)


@pytest.mark.parametrize("rows", [1, 31, 70])
@torch.no_grad()
def test_dreaming(case, rows):
    rssm, *_ = case
    feature = torch.rand(rows, rssm.feature_width)
    action, out, slow = torch.randn(rows, 3), torch.empty_like(feature), torch.empty_like(feature)
    cell = rssm.cell(torch.float32)
    torch.manual_seed(2)
    rssm.dream_step(feature, action, out, cell)
    rssm.dream_step(feature, action, slow, cell, drawer([numbers(2, rows, rssm.cfg.stoch)]))
    torch.testing.assert_close(out, slow, rtol=1e-5, atol=1e-6)


def test_nan_is_handed_on(case):
    rssm, start, embed, action, is_first = case
    embed = embed.detach().clone()
    embed[0, 2] = torch.nan
    is_first[:] = False
    with torch.no_grad():
        latent, probs = rssm.observe(start, embed, action, is_first)
    assert probs[0, 2].isnan().all()
    assert latent.deter[1:].isfinite().all()


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("rows", [1, 9])
def test_a_few_rows_through_an_mlp(rows, layers):
    torch.manual_seed(0)
    mlp, x = MLP(13, 37, layers), torch.randn(2, rows, 13)
    with torch.no_grad():
        few = mlp(x)
    torch.testing.assert_close(few, mlp(x).detach(), rtol=1e-5, atol=1e-6)
