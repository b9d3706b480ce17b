"""Compiled functions compute what their definitions in PyTorch do: values, gradients, and what is not a number."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from reverie.kernels import compiler, losses
from reverie.nn import functional
from reverie.objectives import td


@pytest.fixture(autouse=True)
def _kernels():
    """There is something to test, unless it was switched off on purpose."""
    assert compiler.compile_state() in ("compiled", "off"), compiler.compile_problem()
    torch.manual_seed(0)


@pytest.mark.parametrize("uniform", [0.0, 1e-45, 0.5, 1 - 2**-24, 1.0])
@pytest.mark.parametrize("width", [1, 2, 3, 255])
def test_a_sample_is_a_class(uniform, width, monkeypatch):
    """Also for uniform numbers at the ends of their range, and sums that rounding leaves beside 1."""
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.full(shape, uniform))
    probs = torch.rand_like(torch.empty(500, width)) + 1e-3
    probs = probs / probs.sum(-1, keepdim=True) * torch.tensor([[0.999], [1.001]]).repeat(250, 1)
    ours = functional.sample_classes(probs)
    assert ours.dtype is torch.int64
    assert 0 <= int(ours.min()) <= int(ours.max()) < width
    if uniform in (0.0, 1.0):
        assert ours.unique().tolist() == [0 if uniform == 0 else width - 1]


@pytest.mark.parametrize("threads", [1, 2])
def test_samples_come_as_often_as_they_should(threads):
    torch.set_num_threads(threads)
    probs = torch.tensor([0.1, 0.0, 0.25, 0.0, 0.65, 0.0])
    share = torch.bincount(functional.sample_classes(probs.expand(100, 4000, 6)).flatten(), minlength=6) / 400_000
    torch.testing.assert_close(share, probs, atol=4e-3, rtol=0)
    assert torch.equal(share == 0, probs == 0)


def test_no_pointer_outlives_its_tensor():
    """A tensor without a name is gone before the call that its address is handed to."""
    for path in Path(losses.__file__).parent.glob("*.py"):
        text = path.read_text().replace("untyped_storage().data_ptr()", "")
        assert re.findall(r".*\)\.data_ptr\(.*", text) == [], path.name


@pytest.mark.skipif(compiler.load_kernels() is None, reason="PyTorch's own operations have second derivatives")
def test_second_derivatives_are_refused_also_where_the_gradient_that_comes_is_constant():
    """PyTorch's ``once_differentiable`` would call them 0."""
    x, mask = torch.randn(4, 8, requires_grad=True), torch.ones(4, 8, dtype=torch.bool)
    with pytest.raises(RuntimeError, match="create_graph=True: compiled functions have no second derivative"):
        torch.autograd.grad(td.masked_mean(x, mask), x, create_graph=True)
