"""Compiled functions get only the addresses of tensors: each refuses a tensor that does not fit, and reads no other."""

from __future__ import annotations

import contextlib
import functools

import pytest
import torch

from reverie.core.compiler import kernels
from reverie.nn import functional
from reverie.nn.distributions import TwoHot
from reverie.nn.layers import MLP
from reverie.nn.matmul import linear
from reverie.nn.number_head import LayerTwoHot
from reverie.nn.pixels import unit_squared_error
from reverie.nn.rssm import Latent, RSSMConfig
from reverie.nn.squashed import SquashedNormal
from reverie.nn.stages import conv_pool_norm_silu
from reverie.nn.upsample import conv_unfold_norm_silu, conv_unfold_sigmoid
from reverie.nn.winograd import MIN_CHANNELS, MIN_TILES

pytestmark = pytest.mark.skipif(kernels() is None, reason="nothing is compiled")

M, H, W, C, A, EPS = 3, 4, 5, 8, 6, 1e-5
"""Rows or images, their height, width and channels, classes, and what norms add."""


def number_head(x, weight, bias, bins):
    """As in ``nn/heads.py``, which asks first."""
    layer = x, weight, bias, bins
    return LayerTwoHot(*layer).mean() if LayerTwoHot.fits(*layer) else TwoHot(linear(x, weight, bias), bins).mean()


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


def images(outputs, scales=0, side=H, channels=C, count=M):
    given = {"x": random(count, side, W, channels), "weight": random(outputs, channels, 3, 3), "bias": random(outputs)}
    return given | ({"scale": random(scales)} if scales else {})


def classes(*shape):
    return torch.zeros(*shape, dtype=torch.int64)


POOL, UNFOLD = (functools.partial(f, eps=1e-5) for f in (conv_pool_norm_silu, conv_unfold_norm_silu))
MANY = {"side": 8, "channels": MIN_CHANNELS, "count": MIN_TILES // 4}  # enough for Winograd's algorithm
CASES = {
    "number_head": (
        number_head, {"x": random(M, C), "weight": random(A, C), "bias": random(A), "bins": torch.linspace(-1, 1, A)}
    ),
    "pool": (POOL, images(A, A)),
    "unfold": (UNFOLD, images(8, 2)),
    "unfold_sigmoid": (conv_unfold_sigmoid, images(8)),
    "pool_by_winograd": (POOL, images(A, A, **MANY)),
    "unfold_by_winograd": (UNFOLD, images(8, 2, **MANY)),
    "unfold_sigmoid_by_winograd": (conv_unfold_sigmoid, images(8, **MANY)),
    "squared_error": (
        functools.partial(unit_squared_error, low=0.0, high=255.0),
        {"pixels": random(M, H, W, C), "target": torch.ones(M, H, W, C, dtype=torch.uint8)},
    ),
    "acting": (acting, {"x": random(M, C)}),
    "observe": (
        observe,
        {"deter": random(M, 16), "stoch": random(M, 2, 4), "actions": random(H, M, 8), "embeds": random(H, M, 8),
         "keep": torch.ones(M, H)},
    ),
    "dream": (dream, {"feature": random(M, 24), "action": random(M, 8), "out": torch.zeros(M, 24)}),
}  # fmt: skip
"""Each function by name, and tensors that fit."""

FREE = {
    "number_head": {("x", 0)},
    "acting": {("x", 0)},
    **{name: {("x", 0), ("x", 1), ("x", 2)} for name in CASES if name.startswith(("pool", "unfold_", "unfold"))},
}  # fmt: skip
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


def test_no_rows_or_no_classes():
    assert functional.unimix_probs(torch.zeros(0, A), 0.1).shape == (0, A)
    assert functional.log_sum_exp(torch.zeros(0, A)).shape == (0,)
    assert functional.softmax_mean(torch.zeros(M, 0), torch.zeros(0)).shape == (M,)
    assert functional.softmax_mean(torch.zeros(0, A), torch.zeros(A)).shape == (0,)
    assert functional.draw(torch.zeros(0, A)).shape == (0,)
    assert torch.equal(functional.draw(torch.zeros(M, 0)), classes(M))
    assert functional.gru(torch.zeros(0, 2, 3, 4), torch.zeros(0, 8)).shape == (0, 8)
    assert functional.norm_silu(torch.zeros(0, C), torch.ones(C), 1e-5).shape == (0, C)
    assert functional.one_hot(classes(0), torch.zeros(0, A)).shape == (0, A)
    assert SquashedNormal(torch.zeros(0, A), torch.zeros(0, A)).sample()[0].shape == (0, A)


@pytest.mark.parametrize("stage", [POOL, UNFOLD], ids=["pool", "unfold"])
@pytest.mark.parametrize(("kernel", "said"), [((2, 2), "a kernel of 2 x 2: expected an odd size"), ((3, 5), "shape")])
def test_kernels_that_are_even_or_no_squares_are_refused(stage, kernel, said):
    given = images(8, 8 if stage is POOL else 2) | {"weight": random(8, C, *kernel)}
    with pytest.raises(ValueError, match=said):
        stage(**given)


@pytest.mark.parametrize("stage", [conv_unfold_sigmoid, functools.partial(UNFOLD, scale=random(2))])
def test_outputs_that_are_not_four_pixels_are_refused(stage):
    with pytest.raises(ValueError, match=r"weight has shape \(9, 8, 3, 3\): expected a multiple of 4 outputs"):
        stage(**images(9))


def test_no_state_of_another_device_is_read():
    deter, stoch = torch.zeros(M, 16), torch.zeros(M, 2, 4)
    assert WORLD.compiled.fits(Latent(deter, stoch))
    assert not WORLD.compiled.fits(Latent(deter.to("meta"), stoch))
    assert not WORLD.compiled.fits(Latent(deter, stoch.to("meta")))
