"""The quantile Huber loss against its definition over all pairs, what it minimizes, and what QR-DQN does around it."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from reverie.objectives.quantile import quantile_huber

KAPPAS = [0.0, 0.3, 7.0]


@pytest.fixture(params=["compiled", "defined"])
def either(request):
    """With the compiled loop over pairs where it fits, and without."""
    if request.param == "defined":
        request.getfixturevalue("definitions")


def defined(prediction: Tensor, target: Tensor, kappa: float) -> Tensor:
    """Algorithm 1's last line, of all pairs, in float64."""
    n, u = len(prediction), target.double() - prediction.double()[:, None]  # [n, m]
    size = u.abs()
    huber = size if kappa == 0 else torch.where(size <= kappa, u**2 / 2, kappa * (size - kappa / 2))
    tau = (2 * torch.arange(n, dtype=torch.float64)[:, None] + 1) / (2 * n)
    return ((tau - (u < 0).double()).abs() * huber).mean(1).sum()


def pairs(n: int, m: int, scale: float) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(size, generator=g, dtype=torch.float64) * scale for size in (n, m))
    return x, y + 0.5


def both(function, prediction, target, kappa):
    prediction = prediction.clone().requires_grad_()
    loss = function(prediction, target, kappa)
    return loss.detach(), torch.autograd.grad(loss, prediction)[0]


@pytest.mark.parametrize("kappa", KAPPAS)
@pytest.mark.parametrize(("n", "m", "scale"), [(1, 1, 1.0), (7, 3, 100.0), (17, 33, 0.01)])
def test_float64_is_the_definition(n, m, kappa, scale):
    prediction, target = pairs(n, m, scale=scale)
    got, expected = (both(f, prediction, target, kappa) for f in (quantile_huber, defined))
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12 * scale)


@pytest.mark.parametrize("kappa", KAPPAS)
def test_large_numbers_do_not_cancel(either, kappa):
    """Values of a million that differ by little: sums of their squares would have no digit left."""
    prediction, target = (x.float() + 1e6 for x in pairs(20, 30, scale=3.0))
    got, expected = (both(f, prediction, target, kappa) for f in (quantile_huber, defined))
    torch.testing.assert_close([x.double() for x in got], [x.double() for x in expected], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kappa", KAPPAS)
def test_ties_count_on_neither_side(either, kappa):
    """Where a target is the prediction, or lies kappa beside it."""
    prediction = torch.tensor([0.0, 1.0, 1.0, 3.0])
    target = torch.tensor([1.0, 1.0, 0.0, 3.0, 2.0, 1.0 + kappa, 1.0 - kappa])
    loss, grad = both(quantile_huber, prediction, target, kappa)
    torch.testing.assert_close(loss.double(), defined(prediction, target, kappa))
    tau, u = torch.tensor([[0.125], [0.375], [0.625], [0.875]]), target - prediction[:, None]
    slope = u.sign() if kappa == 0 else u.clamp(-kappa, kappa)
    torch.testing.assert_close(grad, -(torch.where(u < 0, 1 - tau, tau) * slope).mean(1))


def test_leading_axes_weights_and_what_is_not_a_row(either):
    prediction = torch.randn(3, 2, 40).transpose(0, 1).requires_grad_()  # [2, 3, 40], not contiguous
    target = torch.randn(2, 3, 80)[..., ::2].requires_grad_()
    loss = quantile_huber(prediction, target)
    assert loss.shape == (2, 3)
    weight = torch.tensor([[1.0, 0.0, 2.0], [0.5, 1.0, 0.0]])
    (grad,) = torch.autograd.grad((weight * loss).sum(), prediction)
    for at in itertools.product(range(2), range(3)):
        value, slope = both(quantile_huber, prediction[at].detach(), target[at].detach(), 1.0)
        torch.testing.assert_close((loss[at], grad[at]), (value, weight[at] * slope))


def test_targets_get_no_gradient_and_no_graph_is_kept_without_one(either):
    prediction, target = torch.randn(2, 5, requires_grad=True), torch.randn(2, 5, requires_grad=True)
    quantile_huber(prediction, target).sum().backward()
    assert target.grad is None
    assert not quantile_huber(prediction.detach(), target).requires_grad
    with torch.no_grad():
        assert not quantile_huber(prediction, target).requires_grad


@pytest.mark.parametrize(("prediction", "target"), [((2, 5), (3, 5)), ((5,), (2, 5))])
def test_shapes_that_do_not_fit(prediction, target):
    with pytest.raises(ValueError, match="expected"):
        quantile_huber(torch.zeros(prediction), torch.zeros(target))
