"""The quantile Huber loss against its definition over all pairs, what it minimises, and what QR-DQN does around it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from reverie.core.compiler import kernels
from reverie.core.types import Batch
from reverie.kernels import losses as compiled_losses
from reverie.objectives.estimators import TD0, TD1, NStep, OneRow
from reverie.objectives.quantile import (
    greedy_quantiles,
    quantile_error,
    quantile_huber,
    quantile_midpoints,
    quantile_targets,
)

KAPPAS = [0.0, 0.3, 1.0, 7.0]
COMPILED = ["compiled", "defined"]


@pytest.fixture(params=COMPILED)
def either(request, monkeypatch):
    """With the compiled loop over pairs where it fits, and without."""
    if request.param == "defined":
        monkeypatch.setattr("reverie.kernels.call.kernels", lambda: None)


def defined(prediction: Tensor, target: Tensor, kappa: float) -> Tensor:
    """Algorithm 1's last line, pair by pair, in float64."""
    prediction, target = prediction.double(), target.double()
    n, m = len(prediction), len(target)
    total = prediction.new_zeros(())
    for i in range(n):
        for j in range(m):
            u = target[j] - prediction[i]
            size = u.abs()
            huber = size if kappa == 0 else u**2 / 2 if size <= kappa else kappa * (size - kappa / 2)
            total = total + abs((2 * i + 1) / (2 * n) - (1.0 if u < 0 else 0.0)) * huber / m
    return total


def pairs(n: int, m: int, seed: int = 0, scale: float = 2.0, dtype=torch.float64) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return (
        torch.randn(n, generator=g, dtype=dtype) * scale,
        torch.randn(m, generator=g, dtype=dtype) * scale + 0.5,
    )


def both(function, prediction, target, kappa):
    prediction = prediction.clone().requires_grad_()
    loss = function(prediction, target, kappa)
    return loss.detach(), torch.autograd.grad(loss, prediction)[0]


@pytest.mark.parametrize("kappa", KAPPAS)
@pytest.mark.parametrize(("n", "m"), [(1, 1), (5, 5), (7, 3), (17, 33)])
@pytest.mark.parametrize("scale", [0.01, 2.0, 100.0])
def test_float64_is_the_definition(n, m, kappa, scale):
    prediction, target = pairs(n, m, scale=scale)
    got, expected = (both(f, prediction, target, kappa) for f in (quantile_huber, defined))
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12 * scale)


@pytest.mark.parametrize("kappa", KAPPAS)
@pytest.mark.parametrize(("n", "m", "scale"), [(1, 1, 1.0), (17, 33, 1.0), (50, 50, 100.0), (200, 16, 0.01)])
def test_float32_is_the_definition_to_its_precision(either, n, m, scale, kappa):
    prediction, target = (x.float() for x in pairs(n, m, scale=scale))
    (loss, grad), expected = (both(f, prediction, target, kappa) for f in (quantile_huber, defined))
    assert loss.dtype == grad.dtype == torch.float32
    torch.testing.assert_close(loss.double(), expected[0], rtol=1e-5, atol=0)
    torch.testing.assert_close(
        grad.double(), expected[1].double(), rtol=1e-5, atol=1e-6 * float(expected[1].abs().max())
    )


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
    n, m = 4, 7
    expected = []
    for i, theta in enumerate(prediction.tolist()):
        tau, u = (2 * i + 1) / (2 * n), target.double() - theta
        slope = u.sign() if kappa == 0 else u.clamp(-kappa, kappa)
        expected.append(float(-(torch.where(u < 0, 1 - tau, tau) * slope).sum() / m))
    torch.testing.assert_close(grad, torch.tensor(expected))


@pytest.mark.parametrize("kappa", [0.5, 1.0])
def test_gradients_are_those_of_finite_differences(kappa):
    prediction, target = (
        torch.stack([pairs(6, 4, s)[0] for s in range(3)]),
        torch.stack([pairs(6, 4, s)[1] for s in range(3)]),
    )
    assert torch.autograd.gradcheck(lambda x: quantile_huber(x, target, kappa), prediction.requires_grad_())


def test_leading_axes_weights_and_what_is_not_a_row(either):
    prediction = torch.randn(3, 2, 40).transpose(0, 1).requires_grad_()  # [2, 3, 40], not contiguous
    target = torch.randn(2, 3, 80)[..., ::2].requires_grad_()
    loss = quantile_huber(prediction, target)
    assert loss.shape == (2, 3)
    weight = torch.tensor([[1.0, 0.0, 2.0], [0.5, 1.0, 0.0]])
    (grad,) = torch.autograd.grad((weight * loss).sum(), prediction)
    for i in range(2):
        for j in range(3):
            value, slope = both(quantile_huber, prediction[i, j].detach(), target[i, j].detach(), 1.0)
            torch.testing.assert_close(loss[i, j], value)
            torch.testing.assert_close(grad[i, j], weight[i, j] * slope)


def test_targets_get_no_gradient_and_no_graph_is_kept_without_one(either):
    prediction, target = torch.randn(2, 5, requires_grad=True), torch.randn(2, 5, requires_grad=True)
    quantile_huber(prediction, target).sum().backward()
    assert target.grad is None
    assert not quantile_huber(prediction.detach(), target).requires_grad
    with torch.no_grad():
        assert not quantile_huber(prediction, target).requires_grad


@pytest.mark.parametrize("where", ["prediction", "target"])
@pytest.mark.parametrize("kappa", [0.0, 1.0])
def test_what_is_not_a_number_stays_none(either, where, kappa):
    """It is how a run notices that it has diverged. Other rows are as they were."""
    rows = {"prediction": torch.randn(2, 20), "target": torch.randn(2, 20)}
    clean = quantile_huber(rows["prediction"], rows["target"], kappa)
    rows[where][1, 7] = torch.nan
    loss = quantile_huber(rows["prediction"], rows["target"], kappa)
    assert loss[1].isnan()
    assert torch.equal(loss[0], clean[0])


@pytest.mark.parametrize("kappa", [0.0, 0.05])
def test_its_minimum_is_the_quantiles(kappa):
    """Of an exponential distribution: -ln(1 - tau)."""
    torch.manual_seed(0)
    theta = torch.zeros(8, requires_grad=True)
    optim = torch.optim.Adam([theta], 0.05)
    for step in range(600):
        optim.param_groups[0]["lr"] = 0.05 * (1 - step / 600)
        optim.zero_grad()
        samples = torch.empty(1024).exponential_()
        quantile_huber(theta, samples, kappa).backward()
        optim.step()
    torch.testing.assert_close(theta.detach(), -(1 - quantile_midpoints(8)).log(), rtol=0, atol=0.1)


def test_midpoints_are_those_of_lemma_2():
    assert quantile_midpoints(4).tolist() == [0.125, 0.375, 0.625, 0.875]


def test_shapes_that_do_not_fit():
    for prediction, target in [((2, 5), (3, 5)), ((5,), (2, 5)), ((2, 0), (2, 5)), ((2, 5), (2, 0))]:
        with pytest.raises(ValueError, match=r"expected \[\.\.\., N\] and \[\.\.\., N'\]"):
            quantile_huber(torch.zeros(prediction), torch.zeros(target))


# ---------------------------------------------------------------- what QR-DQN does around it

B, T, A, N = 6, 5, 3, 7


def rows(seed: int = 0, length: int = T) -> Batch:
    """Windows that cross the ends of episodes, of either kind; float32, as the compiled functions want them."""
    g = torch.Generator().manual_seed(seed)
    last = torch.rand(B, length, generator=g) < 0.3
    terminal = last & (torch.rand(B, length, generator=g) < 0.5)
    action = torch.eye(A)[torch.randint(A, (B, length), generator=g)] * ~last[..., None]
    return Batch(
        obs={}, action=action, reward=torch.randn(B, length, generator=g), is_first=last.roll(1, 1), is_last=last,
        is_terminal=terminal, weight=torch.rand(B, generator=g) + 0.5, index=torch.arange(B),
    )  # fmt: skip


@pytest.mark.skipif(kernels() is None, reason="nothing is compiled")
@pytest.mark.parametrize("n", [1, 7, 200])
def test_means_are_those_of_pytorch(n):
    quantiles = torch.randn(5, 3, n)
    torch.testing.assert_close(compiled_losses.means(quantiles), quantiles.mean(-1))
    turned = torch.randn(n, 3, 5).permute(2, 1, 0)  # not contiguous
    torch.testing.assert_close(compiled_losses.means(turned), turned.mean(-1))


def test_the_best_class_is_that_of_the_highest_mean(either):
    quantiles, preferred = torch.randn(4, 2, A, N), torch.randn(4, 2, A, N)
    got = greedy_quantiles(quantiles, preferred)
    for i in range(4):
        for j in range(2):
            means = preferred[i, j].mean(-1).tolist()
            assert torch.equal(got[i, j], quantiles[i, j, means.index(max(means))])
    assert torch.equal(greedy_quantiles(quantiles[:1, 0], preferred[:1, 0]), got[:1, 0])
    assert torch.equal(greedy_quantiles(quantiles[0, 0], preferred[0, 0]), got[0, 0])


@pytest.mark.parametrize("estimator", [TD0(), TD1(), NStep(2), NStep(3)], ids=str)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_targets_are_those_of_each_number_alone(either, estimator: OneRow, seed):
    data, gamma = rows(seed), 0.9
    following = torch.randn(B, T - 1, N)
    got = quantile_targets(following, data, estimator, gamma)
    followed = ~data.is_last[:, :-1]
    for j in range(N):
        value = torch.cat([torch.zeros(B, 1), following[..., j]], 1)
        expected = estimator.targets(
            reward=data.reward, terminal=data.is_terminal, last=data.is_last, value=value, discount=gamma
        )
        torch.testing.assert_close(got[..., j][followed], expected[followed])
    assert torch.isfinite(got).all()


@pytest.mark.parametrize("kappa", [0.0, 1.0])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_errors_of_a_batch_are_those_of_its_rows(either, kappa, seed):
    data = rows(seed)
    prediction, target = torch.randn(B, T - 1, A, N, requires_grad=True), torch.randn(B, T - 1, N)
    losses = quantile_error(prediction, target, data, kappa)
    moves = [(b, t) for b in range(B) for t in range(T - 1) if not data.is_last[b, t]]
    chosen = {(b, t): int(data.action[b, t].argmax()) for b, t in moves}
    each = {(b, t): defined(prediction[b, t, chosen[b, t]], target[b, t], kappa) for b, t in moves}
    expected = sum(data.weight[b] * loss for (b, _), loss in each.items()) / len(moves)
    torch.testing.assert_close(losses.terms["critic"].double(), expected, rtol=1e-5, atol=1e-6)
    got, slow = (torch.autograd.grad(x, prediction)[0] for x in (losses.terms["critic"], expected))
    torch.testing.assert_close(got, slow, rtol=1e-4, atol=1e-6)
    for b in range(B):
        mine = [loss.item() / N for (at, _), loss in each.items() if at == b]
        assert float(losses.priority[b]) == pytest.approx(sum(mine) / max(1, len(mine)), rel=1e-4)
    assert not losses.priority.requires_grad
    assert losses.metrics["loss/critic"] == losses.terms["critic"]
    values = torch.stack([prediction[b, t, chosen[b, t]].mean() for b, t in moves]).mean()
    torch.testing.assert_close(losses.metrics["train/value"], values.detach())
    torch.testing.assert_close(
        losses.metrics["train/target"], torch.stack([target[b, t].mean() for b, t in moves]).mean()
    )
