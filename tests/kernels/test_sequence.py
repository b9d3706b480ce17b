"""Gradients of weights that are made once for all steps are those that plain autograd adds up step by step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from reverie.nn.functional import step_linear

ROWS, WIDTH, BLOCKS, STEPS = 5, 6, 3, 4


SHAPES = {"dense": (WIDTH, WIDTH), "dense_bias": (WIDTH,), "block": (BLOCKS, 2, 2), "block_bias": (WIDTH,),
          "reads": (WIDTH, WIDTH), "into": (WIDTH, 2)}  # fmt: skip
"""A recurrence of two dense layers, one of which reads an input beside the state, and a block-diagonal one."""


def net(**changes: Any) -> SimpleNamespace:
    torch.manual_seed(0)
    made = {name: (torch.randn(shape) / 3).requires_grad_() for name, shape in SHAPES.items()}
    return SimpleNamespace(**made | changes)


def parameters(net: SimpleNamespace) -> list[Tensor]:
    return [x for x in vars(net).values() if x is not None and x.requires_grad]


def noted(net: SimpleNamespace, inputs: Tensor, h: Tensor) -> list[Tensor]:
    """States of all steps, with :func:`step_linear`."""
    dense, block = step_linear(net.dense, net.dense_bias), step_linear(net.block, net.block_bias)
    reads = step_linear(net.reads, None)
    base, states = inputs @ net.into.T, []
    for now in base:
        h = torch.tanh(block(torch.sin(dense(h) + reads(h.flip(-1), now))))
        states.append(h)
    return states


def plain(net: SimpleNamespace, inputs: Tensor, h: Tensor) -> list[Tensor]:
    """The same, as it would be written down."""
    bias = 0 if net.dense_bias is None else net.dense_bias
    matrix, states = torch.block_diag(*net.block), []
    for now in inputs @ net.into.T:
        x = torch.sin(h @ net.dense.T + bias + h.flip(-1) @ net.reads.T + now) @ matrix.T
        h = torch.tanh(x if net.block_bias is None else x + net.block_bias)
        states.append(h)
    return states


def inputs(rows: int = ROWS) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(STEPS, rows, 2, requires_grad=True), torch.randn(rows, WIDTH, requires_grad=True)


def assert_same_gradients(net, rows: int = ROWS, used: slice = slice(None), backward: int = 1) -> None:
    x, h = inputs(rows)
    wanted = [*parameters(net), x, h]
    found = []
    for run in (noted, plain):
        states = run(net, x, h)[used]
        loss = sum((state * torch.cos(state.detach() + i)).sum() for i, state in enumerate(states))
        for again in reversed(range(backward)):
            grads = torch.autograd.grad(loss, wanted, retain_graph=again > 0, allow_unused=True)
        found.append([*states, *grads])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


@pytest.fixture(params=["", "old PyTorch"])
def _numbered(request, monkeypatch):
    if request.param:  # PyTorch's function that numbers backward passes is a private one
        monkeypatch.delattr(torch._C, "_current_graph_task_id")


@pytest.mark.usefixtures("_numbered")
def test_as_plain_autograd():
    """Few rows and many go through different products; some steps alone count; parts are absent or not learned."""
    for rows in (1, ROWS, 150):
        assert_same_gradients(net(), rows)
    assert_same_gradients(net(), backward=2)
    for used in (slice(0, 1), slice(1, 3), slice(-1, None)):
        assert_same_gradients(net(), used=used)
    for absent in ("dense_bias", "block_bias"):
        assert_same_gradients(net(**{absent: None}))
    for frozen in SHAPES:
        assert_same_gradients(net(**{frozen: getattr(net(), frozen).detach()}))


def two_sequences(run, model):
    """Each is noted for itself: they leave the sum of their gradients."""
    for rows in (ROWS, 3):
        sum(state.sum() for state in run(model, *inputs(rows))).backward()


def two_losses(run, model):
    """Gone back through one after the other, each adds its own."""
    states = run(model, *inputs())
    states[1].sum().backward(retain_graph=True)
    states[-1].square().sum().backward()


def a_pass_without_weights(run, model):
    """It adds nothing to theirs: as for the influence of the inputs on states; of steps no loss depends on."""
    x, h = inputs()
    states = run(model, x, h)
    torch.autograd.grad(states[-1].sum(), [x, h], retain_graph=True)
    states[1].sum().backward()


@pytest.mark.usefixtures("_numbered")
@pytest.mark.parametrize("passes", [two_sequences, two_losses, a_pass_without_weights])
def test_gradients_of_several_passes(passes):
    found = []
    for run in (noted, plain):
        passes(run, model := net())
        found.append([x.grad for x in parameters(model)])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def test_without_gradients_nothing_is_kept():
    with torch.no_grad():
        states = noted(net(), *inputs())
    assert not any(state.requires_grad for state in states)
    torch.testing.assert_close(states, plain(net(), *inputs()), rtol=1e-4, atol=1e-4)


def test_weights_that_no_loss_depends_on_have_no_gradient():
    weight = torch.randn(WIDTH, WIDTH, requires_grad=True)
    layer, (_, h) = step_linear(weight, None), inputs()
    layer(h)
    (grad,) = torch.autograd.grad(h.sum() + 0 * h.sum(), [weight], allow_unused=True)
    assert grad is None
