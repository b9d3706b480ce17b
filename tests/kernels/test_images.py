"""Stages of encoder and decoder against what they are defined as, in float64 by PyTorch."""

import pytest
import torch
import torch.nn.functional as F
from sequence_filter import assert_near

from reverie.kernels import images as kernels_of_images
from reverie.nn.functional import conv_pool_norm_silu, conv_unfold_norm_silu, pixel_shuffle

EPS = 1e-4


def convolve(x, weight, bias):
    return F.conv2d(x.permute(0, 3, 1, 2), weight, bias, padding=weight.shape[-1] // 2)


def activate(x, scale):
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * scale
    return normed * torch.sigmoid(normed)


def pooled(x, weight, bias, scale):
    return activate(F.max_pool2d(convolve(x, weight, bias), 2, ceil_mode=True).permute(0, 2, 3, 1), scale)


def unfolded(x, weight, bias, scale):
    return activate(pixel_shuffle(convolve(x, weight, bias).permute(0, 2, 3, 1).unflatten(-1, (2, 2, -1))), scale)


def inputs(images, height, width, channels, outputs, kernel, scales):
    torch.manual_seed(0)
    shapes = [(images, height, width, channels), (outputs, channels, kernel, kernel), (outputs,), (scales,)]
    x, weight, bias, scale = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    return x, weight / kernel, bias, scale


def assert_same(ours, theirs, tensors, tolerance=1e-5):
    """Values and the gradients of all inputs, relative to the largest number of each."""
    exact = [x.clone().requires_grad_() for x in tensors]
    single = [x.float().requires_grad_() for x in tensors]
    wanted, got = theirs(*exact), ours(*single, EPS)
    assert got.shape == wanted.shape
    grad = torch.randn_like(wanted)
    wanted.backward(grad)
    got.backward(grad.float())
    found = [got, *(x.grad for x in single)]
    assert all(x.is_contiguous() or x.is_contiguous(memory_format=torch.channels_last) for x in found)
    assert_near(found, [wanted, *(x.grad for x in exact)], rtol=0, atol=tolerance)


ENCODER = [
    (20, 32, 32, 20, 24, 5),  # large enough for two threads; channels that fill no whole vectors
    (3, 64, 64, 3, 8, 5),
    (5, 8, 8, 64, 32, 5),
    (4, 7, 9, 1, 6, 3),  # the last row and column are pooled alone
    (2, 5, 4, 17, 33, 7),
    (3, 1, 1, 16, 5, 5),
    (2, 6, 2, 4, 7, 1),
]


DECODER = [(9, 16, 16, 20, 48, 3), (3, 8, 8, 32, 12, 3), (2, 5, 3, 4, 16, 5), (1, 1, 1, 3, 12, 1)]


@pytest.mark.parametrize("sizes", ENCODER)
def test_encoder_stage(sizes):
    assert_same(conv_pool_norm_silu, pooled, inputs(*sizes, scales=sizes[4]))


@pytest.mark.parametrize("sizes", DECODER)
def test_decoder_stages(sizes):
    assert_same(conv_unfold_norm_silu, unfolded, inputs(*sizes, scales=sizes[4] // 4), tolerance=5e-5)


def test_images_may_be_divided_anywhere(monkeypatch):
    monkeypatch.setattr(kernels_of_images, "MAX_PART_FLOATS", 2 * 6 * 5 * 8)  # two images at a time, the last one alone
    assert_same(conv_pool_norm_silu, pooled, inputs(7, 6, 5, 3, 8, 3, scales=8))
    assert_same(conv_unfold_norm_silu, unfolded, inputs(7, 6, 5, 3, 8, 3, scales=2))


def test_of_equal_pixels_the_first_has_the_gradient():
    x = torch.tensor([[1.0, 1.0], [1.0, 1.0]]).view(1, 2, 2, 1).requires_grad_()
    weight, bias, scale = torch.tensor([2.0, 3.0]).view(2, 1, 1, 1), torch.zeros(2), torch.ones(2)
    conv_pool_norm_silu(x, weight, bias, scale, EPS)[..., 0].sum().backward()
    assert (x.grad.flatten() != 0).tolist() == [True, False, False, False]


@pytest.mark.parametrize("place", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_nan_is_not_pooled_away(place):
    x = torch.randn(1, 4, 4, 1)
    x[0, *place] = torch.nan
    out = conv_pool_norm_silu(x, torch.ones(3, 1, 1, 1), torch.zeros(3), torch.ones(3), EPS)
    assert out[0, 0, 0].isnan().all()
    assert out[0, 1, 1].isfinite().all()


def test_bfloat16_goes_in_and_comes_out():
    x, weight, bias, scale = (t.float() for t in inputs(2, 4, 4, 5, 8, 3, scales=8))
    out = conv_pool_norm_silu(x.bfloat16(), weight, bias, scale, EPS)
    expected = conv_pool_norm_silu(x, weight, bias, scale, EPS).bfloat16()
    torch.testing.assert_close(out, expected, atol=0.05, rtol=0.05)
    assert conv_unfold_norm_silu(*(t.bfloat16() for t in (x, weight, bias)), scale[:2], EPS).dtype == torch.bfloat16
