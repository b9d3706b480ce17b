"""CNNs of model-free networks, each from a paper and chosen by a config object such as ``nature``."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.core.bounds import AtLeast
from reverie.core.config import Choice
from reverie.core.errors import ConfigError
from reverie.core.specs import ObsPart, ObsSpec
from reverie.core.types import Obs
from reverie.nn.encoder import Encoder, EncoderConfig, group_by_size, split_kinds, unit_image
from reverie.nn.functional import conv_relu, linear, shift_images
from reverie.nn.modules import is_plain


@dataclass(frozen=True)
class ImageEncoder(Choice, ABC):
    """A CNN for images. Its features are concatenated with all other observations."""

    def reads(self, spec: ObsSpec) -> ObsSpec:
        """Return the observations to build the encoder for: the images. A custom encoder may choose others."""
        return images_of(spec)

    @abstractmethod
    def build(self, spec: ObsSpec) -> Encoder | ConvStack | ResidualStacks:
        """Return an encoder of the images in ``spec``, see ``nn/encoder.py: EncoderBuilder``."""

    def build_trunk(self, width: int) -> Trunk | None:
        """Return the layers that each network has separately above ``width`` features; None: there are none."""
        return None


def images_of(spec: ObsSpec) -> ObsSpec:
    """Return the images of ``spec``."""
    return split_kinds(spec)[1]


@dataclass(frozen=True)
class Dreamer(ImageEncoder):
    """The CNN of DreamerV3's world model, for images of any size: ``nn/encoder.py: EncoderConfig``."""

    depth: int = 16
    """Channels: stage i has ``depth * mults[i]`` of them."""
    mults: tuple[int, ...] = (2, 3, 4, 4)
    """Channel multipliers of the stages, first to last."""
    kernel: int = 5
    """Height and width of the convolution kernels, odd."""

    def build(self, spec: ObsSpec) -> Encoder:
        return EncoderConfig(depth=self.depth, mults=self.mults, kernel=self.kernel).build(spec)


class ConvLayer(NamedTuple):
    """Sizes of a convolution without padding."""

    channels: int
    kernel: int
    stride: int


@dataclass(frozen=True)
class Nature(ImageEncoder):
    """Three convolutions for images of 84 x 84 pixels, or any size from 36 x 36: Mnih et al. 2015.

    The paper adds a layer of 512 units on top: set ``units = (512,)`` of the network.
    """

    def build(self, spec: ObsSpec) -> ConvStack:
        return ConvStack(spec, (ConvLayer(32, 8, 4), ConvLayer(64, 4, 2), ConvLayer(64, 3, 1)), "nature")


@dataclass(frozen=True)
class Drq(ImageEncoder):
    """Four convolutions of 3 x 3, and a separate layer on top in each network: DrQ-v2, Yarats et al. 2022.

    The layer is linear, with layer norm and tanh. DrQ and SAC-AE have the same encoder (arXiv:2004.13649,
    arXiv:1910.01741), for images of 84 x 84 pixels, or any size from 15 x 15.
    """

    channels: Annotated[int, AtLeast(1)] = 32
    """Number of filters of each convolution."""
    features: Annotated[int, AtLeast(1)] = 50
    """Width of the layer."""
    pad: Annotated[int, AtLeast(0)] = 0
    """Largest random shift of images in updates, in pixels, in each direction; DrQ and DrQ-v2 have 4. Stacked frames
    are shifted together. 0: none."""

    def build(self, spec: ObsSpec) -> ConvStack:
        c = self.channels
        layers = (ConvLayer(c, 3, 2), *[ConvLayer(c, 3, 1)] * 3)
        encoder = RandomShifts(spec, layers, "drq", self.pad) if self.pad else ConvStack(spec, layers, "drq")
        encoder.offset = -0.5
        for part in encoder.modules():
            if isinstance(part, ConvReLU):
                part.initialize()
        return encoder

    def build_trunk(self, width: int) -> Trunk:
        return Trunk(width, self.features)


class Trunk(nn.Module):
    """A linear layer, layer norm and tanh: DrQ-v2, Yarats et al. 2022."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.linear: nn.Linear = nn.Linear(inputs, width)
        self.norm: nn.LayerNorm = nn.LayerNorm(width)
        nn.init.orthogonal_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map features ``[..., inputs]`` to ``[..., width]`` in the dtype of x."""
        layer = self.linear
        y = linear(x, layer.weight, layer.bias) if is_plain(layer, nn.Linear) else layer(x.float())
        normed: Tensor = self.norm(y.float())
        return normed.tanh().to(x.dtype)


@dataclass(frozen=True)
class Strided(ImageEncoder):
    """Convolutions of 4 x 4 with stride 2, as in Ha and Schmidhuber 2018, for images of any size.

    Images are padded at the right and at the bottom so that no pixel is left out.
    """

    channels: Annotated[tuple[int, ...], AtLeast(1)] = (16, 32, 32)
    """Number of filters of each layer."""

    def build(self, spec: ObsSpec) -> ConvStack:
        return PaddedConvolutions(spec, tuple(ConvLayer(channels, 4, 2) for channels in self.channels), "strided")


@dataclass(frozen=True)
class Minatar(ImageEncoder):
    """One convolution of 3 x 3, for the 10 x 10 planes of MinAtar: Young and Tian 2019, arXiv:1903.03176.

    The authors add a layer of 128 units on top: set ``units = (128,)`` of the network.
    """

    channels: Annotated[int, AtLeast(1)] = 16
    """Number of filters."""

    def build(self, spec: ObsSpec) -> ConvStack:
        return ConvStack(spec, (ConvLayer(self.channels, 3, 1),), "minatar")


SMALL_SIDE = 36
"""Pixels of a side of an image below which the default encoder is MinAtar's."""


def are_small(images: ObsSpec, smallest_side: int = SMALL_SIDE) -> bool:
    """Return whether an image is too small for the encoders of larger ones."""
    return any(min(part.shape[:2]) < smallest_side for part in images.values())


@dataclass(frozen=True)
class BySize(ImageEncoder):
    """``nature``; ``minatar`` where a side has fewer than 36 pixels, ``dreamer`` where it has fewer than 3."""

    def build(self, spec: ObsSpec) -> Encoder | ConvStack | ResidualStacks:
        if not are_small(spec):
            return Nature().build(spec)
        return (Dreamer() if are_small(spec, 3) else Minatar()).build(spec)


@dataclass(frozen=True)
class Shifted(ImageEncoder):
    """Four convolutions for images of 64 x 64, randomly shifted by up to ``pad`` pixels: the authors' code of TD-MPC2.

    Images are shifted in learning and in acting.
    """

    SMALLEST_SIDE: ClassVar[int] = 39
    """Pixels of a side of the smallest images that the four layers leave anything of."""
    channels: Annotated[int, AtLeast(1)] = 32
    """Number of filters of each layer."""
    pad: Annotated[int, AtLeast(0)] = 3
    """Largest shift of images in pixels, in each direction."""

    def build(self, spec: ObsSpec) -> ConvStack:
        c = self.channels
        layers = (ConvLayer(c, 7, 2), ConvLayer(c, 5, 2), ConvLayer(c, 3, 2), ConvLayer(c, 3, 1))
        return ShiftedConvolutions(spec, layers, "shifted", self.pad)


@dataclass(frozen=True)
class Impala(ImageEncoder):
    """Residual blocks of 3 x 3, for images of any size: Espeholt et al. 2018, figure 3, as OGBench's impala_small.

    Each stack halves the sides, then adds the outputs of its blocks. A layer with GELU follows.
    """

    channels: Annotated[tuple[int, ...], AtLeast(1)] = (16, 32, 32)
    """Filters of each stack."""
    blocks: Annotated[int, AtLeast(1)] = 1
    """Residual blocks of a stack; 2 in the paper."""
    units: Annotated[int, AtLeast(1)] = 512
    """Units of the last layer; 256 in the paper."""

    def build(self, spec: ObsSpec) -> ResidualStacks:
        return ResidualStacks(spec, self)


class ResidualStacks(nn.Module):
    """The network of :class:`Impala`; images of equal size share it, concatenated along their channels."""

    def __init__(self, spec: ObsSpec, cfg: Impala) -> None:
        super().__init__()
        self.spec: dict[str, ObsPart] = dict(spec)
        self.groups: list[list[str]] = group_by_size(spec)
        self.blocks: int = cfg.blocks
        self.width: int = cfg.units * len(self.groups)
        self.convolutions: nn.ModuleList = nn.ModuleList()
        self.last: nn.ModuleList = nn.ModuleList()
        for group in self.groups:
            layers, sides = nn.ModuleList(), list(spec[group[0]].shape[:2])
            inputs = sum(spec[key].shape[2] for key in group)
            for channels in cfg.channels:
                widths = [inputs, *[channels] * (2 * cfg.blocks)]
                layers.extend(nn.Conv2d(width, channels, 3, padding=1) for width in widths)
                inputs, sides = channels, [-(-side // 2) for side in sides]
            self.convolutions.append(layers)
            self.last.append(nn.Linear(math.prod(sides) * inputs, cfg.units))
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(cast(Tensor, layer.bias))

    def forward(self, obs: Obs, dtype: torch.dtype) -> Tensor:
        """Map each image ``[..., H, W, C]`` to features, concatenated to ``[..., width]``."""
        features = []
        for group, layers, last in zip(self.groups, self.convolutions, self.last, strict=True):
            image = torch.cat([unit_image(obs[key], self.spec[key], dtype) for key in group], -1)
            y = image.flatten(0, -4).permute(0, 3, 1, 2)  # [M, C, H, W]
            stack = 2 * self.blocks + 1
            convolutions = list(cast(nn.ModuleList, layers))
            for start in range(0, len(convolutions), stack):
                y = _halve(convolutions[start](y))
                for i in range(start + 1, start + stack, 2):
                    y = y + convolutions[i + 1](convolutions[i](y.relu()).relu())
            flat = y.relu().permute(0, 2, 3, 1).flatten(1)
            features.append(F.gelu(last(flat), approximate="tanh").view(*image.shape[:-3], -1))
        return torch.cat(features, -1) if len(features) > 1 else features[0]


def _halve(x: Tensor) -> Tensor:
    """Return maxima of 3 x 3 pixels of ``[M, C, H, W]``, every second of them: ``SAME`` padding of TensorFlow."""
    pads = [max(0, 2 * (-(-side // 2) - 1) + 3 - side) for side in x.shape[:1:-1]]  # of the width, then the height
    return F.max_pool2d(F.pad(x, [n for pad in pads for n in (pad // 2, pad - pad // 2)], value=-torch.inf), 3, 2)


class ConvReLU(nn.Module):
    """A convolution of channels-last images, and ReLU, initialized as ``torch.nn.Conv2d`` is."""

    def __init__(self, inputs: int, layer: ConvLayer) -> None:
        super().__init__()
        like = nn.Conv2d(inputs, layer.channels, layer.kernel, layer.stride)
        assert like.bias is not None
        self.stride: int = layer.stride
        # Viewed as [outputs, inputs, kernel, kernel], this memory layout is PyTorch's channels_last.
        self.weight: nn.Parameter = nn.Parameter(like.weight.detach().permute(0, 2, 3, 1).contiguous())
        self.bias: nn.Parameter = nn.Parameter(like.bias.detach())

    @torch.no_grad()
    def initialize(self) -> None:
        """Draw orthogonal weights with the gain of a ReLU, and set biases to 0."""
        nn.init.orthogonal_(self.weight.flatten(1), math.sqrt(2))  # a view
        self.bias.zero_()

    @torch.no_grad()
    def initialize_centers(self) -> None:
        """Draw orthogonal weights at the centers of kernels, and set the others to 0: Xiao et al. 2018, section 4."""
        middle = self.weight.shape[1] // 2
        for x in (self.weight, self.bias):
            x.zero_()
        nn.init.orthogonal_(self.weight[:, middle, middle], math.sqrt(2))


class ConvStack(nn.Module):
    """Convolutions over pixels scaled to [0, 1], flattened; images of equal size and range share a stack."""

    offset: float = 0.0
    """Added to the scaled pixels."""
    relu_last: bool = True
    """Whether ReLU follows the last convolution."""

    def __init__(self, spec: ObsSpec, layers: tuple[ConvLayer, ...], name: str) -> None:
        super().__init__()
        self.spec: dict[str, ObsPart] = dict(spec)
        self.groups: list[list[str]] = group_by_size(spec)
        self.width: int = sum(_output_width(spec[group[0]], layers, name) for group in self.groups)
        stacks = [self._stack([spec[k].shape[2] for k in group], layers) for group in self.groups]
        self.stacks: nn.ModuleList = nn.ModuleList(stacks)

    def _stack(self, channels: list[int], layers: tuple[ConvLayer, ...]) -> nn.Sequential:
        inputs = pairwise((ConvLayer(sum(channels), 1, 1), *layers))
        return nn.Sequential(*[ConvReLU(before.channels, layer) for before, layer in inputs])

    def forward(self, obs: Obs, dtype: torch.dtype) -> Tensor:
        """Map each image ``[..., H, W, C]`` to features, concatenated to ``[..., width]``."""
        features = []
        for group, stack in zip(self.groups, self.stacks, strict=True):
            image, scale, shift = self._pixels(obs, group, dtype)
            layers = cast(list[ConvReLU], list(cast(nn.Sequential, stack)))
            weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
            strides, flat = [layer.stride for layer in layers], self.augment(image.flatten(0, -4))
            y = conv_relu(flat, weights, biases, strides, scale, shift + self.offset, self.relu_last, dtype)
            features.append(self.flat(y).view(*image.shape[:-3], -1))
        return torch.cat(features, -1) if len(features) > 1 else features[0]

    def _pixels(self, obs: Obs, group: list[str], dtype: torch.dtype) -> tuple[Tensor, float, float]:
        """Return the concatenated images of a group, and the factor and offset that scale them to [0, 1]."""
        parts = [self.spec[key] for key in group]
        if len({(part.low, part.high, part.dtype) for part in parts}) > 1:
            return torch.cat([unit_image(obs[key], self.spec[key], dtype) for key in group], -1), 1.0, 0.0
        images = [obs[key] for key in group]
        scale = 1 / (parts[0].high - parts[0].low)
        return torch.cat(images, -1) if len(images) > 1 else images[0], scale, -parts[0].low * scale

    def augment(self, image: Tensor) -> Tensor:
        """Return the augmented images ``[M, H, W, C]``; by default they are unchanged."""
        return image

    def flat(self, features: Tensor) -> Tensor:
        """Return features ``[M, h, w, C]`` as vectors ``[M, h * w * C]``."""
        return features.flatten(1)


class PaddedConvolutions(ConvStack):
    """Convolutions of 4 x 4 with stride 2 over images that are padded with zeros to a size that they cover."""

    def __init__(self, spec: ObsSpec, layers: tuple[ConvLayer, ...], name: str) -> None:
        def padded(part: ObsPart) -> ObsPart:
            height, width, channels = part.shape
            return replace(part, shape=(_covered(height, len(layers)), _covered(width, len(layers)), channels))

        super().__init__({key: padded(part) for key, part in spec.items()}, layers, name)
        self.layers: int = len(layers)

    def augment(self, image: Tensor) -> Tensor:
        down, right = (_covered(side, self.layers) - side for side in image.shape[1:3])
        return F.pad(image, (0, 0, 0, right, 0, down)) if down or right else image


def _covered(side: int, layers: int) -> int:
    """Return the least length from ``side`` on that convolutions of 4 with stride 2 cover without a rest."""
    for _ in range(layers):
        side = max(1, -(-(side - 4) // 2) + 1)
    for _ in range(layers):
        side = 2 * side + 2
    return side


class RandomShifts(ConvStack):
    """Convolutions over images that updates shift at random: Yarats et al. 2022, arXiv:2107.09645, section 3.1."""

    has_two_modes: bool = True

    def __init__(self, spec: ObsSpec, layers: tuple[ConvLayer, ...], name: str, pad: int) -> None:
        super().__init__(spec, layers, name)
        self.pad = pad

    def random_shifts(self, images: Tensor) -> Tensor:
        """Return a random shift for each of the images ``[M, H, W, C]``: ``[M, 2]``, right and down."""
        drawn = torch.rand(len(images), 2, device=images.device) * (2 * self.pad + 1)
        return self.pad - drawn.long().clamp(max=2 * self.pad)

    def augment(self, image: Tensor) -> Tensor:
        return shift_images(image, self.random_shifts(image)) if self.training else image


class ShiftedConvolutions(RandomShifts):
    """Convolutions over pixels in [-0.5, 0.5] of images that are always shifted; the last one has no ReLU.

    The output is flattened channel by channel, as in the authors' code.
    """

    has_two_modes: bool = False
    offset: float = -0.5
    relu_last: bool = False

    def augment(self, image: Tensor) -> Tensor:
        return shift_images(image, self.random_shifts(image))

    def flat(self, features: Tensor) -> Tensor:
        return features.permute(0, 3, 1, 2).flatten(1)


class Deconvolutions(nn.Module):
    """A linear layer and transposed convolutions of 3 x 3 with ReLU, the last without: the decoder of SAC-AE.

    They are the mirror image of ``drq``: Yarats et al. 2021, arXiv:1910.01741. Images of less than 15 x 15 pixels have
    fewer layers. The initialization is that of the authors' code: orthogonal, in the center of kernels.
    """

    def __init__(self, image: ObsPart, inputs: int, channels: int) -> None:
        super().__init__()
        sides = list(image.shape[:2])
        sizes = [(side - 3) // 2 + 1 for side in sides]  # before the last layer
        count = min(3, (min(sizes) - 1) // 2)
        self.shape: tuple[int, ...] = (channels, *[size - 2 * count for size in sizes])
        self.linear: nn.Linear = nn.Linear(inputs, math.prod(self.shape))
        nn.init.orthogonal_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        odd = [side - 2 * size - 1 for side, size in zip(sides, sizes, strict=True)]
        layers = [nn.ConvTranspose2d(channels, channels, 3) for _ in range(count)]
        last = nn.ConvTranspose2d(channels, image.shape[2], 3, stride=2, output_padding=(odd[0], odd[1]))
        self.layers: nn.ModuleList = nn.ModuleList([*layers, last])
        for layer in (*layers, last):
            nn.init.zeros_(layer.weight)
            nn.init.orthogonal_(layer.weight[:, :, 1, 1].detach(), math.sqrt(2))
            nn.init.zeros_(cast(Tensor, layer.bias))

    def forward(self, z: Tensor) -> Tensor:
        """Map latents ``[M, inputs]`` to images ``[M, H, W, C]``."""
        y = self.linear(z).relu().view(-1, *self.shape).permute(0, 2, 3, 1)
        for layer in self.layers[:-1]:
            if not is_plain(layer, nn.ConvTranspose2d):
                y = layer(y.permute(0, 3, 1, 2)).relu().permute(0, 2, 3, 1)
                continue
            weight = cast(Tensor, layer.weight).flip(2, 3).permute(1, 2, 3, 0).contiguous()  # [outputs, 3, 3, inputs]
            padded = F.pad(y, (0, 0, 2, 2, 2, 2))  # a transposed convolution is a convolution with a mirrored kernel
            y = conv_relu(padded, [weight], [cast(Tensor, layer.bias)], [1], 1.0, 0.0, True, y.dtype)
        return cast(Tensor, self.layers[-1](y.permute(0, 3, 1, 2))).permute(0, 2, 3, 1)


def _output_width(image: ObsPart, layers: tuple[ConvLayer, ...], name: str) -> int:
    """Return the number of values that the last of the ``layers`` outputs."""
    size = list(image.shape[:2])
    for layer in layers:
        if min(size) < layer.kernel:
            raise ConfigError(
                f"algo.networks.encoder = '{name}': images of {image.shape[0]} x {image.shape[1]} pixels are too small "
                "for it. Use 'dreamer' for any size or 'minatar' from 3 x 3, or enlarge them with env.resize."
            )
        size = [(side - layer.kernel) // layer.stride + 1 for side in size]
    return size[0] * size[1] * layers[-1].channels
