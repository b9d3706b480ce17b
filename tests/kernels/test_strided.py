"""Convolutions of stride 2 by matrix products are those of PyTorch, and so are their gradients."""

import pytest
import torch
import torch.nn.functional as F
from sequence_filter import assert_near

from reverie.nn.functional import strided_conv, transposed_conv


@pytest.mark.parametrize("kernel", [(1, 1), (2, 3), (4, 4), (5, 4)])
@pytest.mark.parametrize(("channels", "transposed"), [((3, 5), True), ((70, 66), False), ((70, 66), True)])
def test_as_pytorch(kernel, channels, transposed, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr("reverie.kernels.images.MAX_PART_FLOATS", 2**14)  # several parts
    monkeypatch.setattr("reverie.kernels.strided.MIN_WINDOW_SIZE", 1)
    sides = channels if transposed else channels[::-1]
    x = torch.randn(30, 9, 8, channels[0])
    weight, bias = torch.randn(*sides, *kernel), torch.randn(channels[1])
    own, theirs = (transposed_conv, F.conv_transpose2d) if transposed else (strided_conv, F.conv2d)

    def plain(x, weight, bias):
        return theirs(x.permute(0, 3, 1, 2), weight, bias, stride=2).permute(0, 2, 3, 1)

    found = []
    for call, dtype in ((own, torch.float32), (plain, torch.float64)):
        leaves = [t.to(dtype).requires_grad_() for t in (x, weight, bias)]
        y = call(*leaves)
        found.append([y, *torch.autograd.grad((y * y.detach().cos()).sum(), leaves)])
    assert_near(*found, atol=1e-4)
