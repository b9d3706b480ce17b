"""The encoder of the world model: maps observations to one feature vector, by a CNN for images and an MLP otherwise."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Annotated, Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from reverie.core.bounds import AtLeast, Regex
from reverie.core.config import Config
from reverie.core.errors import ConfigError
from reverie.core.specs import ObsPart, ObsSpec
from reverie.core.types import Obs
from reverie.nn.functional import conv_pool, conv_pool_norm_silu
from reverie.nn.layers import (
    ACTIVATIONS,
    MLP,
    Activation,
    Conv,
    Dense,
    DenseMLP,
    Norm,
    RMSNormSiLU,
    StridedConv,
    norm_act,
)
from reverie.nn.modules import is_plain
from reverie.objectives.transforms import symlog

ARRIVAL_KEY = "(reward, terminal)"
"""Key of reward and terminal flag, ``[..., 2]``, for an encoder that has the attribute ``arrival``."""


@runtime_checkable
class EncoderBuilder(Protocol):
    """Interface of an encoder's configuration, including custom ones.

    An encoder is an ``nn.Module`` with an int attribute ``width`` and ``forward(obs, dtype)``, from observations
    ``[..., *shape]`` to features ``[..., width]`` of ``dtype``. It must not write to its inputs.
    """

    def build(self, spec: ObsSpec) -> Any:
        """Return an encoder of these observations."""


@dataclass(frozen=True, kw_only=True)
class CoderConfig(Config):
    """Settings of DreamerV3's encoder and decoder: a CNN for images, an MLP for all other observations."""

    depth: Annotated[int, AtLeast(1)] = 16
    """Channels of the CNN: stage i has ``depth * mults[i]`` of them."""
    mults: Annotated[tuple[int, ...], AtLeast(1)] = (2, 3, 4, 4)
    """Channel multipliers, in the order of the encoder's stages."""
    min_side: Annotated[int, AtLeast(1)] = 3
    """Smallest side of an image after the encoder's stages, in pixels: smaller images have fewer stages."""
    kernel: Annotated[int, AtLeast(1)] = 5
    """Height and width of the convolution kernels, odd."""
    units: Annotated[int, AtLeast(1)] = 256
    """Width of the MLP's hidden layers."""
    layers: Annotated[int, AtLeast(1)] = 3
    """Number of hidden layers of the MLP."""
    keys: Annotated[str, Regex()] = ".*"
    """Regular expression: observations whose whole key matches it are encoded, or reconstructed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel % 2 == 0:
            raise ConfigError(f"kernel = {self.kernel}: expected an odd kernel.")


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(CoderConfig):
    """DreamerV3's encoder, for dictionaries of observations."""

    def build(self, spec: ObsSpec) -> Encoder:
        return Encoder(select_keys(spec, self.keys), self)


def select_keys(spec: ObsSpec, pattern: str, setting: str = "keys") -> dict[str, ObsPart]:
    """Return the parts whose whole key matches the regular expression ``pattern`` of ``setting``, sorted by key."""
    parts = {k: spec[k] for k in sorted(spec) if re.fullmatch(pattern, k)}
    if not parts:
        raise ConfigError(f"{setting} = {pattern!r} matches no observation. There are: {', '.join(sorted(spec))}.")
    return parts


def split_kinds(spec: ObsSpec) -> tuple[dict[str, ObsPart], dict[str, ObsPart]]:
    """Return ``(vectors and categoricals, images)``, each sorted by key."""
    images = {k: spec[k] for k in sorted(spec) if spec[k].kind == "image"}
    return {k: spec[k] for k in sorted(spec) if k not in images}, images


def split_classes(parts: ObsSpec, split: bool) -> tuple[dict[str, ObsPart], dict[str, ObsPart]]:
    """Return ``(vectors, categoricals)``; without ``split``, all are in the first."""
    grids = {k: part for k, part in parts.items() if split and part.kind == "categorical"}
    return {k: part for k, part in parts.items() if k not in grids}, grids


def group_by_size(images: ObsSpec) -> list[list[str]]:
    """Group image keys by height and width; each group shares a CNN, its images being concatenated along channels."""
    keys = sorted(images, key=lambda k: (images[k].shape[:2], k))
    return [list(group) for _, group in groupby(keys, key=lambda k: images[k].shape[:2])]


def stage_sizes(size: tuple[int, ...], stages: int, min_side: int = 3) -> list[tuple[int, int]]:
    """Return ``(height, width)`` before the first stage and after each one.

    Smaller images than the authors' 64 x 64 are halved while ``min_side`` pixels remain on the short side, larger ones
    until at most 16 remain on the long side; odd sizes are rounded up.
    """
    sizes = [(size[0], size[1])]
    while True:
        h, w = (math.ceil(s / 2) for s in sizes[-1])
        fits = min(h, w) >= min_side
        is_needed = len(sizes) <= stages or max(sizes[-1]) > 16
        if len(sizes) > 1 and not (fits and is_needed):
            return sizes
        sizes.append((h, w))


def stage_depths(depth: int, mults: tuple[int, ...], stages: int) -> list[int]:
    """Return the channels after each stage: the last multipliers for fewer stages, the last one repeated for more."""
    padded = list(mults) + [mults[-1]] * (stages - len(mults))
    return [depth * m for m in padded[len(padded) - stages :]]


def unit_image(x: Tensor, part: ObsPart, dtype: torch.dtype) -> Tensor:
    """Scale pixels from the range of ``part`` to [0, 1]."""
    y = x.to(dtype)
    return (y - part.low if part.low else y) / (part.high - part.low)


class Encoder(nn.Module):
    """Concatenates the MLP's features of vectors and categoricals with the CNNs' features of images."""

    def __init__(self, spec: ObsSpec, cfg: EncoderConfig) -> None:
        super().__init__()
        self.spec = spec
        self.vectors: dict[str, ObsPart]
        self.images: dict[str, ObsPart]
        self.vectors, self.images = split_kinds(spec)
        self.groups: list[list[str]] = group_by_size(self.images)
        self.width: int = 0
        if self.vectors:
            self.mlp: MLP = MLP(sum(p.width for p in self.vectors.values()), cfg.units, cfg.layers)
            self.width += cfg.units
        cnns = [_CNN([self.images[k] for k in group], cfg) for group in self.groups]
        self.cnns: nn.ModuleList = nn.ModuleList(cnns)
        self.width += sum(cnn.width for cnn in cnns)

    def forward(self, obs: Obs, dtype: torch.dtype) -> Tensor:
        """Map observations ``[..., *shape]`` to features ``[..., E]`` of ``dtype``."""
        features = []
        if self.vectors:
            parts = [(flat_vector(obs[key], part), part.kind) for key, part in self.vectors.items()]
            vectors = [x if kind == "categorical" else symlog(x.float()) for x, kind in parts]
            features.append(self.mlp(torch.cat(vectors, -1).to(dtype)))  # [..., units]
        for group, cnn in zip(self.groups, self.cnns, strict=True):
            pixels = [unit_image(obs[k], self.images[k], dtype) - 0.5 for k in group]
            features.append(cnn(torch.cat(pixels, -1) if len(pixels) > 1 else pixels[0]))  # [..., h * w * c]
        return torch.cat(features, -1) if len(features) > 1 else features[0]


def flat_vector(x: Tensor, part: ObsPart) -> Tensor:
    """Flatten a vector ``[..., *shape]`` to ``[..., width]``; categoricals become one-hot float32."""
    dims = len(part.shape)
    flat = x if dims == 1 else x.reshape(*x.shape[: x.ndim - dims], -1)
    return _multi_one_hot(flat, part.classes) if part.kind == "categorical" else flat


def _multi_one_hot(index: Tensor, classes: tuple[int, ...]) -> Tensor:
    """Return class indices ``[..., n]`` as one-hot float32 ``[..., sum(classes)]``; an index of -1 becomes zeros."""
    if len(set(classes)) == 1:
        every = torch.arange(classes[0], device=index.device)
        return (index.unsqueeze(-1) == every).flatten(-2).float()
    parts = [index[..., i, None] == torch.arange(c, device=index.device) for i, c in enumerate(classes)]
    return torch.cat(parts, -1).float()


class _CNN(nn.Module):
    """Stages of [convolution, 2 x 2 max-pool, RMS norm, SiLU], flattened in the order H, W, C."""

    def __init__(self, parts: list[ObsPart], cfg: EncoderConfig) -> None:
        super().__init__()
        sizes = stage_sizes(parts[0].shape, len(cfg.mults), cfg.min_side)
        depths = [sum(p.shape[2] for p in parts), *stage_depths(cfg.depth, cfg.mults, len(sizes) - 1)]
        self.convs = nn.ModuleList([Conv(i, o, cfg.kernel) for i, o in pairwise(depths)])
        self.norms = nn.ModuleList([RMSNormSiLU(o) for o in depths[1:]])
        self.width = sizes[-1][0] * sizes[-1][1] * depths[-1]

    def forward(self, image: Tensor) -> Tensor:
        """Map pixels ``[..., H, W, C]`` in [-0.5, 0.5] to features ``[..., width]``."""
        x = image.flatten(0, -4)  # [M, H, W, C]
        stages = cast(list[tuple[Conv, RMSNormSiLU]], list(zip(self.convs, self.norms, strict=True)))
        for conv, norm in stages:
            if is_plain(norm, RMSNormSiLU):
                x = conv_pool_norm_silu(x, conv.weight, conv.bias, norm.weight, norm.eps)  # [M, h, w, depth]
            else:
                x = norm(conv_pool(x, conv.weight, conv.bias))
        return x.flatten(1).view(*image.shape[:-3], -1)


# ---------------------------------------------------------------------- DreamerV1 and V2


@dataclass(frozen=True, kw_only=True)
class DenseCoderConfig(Config):
    """Settings of the encoder and decoder of DreamerV1 and V2: strided convolutions and dense layers."""

    depth: Annotated[int, AtLeast(1)] = 48
    """Channels of the largest hidden image; each smaller one has twice as many."""
    kernels: Annotated[tuple[int, ...] | None, AtLeast(1)] = None
    """Height and width of the convolution kernels; decoders map a side of n pixels to 2 (n - 1) + kernel, from 1 on.
    None: the authors' for images of 64x64, (4, 4, 4, 4) and (5, 5, 6, 6); for others, such that every pixel is read."""
    units: Annotated[tuple[int, ...], AtLeast(1)] = (400, 400, 400, 400)
    """Widths of the dense layers."""
    class_units: Annotated[tuple[int, ...] | None, AtLeast(1)] = None
    """Widths of a separate network for categorical observations. None: vectors and categoricals share one network."""
    norm: Norm = "none"
    """Normalization before each activation."""
    cnn_norm: Norm | None = None
    """Normalization of the convolutions; None: the same as ``norm``."""
    act: Activation = "elu"
    """Activation."""
    keys: Annotated[str, Regex()] = ".*"
    """Regular expression: observations whose whole key matches it are encoded, or reconstructed."""


@dataclass(frozen=True, kw_only=True)
class DenseEncoderConfig(DenseCoderConfig):
    """The encoder of DreamerV1 and V2."""

    outputs: Annotated[int, AtLeast(0)] = 0
    """Width of a linear layer after the dense layers; 0: none. The layer of ``class_units`` is followed by an
    activation."""
    encode_reward: bool = False
    """Also encode the reward received with the observation, and whether it is terminal: each as an additional plane of
    images, and as an additional number for each element of categorical observations."""

    def build(self, spec: ObsSpec) -> DenseEncoder:
        """Return an encoder of the keys in ``spec`` that match ``keys``; images must be larger than the kernels."""
        return DenseEncoder(select_keys(spec, self.keys), self)


Kernels = list[tuple[int, int]]
"""Height and width of the kernel of each convolution of stride 2."""

AUTHORS_IMAGE_SIZE = (64, 64)
"""Height and width of the authors' images."""


def fitting_kernels(size: tuple[int, int]) -> tuple[Kernels, tuple[int, int]]:
    """Return kernels for images of ``size``, and the size of their last output.

    Smaller images than the authors' 64 x 64 are halved while at least 2 pixels remain on the short side, larger ones
    until at most 8 remain on the long side. Every pixel is read: kernels are even where sides are.
    """
    kernels: Kernels = []
    while not kernels or (min(size) >= 6 and (len(kernels) < 4 or max(size) > 8)):
        h, w = ({1: 1, 2: 2, 3: 3, 4: 2, 5: 3}.get(side, 4 + side % 2) for side in size)
        kernels.append((h, w))
        size = ((size[0] - h) // 2 + 1, (size[1] - w) // 2 + 1)
    return kernels, size


def vectors_and_one_hots(obs: Obs, parts: ObsSpec) -> Tensor:
    """Return vectors as they are and classes as one-hot vectors, concatenated: float32 ``[..., sum of widths]``."""
    return torch.cat([flat_vector(obs[key], part).float() for key, part in parts.items()], -1)


class DenseEncoder(nn.Module):
    """Concatenates features of images and of the other observations."""

    def __init__(self, spec: ObsSpec, cfg: DenseEncoderConfig) -> None:
        super().__init__()
        self.images: dict[str, ObsPart]
        non_images, self.images = split_kinds(spec)
        self.vectors: dict[str, ObsPart]
        self.grids: dict[str, ObsPart]
        self.vectors, self.grids = split_classes(non_images, cfg.class_units is not None)
        self.arrival: bool = cfg.encode_reward
        if cfg.encode_reward and not (self.images or self.grids):
            raise ConfigError(
                "encoder.encode_reward = True needs an image, or a categorical observation and class_units."
            )
        self.groups: list[list[str]] = group_by_size(self.images)
        cnns = [_StridedCNN([self.images[k] for k in g], cfg) for g in self.groups]
        self.cnns: nn.ModuleList = nn.ModuleList(cnns)
        self.width = sum(cnn.width for cnn in cnns)
        if self.grids:
            self._elements = sum(math.prod(part.shape) for part in self.grids.values())
            inputs = sum(p.width for p in self.grids.values()) + 2 * self._elements * cfg.encode_reward
            self.grid_mlp: DenseMLP = self._mlp(inputs, cfg.class_units or (), cfg)
            if cfg.outputs:
                self.grid_mlp.append(ACTIVATIONS[cfg.act]())
        if self.vectors:
            self.mlp: DenseMLP = self._mlp(sum(p.width for p in self.vectors.values()), cfg.units, cfg)

    def _mlp(self, inputs: int, units: tuple[int, ...], cfg: DenseEncoderConfig) -> DenseMLP:
        mlp = DenseMLP(inputs, units, cfg.norm, cfg.act)
        if cfg.outputs:
            mlp.append(Dense(mlp.width, cfg.outputs))
        self.width += cfg.outputs or mlp.width
        return mlp

    def forward(self, obs: Obs, dtype: torch.dtype) -> Tensor:
        """Map observations ``[..., *shape]`` to features ``[..., E]`` of ``dtype``."""
        features = []
        for group, cnn in zip(self.groups, self.cnns, strict=True):
            pixels = [unit_image(obs[k], self.images[k], dtype) - 0.5 for k in group]
            if self.arrival:
                pixels.append(obs[ARRIVAL_KEY].to(dtype)[..., None, None, :].expand(*pixels[0].shape[:-1], 2))
            features.append(cnn(torch.cat(pixels, -1)))  # [..., h * w * c]
        if self.grids:
            x = vectors_and_one_hots(obs, self.grids)
            if self.arrival:
                x = torch.cat([x, obs[ARRIVAL_KEY].repeat_interleave(self._elements, -1)], -1)
            features.append(self.grid_mlp(x.to(dtype)))  # [..., units]
        if self.vectors:
            features.append(self.mlp(vectors_and_one_hots(obs, self.vectors).to(dtype)))  # [..., units]
        return torch.cat(features, -1)


class _StridedCNN(nn.Sequential):
    """Stages of [convolution of stride 2 without padding, norm, activation], flattened in the order H, W, C."""

    def __init__(self, parts: list[ObsPart], cfg: DenseEncoderConfig) -> None:
        height, width = size = parts[0].shape[:2]
        inputs = sum(p.shape[2] for p in parts) + 2 * cfg.encode_reward
        kernels = [(k, k) for k in cfg.kernels or (4, 4, 4, 4)]
        if cfg.kernels is None and size != AUTHORS_IMAGE_SIZE:
            kernels, _ = fitting_kernels((height, width))
        layers: list[nn.Module] = []
        for i, kernel in enumerate(kernels):
            if height < kernel[0] or width < kernel[1]:  # compiled functions would return no features
                raise ConfigError(f"encoder.kernels = {cfg.kernels}: images of {size[0]}x{size[1]} are too small.")
            height, width = (height - kernel[0]) // 2 + 1, (width - kernel[1]) // 2 + 1
            outputs = cfg.depth * 2**i
            layers += [StridedConv(inputs, outputs, kernel), *norm_act(outputs, cfg.cnn_norm or cfg.norm, cfg.act)]
            inputs = outputs
        super().__init__(*layers)
        self.width = height * width * inputs

    def forward(self, x: Tensor) -> Tensor:
        """Map pixels ``[..., H, W, C]`` in [-0.5, 0.5] to features ``[..., width]``."""
        y: Tensor = super().forward(x.flatten(0, -4))  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return y.flatten(1).view(*x.shape[:-3], -1)
