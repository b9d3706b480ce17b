"""Convolutions with ReLU, without padding, a few images at a time: encoders of model-free agents.

Images are processed in parts whose layers stay in the cache, from uint8 to the last layer and back. A layer whose
stride divides its kernel, with a quotient of 2 or 3, is computed by Winograd's algorithm over cells of stride x stride
pixels (``convolution.c``), which takes half of oneDNN's time for 3 x 3, and 0.8 of it for 8 x 8 and 4 x 4.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from reverie.kernels.ctypes_call import call, call_compiled, empty_float32, is_cpu_float32, once_differentiable_strict

FULL, TILES, POINTS = 16, 24, 36
"""Constants of ``points.h`` and ``convolution.c``, and the most points of a tile."""

TILINGS = {2: ((3, 4), (5, 6)), 3: ((3, 5), (4, 6))}
"""Height and width of a tile's outputs, and points along either, by the kernel's height in cells."""

MAX_PART_FLOATS = 2**18
"""Floats that the largest layer of one part of the images may output, for each thread: 1 MB."""

MIN_IMAGES = 16
"""Smallest number of images: below, transforming the weights takes too long."""


def supports_conv_relu(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], strides: Sequence[int], scale: float, shift: float,
    relu_last: bool, dtype: torch.dtype,
) -> bool:  # fmt: skip
    """Return whether :func:`conv_relu_cpu` can be used, and is faster."""
    is_image = x.dtype in (torch.uint8, torch.float32) and x.device.type == "cpu"
    if not is_image or x.ndim != 4 or len(x) < MIN_IMAGES or not len(weights) == len(biases) == len(strides):
        return False
    _, height, width, channels = x.shape
    for weight, bias, stride in zip(weights, biases, strides, strict=True):
        if weight.ndim != 4 or weight.shape[1:] != (weight.shape[1], weight.shape[1], channels):
            return False
        channels, kernel = weight.shape[:2]
        if bias.shape != (channels,) or min(height, width) < kernel:
            return False
        height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
    return dtype is torch.float32 and is_cpu_float32(*weights, *biases)


def conv_relu_cpu(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], strides: Sequence[int], scale: float, shift: float,
    relu_last: bool, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """Compute ``functional.conv_relu``."""
    settings = (tuple(strides), scale, shift, relu_last)
    return cast(Tensor, call(_ConvReLU, x, settings, *weights, *biases))


def _tiling(cells: int, size: tuple[int, int]) -> tuple[int, int]:
    """Return which of :data:`TILINGS` computes outputs of ``size`` with the fewest products."""
    return min(TILINGS[cells], key=lambda tiling: math.prod(-(-n // tiling[0]) * tiling[1] for n in size))


@functools.cache
def _grids(*grids: tuple[int, ...]) -> Tensor:
    """Return two structs ``Grid`` of ``convolution.c``."""
    return torch.tensor(grids, dtype=torch.int64)


class _Layer:
    """A convolution for one size of images, with weights ``[outputs, kernel, kernel, channels]``."""

    def __init__(self, weight: Tensor, bias: Tensor, stride: int, size: tuple[int, int], relu: bool) -> None:
        self.weight, self.bias, self.stride, self.relu = weight.contiguous(), bias.contiguous(), stride, relu
        self.outputs, self.kernel, _, self.channels = weight.shape
        self.size: tuple[int, int] = size
        self.out: tuple[int, int] = ((size[0] - self.kernel) // stride + 1, (size[1] - self.kernel) // stride + 1)
        self.cells: int = self.kernel // stride
        self.widths: tuple[int, int] = (stride * stride * self.channels, self.outputs)
        has_cells = self.kernel % stride == 0 and self.cells in TILINGS
        self.is_winograd: bool = has_cells and self.widths[0] % FULL == 0 == self.outputs % FULL
        self.tiling: tuple[int, int] = _tiling(self.cells, self.out) if has_cells else (0, 0)
        self.sizes: tuple[int, ...] = (self.outputs, self.kernel, stride, self.channels)
        self.points: Tensor | None = None
        """Points of the weights in a forward pass, of the mirrored weights in a backward pass."""
        self.gradient: Tensor | None = None
        """Gradient of the weights, or of their values at the points, ``[threads, points^2, in, out]``."""

    @property
    def scratch(self) -> int:
        """Floats of scratch memory for each thread."""
        return POINTS * (TILES * sum(self.widths) + 2 * FULL) if self.is_winograd else 0

    @property
    def numbers(self) -> int:
        """Floats of an image's outputs."""
        return self.out[0] * self.out[1] * self.outputs

    def _grid(self, inner: bool, images: int) -> tuple[int, ...]:
        """Return the struct ``Grid`` of inputs as cells, or of outputs."""
        (h, w), s, c = (self.size, self.stride, self.channels) if inner else (self.out, 1, self.outputs)
        return h // s, w // s, s, s * c, w * c, h * w * c, s * s * c, images * h * w * c

    def _points(self, count: int, *, mirrored: bool) -> Tensor:
        """Return the points of the weights; ``mirrored``: of the weights for the gradients of inputs."""
        points = self.weight.new_empty(count * count, *(self.widths[::-1] if mirrored else self.widths))
        call_compiled("weights_to_points", self.weight, points, *self.sizes, count, mirrored)
        return points

    def forward(self, x: Tensor, y: Tensor | None, scratch: Tensor) -> Tensor:
        """Return the outputs of ``[m, H, W, C]``, in ``y`` if it is given."""
        if not self.is_winograd:
            pixels = x.float().permute(0, 3, 1, 2)
            z = F.conv2d(pixels, self.weight.permute(0, 3, 1, 2), self.bias, self.stride).permute(0, 2, 3, 1)
            z = z.relu_() if self.relu else z
            return z if y is None else y.copy_(z)
        if self.points is None:
            self.points = self._points(self.tiling[1], mirrored=False)
        y = scratch.new_empty(len(x), *self.out, self.outputs) if y is None else y
        grids = _grids(self._grid(True, len(x)), self._grid(False, len(x)))
        self._convolve(x, grids, self.tiling, self.points, self.bias, y, 0, self.relu, scratch)
        return y

    def input_gradient(self, g: Tensor, x: Tensor, scratch: Tensor) -> Tensor:
        """Return the gradient of ``x`` ``[m, H, W, C]``, given the gradient of the outputs."""
        if not self.is_winograd or self.stride * self.channels % FULL:
            return self._backward(g, x, [True, False, False])[0].permute(0, 2, 3, 1)
        tiling = _tiling(self.cells, (self.size[0] // self.stride, self.size[1] // self.stride))
        if self.points is None:
            self.points = self._points(tiling[1], mirrored=True)
        is_whole = self.size[0] % self.stride == 0 == self.size[1] % self.stride
        dx = torch.empty_like(x) if is_whole else torch.zeros_like(x)
        grids = _grids(self._grid(False, len(g)), self._grid(True, len(g)))
        self._convolve(g, grids, tiling, self.points, None, dx, 1 - self.cells, False, scratch)
        return dx

    def _convolve(
        self, x: Tensor, grids: Tensor, tiling: tuple[int, int], points: Tensor, bias: Tensor | None, y: Tensor,
        offset: int, relu: bool, scratch: Tensor,
    ) -> None:  # fmt: skip
        x = self._pixels(x)
        call_compiled("convolve_cells", x, x.dtype is torch.uint8, grids, points, bias, y, scratch, scratch.shape[1],
                      len(x), offset, *tiling, relu, len(scratch))  # fmt: skip

    def _pixels(self, x: Tensor) -> Tensor:
        """Return the inputs in a dtype that is compiled for this kernel."""
        return x if self.cells == 2 else x.float()

    def add_weight_gradient(self, g: Tensor, x: Tensor, scratch: Tensor) -> None:
        """Add to the gradient of the weights, given the gradient of the outputs of ``x``."""
        if not self.is_winograd:
            dweight = self._backward(g, x, [False, True, False])[1].permute(0, 2, 3, 1)
            self.gradient = dweight if self.gradient is None else self.gradient.add_(dweight)
            return
        if self.gradient is None:
            self.gradient = scratch.new_zeros(len(scratch), self.tiling[1] ** 2, *self.widths)
        grids, x = _grids(self._grid(True, len(x)), self._grid(False, len(x))), self._pixels(x)
        call_compiled("convolve_cells_weights", x, x.dtype is torch.uint8, grids, g, self.gradient, scratch,
                      scratch.shape[1], len(x), *self.tiling, len(scratch))  # fmt: skip

    def weight_gradient(self) -> Tensor:
        """Return the gradient of the weights."""
        assert self.gradient is not None
        if not self.is_winograd:
            return self.gradient
        points = self.gradient[0] if len(self.gradient) == 1 else self.gradient.sum(0)
        dweight = torch.empty_like(self.weight)
        call_compiled("weights_from_points", points, dweight, *self.sizes, self.tiling[1])
        return dweight

    def _backward(self, g: Tensor, x: Tensor, mask: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
        gradients: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
            g.permute(0, 3, 1, 2), x.float().permute(0, 3, 1, 2), self.weight.permute(0, 3, 1, 2), [self.outputs],
            [self.stride] * 2, [0, 0], [1, 1], False, [0, 0], 1, mask,
        )  # fmt: skip
        return gradients


def _layers(x: Tensor, settings: tuple[Any, ...], weights: Sequence[Tensor], biases: Sequence[Tensor]) -> list[_Layer]:
    """Return the layers; the first layer's weights are scaled and its biases shifted, instead of the pixels."""
    strides, scale, shift, relu_last = settings
    size, layers = (x.shape[1], x.shape[2]), []
    for k, (weight, bias, stride) in enumerate(zip(weights, biases, strides, strict=True)):
        if k == 0:
            weight, bias = weight * scale, bias + shift * weight.sum((1, 2, 3)) if shift else bias
        layers.append(_Layer(weight, bias, stride, size, relu_last or k < len(strides) - 1))
        size = layers[-1].out
    return layers


def _scratch(layers: Sequence[_Layer]) -> Tensor:
    """Return each thread's scratch memory."""
    scratch: Tensor = empty_float32((torch.get_num_threads(), max(layer.scratch for layer in layers)))
    return scratch


def _parts(images: int, layers: Sequence[_Layer]) -> list[slice]:
    """Return parts of the images whose layers stay in the caches."""
    size = max(1, MAX_PART_FLOATS * torch.get_num_threads() // max(layer.numbers for layer in layers))
    count = -(-images // size)
    return [slice(images * k // count, images * (k + 1) // count) for k in range(count)]


class _ConvReLU(torch.autograd.Function):
    """Stores the outputs of all layers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, settings: tuple[Any, ...], *parameters: Tensor) -> Tensor:
        half = len(parameters) // 2
        x, weights, biases = x.contiguous(), parameters[:half], parameters[half:]
        layers = _layers(x, settings, weights, biases)
        out, scratch, saved = weights[0].new_empty(len(x), *layers[-1].out, layers[-1].outputs), _scratch(layers), []
        for part in _parts(len(x), layers):
            y = x[part]
            for layer in layers[:-1]:
                y = layer.forward(y, None, scratch)
                saved.append(y)
            layers[-1].forward(y, out[part], scratch)
            if ctx is None:
                saved.clear()
        if ctx is not None:
            ctx.save_for_backward(x, out, *parameters, *saved)
            ctx.settings = settings, half
        return out

    @staticmethod
    @once_differentiable_strict
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        settings, half = ctx.settings
        x, out, *rest = ctx.saved_tensors
        weights, biases, saved = rest[:half], rest[half : 2 * half], rest[2 * half :]
        layers, grad = _layers(x, settings, weights, biases), grad.contiguous()
        scratch, dbiases = _scratch(layers), [torch.zeros_like(b) for b in biases]
        dx = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        for i, part in enumerate(_parts(len(x), layers)):
            outputs = [*saved[i * (half - 1) : (i + 1) * (half - 1)], out[part]]
            g = grad[part]
            for k in reversed(range(half)):
                inputs = outputs[k - 1] if k else x[part]
                if layers[k].relu:
                    g = torch.ops.aten.threshold_backward(g, outputs[k], 0)
                dbiases[k] += g.sum((0, 1, 2))
                layers[k].add_weight_gradient(g, inputs, scratch)
                if k:
                    g = layers[k].input_gradient(g, inputs, scratch)
                elif dx is not None:
                    dx[part] = layers[0].input_gradient(g, inputs, scratch)
        dweights = [layer.weight_gradient() for layer in layers]
        _, scale, shift, _ = settings
        dweights[0] = dweights[0] * scale
        if shift:
            dweights[0] += shift * dbiases[0][:, None, None, None]
        return dx, None, *dweights, *dbiases
