"""Products through oneDNN are products, and so are their gradients, whatever the layout of what comes in."""

import pytest
import torch
import torch.nn.functional as F

from reverie.kernels import matmul
from reverie.nn.functional import linear


def test_networks_that_a_loss_passes_through_compute_no_gradients_of_their_weights(monkeypatch):
    """As in an actor's loss, which goes through the critic."""
    layers = [torch.nn.Parameter(torch.randn(4, 4)) for _ in range(3)]
    made, compute = [], matmul.weight_gradient
    monkeypatch.setattr(matmul, "weight_gradient", lambda x, grad: made.append(grad) or compute(x, grad))
    x = torch.randn(200, 4)
    for weight in layers:
        x = linear(x, weight, torch.zeros(4, requires_grad=True))
    expected = torch.autograd.grad(x.sum(), layers, retain_graph=True)
    made.clear()
    x.sum().backward(inputs=layers[:1], retain_graph=True)
    assert len(made) == 1
    assert torch.equal(layers[0].grad, expected[0])
    x.sum().backward()
    assert all(torch.equal(weight.grad, exact) for weight, exact in zip(layers[1:], expected[1:], strict=True))


def test_a_build_without_the_operator_falls_back(monkeypatch):
    monkeypatch.setattr(matmul, "_product", None)
    x, weight, bias = torch.randn(300, 5), torch.randn(2, 5), torch.randn(2)
    assert torch.equal(linear(x, weight, bias), F.linear(x, weight, bias))


@pytest.mark.parametrize("inputs", [1, matmul.MAX_NARROW_INPUTS, matmul.MAX_NARROW_INPUTS + 1])
@pytest.mark.parametrize(("rows", "outputs"), [(3, 300), (128, 1), (301, 7)])
def test_gradients_of_weights_are_products_however_they_are_made(rows, inputs, outputs, monkeypatch):
    torch.manual_seed(0)
    x, grad = torch.randn(rows, inputs), torch.randn(rows, outputs)
    ours = matmul.weight_gradient(x, grad)
    monkeypatch.setattr(matmul, "_product", None)
    without, exact = matmul.weight_gradient(x, grad), (grad.double().T @ x.double()).float()
    torch.testing.assert_close([ours, without], [exact, exact], rtol=1e-4, atol=1e-4)
    assert ours.is_contiguous()
