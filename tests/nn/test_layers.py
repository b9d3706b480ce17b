"""Layers against slow definitions."""

import pytest
import torch

from reverie.nn.functional import convolve, pixel_shuffle
from reverie.nn.layers import MLP, BlockLinear, Conv, DoublingConv, RMSNormSiLU, init_


def test_initial_weights_are_truncated_and_scaled():
    torch.manual_seed(0)
    weight = torch.empty(400, 900)
    init_(weight, 900)
    assert float(weight.std()) == pytest.approx(1 / 30, rel=0.01)
    assert float(weight.abs().max()) <= 2 * 1.1368 / 30 + 1e-6
    init_(weight, 900, scale=0)
    assert not weight.any()


@pytest.mark.parametrize("rows", [3, 200])
def test_shared_inputs_are_seen_by_every_block(rows):
    torch.manual_seed(0)
    layer = BlockLinear(6, 9, 3, shared=4)
    torch.nn.init.normal_(layer.bias)
    x, shared = torch.randn(rows, 6), torch.randn(rows, 4)
    parts = [torch.cat([x[:, 2 * k : 2 * k + 2], shared], 1) @ layer.weight[k].T for k in range(3)]
    ours, slow = layer(x, shared), torch.cat(parts, 1) + layer.bias
    torch.testing.assert_close(ours, slow)
    grads = [torch.autograd.grad((y * y).sum(), layer.weight)[0] for y in (ours, slow)]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


def test_norm_computes_in_float32_whatever_comes():
    x = torch.full((1, 4096), 200.0, dtype=torch.bfloat16)
    out = RMSNormSiLU(4096)(x)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), torch.full((1, 4096), 0.7311), atol=5e-3, rtol=0)


@pytest.mark.parametrize("kernel", [1, 3, 5, 7])
def test_doubling_conv_is_doubling_then_conv(kernel):
    torch.manual_seed(0)
    layer, plain = DoublingConv(3, 4, kernel), Conv(3, 4, kernel)
    torch.nn.init.normal_(layer.bias)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(2, 5, 7, 3, requires_grad=True)
    ours = pixel_shuffle(convolve(x, *layer.fold_weights(x.dtype)).unflatten(-1, (2, 2, 4)))
    slow = convolve(x.repeat_interleave(2, 1).repeat_interleave(2, 2), plain.weight, plain.bias)
    assert ours.shape == (2, 10, 14, 4)
    torch.testing.assert_close(ours, slow, rtol=1e-4, atol=1e-5)
    grad = torch.randn_like(ours)
    grads = [torch.autograd.grad(y, [x, own.weight, own.bias], grad) for y, own in ((ours, layer), (slow, plain))]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("change", ["added", "replaced"])
def test_layers_that_a_user_changes_are_used_while_acting_too(change):
    torch.manual_seed(0)
    net, x = MLP(6, 8, 2), torch.randn(2, 6)
    if change == "added":
        net.append(torch.nn.Tanh())
    else:
        net[3] = torch.nn.Tanh()
    learning = net(x)
    with torch.no_grad():
        torch.testing.assert_close(net(x), learning.detach())
