"""The decoder of the world model: maps model states to predicted observations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from reverie.core.bounds import AtLeast, Within
from reverie.core.errors import ConfigError
from reverie.core.specs import ObsPart, ObsSpec
from reverie.nn.distributions import Categoricals
from reverie.nn.encoder import (
    AUTHORS_IMAGE_SIZE,
    CoderConfig,
    DenseCoderConfig,
    Kernels,
    fitting_kernels,
    group_by_size,
    select_keys,
    split_classes,
    split_kinds,
    stage_depths,
    stage_sizes,
    unit_image,
)
from reverie.nn.functional import conv_to_four, conv_unfold_norm_silu, conv_unfold_sigmoid, unit_squared_error
from reverie.nn.layers import (
    MLP,
    BlockLinear,
    Dense,
    DenseMLP,
    DoublingConv,
    Linear,
    RMSNormSiLU,
    StridedConv,
    norm_act,
)
from reverie.nn.modules import is_plain
from reverie.nn.state_space import Latent
from reverie.objectives.transforms import symexp, symlog


class Prediction(Protocol):
    """A decoder's prediction of one observation key."""

    def loss(self, target: Tensor) -> Tensor:
        """Return the loss ``[...]``, summed over the elements of the observation."""

    def value(self) -> Tensor:
        """Return the prediction ``[..., *shape]`` in the observation's units; class probabilities if categorical."""


@runtime_checkable
class DecoderBuilder(Protocol):
    """Interface of a decoder's configuration: any object that builds a decoder.

    The module maps a :class:`Latent` ``[B, T, ...]`` to a ``dict[str, Prediction]``.
    """

    def build(self, spec: ObsSpec, deter: int, stoch: int) -> nn.Module:
        """Return a decoder of model states of ``deter`` deterministic and ``stoch`` stochastic numbers."""


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(CoderConfig):
    """DreamerV3's decoder, for dictionaries of observations."""

    blocks: Annotated[int, AtLeast(1)] = 8
    """Number of blocks of the block-diagonal layer that maps h to the smallest image."""

    def build(self, spec: ObsSpec, deter: int, stoch: int) -> ObsDecoder:
        """Return a decoder of the keys in ``spec`` that match ``keys``; ``blocks`` must divide depths and ``deter``."""
        return ObsDecoder(select_keys(spec, self.keys), deter, stoch, self)


@dataclass(eq=False)
class SymlogPrediction:
    """A predicted vector, trained by the squared error in symlog space: DreamerV3 (Hafner et al. 2025), equation 8."""

    squashed: Tensor  # [..., n]
    shape: tuple[int, ...]

    def loss(self, target: Tensor) -> Tensor:
        return (self.squashed.float() - symlog(target.float()).view_as(self.squashed)).square().sum(-1)

    def value(self) -> Tensor:
        return symexp(self.squashed.float()).view(*self.squashed.shape[:-1], *self.shape)


class CategoricalPrediction:
    """Predicted categorical elements, trained by cross-entropy; the value is their probabilities ``[..., n, C]``."""

    def __init__(self, logits: Tensor, classes: tuple[int, ...], unimix: float = 0.0) -> None:
        self.dist: Categoricals = Categoricals(logits, classes, unimix)

    def loss(self, target: Tensor) -> Tensor:
        return -self.dist.log_prob_index(target.reshape(*self.dist.probs.shape[:-1]))

    def value(self) -> Tensor:
        return self.dist.probs


@dataclass(eq=False)
class ImagePrediction:
    """A predicted image, trained by the squared error of pixels in [0, 1]."""

    pixels: Tensor  # [..., H, W, C]
    part: ObsPart

    def loss(self, target: Tensor) -> Tensor:
        return unit_squared_error(self.pixels, target, self.part.low, self.part.high)

    def value(self) -> Tensor:
        return self.pixels.float() * (self.part.high - self.part.low) + self.part.low


class ObsDecoder(nn.Module):
    """An MLP with a linear layer for each key that is not an image, and a CNN for each image size."""

    def __init__(self, spec: ObsSpec, deter: int, stoch: int, cfg: DecoderConfig) -> None:
        super().__init__()
        self.vectors: dict[str, ObsPart]
        self.images: dict[str, ObsPart]
        self.vectors, self.images = split_kinds(spec)
        self.groups: list[list[str]] = group_by_size(self.images)
        if self.vectors:
            self.mlp: MLP = MLP(deter + stoch, cfg.units, cfg.layers)
            self.outputs: nn.ModuleList = nn.ModuleList([Linear(cfg.units, p.width) for p in self.vectors.values()])
        cnns = [_CNN([self.images[k] for k in group], deter, stoch, cfg) for group in self.groups]
        self.cnns: nn.ModuleList = nn.ModuleList(cnns)

    def forward(self, latent: Latent) -> dict[str, Prediction]:
        """Map latents ``[..., D]`` and ``[..., S, C]`` to a prediction of every key."""
        out: dict[str, Prediction] = {}
        deter, stoch = latent.deter, latent.stoch.flatten(-2)
        if self.vectors:
            x = self.mlp(torch.cat([stoch, deter], -1))  # [..., units]
            for (key, part), layer in zip(self.vectors.items(), self.outputs, strict=True):
                y = layer(x)
                out[key] = (
                    CategoricalPrediction(y, part.classes)
                    if part.kind == "categorical"
                    else SymlogPrediction(y, part.shape)
                )
        for group, cnn in zip(self.groups, self.cnns, strict=True):
            channels = [self.images[k].shape[2] for k in group]
            pixels = cnn(deter, stoch)
            parts = pixels.split(channels, -1) if len(group) > 1 else [pixels]
            out |= {key: ImagePrediction(x, self.images[key]) for key, x in zip(group, parts, strict=True)}
        return out


class _CNN(nn.Module):
    """Maps h (by channel blocks) plus z to the smallest image, then stages of [doubling convolution, norm, SiLU]."""

    def __init__(self, parts: list[ObsPart], deter: int, stoch: int, cfg: DecoderConfig) -> None:
        super().__init__()
        sizes = stage_sizes(parts[0].shape, len(cfg.mults), cfg.min_side)
        depths = stage_depths(cfg.depth, cfg.mults, len(sizes) - 1)
        self.sizes = sizes[::-1]  # smallest first
        self.blocks = cfg.blocks
        self.small = (*self.sizes[0], depths[-1])
        pixels = self.small[0] * self.small[1] * self.small[2]
        if depths[-1] % cfg.blocks or deter % cfg.blocks:
            raise ConfigError(
                f"decoder blocks = {cfg.blocks}: expected a divisor of depth * mults[-1] = {depths[-1]} and of "
                f"deter = {deter}."
            )
        self.from_deter = BlockLinear(deter, pixels, cfg.blocks)
        units = 2 * cfg.units
        self.from_stoch = nn.Sequential(Linear(stoch, units), RMSNormSiLU(units), Linear(units, pixels))
        self.norm = RMSNormSiLU(depths[-1])
        widths = depths[::-1]
        self.convs = nn.ModuleList([DoublingConv(i, o, cfg.kernel) for i, o in pairwise(widths)])
        self.norms = nn.ModuleList([RMSNormSiLU(o) for o in widths[1:]])
        self.output = DoublingConv(widths[-1], sum(p.shape[2] for p in parts), cfg.kernel)

    def forward(self, deter: Tensor, stoch: Tensor) -> Tensor:
        """Map ``[..., D]`` and ``[..., S*C]`` to pixels in [0, 1], ``[..., H, W, channels]``."""
        h, w, c = self.small
        x = self.from_deter(deter.flatten(0, -2))  # [M, blocks * h * w * c / blocks]
        x = x.view(-1, self.blocks, h, w, c // self.blocks).permute(0, 2, 3, 1, 4).reshape(-1, h, w, c)
        x = self.norm(x + self.from_stoch(stoch.flatten(0, -2)).view(-1, h, w, c))  # [M, h, w, c]
        stages = cast(list[tuple[DoublingConv, RMSNormSiLU]], list(zip(self.convs, self.norms, strict=True)))
        for (conv, norm), size in zip(stages, self.sizes[1:-1], strict=True):
            weights = conv.fold_weights(x.dtype)
            if is_plain(norm, RMSNormSiLU):
                x = conv_unfold_norm_silu(x, *weights, norm.weight, norm.eps)
            else:
                x = norm(conv_to_four(x, *weights))
            x = _crop(x, size)
        pixels = conv_unfold_sigmoid(x, *self.output.fold_weights(x.dtype))
        pixels = _crop(pixels, self.sizes[-1])  # [M, H, W, channels]
        return pixels.view(*deter.shape[:-1], *pixels.shape[1:])


def _crop(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Crop ``[M, h, w, C]`` to ``[M, *size, C]``, because the encoder rounds odd sizes up."""
    return x if x.shape[1:3] == size else x[:, : size[0], : size[1]].contiguous()


# ---------------------------------------------------------------------- DreamerV1 and V2


@dataclass(frozen=True, kw_only=True)
class DenseDecoderConfig(DenseCoderConfig):
    """The decoder of DreamerV1 and V2."""

    class_unimix: Annotated[float, Within("[0, 1)")] = 0.0
    """Share of the uniform distribution that is mixed into predicted classes, in [0, 1)."""

    def kernels_for(self, images: ObsSpec) -> Kernels:
        """Return the kernels that make these images, which have one size."""
        sizes = {(part.shape[0], part.shape[1]) for part in images.values()}
        if len(sizes) > 1:
            raise ConfigError(
                f"images of sizes {sorted(sizes)}: the decoder makes images of one size. Resize them, "
                "env.resize = 64 64, or choose some by decoder.keys."
            )
        ((h, w),) = sizes
        if self.kernels is None and (h, w) != AUTHORS_IMAGE_SIZE:
            kernels, smallest = fitting_kernels((h, w))
            return [smallest, *reversed(kernels)]
        return [(kernel, kernel) for kernel in self.kernels or (5, 5, 6, 6)]

    def build(self, spec: ObsSpec, deter: int, stoch: int) -> DenseDecoder:
        """Return a decoder of the keys in ``spec`` that match ``keys``, see :meth:`kernels_for`."""
        return DenseDecoder(select_keys(spec, self.keys), deter + stoch, self)


class NormalPrediction:
    """Independent normals of standard deviation 1, over a vector or over the pixels of an image in [-0.5, 0.5]."""

    def __init__(self, mean: Tensor, part: ObsPart) -> None:
        self.mean: Tensor = mean.float()  # [..., *shape]
        self.part = part

    def loss(self, target: Tensor) -> Tensor:
        """Return -ln p, ``[...]``, including its constant."""
        dims = tuple(range(-len(self.part.shape), 0))
        truth = unit_image(target, self.part, torch.float32) - 0.5 if self.part.kind == "image" else target.float()
        loss = 0.5 * (self.mean - truth).square() + 0.5 * math.log(2 * math.pi)
        return loss.sum(dims) if dims else loss

    def value(self) -> Tensor:
        """Return the mean ``[..., *shape]`` in the units of the observation; pixels are clipped to its range."""
        if self.part.kind != "image":
            return self.mean
        return (self.mean + 0.5).clamp(0, 1) * (self.part.high - self.part.low) + self.part.low


def make_prediction(outputs: Tensor, part: ObsPart, unimix: float = 0.0) -> Prediction:
    """Return the prediction of a vector or categorical from a linear layer's outputs ``[..., width]``."""
    if part.kind == "categorical":
        return CategoricalPrediction(outputs, part.classes, unimix)
    return NormalPrediction(outputs.view(*outputs.shape[:-1], *part.shape), part)


class DenseDecoder(nn.Module):
    """Dense layers with one more for each key that is not an image, and a CNN for the images."""

    def __init__(self, spec: ObsSpec, feature: int, cfg: DenseDecoderConfig) -> None:
        super().__init__()
        self.images: dict[str, ObsPart]
        non_images, self.images = split_kinds(spec)
        self.vectors: dict[str, ObsPart]
        self.grids: dict[str, ObsPart]
        self.vectors, self.grids = split_classes(non_images, cfg.class_units is not None)
        self.unimix: float = cfg.class_unimix
        if self.grids:
            self.grid_mlp: DenseMLP = DenseMLP(feature, cfg.class_units or (), cfg.norm, cfg.act)
            last = [Dense(self.grid_mlp.width, p.width) for p in self.grids.values()]
            self.grid_outputs: nn.ModuleList = nn.ModuleList(last)
        if self.vectors:
            self.mlp: DenseMLP = DenseMLP(feature, cfg.units, cfg.norm, cfg.act)
            self.outputs: nn.ModuleList = nn.ModuleList([Dense(self.mlp.width, p.width) for p in self.vectors.values()])
        if self.images:
            self.enter: Dense = Dense(feature, 32 * cfg.depth)
            self.cnn: nn.Sequential = self._cnn(cfg)

    def _cnn(self, cfg: DenseDecoderConfig) -> nn.Sequential:
        """Stages of [transposed convolution of stride 2, norm, activation]; the last has no norm and no activation."""
        layers: list[nn.Module] = []
        kernels = cfg.kernels_for(self.images)
        inputs, last = 32 * cfg.depth, len(kernels) - 1
        for i, kernel in enumerate(kernels[:-1]):
            outputs = cfg.depth * 2 ** (last - 1 - i)
            after = norm_act(outputs, cfg.cnn_norm or cfg.norm, cfg.act)
            layers += [StridedConv(inputs, outputs, kernel, transposed=True), *after]
            inputs = outputs
        channels = sum(p.shape[2] for p in self.images.values())
        return nn.Sequential(*layers, StridedConv(inputs, channels, kernels[-1], transposed=True))

    def forward(self, latent: Latent) -> dict[str, Prediction]:
        """Map latents ``[..., D]`` and ``[..., S, C]`` to a prediction of every key."""
        out: dict[str, Prediction] = {}
        feature = latent.feature  # [..., F]
        if self.grids:
            x = self.grid_mlp(feature)  # [..., units]
            for (key, part), layer in zip(self.grids.items(), self.grid_outputs, strict=True):
                out[key] = make_prediction(layer(x), part, self.unimix)
        if self.vectors:
            x = self.mlp(feature)  # [..., units]
            for (key, part), layer in zip(self.vectors.items(), self.outputs, strict=True):
                out[key] = make_prediction(layer(x), part, self.unimix)
        if self.images:
            pixels = self.cnn(self.enter(feature).flatten(0, -2)[:, None, None])  # [M, H, W, channels]
            channels = [part.shape[2] for part in self.images.values()]
            parts = pixels.view(*feature.shape[:-1], *pixels.shape[1:]).split(channels, -1)
            out |= {key: NormalPrediction(x, self.images[key]) for key, x in zip(self.images, parts, strict=True)}
        return out
