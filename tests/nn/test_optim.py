"""LaProp with adaptive clipping against its definition in NumPy, one tensor at a time."""

import math

import numpy as np
import pytest
import torch

from reverie.core.errors import ConfigError, RunError
from reverie.nn.adam import Adam
from reverie.nn.normalization import PercentileScale, percentiles
from reverie.nn.optim import LaPropAGCConfig
from reverie.nn.target_network import TargetNetwork


def reference(params, grads, cfg, steps):
    """The equations of the docstring, written out."""
    params = [p.astype(np.float64) for p in params]
    square, momentum = ([np.zeros_like(p) for p in params] for _ in range(2))
    for t in range(1, steps + 1):
        rate = cfg.lr * (min(1, (t - 1) / cfg.warmup) if cfg.warmup else 1)
        for i, g in enumerate(grads[t - 1]):
            limit = cfg.agc * max(1e-3, np.linalg.norm(params[i]))
            g = g / max(1, np.linalg.norm(g) / limit)
            square[i] = cfg.beta2 * square[i] + (1 - cfg.beta2) * g * g
            u = g / (np.sqrt(square[i] / (1 - cfg.beta2**t)) + cfg.eps)
            momentum[i] = cfg.beta1 * momentum[i] + (1 - cfg.beta1) * u
            params[i] = params[i] - rate * momentum[i] / (1 - cfg.beta1**t)
    return params


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("warmup", [0, 3])
def test_against_definition(warmup, on_gpu):
    rng = np.random.default_rng(0)
    shapes = [(4, 3), (5,), (2, 2, 3)]
    start = [rng.normal(size=s).astype(np.float32) for s in shapes]
    start[1][:] = 0  # a zero-initialized tensor is clipped against 1e-3
    grads = [[(rng.normal(size=s) * 10 ** rng.uniform(-3, 2)).astype(np.float32) for s in shapes] for _ in range(6)]
    params = [torch.nn.Parameter(torch.from_numpy(p.copy())) for p in start]
    cfg = LaPropAGCConfig(lr=0.01, warmup=warmup)
    optim = cfg.build(params)
    if on_gpu:  # there, each element's tensor is looked up
        optim.owner = torch.repeat_interleave(torch.tensor([12, 5, 12])).int()
    for g in grads:
        optim.step(sum((p * torch.from_numpy(x)).sum() for p, x in zip(params, g, strict=True)))
    expected = [torch.from_numpy(x).float() for x in reference(start, grads, cfg, 6)]
    torch.testing.assert_close([p.detach() for p in params], expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("make", [lambda p: LaPropAGCConfig().build(p), lambda p: Adam(p, 1e-3)])
def test_a_parameter_given_twice_is_refused(make):
    a, b = (torch.nn.Parameter(torch.ones(n)) for n in (2, 3))
    with pytest.raises(ConfigError, match="a parameter more than once"):
        make([a, b, b])


def test_state_of_the_same_parameters_in_another_order_is_refused():
    a, b = torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.ones(3))
    saved, other = LaPropAGCConfig().build([a, b]), LaPropAGCConfig().build([b, a])
    saved.updates += 1
    with pytest.raises(RunError, match=r"'shapes' is .*in the checkpoint"):
        other.load_state_dict(saved.state_dict())
    assert float(other.updates) == 0


def test_state_of_an_optimizer_of_another_kind_is_refused():
    make = (lambda p: Adam(p, 1e-3), LaPropAGCConfig().build)
    saved, other = (build([torch.nn.Parameter(torch.ones(2))]) for build in make)
    with pytest.raises(RunError, match=r"has mean, square, updates: expected momentum, .*--init-from"):
        other.load_state_dict(saved.state_dict())


def test_percentile_scale_by_hand():
    scale = PercentileScale(rate=0.5, limit=1.0)
    seen = []
    for x in (torch.arange(101.0), *[torch.zeros(7)] * 21):  # percentiles 5 and 95
        scale.update(x)
        seen.append([float(x) for x in scale()])
    assert seen[:2] == [[2.5, 45.0], [1.25, 22.5]]
    assert seen[-1][1] == 1.0  # never scales up


@pytest.mark.parametrize("count", [1, 2, 20, 21, 101, 15360])
def test_percentiles_are_those_of_torch(count):
    for seed in range(20):
        x = torch.randn(count, generator=torch.Generator().manual_seed(seed)) * 10.0 ** (seed % 5 - 2)
        low, high = percentiles(x.view(1, -1), (5.0, 95.0))
        expected = torch.quantile(x, torch.tensor([0.05, 0.95]))  # its last bit depends on the version of PyTorch
        torch.testing.assert_close(torch.stack([low, high]), expected, rtol=0, atol=1e-6 * float(x.abs().max()))


def test_nan_counts_as_the_largest_number():
    found = percentiles(torch.tensor([math.nan, 1.0, 2.0, 3.0]), (0.0, 100.0))
    np.testing.assert_equal([float(x) for x in found], [1.0, math.nan])


def test_a_target_follows_its_source_to_another_device():
    source = torch.nn.Linear(2, 2)
    target = TargetNetwork(source, 0.25)
    both = torch.nn.ModuleList([source, target]).to("meta")  # new parameters take the place of the old
    target.update()
    assert all(p.device.type == "meta" for p in both.parameters())


@pytest.mark.parametrize(
    ("rate", "every", "at_first"), [(1.0, 3, 0), (0.5, 2, 0), (0.25, 1, 0), (0.5, 3, 1), (0.5, 1, 1)]
)
def test_target_moves_at_every_nth_call_and_stands_still_between(rate, every, at_first, either):
    source = torch.nn.Linear(2, 3)
    target = TargetNetwork(source, rate, every, bool(at_first))
    for call in range(1 + at_first * (every - 1), 4 * every + 1):
        before = target.model.weight.detach().clone()
        with torch.no_grad():
            source.weight.add_(1.0)
        target.update()
        moved = before + rate * (source.weight.detach() - before) if call % every == 0 else before
        torch.testing.assert_close(target.model.weight, moved)
