"""Compiled functions get only the addresses of tensors: each refuses a tensor that does not fit, and reads no other."""

from __future__ import annotations

import contextlib

import pytest
import torch

from reverie.core.compiler import kernels
from reverie.nn.layers import MLP
from reverie.nn.rssm import Latent, RSSMConfig

pytestmark = pytest.mark.skipif(kernels() is None, reason="nothing is compiled")

M, H, W, C, A, EPS = 3, 4, 5, 8, 6, 1e-5
"""Rows or images, their height, width and channels, classes, and what norms add."""


NORMED = MLP(C, 16, 2)


def acting(x):
    NORMED(x if x.shape == (M, C) else torch.zeros(M, C))  # the first call packs the weights
    return NORMED(x)


WORLD = RSSMConfig(deter=16, hidden=8, stoch=2, classes=4, blocks=2).build(embed=5, action=2)


def observe(deter, stoch, actions, embeds, keep):
    torch.manual_seed(0)
    return WORLD.compiled.observe(Latent(deter, stoch), actions, embeds, keep)[0]


def dream(feature, action, out):
    torch.manual_seed(0)
    WORLD.compiled.dream_step(feature, action, out, None)
    return out


def random(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0)) + 0.1


CASES = {
    "acting": (acting, {"x": random(M, C)}),
    "observe": (
        observe,
        {"deter": random(M, 16), "stoch": random(M, 2, 4), "actions": random(H, M, 8), "embeds": random(H, M, 8),
         "keep": torch.ones(M, H)},
    ),
    "dream": (dream, {"feature": random(M, 24), "action": random(M, 8), "out": torch.zeros(M, 24)}),
}  # fmt: skip
"""Each function by name, and tensors that fit."""

FREE = {"acting": {("x", 0)}}
"""Axes of any length."""

UNLIKE = [pytest.param(name, key, id=f"{name}-{key}") for name, (_, given) in CASES.items() for key in given]
GUARDED = [p for p in UNLIKE if p.values[0] not in ("observe", "dream")]
"""Without those whose callers ask first whether the tensors are float32 on the CPU."""

WRONG = [
    pytest.param(name, key, axis, id=f"{name}-{key}-{axis}")
    for name, (_, given) in CASES.items()
    for key, x in given.items()
    for axis in range(x.ndim)
    if (key, axis) not in FREE.get(name, ())
]


def called(name, **changed):
    function, given = CASES[name]
    with torch.no_grad():
        return function(**{key: x.clone() for key, x in given.items()} | changed)


@pytest.mark.parametrize(("name", "key", "axis"), WRONG)
def test_a_tensor_that_is_too_short_is_refused(name, key, axis):
    x = CASES[name][1][key]
    with pytest.raises((ValueError, RuntimeError)):
        called(name, **{key: x.narrow(axis, 0, x.shape[axis] - 1)})


@pytest.mark.parametrize(("name", "key"), UNLIKE)
def test_memory_with_gaps_gives_the_same(name, key):
    """Every other number of a tensor that is twice as wide."""
    x = CASES[name][1][key]
    gaps = torch.stack([x, torch.full_like(x, 3)], -1)[..., 0]
    torch.testing.assert_close(called(name, **{key: gaps}), called(name))


@pytest.mark.parametrize(("name", "key"), GUARDED)
def test_no_tensor_of_another_device_is_read(name, key):
    """The address of a tensor on ``meta`` is 0: reading it would end the process."""
    with contextlib.suppress(ValueError, RuntimeError):
        called(name, **{key: CASES[name][1][key].to("meta")})


@pytest.mark.parametrize(("name", "key"), GUARDED)
def test_other_dtypes_are_refused_or_computed_as_numbers(name, key):
    """Halves take two bytes, where compiled functions read four or eight. A mean in halves has noise of its own."""
    x = CASES[name][1][key]
    try:
        found = called(name, **{key: x.to(torch.float16 if x.is_floating_point() else torch.int16)})
    except (ValueError, RuntimeError):
        return
    torch.testing.assert_close(found.float(), called(name), atol=0.02, rtol=0.02)


def test_no_state_of_another_device_is_read():
    deter, stoch = torch.zeros(M, 16), torch.zeros(M, 2, 4)
    assert WORLD.compiled.fits(Latent(deter, stoch))
    assert not WORLD.compiled.fits(Latent(deter.to("meta"), stoch))
    assert not WORLD.compiled.fits(Latent(deter, stoch.to("meta")))
