"""Compiled targets and errors against their definitions."""

from dataclasses import replace

import pytest
import torch

from reverie.core.types import Batch
from reverie.objectives import compiled_td
from reverie.objectives.returns import td0, transition_mask
from reverie.objectives.td import huber_error, mean_over, squared_error

B, T = 7, 4


def rows(seed: int = 0, length: int = T) -> Batch:
    """A batch with ends inside, of both kinds, and importance weights."""
    torch.manual_seed(seed)
    last = torch.rand(B, length) < 0.3
    return Batch(
        obs={}, action=torch.zeros(B, length, 1), reward=torch.randn(B, length), is_first=torch.zeros_like(last),
        is_last=last, is_terminal=last & (torch.rand(B, length) < 0.5), weight=torch.rand(B), index=torch.arange(B),
    )  # fmt: skip


def both(monkeypatch, compute):
    """What ``compute`` says compiled, and by definition."""
    fast = compute()
    monkeypatch.setattr(compiled_td, "compiled", lambda *x: False)
    slow = compute()
    monkeypatch.undo()
    return fast, slow


@pytest.mark.parametrize("length", [2, T])
def test_targets(length, monkeypatch):
    batch = rows(1, length)
    value = torch.randn(B, length)

    def compute():
        return td0(reward=batch.reward, terminal=batch.is_terminal, last=batch.is_last, value=value, discount=0.9)

    fast, slow = both(monkeypatch, compute)
    torch.testing.assert_close(fast, slow)
    used = []
    monkeypatch.setattr(compiled_td, "library", lambda: used.append(1) or pytest.fail("the gradient would be lost"))
    value.requires_grad_()
    assert compute().requires_grad


@pytest.mark.parametrize("critics", [None, 3])
@pytest.mark.parametrize("kappa", [None, 0.5, float("inf")])
def test_errors_with_their_gradients_metrics_and_priorities(critics, kappa, monkeypatch):
    batch, lead = rows(2), [] if critics is None else [critics]
    q, y = torch.randn(*lead, B, T - 1, requires_grad=True), torch.randn(B, T - 1)

    def compute():
        losses = squared_error(q, y, batch, 0.5) if kappa is None else huber_error(q, y, batch, kappa)
        (grad,) = torch.autograd.grad(3 * losses.terms["critic"], [q])
        return losses, grad

    (fast, fast_grad), (slow, slow_grad) = both(monkeypatch, compute)
    torch.testing.assert_close(fast.terms, slow.terms)
    torch.testing.assert_close(fast.metrics, slow.metrics)
    torch.testing.assert_close(fast.priority, slow.priority)
    torch.testing.assert_close(fast_grad, slow_grad)
    assert not any(x.requires_grad for x in (*fast.metrics.values(), fast.priority))


@pytest.mark.parametrize("kappa", [None, 0.5])
def test_views_are_read_as_what_they_show(kappa):
    """Compiled functions read memory in order, which a view of other memory may not be in."""
    batch, q, y = rows(2), torch.randn(2, B, T - 1), torch.randn(B, T - 1)

    def view(x):
        return x.repeat_interleave(2, -1)[..., ::2]

    def error(q, y, batch):
        q = q.requires_grad_()
        losses = squared_error(q, y, batch) if kappa is None else huber_error(q, y, batch, kappa)
        return losses, torch.autograd.grad(losses.terms["critic"], [q])

    views = replace(batch, is_last=view(batch.is_last), weight=view(batch.weight))
    torch.testing.assert_close(error(view(q), view(y), views), error(q, y, batch))
    mask = transition_mask(batch.is_last)
    torch.testing.assert_close(mean_over(view(y), view(mask)), mean_over(y, mask))


@pytest.mark.parametrize(("windows", "length"), [(0, T), (B, 1)])
def test_batches_without_transitions_have_no_error(windows, length):
    batch = rows()
    batch = replace(batch, is_last=batch.is_last[:windows, :length], weight=batch.weight[:windows])
    q, y = torch.zeros(2, windows, length - 1, requires_grad=True), torch.zeros(windows, length - 1)
    for losses in (squared_error(q, y, batch), huber_error(q, y, batch, 1.0)):
        assert losses.terms["critic"] == 0
        assert losses.priority.tolist() == [0.0] * windows


def test_weights_get_their_gradient():
    """Such as those of a learned model of what is worth learning."""
    batch = rows(2)
    batch = replace(batch, weight=batch.weight.requires_grad_())
    q, y = torch.randn(B, T - 1), torch.randn(B, T - 1)
    for losses in (squared_error(q, y, batch), huber_error(q, y, batch, 1.0)):
        (grad,) = torch.autograd.grad(losses.terms["critic"], [batch.weight])
        torch.testing.assert_close((grad * batch.weight).sum(), losses.terms["critic"])


def test_nothing_taken_is_no_error(monkeypatch):
    batch = rows(3)
    batch.is_last[:] = True
    q = torch.randn(2, B, T - 1, requires_grad=True)
    for losses in both(monkeypatch, lambda: squared_error(q, torch.randn(B, T - 1), batch)):
        assert losses.terms["critic"] == 0
        assert losses.priority.eq(0).all()


def test_nan_is_not_swallowed():
    batch = rows(4)
    batch.is_last[:] = False
    for put in ("prediction", "target"):
        q, y = torch.randn(B, T - 1), torch.randn(B, T - 1)
        (q if put == "prediction" else y)[0, 0] = torch.nan
        for losses in (squared_error(q.requires_grad_(), y, batch), huber_error(q, y, batch, 1.0)):
            assert losses.terms["critic"].isnan()
            (grad,) = torch.autograd.grad(losses.terms["critic"], [q])
            assert grad[0, 0].isnan()


def test_masked_means(monkeypatch):
    x, mask = torch.randn(B, T - 1, requires_grad=True), transition_mask(rows(5).is_last)

    def compute():
        mean = mean_over(x, mask)
        return mean, *torch.autograd.grad(mean, [x])

    for fast, slow in zip(*both(monkeypatch, compute), strict=True):
        torch.testing.assert_close(fast, slow)
    assert mean_over(x, torch.zeros_like(mask)) == 0


@pytest.mark.parametrize("path", ["compiled", "defined"])
def test_shapes_that_do_not_fit_are_told_and_no_other_memory_is_read(path, monkeypatch):
    if path == "defined":
        monkeypatch.setattr(compiled_td, "compiled", lambda *x: False)
    data, x = rows(), torch.ones(B, T - 1)
    with pytest.raises(ValueError, match=r"mask has shape \(7, 1\): expected \(7, 3\)"):
        mean_over(x, torch.ones(B, 1, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"mask has shape \(7, 3\): expected \(2, 7, 3\)"):
        mean_over(torch.ones(2, B, T - 1), transition_mask(data.is_last))
    for error in (squared_error, lambda *given: huber_error(*given, 1.0)):
        with pytest.raises(ValueError, match=r"weight has shape \(4,\): expected \(7,\)"):
            error(x, x, replace(data, weight=torch.ones(4)))
        with pytest.raises(ValueError, match=r"is_last has shape \(2, 3\): expected \(7, 4\)"):
            error(x, x, replace(data, is_last=torch.zeros(2, 3, dtype=torch.bool)))
