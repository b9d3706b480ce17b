"""What is on a tape, what is not, and where it keeps its numbers."""

import contextlib
import gc
import weakref

import numpy as np
import pytest
import torch

from reverie.kernels import tape_ops
from reverie.kernels.compiler import load_kernels
from reverie.kernels.tape import CompiledCall, Tape, _blank, current


def assert_replayed(function, x: torch.Tensor, **tolerance: float) -> Tape:
    """What is recorded is computed again of other numbers."""
    with Tape() as tape:
        found = function()
    gc.collect()
    [torch.full((3,), float(i)) for i in range(1000)]  # whoever takes memory that is free
    x.copy_(torch.randn(x.shape))
    tape.replay()
    torch.testing.assert_close(found, function(), **tolerance)
    return tape


def test_a_replay_computes_from_what_lies_there_now():
    x, y = torch.tensor(2.0), torch.zeros(3)
    with Tape() as tape:
        z = (x * 3).exp()
        y += x
    assert y.tolist() == [2, 2, 2]
    x.fill_(1.0)
    tape.replay()
    assert z.item() == pytest.approx(torch.tensor(3.0).exp().item(), rel=0)
    assert y.tolist() == [3, 3, 3]


@pytest.mark.parametrize("is_trial", [False, True])
def test_the_memory_of_a_tape_is_free_with_its_last_reference(is_trial):
    gc.disable()  # three warm-ups with images held 1 GB until Python looked for cycles
    try:
        with Tape(is_trial=is_trial) as tape:
            torch.ones(1000).exp()
        assert bool(tape.calls) is not is_trial
        ref = weakref.ref(tape._pool)
        del tape
        assert ref() is None
    finally:
        gc.enable()


def test_recording_does_not_import_the_compiler_of_pytorch():
    """Which takes more than a second, and would be imported by the first recorded call in PyTorch's wrapper."""
    assert not hasattr(Tape.__torch_dispatch__, "__wrapped__")


def test_gradients_are_computed_again():
    w, x = torch.nn.Parameter(torch.tensor([1.0, 2.0])), torch.tensor([3.0, 4.0])
    with Tape() as tape:
        (grad,) = torch.autograd.grad((w * x).sin().sum(), w)
    x.copy_(torch.tensor([0.5, 0.25]))
    tape.replay()
    torch.testing.assert_close(grad, x * (w * x).cos().detach(), rtol=1e-6, atol=0)
    assert not grad.requires_grad
    assert w._version == 0


DRAWS = {
    "randn": lambda: torch.randn(37), "few": lambda: torch.randn(3, 2), "rand": lambda: torch.rand(4, 5),
    "like": lambda: torch.randn_like(torch.zeros(5, 6).T), "rand like": lambda: torch.rand_like(torch.zeros(300)),
    "double": lambda: torch.randn(9, dtype=torch.float64), "whole": lambda: torch.randint(7, (5,)),
    "between": lambda: torch.randint(-3, 2**40, (5,)),
    "bernoulli": lambda: torch.bernoulli(torch.full((50,), 0.5)), "normal": lambda: torch.normal(1.0, 2.0, (20,)),
    "multinomial": lambda: torch.multinomial(torch.ones(9), 20, replacement=True), "order": lambda: torch.randperm(9),
    "poisson": lambda: torch.poisson(torch.full((9,), 3.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_go_on_as_without_a_tape(name):
    draw, drawn = DRAWS[name], []
    for taped in (True, False):
        torch.manual_seed(3)
        with Tape() if taped else contextlib.nullcontext() as tape:
            x = draw()
        drawn.append([x.clone()])
        for _ in range(3):
            tape.replay() if taped else x.copy_(draw())
            drawn[-1].append(x.clone())
    torch.testing.assert_close(*drawn, rtol=0, atol=0)


def test_operations_of_several_results_and_of_lists():
    x = torch.randn(4, 5)

    def results():
        mean = torch.nn.functional.conv1d(x[None], torch.ones(1, 4, 2))
        return [*x.max(-1), *torch._foreach_norm([x, x[:2]]), mean]

    assert_replayed(results, x)


@pytest.mark.parametrize("view", ["whole", "rows with gaps", "transposed"])
def test_batch_norm_is_replayed_whatever_its_input_is(view):
    """``native_batch_norm.out`` of PyTorch 2.13 gives nonsense for inputs with gaps."""
    large = torch.randn(8, 2, 3)
    views = {"whole": large[:, 0].clone(), "rows with gaps": large[:, :-1].flatten(0, 1), "transposed": large[:3, 0].T}
    x = views[view]
    mine, theirs = ((torch.zeros(x.shape[1]), torch.ones(x.shape[1])) for _ in range(2))
    with Tape() as tape:
        y = torch.nn.functional.batch_norm(x, *mine, training=True)
    torch.nn.functional.batch_norm(x, *theirs, training=True)
    torch.testing.assert_close(mine, theirs)  # once, though it was tried twice
    x.copy_(torch.randn(x.shape) * 2 + 5)
    tape.replay()
    expected = torch.nn.functional.batch_norm(x, *theirs, training=True)
    torch.testing.assert_close((y, *mine), (expected, *theirs))
    assert _blank(x).isnan().all()  # what is tried does not hold the right values before


def test_memory_is_used_again_but_never_while_somebody_may_look_at_it():
    x = torch.randn(1000)

    def computed():
        y = x.exp()
        for _ in range(20):
            y = (y * 2).view(10, 100).sin().flatten()  # what came before is gone
        first = y.tanh()
        return [(first + i).cos() for i in range(5)]

    tape = assert_replayed(computed, x, rtol=0, atol=0)
    assert 5 < sum(map(len, tape._pool._blocks.values())) < 12


def test_what_autograd_keeps_is_not_written_over():
    w, x = torch.nn.Parameter(torch.randn(50)), torch.randn(50)

    def gradient():
        y = w * x
        for _ in range(6):
            y = y.sin() * w  # each of these is read on the way back
        return torch.autograd.grad(y.sum(), w)

    assert_replayed(gradient, x, rtol=0, atol=0)


def test_constants_outlive_their_makers():
    x = torch.randn(3)

    def computed():
        return x * torch.tensor([1.0, 2.0, 3.0]) + torch.arange(3) + torch.full((3,), 7.0)

    assert_replayed(computed, x, rtol=0, atol=0)


@pytest.mark.skipif(load_kernels() is None, reason="there are no compiled functions here")
def test_what_compiled_functions_would_round_otherwise_is_left_to_pytorch(monkeypatch):
    x, y = torch.randn(9), torch.randn(9)
    for kind, left in (("add", False), ("mul", True)):  # as if a + b were known under another name
        monkeypatch.setitem(tape_ops._KNOWN, torch.ops.aten.add.Tensor, tape_ops._binary(kind))
        with Tape() as tape:
            z = x + y
        assert torch.equal(z, x + y)
        assert any(isinstance(call, CompiledCall) for call in tape.calls) != left
        x.copy_(torch.randn(9))
        tape.replay()
        assert torch.equal(z, x + y)


@pytest.mark.parametrize("fault", [
    lambda x: x.sum().item(), lambda x: bool((x > 0).any()), lambda x: x.nonzero(), lambda x: x[x > 0],
    lambda x: torch.equal(x, x), lambda x: x.unique(), lambda x: x.masked_select(x > 0),
    lambda x: x.tolist(), lambda x: x.numpy(), lambda x: np.asarray(x), lambda x: setattr(x, "data", x + 1),
    lambda x: torch.rand(2, generator=torch.Generator()), lambda x: x.normal_(generator=torch.Generator()),
])  # fmt: skip
def test_what_cannot_be_repeated_is_found(fault):
    x = torch.randn(5)
    with Tape() as tape:
        fault(x)
    assert __file__ in tape.obstacle
    with Tape() as tape:
        x[torch.tensor([0, 1])] * x.view(5, 1)
    assert tape.obstacle == ""


@pytest.mark.parametrize("draw", [
    lambda p: torch.randn(3), lambda p: torch.rand(3), lambda p: torch.bernoulli(p), lambda p: torch.randperm(3),
    lambda p: torch.normal(p, p), lambda p: p.clone().uniform_(), lambda p: torch.nn.functional.dropout(p),
])  # fmt: skip
@pytest.mark.parametrize("later", [0, 5])
def test_random_numbers_that_are_drawn_beside_the_others_are_found(draw, later):
    p = torch.full((3,), 0.5)
    with Tape() as tape:
        with torch.random.fork_rng(devices=[]):
            draw(p)
        torch.rand(later)
    assert "puts the generator back" in tape.obstacle
    with Tape() as tape:
        draw(p)
        torch.rand(later)
    assert tape.obstacle == ""


def test_random_numbers_that_would_be_others_are_found():
    before = torch.initial_seed()
    with Tape() as tape:
        torch.manual_seed(before + 1)
        torch.randn(3)
    assert "sets the seed" in tape.obstacle
    with Tape() as tape:
        torch.randn(3)
    with Tape() as other, torch.random.fork_rng():
        torch.ones(3)
    assert tape.obstacle == other.obstacle == ""


def test_only_one_thread_is_listened_to_and_only_while_it_records():
    assert current() is None
    with contextlib.suppress(ZeroDivisionError), Tape() as tape:
        assert current() is tape
        raise ZeroDivisionError
    assert current() is None
