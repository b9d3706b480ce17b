"""Products through oneDNN are products, and so are their gradients, whatever the layout of what comes in."""

import pytest
import torch
import torch.nn.functional as F

from reverie.nn import product


@pytest.mark.parametrize("rows", [3, 200])
@pytest.mark.parametrize("layout", ["plain", "sliced", "transposed", "three axes"])
def test_equal_to_torch(rows, layout):
    torch.manual_seed(0)
    x, weight, bias = torch.randn(rows, 24), torch.randn(7, 24), torch.randn(7)
    if layout == "sliced":
        x, weight = torch.randn(rows, 40)[:, :24], torch.randn(7, 40)[:, 16:]
    if layout == "transposed":
        x, weight = torch.randn(24, rows).T, torch.randn(24, 7).T
    if layout == "three axes":
        x = torch.randn(rows, 4, 24)
    results = []
    for call in (product.linear, F.linear):
        inputs = [t.detach().requires_grad_() for t in (x, weight, bias)]
        y = call(*inputs)
        results.append([y, *torch.autograd.grad((y * y.detach().cos()).sum(), inputs)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_build_without_the_operator_falls_back(monkeypatch):
    monkeypatch.setattr(product, "_product", None)
    x, weight, bias = torch.randn(300, 5), torch.randn(2, 5), torch.randn(2)
    assert torch.equal(product.linear(x, weight, bias), F.linear(x, weight, bias))
