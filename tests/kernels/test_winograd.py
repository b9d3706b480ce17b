"""Convolutions through Winograd's points against the direct sum in float64."""

import pytest
import torch

from reverie.kernels import images as kernels_of_images
from reverie.kernels.compiler import load_kernels
from reverie.kernels.images import PreparedConvolution
from reverie.nn.functional import convolve

SIZES = [  # images, height, width, channels, outputs, kernel
    (3, 32, 32, 32, 48, 5),  # large enough for two threads
    (2, 8, 8, 16, 64, 3),
    (1, 4, 4, 16, 1, 5),
    (5, 7, 9, 20, 5, 3),  # tiles over the border, channels and outputs that fill no whole vectors
    (30, 1, 2, 17, 33, 5),
    (2, 5, 6, 40, 90, 3),
    (1, 3, 3, 19, 128, 3),
]


@pytest.mark.parametrize("sizes", SIZES)
def test_same_as_the_direct_sum(sizes, monkeypatch):
    monkeypatch.setattr(kernels_of_images, "MIN_TILES", 1)
    torch.manual_seed(0)
    images, height, width, channels, outputs, kernel = sizes
    x, bias = torch.randn(images, height, width, channels), torch.randn(outputs)
    weight = torch.randn(outputs, channels, kernel, kernel)
    convolution = PreparedConvolution(weight, bias, x.shape)
    assert (convolution.points is not None) == (load_kernels() is not None)
    wanted, got = convolve(x.double(), weight.double(), bias.double()), convolution(x)
    assert (got - wanted).abs().max() <= 2e-5 * wanted.abs().max()
    if convolution.points is not None:  # of a tile, it does not matter which ones are beside it
        assert torch.equal(convolution(x[:1]), got[:1])


@pytest.mark.parametrize("place", [(0, 0), (4, 7), (8, 8)])
def test_one_pixel_is_seen_by_its_neighbors_alone(place, monkeypatch):
    monkeypatch.setattr(kernels_of_images, "MIN_TILES", 1)
    x = torch.zeros(1, 9, 9, 16)
    x[0, place[0], place[1]] = 1.0
    got = PreparedConvolution(torch.ones(1, 16, 5, 5), torch.zeros(1), x.shape)(x)[0, :, :, 0]
    rows, columns = torch.arange(9)[:, None], torch.arange(9)
    near = ((rows - place[0]).abs() <= 2) & ((columns - place[1]).abs() <= 2)
    torch.testing.assert_close(got, 16.0 * near, atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    "sizes", [(1, 8, 8, 16, 8, 5), (900, 4, 4, 3, 8, 5), (900, 4, 4, 16, 8, 7), (900, 4, 4, 16, 8, 1)]
)
def test_where_it_does_not_pay_pytorch_convolves(sizes):
    images, height, width, channels, outputs, kernel = sizes
    x, bias = torch.randn(images, height, width, channels), torch.randn(outputs)
    weight = torch.randn(outputs, channels, kernel, kernel)
    convolution = PreparedConvolution(weight, bias, x.shape)
    assert convolution.points is None
    assert torch.equal(convolution(x), convolve(x, weight, bias))


def test_nan_stays_nan(monkeypatch):
    monkeypatch.setattr(kernels_of_images, "MIN_TILES", 1)
    x = torch.zeros(1, 4, 4, 16)
    x[0, 1, 1, 3] = float("nan")
    out = PreparedConvolution(torch.ones(2, 16, 3, 3), torch.zeros(2), x.shape)(x)
    assert out[0, :3, :3].isnan().all()
