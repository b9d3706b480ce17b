"""Triton kernels of images and of numbers' heads against their definitions, and parameters that are cast once."""

from __future__ import annotations

import pytest
import torch

from reverie.kernels import gpu, images_gpu
from reverie.nn import functional
from reverie.nn.layers import Linear
from reverie.nn.number_distributions import TwoHot
from reverie.objectives.transforms import symexp_bins

pytest.importorskip("triton")
DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
CONVOLVED = {
    "pool": (functional.conv_pool_norm_silu, (2, 5, 7, 6), (12, 6, 5, 5), 12),
    "pool blocks of pixels": (functional.conv_pool_norm_silu, (2, 4, 6, 3), (12, 3, 5, 5), 12),
    "pool blocks around one pixel": (functional.conv_pool_norm_silu, (2, 4, 2, 1), (5, 1, 3, 3), 5),
    "pool three channels": (functional.conv_pool_norm_silu, (2, 4, 2, 3), (5, 3, 3, 3), 5),
    "pool two channels": (functional.conv_pool_norm_silu, (2, 4, 2, 2), (5, 2, 3, 3), 5),
    "unfold": (functional.conv_unfold_norm_silu, (3, 5, 3, 6), (28, 6, 3, 3), 7),
    "sigmoid": (functional.conv_unfold_sigmoid, (3, 5, 3, 6), (12, 6, 3, 3), 0),
}


@pytest.mark.parametrize("name", CONVOLVED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_stages_of_encoder_and_decoder(on_gpu, monkeypatch, name, dtype):
    """cuDNN rounds the factors of products in float32 to 10 bits; random numbers here have fewer."""
    monkeypatch.setattr(images_gpu, "MIN_IMAGES", 2)
    monkeypatch.setattr(gpu, "PROGRAMS", 3)
    stage, images, weights, scale = CONVOLVED[name]
    x, weight, bias = ((torch.randn(s) * 8).round().div(8).to(DEVICE, dtype) for s in (images, weights, weights[:1]))
    given = [weight.requires_grad_(), bias.requires_grad_()]
    if "blocks" not in name:
        given.append(x.requires_grad_())
    rest = (torch.randn(scale).to(DEVICE).requires_grad_(), 1e-4) if scale else ()
    given += rest[:1]
    found = []
    for on in (True, False):
        on_gpu(on)
        y = stage(x, weight, bias, *rest)
        found.append([y, *torch.autograd.grad(y, given, torch.sin(torch.arange(y.numel())).view(y.shape).to(y))])
    rtol, atol = (2e-5, 2e-5) if dtype is torch.float32 and DEVICE.type == "cpu" else (0.05, 0.1)
    for ours, defined in zip(*found, strict=True):
        torch.testing.assert_close(ours, defined, rtol=rtol, atol=atol * max(1.0, float(defined.detach().abs().max())))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("low", [0.0, -0.5])
def test_errors_of_images_in_the_middle_of_longer_sequences(on_gpu, dtype, low):
    pixels = torch.rand(2, 3, 9, 5, 25).to(DEVICE, dtype).requires_grad_()
    target = torch.randint(0, 256, (2, 5, 9, 5, 25), dtype=torch.uint8).to(DEVICE)[:, 1:4]
    target = target if low == 0 else target / 255 + low
    found = []
    for on in (True, False):
        on_gpu(on)
        loss = functional.unit_squared_error(pixels, target, low, 255.0 if low == 0 else 0.5)
        found.append([loss, *torch.autograd.grad(loss, [pixels], torch.arange(6.0).view(2, 3).to(DEVICE))])
    torch.testing.assert_close(*found, rtol=1e-5 if dtype is torch.float32 else 0.01, atol=1e-5)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter
@pytest.mark.parametrize(("bins", "dtype"), [(255, torch.bfloat16), (6, torch.float32)])
def test_two_hot(on_gpu, bins, dtype):
    """Numbers at, between and beyond bins, and such that are not finite; a head that predicts exactly 0."""
    values = torch.tensor([0.0, 1.5, -1.5, 1e9, -1e9, float("inf"), float("-inf"), float("nan")]).to(DEVICE)
    logits = (3 * torch.randn(2, 3, 8, bins)).to(DEVICE, dtype)[:, 1:].requires_grad_()  # with gaps
    places = symexp_bins(bins).to(DEVICE)
    flat = TwoHot(torch.zeros(3, bins).to(DEVICE, dtype), places)
    found = []
    for on in (True, False):
        on_gpu(on)
        head = TwoHot(logits, places)
        x = torch.stack([values, places[:8] if bins > 8 else values]).expand(2, 2, 8)
        losses = [head.loss(x), head.loss(x, x.flip(-1), 0.3)]
        grads = [torch.autograd.grad(y, logits, torch.full_like(x, 0.7))[0] for y in losses]
        with torch.no_grad():
            found.append([*losses, *grads, head.mean() / 1e4])
            assert not flat.mean().any()
    tolerance = 1e-5 if dtype is torch.float32 else 0.01
    torch.testing.assert_close(*found, rtol=2 * tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.usefixtures("on_gpu")
def test_numbers_with_gaps_have_the_loss_of_the_same_without():
    """As those of windows of two rows, whose first rows are taken."""
    values, head = (
        torch.randn(4, 3, device=DEVICE)[:, :1],
        TwoHot(torch.randn(4, 1, 6).to(DEVICE), symexp_bins(6).to(DEVICE)),
    )
    torch.testing.assert_close(head.loss(values, values), TwoHot.loss.definition(head, values, values))


@pytest.mark.usefixtures("on_gpu")
def test_parameters_are_cast_once_and_their_gradients_added():
    layer, unused = Linear(3, 4).to(DEVICE), torch.ones(2, device=DEVICE, requires_grad=True)
    params, x, half = [*layer.parameters(), unused], torch.randn(5, 3).to(DEVICE, torch.bfloat16), torch.bfloat16
    with functional.cast_once(params, half):
        assert functional.cast_parameter(layer.weight, half) is functional.cast_parameter(layer.weight, half)
        assert functional.cast_parameter(layer.weight, torch.float16).dtype is torch.float16
        once = layer(x) + layer(2 * x)
    often = layer(x) + layer(2 * x)
    assert torch.equal(once, often)
    found, expected = (torch.autograd.grad(y.sum(), params, allow_unused=True) for y in (once, often))
    torch.testing.assert_close(found[:2], expected[:2], rtol=0.01, atol=0.01)
    assert found[2] is None
