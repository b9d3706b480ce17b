"""Compiled functions compute what their definitions in PyTorch do: values, gradients, and what is not a number."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from reverie.core import compiler
from reverie.core.accelerate import only
from reverie.kernels import losses
from reverie.nn import functional

Call = Callable[..., Tensor]
SIZES = [(1, 1), (1, 64), (3, 1), (7, 5), (130, 33), (1100, 4)]


@pytest.fixture(autouse=True)
def _kernels():
    """There is something to test, unless it was switched off on purpose."""
    assert compiler.state() in ("compiled", "off"), compiler.trouble()
    torch.manual_seed(0)


def norm_silu(rows: int, width: int) -> tuple[Call, list[Tensor]]:
    inputs = [torch.randn(rows, 2, width), torch.randn(width)]
    return lambda x, scale: functional.norm_silu(x, scale, 1e-4), inputs


def unfold_norm_silu(rows: int, width: int) -> tuple[Call, list[Tensor]]:
    inputs = [torch.randn(rows, 3, 2, 2, 2, width), torch.randn(width)]
    return lambda x, scale: functional.unfold_norm_silu(x, scale, 1e-4), inputs


def elu(rows: int, width: int) -> tuple[Call, list[Tensor]]:
    return functional.elu, [2 * torch.randn(rows, 2, width)]


def gru(rows: int, width: int) -> tuple[Call, list[Tensor]]:
    return functional.gru, [2 * torch.randn(rows, 3, 3, width), torch.randn(rows, 3 * width)]


def unimix_probs(rows: int, width: int) -> tuple[Call, list[Tensor]]:
    return lambda x: functional.unimix_probs(x, 0.01), [4 * torch.randn(rows, 2, width)]


def plain_softmax(rows: int, width: int) -> tuple[Call, list[Tensor]]:
    return lambda x: functional.unimix_probs(x, 0.0), [30 * torch.randn(rows, width)]


def cross_entropy(rows: int, width: int) -> tuple[Call, list[Tensor]]:
    index, weight = torch.randint(0, width, (2, rows)).T, torch.rand(2, rows).T  # with gaps; classes may come twice
    return lambda x: functional.cross_entropy(x, index, weight), [10 * torch.randn(rows, width)]


def softmax_mean(rows: int, width: int) -> tuple[Call, list[Tensor]]:
    bins = torch.linspace(-3, 3, width + 1)  # one bin alone would not be symmetric
    return lambda x: functional.softmax_mean(x, gaps(bins)), [5 * torch.randn(rows, width + 1)]


def softmax_mean_alone(rows: int, width: int) -> tuple[Call, list[Tensor]]:
    call, inputs = softmax_mean(rows, width)
    return lambda x: call(x.detach()) + 0 * x.sum(-1), inputs


def log_sum_exp(rows: int, width: int) -> tuple[Call, list[Tensor]]:
    return functional.log_sum_exp, [10 * torch.randn(rows, 2, width)]


CASES = [norm_silu, unfold_norm_silu, elu, gru, unimix_probs, plain_softmax, cross_entropy, log_sum_exp]
CASES += [softmax_mean, softmax_mean_alone]


def gaps(x: Tensor) -> Tensor:
    """The same numbers with others between them in memory."""
    return torch.stack([x, torch.full_like(x, torch.nan)], -1)[..., 0]


def results(call: Call, inputs: list[Tensor], with_gaps: bool = False) -> list[Tensor]:
    """The value and all gradients, the outputs being weighted at random."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    y = call(*(gaps(x) for x in inputs) if with_gaps else inputs)
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    return [y, *torch.autograd.grad(y, inputs, gaps(grad) if with_gaps else grad)]


def both(monkeypatch: pytest.MonkeyPatch, call: Callable[[], list[Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """What ``call`` says as it is compiled, and as it is defined."""
    ours = call()
    with only():
        return list(zip(ours, call(), strict=True))


# ---------------------------------------------------------------- values and gradients


@pytest.mark.parametrize("with_gaps", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_as_defined(case, threads, with_gaps, monkeypatch):
    monkeypatch.setattr("reverie.kernels.call.PARALLEL", 1)  # threads in whatever is small, too
    torch.set_num_threads(threads)
    for rows, width in SIZES:
        call, inputs = case(rows, width)
        for ours, defined in both(monkeypatch, lambda: results(call, inputs, with_gaps)):  # noqa: B023
            torch.testing.assert_close(ours, defined, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("case", CASES)
def test_half_precision_comes_back_as_it_came(case, monkeypatch):
    call, inputs = case(7, 16)
    inputs = [inputs[0].bfloat16(), *inputs[1:]] if case in (norm_silu, unfold_norm_silu) else [
        x.bfloat16() for x in inputs
    ]  # fmt: skip
    if case in (cross_entropy, log_sum_exp, softmax_mean, softmax_mean_alone):
        inputs = [x.float() for x in inputs]  # heads of numbers compute in float32
    for ours, defined in both(monkeypatch, lambda: results(call, inputs)):
        assert ours.dtype is defined.dtype
        torch.testing.assert_close(ours, defined, rtol=4e-2, atol=4e-2)


# ---------------------------------------------------------------- far from the middle


def test_elu_far_from_the_middle():
    """PyTorch's gradient at NaN depends on the place in memory."""
    y, grad = results(functional.elu, [torch.tensor([torch.nan, torch.inf, -torch.inf] * 17)])
    assert y.view(17, 3).nan_to_num(5.0, torch.inf).unique(dim=0).tolist() == [[5.0, torch.inf, -1.0]]
    assert grad.view(17, 3)[:, 1:].isfinite().all()
    assert not grad.view(17, 3)[:, 2].any()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("case", [case for case in CASES if case is not elu])
def test_what_is_not_finite_stays_so(case, bad, monkeypatch):
    """It is how a run notices that it has diverged."""
    for place in (0, 3, 40):  # the first, in a vector of the processor's, and in the rest
        call, inputs = case(3, 41)
        inputs[0].view(-1, inputs[0].shape[-1])[2, place] = bad
        for ours, defined in both(monkeypatch, lambda: results(call, inputs)):  # noqa: B023
            spreads = case is log_sum_exp and bad == torch.inf and ours.shape[-1] == 41  # NaN for all of a row
            if spreads and compiler.kernels() is not None:
                hit = ~defined.isfinite().all(-1)
                assert hit.sum() == 1
                assert not ours[hit].isfinite().any()
                ours, defined = ours[~hit], defined[~hit]
            assert torch.equal(ours.isfinite(), defined.isfinite())


@pytest.mark.parametrize("case", CASES)
def test_large_numbers(case, monkeypatch):
    """Exponentials that leave the range of float32, both ways."""
    for factor in (30.0, 1e4):
        call, inputs = case(5, 40)
        inputs[0] *= factor
        for ours, defined in both(monkeypatch, lambda: results(call, inputs)):  # noqa: B023
            torch.testing.assert_close(ours, defined, rtol=1e-4, atol=1e-4)


def test_exponentials_are_exact_to_a_few_digits_more_than_needed():
    """softmax and tanh against float64, over all that they meet."""
    x = torch.linspace(-30, 30, 20_001)
    pairs = torch.stack([x, torch.zeros_like(x)], -1)
    exact = torch.sigmoid(x.double())
    torch.testing.assert_close(functional.unimix_probs(pairs, 0.0)[:, 0].double(), exact, rtol=4e-7, atol=0)
    gates = torch.stack([torch.full_like(x, 50), x / 3, torch.full_like(x, 50)]).T.reshape(-1, 1, 3, 1)
    candidate = torch.tanh(x.double() / 3)  # the gates being open
    torch.testing.assert_close(
        functional.gru(gates, torch.zeros(len(x), 1))[:, 0].double(), candidate, rtol=4e-7, atol=0
    )  # fmt: skip


def test_a_million_rows_are_added_up_exactly():
    """In float32, small gradients would vanish beside a large sum."""
    x, scale = torch.randn(1_000_000, 2), torch.ones(2, requires_grad=True)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        (ours,) = torch.autograd.grad(functional.norm_silu(x, scale, 1e-4).sum(), scale)
        wide = scale.detach().double().requires_grad_()
        y = torch.nn.functional.silu(torch.nn.functional.rms_norm(x.double(), (2,), wide, 1e-4))
        (exact,) = torch.autograd.grad(y.sum(), wide)
        torch.testing.assert_close(ours.double(), exact, rtol=2e-7, atol=0)


# ---------------------------------------------------------------- samples


@pytest.mark.parametrize("uniform", [0.0, 1e-45, 0.5, 1 - 2**-24, 1.0])
@pytest.mark.parametrize("width", [1, 2, 3, 255])
def test_a_sample_is_a_class(uniform, width, monkeypatch):
    """Also for uniform numbers at the ends of their range, and sums that rounding leaves beside 1."""
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.full(shape, uniform))
    probs = torch.rand_like(torch.empty(500, width)) + 1e-3
    probs = probs / probs.sum(-1, keepdim=True) * torch.tensor([[0.999], [1.001]]).repeat(250, 1)
    ((ours, defined),) = both(monkeypatch, lambda: [functional.draw(probs)])
    assert ours.dtype is defined.dtype is torch.int64
    assert 0 <= int(ours.min()) <= int(ours.max()) < width
    if uniform in (0.0, 1.0):
        assert ours.unique().tolist() == [0 if uniform == 0 else width - 1]


def test_samples_are_those_of_the_definition(monkeypatch):
    """The same random numbers choose the same classes, but for a few that fall upon a border."""
    probs = torch.softmax(torch.randn(20_000, 17), -1)
    ((ours, defined),) = both(monkeypatch, lambda: [(torch.manual_seed(3), functional.draw(gaps(probs)))[1]])
    assert (ours != defined).sum() <= 2


@pytest.mark.parametrize("threads", [1, 2])
def test_samples_come_as_often_as_they_should(threads):
    torch.set_num_threads(threads)
    probs = torch.tensor([0.1, 0.0, 0.25, 0.0, 0.65, 0.0])
    share = torch.bincount(functional.draw(probs.expand(100, 4000, 6)).flatten(), minlength=6) / 400_000
    torch.testing.assert_close(share, probs, atol=4e-3, rtol=0)
    assert share[[1, 3, 5]].tolist() == [0, 0, 0]


def test_samples_of_what_is_not_a_number_are_still_classes(monkeypatch):
    """The loss says that it has diverged; an index out of range would end the process."""
    ((ours, _),) = both(monkeypatch, lambda: [functional.draw(torch.full((40, 5), torch.nan))])
    assert 0 <= int(ours.min()) <= int(ours.max()) < 5


def test_one_hot_of_any_shape(monkeypatch):
    index, probs = torch.randint(0, 5, (4, 3)).T, torch.zeros(3, 4, 5)
    ((ours, defined),) = both(monkeypatch, lambda: [functional.one_hot(index, probs)])
    assert torch.equal(ours, defined)
    assert torch.equal(ours, torch.nn.functional.one_hot(index, 5).float())
    assert functional.one_hot(index, probs.bfloat16()).dtype is torch.bfloat16


def test_a_class_that_does_not_exist_is_an_error():
    """The compiled gradient would write beside the memory that it was given."""
    logits, weight = torch.randn(2, 3, requires_grad=True), torch.ones(2, 1)
    with pytest.raises(RuntimeError, match="out of bounds"):
        functional.cross_entropy(logits, torch.tensor([[0], [3]]), weight)


def test_no_pointer_outlives_its_tensor():
    """A tensor without a name is gone before the call that its address is handed to."""
    for path in Path(losses.__file__).parent.glob("*.py"):
        text = path.read_text().replace("untyped_storage().data_ptr()", "")
        assert re.findall(r".*\)\.data_ptr\(.*", text) == [], path.name


@pytest.mark.skipif(compiler.kernels() is None, reason="PyTorch's own operations have second derivatives")
def test_second_derivatives_are_refused_also_where_the_gradient_that_comes_is_constant():
    """PyTorch's ``once_differentiable`` would call them 0."""
    x, scale = torch.randn(4, 8, requires_grad=True), torch.ones(8, requires_grad=True)
    with pytest.raises(RuntimeError, match="create_graph=True: compiled functions have no second derivative"):
        torch.autograd.grad(functional.norm_silu(x, scale, 1e-5).sum(), x, create_graph=True)
