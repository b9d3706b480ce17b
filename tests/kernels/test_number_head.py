"""The last layer of heads of numbers, made in strips, against its definition with all logits in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from reverie.core import compiler
from reverie.kernels import call
from reverie.kernels.number_head import PIECES, STRIP, LayerTwoHot
from reverie.nn.distributions import TwoHot
from reverie.nn.heads import TwoHotConfig, TwoHotHead
from reverie.objectives.transforms import symexp_bins, two_hot

SIZES = [(1, 1, 2), (3, 8, 5), (64, 33, 32), (65, 64, 255), (130, 40, 41), (STRIP * PIECES + 77, 32, 33)]
"""Rows, inputs and bins: fewer and more than a strip, a panel, and than there are pieces."""


@pytest.fixture(autouse=True)
def _kernels():
    """There is something to test, unless it was switched off on purpose."""
    if compiler.state() == "off":
        pytest.skip("compiled functions are switched off")
    assert compiler.state() == "compiled", compiler.trouble()
    torch.manual_seed(0)


def layer(rows: int, inputs: int, bins: int) -> list[Tensor]:
    """x, W and b."""
    x, weight, bias = torch.randn(rows, inputs), torch.randn(bins, inputs) / inputs**0.5, torch.randn(bins)
    return [k.requires_grad_() for k in (x, weight, bias)]


def slow(parts: list[Tensor], bins: Tensor, value: Tensor, other: Tensor) -> Tensor:
    """-sum_j w_j ln p_j of both targets, over all bins, in the precision of the parts."""
    x, weight, bias = parts
    log_p, loss = (x @ weight.T + bias).log_softmax(-1), x.new_zeros(value.shape)
    for target, times in ((value, 1.0), (other, 0.3)):
        index, share = two_hot(target, bins)
        loss = loss - times * (torch.zeros_like(log_p).scatter_add_(-1, index, share.to(x)) * log_p).sum(-1)
    return loss


@pytest.mark.parametrize(("threads", "read_before"), [(1, False), (1, True), (3, True)])
@pytest.mark.parametrize(("rows", "inputs", "bins"), SIZES)
def test_loss_and_gradients_are_those_of_all_logits(rows, inputs, bins, threads, read_before, monkeypatch):
    monkeypatch.setattr(call, "PARALLEL", 1)
    torch.set_num_threads(threads)
    parts, values = layer(rows, inputs, bins), symexp_bins(bins)
    value, other, grad = 30 * torch.randn(rows), 30 * torch.randn(rows), torch.randn(rows)
    number = LayerTwoHot(*parts, values)
    if read_before:  # what was computed for the mean is used again
        with torch.no_grad():
            number.mean()
    loss = number.loss(value, other, 0.3)
    wide = [k.detach().double().requires_grad_() for k in parts]
    expected = slow(wide, values, value, other)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-5)
    found = torch.autograd.grad(loss, parts, grad)
    for ours, defined in zip(found, torch.autograd.grad(expected, wide, grad.double()), strict=True):
        torch.testing.assert_close(ours.double(), defined, rtol=1e-5, atol=1e-5)


def test_results_do_not_depend_on_threads(monkeypatch):
    monkeypatch.setattr(call, "PARALLEL", 1)
    parts, values = layer(3 * STRIP * PIECES + 5, 48, 63), symexp_bins(63)
    value = 30 * torch.randn(len(parts[0]))
    results = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        number = LayerTwoHot(*parts, values)
        with torch.no_grad():
            mean = number.mean()
        loss = number.loss(value)
        results.append([mean, loss, *torch.autograd.grad(loss.sum(), parts)])
    for others in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], others, strict=True))


@pytest.mark.parametrize("read_before", [False, True])
def test_some_rows_of_more_axes(read_before):
    x, weight, bias = layer(4 * 6, 8, 41)
    values, value = symexp_bins(41), 30 * torch.randn(4, 5)
    number = LayerTwoHot(x.view(4, 6, 8), weight, bias, values)
    if read_before:
        with torch.no_grad():
            number.mean()
    whole = TwoHot(torch.nn.functional.linear(x.view(4, 6, 8), weight, bias), values)
    found, expected = number[:, :-1].loss(value), whole[:, :-1].loss(value)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(number[1:].logits, whole.logits[1:])
    gradients = [torch.autograd.grad(k.sum(), [x, weight, bias]) for k in (found, expected)]
    for ours, defined in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, defined)


@pytest.mark.parametrize("what", ["x", "value"])
def test_what_is_no_number_shows(what):
    parts, values, value = layer(130, 8, 41), symexp_bins(41), torch.randn(130)
    bad = parts[0] if what == "x" else value
    with torch.no_grad():
        bad[70] = torch.nan
    loss = LayerTwoHot(*parts, values).loss(value)
    assert loss[70].isnan()
    assert loss[:70].isfinite().all()
    assert loss[71:].isfinite().all()
    dx, dweight, _ = torch.autograd.grad(loss.sum(), parts)
    assert dx[70].isnan().all()
    assert dx[71:].isfinite().all()
    assert dweight.isnan().any()


@pytest.mark.parametrize("shape", [(4, 8), (8, 4), (4, 1), (), (4, 7, 1)])
@pytest.mark.parametrize("layer", [True, False])
def test_targets_of_another_shape_are_refused(layer, shape):
    """Compiled functions get addresses: they would read, and write gradients, elsewhere."""
    logits, head = torch.randn(4, 7, 63, requires_grad=True), TwoHotHead(12, TwoHotConfig(units=16, bins=63))
    number = head(torch.randn(4, 7, 12)) if layer else TwoHot(logits, symexp_bins(63))
    with pytest.raises(ValueError, match=r"value has shape .*: expected \(4, 7\)"):
        number.loss(torch.zeros(shape))
    with pytest.raises(ValueError, match=r"other has shape .*: expected \(4, 7\)"):
        number.loss(torch.zeros(4, 7), torch.zeros(shape))
