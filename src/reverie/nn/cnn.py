"""CNNs of model-free networks: each is the one of a paper, chosen by a config object such as ``nature``."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.core.bounds import AtLeast
from reverie.core.config import Choice
from reverie.core.errors import ConfigError
from reverie.core.specs import ObsPart, ObsSpec
from reverie.core.types import Obs
from reverie.nn.encoder import Encoder, EncoderConfig, group_by_size, split_kinds, unit_image
from reverie.nn.functional import shift_images


@dataclass(frozen=True)
class ImageEncoder(Choice, ABC):
    """A CNN for images. Its features are concatenated with all other observations."""

    def reads(self, spec: ObsSpec) -> ObsSpec:
        """Return the observations to build the encoder for: the images. An encoder of your own may choose others."""
        return images_of(spec)

    @abstractmethod
    def build(self, spec: ObsSpec) -> Encoder | ConvStack:
        """Return an encoder of the images in ``spec``, see ``nn/encoder.py: EncoderBuilder``."""


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
class Minatar(ImageEncoder):
    """One convolution of 3 x 3, for the 10 x 10 planes of MinAtar: Young and Tian 2019, arXiv:1903.03176.

    The authors add a layer of 128 units on top: set ``units = (128,)`` of the network.
    """

    channels: Annotated[int, AtLeast(1)] = 16
    """Number of filters."""

    def build(self, spec: ObsSpec) -> ConvStack:
        return ConvStack(spec, (ConvLayer(self.channels, 3, 1),), "minatar")


@dataclass(frozen=True)
class Shifted(ImageEncoder):
    """Four convolutions for images of 64 x 64, moved at random by up to ``pad`` pixels: the authors' code of TD-MPC2.

    They are moved whenever they are seen, also where the agent acts.
    """

    channels: Annotated[int, AtLeast(1)] = 32
    """Number of filters of each layer."""
    pad: Annotated[int, AtLeast(0)] = 3
    """Most pixels by which images are moved, in both directions."""

    def build(self, spec: ObsSpec) -> ConvStack:
        c = self.channels
        layers = (ConvLayer(c, 7, 2), ConvLayer(c, 5, 2), ConvLayer(c, 3, 2), ConvLayer(c, 3, 1))
        return ShiftedConvolutions(spec, layers, self.pad)


class ConvReLU(nn.Module):
    """A convolution and ReLU on channels-last images, initialised as ``torch.nn.Conv2d`` is."""

    def __init__(self, inputs: int, layer: ConvLayer) -> None:
        super().__init__()
        like = nn.Conv2d(inputs, layer.channels, layer.kernel, layer.stride)
        assert like.bias is not None
        self.stride: int = layer.stride
        self.relu = True
        # Viewed as [outputs, inputs, kernel, kernel], this memory layout is PyTorch's channels_last.
        self.weight: nn.Parameter = nn.Parameter(like.weight.detach().permute(0, 2, 3, 1).contiguous())
        self.bias: nn.Parameter = nn.Parameter(like.bias.detach())

    @torch.no_grad()
    def initialise(self) -> None:
        """Draw orthogonal weights with the gain of a ReLU, and set biases to 0."""
        nn.init.orthogonal_(self.weight.flatten(1), math.sqrt(2))  # a view
        self.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[M, H, W, C]`` to ``[M, h, w, channels]``, both contiguous in this order, in the dtype of x."""
        weight = self.weight.to(x.dtype).permute(0, 3, 1, 2)
        y = F.conv2d(x.permute(0, 3, 1, 2), weight, self.bias.to(x.dtype), stride=self.stride)
        return (y.relu_() if self.relu else y).permute(0, 2, 3, 1)


class ConvStack(nn.Module):
    """Convolutions over pixels scaled to [0, 1], flattened; images of equal height and width share a stack."""

    def __init__(self, spec: ObsSpec, layers: tuple[ConvLayer, ...], name: str) -> None:
        super().__init__()
        self.spec: dict[str, ObsPart] = dict(spec)
        self.groups: list[list[str]] = group_by_size(spec)
        self.width: int = sum(output_width(spec[group[0]], layers, name) for group in self.groups)
        stacks = [self._stack([spec[k].shape[2] for k in group], layers) for group in self.groups]
        self.stacks: nn.ModuleList = nn.ModuleList(stacks)

    def _stack(self, channels: list[int], layers: tuple[ConvLayer, ...]) -> nn.Sequential:
        inputs = pairwise((ConvLayer(sum(channels), 1, 1), *layers))
        return nn.Sequential(*[ConvReLU(before.channels, layer) for before, layer in inputs])

    def forward(self, obs: Obs, dtype: torch.dtype) -> Tensor:
        """Map each image ``[..., H, W, C]`` to features, concatenated to ``[..., width]``."""
        features = []
        for group, stack in zip(self.groups, self.stacks, strict=True):
            parts = [unit_image(obs[key], self.spec[key], dtype) for key in group]
            image = self.augment(torch.cat(parts, -1) if len(parts) > 1 else parts[0])  # [..., H, W, C]
            features.append(self.flat(stack(image.flatten(0, -4))).view(*image.shape[:-3], -1))
        return torch.cat(features, -1) if len(features) > 1 else features[0]

    def augment(self, image: Tensor) -> Tensor:
        """Return the images ``[..., H, W, C]`` that the convolutions see."""
        return image

    def flat(self, features: Tensor) -> Tensor:
        """Return features ``[M, h, w, C]`` as vectors ``[M, h * w * C]``."""
        return features.flatten(1)


class ShiftedConvolutions(ConvStack):
    """Convolutions over pixels in [-0.5, 0.5] of images that are moved at random; no ReLU follows the last.

    What they give is flattened channel by channel, as in the authors' code.
    """

    def __init__(self, spec: ObsSpec, layers: tuple[ConvLayer, ...], pad: int) -> None:
        super().__init__(spec, layers, "shifted")
        self.pad = pad
        for stack in self.stacks:
            *_, last = stack.children()
            vars(last)["relu"] = False

    def random_shifts(self, images: Tensor) -> Tensor:
        """Return by how much to move each of the images ``[M, H, W, C]``: ``[M, 2]``, right and down."""
        drawn = torch.rand(len(images), 2, device=images.device) * (2 * self.pad + 1)
        return self.pad - drawn.long().clamp(max=2 * self.pad)

    def augment(self, image: Tensor) -> Tensor:
        flat = image.flatten(0, -4)
        return (shift_images(flat, self.random_shifts(flat)) - 0.5).view(image.shape)

    def flat(self, features: Tensor) -> Tensor:
        return features.permute(0, 3, 1, 2).flatten(1)


def output_width(image: ObsPart, layers: tuple[ConvLayer, ...], name: str) -> int:
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
