"""Small operations on a tape come out as PyTorch's, to the last bit, whatever the numbers, shapes and gaps."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from reverie.kernels.compiler import load_kernels
from reverie.kernels.tape import CompiledCall, Tape
from reverie.kernels.tape_ops import SMALL

pytestmark = pytest.mark.skipif(load_kernels() is None, reason="there are no compiled functions here")

ODD = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 0.0, 1e-40, 1.0, -1.0])


def numbers(*shape: int) -> Tensor:
    """Of all kinds."""
    x = torch.randn(shape)
    where = torch.randperm(x.numel())[: len(ODD)]
    x.view(-1)[where] = ODD[: len(where)]
    return x


TWO = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b,
    "le": torch.le, "lt": torch.lt, "where": lambda a, b: torch.where(a <= b, a, b),
    "minimum": torch.minimum, "maximum": torch.maximum, "eq": torch.eq, "ge": torch.ge,
    "add in place": lambda a, b: a.add_(b), "sub in place": lambda a, b: a.sub_(b),
    "mul in place": lambda a, b: a.mul_(b), "div in place": lambda a, b: a.div_(b), "copy": lambda a, b: a.copy_(b),
    "cat": lambda a, b: torch.cat([a, b]),
    "stack": lambda a, b: torch.stack([a, b]), "stack last": lambda a, b: torch.stack([a, b], -1),
}  # fmt: skip
ONE = {
    "add": lambda a: a + 0.1, "mul": lambda a: a * 0.1, "div": lambda a: a / 3, "from": lambda a: 1 - a,
    "neg": lambda a: -a, "abs": torch.abs, "square": torch.square, "power": lambda a: a**2,
    "clamp": lambda a: a.clamp(-0.5, 0.5), "at least": lambda a: a.clamp(min=0.1),
    "at most": lambda a: a.clamp(max=0.1), "clone": torch.clone, "ge": lambda a: a >= 0.1,
    "mul in place": lambda a: a.mul_(0.3), "clamp in place": lambda a: a.clamp_(-1, 1),
    "neg in place": lambda a: a.neg_(), "to float": lambda a: (a > 0).float(),
    "power of one": lambda a: a**1, "le": lambda a: a <= 0.1,
    "lt": lambda a: a < 0.1, "inverse": torch.reciprocal,
    "ones": torch.ones_like, "zeros": torch.zeros_like, "alike": lambda a: torch.full_like(a, 0.1),
    "of one number": lambda a: torch.full(a.shape, -0.0) * a,
    "counts": lambda a: torch.ones_like(a, dtype=torch.int64) + 1,
    "flags": lambda a: ~torch.zeros_like(a, dtype=torch.bool),
}  # fmt: skip
SHAPES = [(), (5,), (33,), (257, 1, 6), (2, 37, 1), (3, 2, 2, 5, 2), (5, 0, 8)]


def check(function, *given: Tensor, plain: bool = True) -> None:
    """What is replayed on other numbers than it was recorded with is what PyTorch says of those."""
    inputs = [x.clone(memory_format=torch.preserve_format) for x in given]
    with Tape() as tape:
        out = function(*inputs)
    for x in inputs:
        x.copy_(numbers(*x.shape) if x.is_floating_point() else torch.rand(x.shape) < 0.5)
    fresh = [x.clone(memory_format=torch.preserve_format) for x in inputs]
    tape.replay()
    torch.testing.assert_close(out, function(*fresh), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(inputs, fresh, rtol=0, atol=0, equal_nan=True)
    assert all(isinstance(call, CompiledCall) for call in tape.calls) == plain


@pytest.mark.parametrize("name", TWO)
def test_of_two_tensors(name):
    for shape in SHAPES[name == "cat" :]:
        check(TWO[name], numbers(*shape), numbers(*shape))


@pytest.mark.parametrize("function", [
    lambda a, b: a.add(b, alpha=0.3), lambda a, b: a.add_(b, alpha=0.3), lambda a, b: a.sub(b, alpha=0.7),
    torch.ops.aten.tanh_backward,
])  # fmt: skip
def test_products_that_are_added_stay_pytorchs(function):
    """Which rounds in between or not, by the processor's instructions and by its compiler."""
    check(function, numbers(33), numbers(33), plain=False)


@pytest.mark.parametrize("name", ONE)
def test_of_a_tensor_and_numbers_of_pythons(name):
    for shape in SHAPES:
        check(ONE[name], numbers(*shape), plain=name != "to float")  # PyTorch's own comparison with 0, but our floats


GAPS = {
    "slice": lambda a: a[:, 1].contiguous(), "slice of slices": lambda a: a[::2, :, 1:].contiguous(),
    "transposed": lambda a: a.transpose(0, 1).contiguous(), "turned": lambda a: a.permute(2, 0, 1).contiguous(),
    "pad": lambda a: F.pad(a[..., 0], (1, 0)), "pad with": lambda a: F.pad(a, (0, 2, 1, 1), value=3.0),
    "broadcast": lambda a: a * a[:, :, :1], "broadcast rows": lambda a: a + a[0],
    "one for all": lambda a: a / a[3, 1, 2], "beside": lambda a: torch.cat([a[:, 0], a[:, 1, :3]], -1),
    "part of it": lambda a: a[:, 0].mul_(a[:, 1]),
    "least": lambda a: a.amin(1), "greatest": lambda a: a.amax(-1, keepdim=True), "sum": lambda a: a.sum(1),
    **{f"sum of {k}": lambda a, k=k: a[..., :k].sum(-1) for k in range(1, 8)},
    "sum across": lambda a: a.transpose(0, 2).contiguous().sum(0), "mean": lambda a: a.mean(-1),
    "mean of two": lambda a: a.mean(1, keepdim=True),
    "of a slice": lambda a: torch.ops.aten.slice_backward(a, [64, 2, 9], 2, 1, 8, 1),
    "of every third": lambda a: torch.ops.aten.slice_backward(a, [190, 2, 7], 0, 0, 2**63 - 1, 3),
    "of one of them": lambda a: torch.ops.aten.select_backward(a, [64, 3, 2, 7], 1, -1),
    "numbers": lambda a: a[..., 0].clone().fill_(2.0).add_(a[..., 1]),
}  # fmt: skip


@pytest.mark.parametrize("name", GAPS)
def test_with_gaps(name):
    check(GAPS[name], numbers(64, 2, 7), plain=name not in ("numbers", "sum across"))


@pytest.mark.parametrize("function", [
    lambda m: ~m[:, :2], lambda m: m.float(), lambda m: m.logical_and_(~m[0]) & m[1],
    lambda m: torch.cat([m, ~m], 1).logical_not(),
])  # fmt: skip
def test_flags(function):
    check(function, torch.rand(64, 3) < 0.5)


def test_counts():
    count = torch.zeros((), dtype=torch.int64)
    with Tape() as tape:
        count += 1
    tape.replay()
    assert count.item() == 2
    assert isinstance(tape.calls[0], CompiledCall)


@pytest.mark.parametrize("function", [
    lambda a: a.exp(), lambda a: a.sum(), lambda a: a.double() * 2, lambda a: a.int() + 1, lambda a: a**3,
    lambda a: torch.add(a, a.double()), lambda a: torch.add(a.view(4, 8), a[:4, None], alpha=0.3),
    lambda a: a.expand(SMALL // 8, 32) + 1, lambda a: a.sum(0),
    lambda a: a.view(1, 1, 1, 2, 2, 2, 2, 2).permute(7, 3, 5, 4, 6, 0, 1, 2).clone(),
])  # fmt: skip
def test_what_is_left_to_pytorch(function):
    check(function, torch.rand(32), plain=False)


@pytest.mark.parametrize("width", [1, 5, 8, 33, 257])
def test_sums_add_up_in_the_order_of_pytorch(width):
    for x, count in ((torch.randn(*lead, n, width), n) for n in (1, 2, 3, 4, 7) for lead in ((), (2,))):
        check(lambda a: a.sum(-2, keepdim=True), x, plain=count <= 3 or width == 1)
        check(lambda a: a.mean(-2), x, plain=count <= 3 or width == 1)
        check(lambda a: a.sum(-1), x.transpose(-1, -2).contiguous())
