"""Functions of networks: norms, gates, convolutions, categorical latents, cross-entropy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from reverie.core.kernel_dispatch import accelerated
from reverie.core.specs import MASK_KEY
from reverie.core.types import Obs

P = ParamSpec("P")
T = TypeVar("T")
_copies: ContextVar[Mapping[int, Tensor]] = ContextVar("copies", default={})  # noqa: B039  # never written


def cast_parameter(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a parameter as ``dtype``: inside :func:`cast_once` the copy that all uses share, with gradient."""
    if x.dtype is dtype:
        return x
    copied = _copies.get().get(id(x))
    return x.to(dtype) if copied is None or copied.dtype is not dtype else copied


@accelerated
def cast_all(parameters: Sequence[Tensor], dtype: torch.dtype) -> Sequence[Tensor]:
    """Return copies of all ``parameters`` as ``dtype``, with gradient; or none, so that each use casts its own."""
    return ()


@contextmanager
def cast_once(parameters: Sequence[Tensor], dtype: torch.dtype) -> Iterator[None]:
    """In this context, :func:`cast_parameter` returns the same copy of each parameter, if :func:`cast_all` made one."""
    copies = cast_all(parameters, dtype)
    token = _copies.set({id(p): copied for p, copied in zip(parameters, copies, strict=False)})
    try:
        yield
    finally:
        _copies.reset(token)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + b ``[..., outputs]`` in the dtype of x.

    ``x`` is ``[..., inputs]``, ``weight`` ``[outputs, inputs]``, ``bias`` ``[outputs]``.
    """
    if weight.dtype is not x.dtype:  # to() alone would take as long as one decision computes here
        weight = cast_parameter(weight, x.dtype)
        bias = None if bias is None else cast_parameter(bias, x.dtype)
    return F.linear(x, weight, bias)


def copied_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W + b ``[K, M, outputs]`` of K layers in the dtype of x.

    ``x`` is ``[K, M, inputs]``, ``weight`` ``[K, inputs, outputs]``, ``bias`` ``[K, 1, outputs]``.
    """
    weight = weight.to(x.dtype)
    return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias.to(x.dtype), x, weight)


def without_grad(function: Callable[P, T]) -> Callable[P, T]:
    """Call ``function`` without gradients, as ``torch.no_grad()`` does, which takes longer than a small operation."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if not torch.is_grad_enabled():
            return function(*args, **kwargs)
        with torch.no_grad():
            return function(*args, **kwargs)

    return call


def is_traced(x: Tensor) -> bool:
    """Return whether ``x`` is being traced or its operations recorded, so that Python cannot branch on its values."""
    return type(x) is not Tensor or torch._C._len_torch_dispatch_stack() > 0


@accelerated
def norm_silu(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    """Return SiLU(scale x / sqrt(mean(x^2) + eps)), normed over the last axis of ``[..., C]``, computed in float32."""
    return F.silu(F.rms_norm(x.float(), scale.shape, scale, eps).to(x.dtype))


def norm_mish(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Return Mish(layer norm(x)) ``[..., C]``, in float32. Mish(y) = y tanh(ln(1 + e^y)): Misra, arXiv:1908.08681."""
    return F.mish(F.layer_norm(x.float(), scale.shape, scale, shift)).to(x.dtype)


def sim_norm(x: Tensor, size: int, scale: Tensor | None = None, shift: Tensor | None = None) -> Tensor:
    """Return the softmax of every ``size`` numbers of ``[..., C]``, in float32; with ``scale``, of their layer norm.

    Lavoie et al. 2023, arXiv:2204.00616; TD-MPC2 (Hansen et al. 2024), section 3.1.
    """
    y = x.float() if scale is None else F.layer_norm(x.float(), scale.shape, scale, shift)
    return torch.softmax(y.view(*y.shape[:-1], y.shape[-1] // size, size), -1).view(y.shape).to(x.dtype)


def shift_images(x: Tensor, by: Tensor) -> Tensor:
    """Return images ``[M, H, W, C]`` shifted by whole pixels ``by`` ``[M, 2]`` (right, down), with repeated edges.

    Random shifts: Yarats et al. 2022, arXiv:2107.09645, section 3.1.
    """
    height, width = x.shape[1:3]
    column = (torch.arange(width, device=x.device) - by[:, :1]).clamp(0, width - 1)  # [M, W]
    row = (torch.arange(height, device=x.device) - by[:, 1:]).clamp(0, height - 1)  # [M, H]
    image = torch.arange(len(x), device=x.device)[:, None, None]
    return x[image, row[:, :, None], column[:, None]]


def pixel_shuffle(x: Tensor) -> Tensor:
    """Rearrange ``[M, h, w, 2, 2, C]``, four pixels for each position, to an image ``[M, 2 h, 2 w, C]``."""
    m, h, w, _, _, channels = x.shape
    return x.transpose(2, 3).reshape(m, 2 * h, 2 * w, channels)


def gru(gates: Tensor, h: Tensor) -> Tensor:
    """Return the next state h + z (n - h), where n = tanh(sigmoid(reset) candidate) and z = sigmoid(update - 1).

    ``gates`` are ``[M, blocks, 3, D / blocks]``: reset, candidate and update of each block. h is ``[M, D]``.
    """
    reset, candidate, update = gates.unbind(2)  # [M, blocks, D / blocks]
    candidate = torch.tanh(torch.sigmoid(reset) * candidate).flatten(1)  # [M, D]
    return torch.lerp(h, candidate, torch.sigmoid(update - 1).flatten(1))


def unimix_probs(logits: Tensor, unimix: float) -> Tensor:
    """Return (1 - unimix) softmax(logits) + unimix / C over the last axis, in float32: positive if unimix is."""
    probs = torch.softmax(logits.float(), -1)
    return probs if unimix == 0 else (1 - unimix) * probs + unimix / probs.shape[-1]


def sample_classes(probs: Tensor, forbids: bool = False) -> Tensor:
    """Sample class indices ``[...]`` from probabilities ``[..., C]`` by inverting the cumulative distribution.

    This takes one uniform random number for each sample; the Gumbel and exponential tricks take C. ``forbids``: never
    draw a first class of probability 0, even where the random number is exactly 0.
    """
    uniform = torch.rand(probs.shape[:-1], dtype=torch.float32, device=probs.device)
    return inverse_cdf(probs.detach(), uniform.clamp(min=2**-25) if forbids else uniform)


def inverse_cdf(probs: Tensor, uniform: Tensor) -> Tensor:
    """Return the classes ``[...]`` where the cumulative sum of ``probs`` ``[..., C]`` reaches ``uniform`` ``[...]``."""
    cumulative = probs.cumsum(-1)  # [..., C]
    # The last sum is not exactly 1 because of rounding; scaling by it keeps every index within the C classes.
    return (cumulative < uniform.unsqueeze(-1) * cumulative[..., -1:]).sum(-1)


ILLEGAL = -1e9
"""Logit and value of illegal actions: finite, so that its product with a probability of 0 is 0."""


def mask_illegal(x: Tensor, obs: Obs, *, distributions: bool = False) -> Tensor:
    """Return logits or values ``[..., A]`` as they are where actions are legal, and :data:`ILLEGAL` elsewhere.

    ``distributions``: each action has several numbers, ``[..., A, N]``. Without a mask all actions are legal.
    """
    if (legal := obs.get(MASK_KEY)) is None:
        return x
    return x.masked_fill(~(legal.unsqueeze(-1) if distributions else legal), ILLEGAL)


def sample_legal(legal: Tensor) -> Tensor:
    """Return random class indices ``[...]``, uniform among the ``legal`` ``[..., C]``; each row must have one."""
    return torch.rand(legal.shape, device=legal.device).masked_fill(~legal, -1.0).argmax(-1)


def one_hot(index: Tensor, probs: Tensor) -> Tensor:
    """Return class indices ``[...]``, int64, as one-hot ``[..., C]``, in the shape and dtype of ``probs``."""
    if index.shape != probs.shape[:-1]:  # which would leave rows empty
        raise ValueError(f"index has shape {tuple(index.shape)}: expected {tuple(probs.shape[:-1])}.")
    return torch.zeros_like(probs).scatter_(-1, index.unsqueeze(-1), 1.0)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Map images ``[M, H, W, C]`` by weights ``[outputs, C, kernel, kernel]``, kernel odd, to ``[.., outputs]``."""
    # The memory layout of the permuted view is PyTorch's channels_last.
    return F.conv2d(x.permute(0, 3, 1, 2), weight, bias, padding=weight.shape[-1] // 2).permute(0, 2, 3, 1)


def conv_pool(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Apply the first two operations of :func:`conv_pool_norm_silu`."""
    y = convolve(x, weight.to(x.dtype), bias.to(x.dtype))
    return F.max_pool2d(y.permute(0, 3, 1, 2), 2, ceil_mode=True).permute(0, 2, 3, 1)  # [M, h, w, outputs]


def conv_to_four(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolve ``[M, h, w, C]`` to four pixels for each input pixel: ``[M, 2 h, 2 w, width]``."""
    y = convolve(x, weight, bias)
    return pixel_shuffle(y.reshape(*y.shape[:-1], 2, 2, y.shape[-1] // 4))


@accelerated
def conv_pool_norm_silu(x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, eps: float) -> Tensor:
    """Apply a convolution, 2 x 2 max-pooling, RMS norm over the channels and SiLU.

    x is ``[M, H, W, C]``, the weights ``[outputs, C, kernel, kernel]`` with an odd kernel, the result
    ``[M, ceil(H / 2), ceil(W / 2), outputs]``.
    """
    return norm_silu(conv_pool(x, weight, bias), scale, eps)


@accelerated
def conv_unfold_norm_silu(x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, eps: float) -> Tensor:
    """Convolve to four pixels for each input pixel, then RMS norm and SiLU of each: an image of twice the size.

    x is ``[M, h, w, C]``, ``weight`` ``[2 * 2 * width, C, kernel, kernel]``, the result ``[M, 2 h, 2 w, width]``.
    """
    return norm_silu(conv_to_four(x, weight, bias), scale, eps)


@accelerated
def conv_unfold_sigmoid(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute :func:`conv_unfold_norm_silu` with a sigmoid instead of norm and SiLU."""
    return torch.sigmoid(conv_to_four(x, weight, bias))


@accelerated
def scale_pixels(x: Tensor, scale: float, shift: float, like: Tensor) -> Tensor:
    """Return scale x + shift of pixels ``[M, H, W, C]``, in the dtype of ``like``."""
    return x.to(like.dtype) * scale + shift


@accelerated
def clipped_noise(action: Tensor, noise: Tensor, std: float, limit: float) -> Tensor:
    """Return actions within [-1, 1] with std times normal ``noise`` within [-limit, limit], all of the same shape."""
    return (action + (std * noise).clamp(-limit, limit)).clamp(-1, 1)


@accelerated
def conv_relu(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], strides: Sequence[int], scale: float, shift: float,
    relu_last: bool, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """Apply convolutions without padding to scale x + shift, each followed by ReLU, the last one if ``relu_last``.

    x is ``[M, H, W, C]``, of any dtype, each of the weights ``[outputs, kernel, kernel, inputs]``, the result
    ``[M, h, w, outputs]`` of ``dtype``.
    """
    y = scale_pixels(x, scale, shift, biases[0].new_empty((), dtype=dtype))
    for k, (weight, bias, stride) in enumerate(zip(weights, biases, strides, strict=True)):
        # The memory layout of the permuted views is PyTorch's channels_last.
        z = F.conv2d(y.permute(0, 3, 1, 2), weight.to(dtype).permute(0, 3, 1, 2), bias.to(dtype), stride)
        y = (z.relu_() if relu_last or k < len(strides) - 1 else z).permute(0, 2, 3, 1)
    return y


def strided_conv(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Map images ``[M, H, W, C]`` by weights ``[outputs, C, k, l]`` to ``[M, (H - k) // 2 + 1, .., outputs]``."""
    y = F.conv2d(x.permute(0, 3, 1, 2), weight.to(x.dtype), bias.to(x.dtype), stride=2)
    return y.permute(0, 2, 3, 1)


def transposed_conv(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Map images ``[M, H, W, C]`` by weights ``[C, outputs, k, l]`` to ``[M, 2 (H - 1) + k, .., outputs]``."""
    y = F.conv_transpose2d(x.permute(0, 3, 1, 2), weight.to(x.dtype), bias.to(x.dtype), stride=2)
    return y.permute(0, 2, 3, 1)


@accelerated
def unit_squared_error(pixels: Tensor, target: Tensor, low: float, high: float) -> Tensor:
    """Return the squared error ``[...]`` of pixels in [0, 1], ``[..., H, W, C]``, to targets in [``low``, ``high``].

    It is computed in float32.
    """
    return (pixels.float() - (target.float() - low) / (high - low)).square().sum((-3, -2, -1))
