"""Compiled perceptrons against their definition in PyTorch, in float64 and as layers of PyTorch."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from sequence_filter import assert_near

from reverie.kernels.compiler import load_kernels
from reverie.nn.relu_mlp import ReluMLP

# Widths on both sides of what the C files work in: LANES, NARROW, TILE, PANEL, WORD; rows around STRIP and GATED_ROWS,
# and beyond MOST_ROWS and TOGETHER.

SHAPES = [(276, 9, 1), (300, 1, 2), (300, 9, 3), (1300, 1, 1), (1300, 9, 2)]
needs_compiler = pytest.mark.skipif(load_kernels() is None, reason="nothing is compiled")


@pytest.fixture(params=["compiled", "defined"])
def path(request):
    """Both ways to compute. Without a compiler the first is the second."""
    if request.param == "defined":
        request.getfixturevalue("definitions")


def defined(x: torch.Tensor, layers, between=torch.relu) -> torch.Tensor:
    """Layer by layer: ``[M, inputs]`` to ``[K, M, outputs]``."""
    y = x.expand(len(layers[0][0]), *x.shape)
    for k, (weight, bias) in enumerate(layers):
        y = torch.baddbmm(bias, y if k == 0 else between(y), weight)
    return y


def exact(net: ReluMLP, x: torch.Tensor, grad: torch.Tensor, between=torch.relu):
    """The result and the gradients of x and theta in float64."""
    x, theta = (t.detach().double().requires_grad_() for t in (x, net.theta))
    y = defined(x, net.layout.layers(theta), between)
    return y.detach(), *torch.autograd.grad(y, [x, theta], grad.double().view_as(y))


@pytest.mark.parametrize(("told", "shapes"), [
    *[("expects 3 numbers", shapes) for shapes in ([(256, 4)], [(256, 2)], [(8, 2), (8, 2)])],
    *[("shapes", shapes) for shapes in ([(8, 2), (16, 1)], [(8, 1, 2), (8, 2, 1)], [(8, 2, 2), (8, 1)])],
])  # fmt: skip
def test_inputs_that_do_not_fit_are_told_and_no_other_memory_is_read(shapes, told, path):
    net = ReluMLP(3, (64, 64), 1, copies=2)
    with pytest.raises(ValueError, match=told):
        net(*[torch.randn(shape) for shape in shapes])


def test_each_copy_has_gradients_of_its_own_and_can_be_asked_alone(path):
    net, x = ReluMLP(4, (7, 5), 2, copies=3), torch.randn(6, 4)
    torch.testing.assert_close(net(x, copy=1), net(x)[1], rtol=1e-6, atol=1e-7)
    for y in (net(x)[1], net(x, copy=1)):
        (grad,) = torch.autograd.grad(y.sum(), [net.theta])
        assert grad[1].abs().sum() > 0
        assert grad[0].abs().sum() == grad[2].abs().sum() == 0


def test_what_needs_no_gradient_gets_none(path):
    net, x = ReluMLP(5, (40,), 3, copies=2), torch.randn(6, 5, requires_grad=True)
    (dx,) = torch.autograd.grad(net.requires_grad_(False)(x).sum(), [x])
    y = net.requires_grad_(True)(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, dx)
    assert net.theta.grad is not None
    with torch.no_grad():
        assert not net(x).requires_grad
    torch.testing.assert_close(net(x), y)


@needs_compiler
@pytest.mark.parametrize(("rows", "outputs", "copies"), SHAPES)
def test_numbers_do_not_depend_on_threads_or_on_the_rest_of_the_batch(rows, outputs, copies):
    torch.manual_seed(0)
    net, x, found = ReluMLP(17, (256, 256), outputs, copies), torch.randn(rows, 17, requires_grad=True), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        y = net(x)
        found.append((y, *(torch.autograd.grad(y.square().sum(), w, retain_graph=True)[0] for w in (net.theta, x))))
    torch.set_num_threads(1)
    assert all(all(map(torch.equal, found[0], others)) for others in found[1:])
    assert torch.equal(net(x[40:150]), net(x)[:, 40:150])
    few = net(x[40:60])
    assert torch.equal(net(x[43:47]), few[:, 3:7])
    torch.testing.assert_close(few, net(x)[:, 40:60], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("outputs", [9, 1])
def test_threads_wait_for_what_others_prepare(outputs):
    """With many threads, and parameters that are not those before: what an earlier call has left would be right."""
    x = torch.randn(300, 17, requires_grad=True)
    for _ in range(10):
        net, found = ReluMLP(17, (256, 256), outputs, 2), []
        for threads in (8, 1):
            torch.set_num_threads(threads)
            found.append(torch.autograd.grad(net(x).square().sum(), [net.theta, x]))
        assert all(map(torch.equal, *found))


def test_single_products_are_exact_to_the_last_bits(path):
    """Of sums alone it would not be seen that a part of a number is missing."""
    torch.manual_seed(0)
    net, x = ReluMLP(1, (), 400), torch.randn(300, 1)
    with torch.no_grad():
        ((weight, bias),) = net.layers()
        bias.zero_()
        exact = x.double() @ weight[0].double()
        assert ((net(x) - exact) / exact).abs().max() < 4 * 2**-24


@needs_compiler
def test_threads_wait_for_each_other_in_other_processes_too():
    """A child has none of the threads of its parent; its own do not begin with the last task of the parent's."""
    net, x = ReluMLP(17, (256, 256), 6), torch.randn(300, 17)
    for threads in (2, 8, 8, 8):
        torch.set_num_threads(threads)
        with torch.no_grad():
            y = net(x)
            pid = os.fork()
            if pid == 0:
                signal.alarm(20)  # ends a child whose threads wait for each other forever
                os._exit(0 if all(torch.equal(net(x), y) for _ in range(5)) else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@needs_compiler
def test_two_callers_at_once_do_not_disturb_each_other():
    net, x = ReluMLP(17, (256, 256), 6), torch.randn(300, 17)
    torch.set_num_threads(2)
    with torch.no_grad(), ThreadPoolExecutor(3) as pool:
        y = net(x)
        assert all(pool.map(lambda _: torch.equal(net(x), y), range(60)))


@pytest.mark.parametrize(
    ("rows", "units", "outputs"), [(6, (40, 8), 3), (20, (64, 32), 3), (70, (64, 40), 1)]
)  # parts of tiles, whole ones, and gates
def test_nan_is_not_swallowed(path, rows, units, outputs):
    net, x = ReluMLP(5, units, outputs), torch.randn(rows, 5)
    x[2, 1] = torch.nan
    y = net(x)
    assert y[2].isnan().all()
    assert y.isnan().any(-1).sum() == 1
    grad = torch.autograd.grad(y.sum(), [net.theta])[0]
    expected = exact(net, x, torch.ones_like(y))[2]
    assert expected.isnan().any()
    assert torch.equal(grad.isnan(), expected.isnan())


@pytest.mark.parametrize(
    ("inputs", "units", "outputs", "copies"),
    [(4, (64, 64), 2, None), (17, (40, 70), 1, 2), (3, (5,), 9, 3), (70, (129, 8), 3, None)],
)
@pytest.mark.parametrize("rows", [1, 65, 600])
def test_tanh_between_layers(inputs, units, outputs, copies, rows, path):
    torch.manual_seed(0)
    net, x = ReluMLP(inputs, units, outputs, copies, activation="tanh"), torch.randn(rows, inputs, requires_grad=True)
    y = net(x)
    grad = torch.randn_like(y)
    found = (y, *torch.autograd.grad(y, [x, net.theta], grad))
    expected = exact(net, x, grad, torch.tanh)
    assert_near(found, (expected[0].view_as(y), *expected[1:]), rtol=1e-5)


def test_what_fills_up_a_row_stays_zero():
    net = ReluMLP(3, (5,), 2, copies=2)
    used = (3 + 1) * 5 + (5 + 1) * 2
    assert net.theta.shape == (2, 32)
    (grad,) = torch.autograd.grad(net(torch.randn(9, 3)).sum(), [net.theta])
    for x in (net.theta, grad):
        assert x[:, used:].eq(0).all()


def test_initial_weights_are_those_of_torch_linear():
    torch.manual_seed(0)
    for weight, bias in ReluMLP(100, (400,), 400, copies=2).layers():
        most = weight.shape[1] ** -0.5
        assert max(p.abs().max().item() for p in (weight, bias)) <= most
        assert [p.std().item() for p in (weight, bias)] == pytest.approx([3**-0.5 * most] * 2, rel=0.1)
