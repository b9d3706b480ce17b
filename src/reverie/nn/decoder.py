"""Model states back to observations: what the world model believes is there to be seen."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from reverie.core.config import Config, check_pattern
from reverie.core.errors import ConfigError
from reverie.core.specs import ObsPart, ObsSpec
from reverie.nn.distributions import Categoricals
from reverie.nn.doubling import conv_unfold_norm_silu, conv_unfold_sigmoid
from reverie.nn.encoder import by_size, check_sizes, select, split_kinds, stage_depths, stage_sizes
from reverie.nn.layers import MLP, BlockLinear, DoublingConv, Linear, RMSNormSiLU
from reverie.nn.pixels import unit_squared_error
from reverie.nn.rssm import Latent
from reverie.objectives.transforms import symexp, symlog


class Prediction(Protocol):
    """What a decoder says of one key."""

    def loss(self, target: Tensor) -> Tensor:
        """``[...]``, summed over the event."""
        ...

    def value(self) -> Tensor:
        """The prediction in the units of the observation ``[..., *shape]``; class probabilities if categorical."""
        ...


@runtime_checkable
class DecoderBuilder(Protocol):
    """What stands in a configuration for a decoder: anything that builds one.

    The module maps a :class:`Latent` ``[B, T, ...]`` to a ``dict[str, Prediction]``.
    """

    def build(self, spec: ObsSpec, deter: int, stoch: int) -> nn.Module:
        """For states of ``deter`` plus ``stoch`` numbers."""
        ...


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(Config):
    """The CNN and MLP of DreamerV3, for dictionaries of observations."""

    depth: int = 16
    """Channels of the CNN; stage i has ``depth * mults[i]``."""
    mults: tuple[int, ...] = (2, 3, 4, 4)
    """Channel multipliers, in the order of the encoder's stages."""
    kernel: int = 5
    """Size of the convolution kernels."""
    units: int = 256
    """Width of the MLP."""
    layers: int = 3
    """Hidden layers of the MLP."""
    blocks: int = 8
    """Blocks of the layer that turns h into the smallest image."""
    keys: str = ".*"
    """Regular expression that whole keys must match to be reconstructed."""

    def __post_init__(self) -> None:
        check_sizes(self.depth, self.mults, self.units, self.layers, self.kernel)
        check_pattern(self, "keys")
        if self.blocks < 1:
            raise ConfigError(f"blocks = {self.blocks}: expected at least 1.")

    def build(self, spec: ObsSpec, deter: int, stoch: int) -> Decoder:
        """A decoder of the matching keys of ``spec``."""
        return Decoder(select(spec, self.keys), deter, stoch, self)


class SymlogVector:
    """A vector predicted in symlog space. DreamerV3 (Hafner et al. 2025), equation 8."""

    def __init__(self, squashed: Tensor, shape: tuple[int, ...]) -> None:
        self.squashed = squashed.float()  # [..., n]
        self.shape = shape

    def loss(self, target: Tensor) -> Tensor:
        """Squared error in symlog space, ``[...]``."""
        return (self.squashed - symlog(target.float()).view_as(self.squashed)).square().sum(-1)

    def value(self) -> Tensor:
        """``[..., *shape]``."""
        return symexp(self.squashed).view(*self.squashed.shape[:-1], *self.shape)


class Classes:
    """Categorical elements."""

    def __init__(self, logits: Tensor, classes: tuple[int, ...]) -> None:
        self.dist = Categoricals(logits, classes)

    def loss(self, target: Tensor) -> Tensor:
        """Cross-entropy, ``[...]``."""
        return -self.dist.log_prob_index(target.reshape(*self.dist.probs.shape[:-1]))

    def value(self) -> Tensor:
        """Probabilities ``[..., n, C]``."""
        return self.dist.probs


class UnitImage:
    """Pixels in [0, 1]."""

    def __init__(self, pixels: Tensor, part: ObsPart) -> None:
        self.pixels = pixels.float()  # [..., H, W, C]
        self.part = part

    def loss(self, target: Tensor) -> Tensor:
        """Squared error of unit pixels, ``[...]``."""
        return unit_squared_error(self.pixels, target, self.part.low, self.part.high)

    def value(self) -> Tensor:
        """``[..., H, W, C]`` in the units of the observation."""
        return self.pixels * (self.part.high - self.part.low) + self.part.low


class Decoder(nn.Module):
    """An MLP with a linear layer per vector key, and a CNN per image size."""

    def __init__(self, spec: ObsSpec, deter: int, stoch: int, cfg: DecoderConfig) -> None:
        super().__init__()
        self.vectors, self.images = split_kinds(spec)
        self.groups = by_size(self.images)
        if self.vectors:
            self.mlp = MLP(deter + stoch, cfg.units, cfg.layers)
            self.outputs = nn.ModuleList([Linear(cfg.units, p.width) for p in self.vectors.values()])
        self.cnns = nn.ModuleList([_CNN([self.images[k] for k in g], deter, stoch, cfg) for g in self.groups])

    def forward(self, latent: Latent) -> dict[str, Prediction]:
        """Latents ``[..., D]`` and ``[..., S, C]`` to a prediction of every key."""
        out: dict[str, Prediction] = {}
        deter, stoch = latent.deter, latent.stoch.flatten(-2)
        if self.vectors:
            x = self.mlp(torch.cat([stoch, deter], -1))  # [..., units]
            for (key, part), layer in zip(self.vectors.items(), self.outputs, strict=True):
                y = layer(x)
                out[key] = Classes(y, part.classes) if part.kind == "categorical" else SymlogVector(y, part.shape)
        for group, cnn in zip(self.groups, self.cnns, strict=True):
            channels = [self.images[k].shape[2] for k in group]
            for key, pixels in zip(group, cnn(deter, stoch).split(channels, -1), strict=True):
                out[key] = UnitImage(pixels, self.images[key])
        return out


class _CNN(nn.Module):
    """h (by blocks of channels) plus z to the smallest image, then stages of [doubling convolution, RMS norm, SiLU]."""

    def __init__(self, parts: list[ObsPart], deter: int, stoch: int, cfg: DecoderConfig) -> None:
        super().__init__()
        sizes = stage_sizes(parts[0].shape, len(cfg.mults))
        depths = stage_depths(cfg.depth, cfg.mults, len(sizes) - 1)
        self.sizes = sizes[::-1]  # smallest first
        self.blocks = cfg.blocks
        self.small = (*self.sizes[0], depths[-1])
        pixels = self.small[0] * self.small[1] * self.small[2]
        if depths[-1] % cfg.blocks or deter % cfg.blocks:
            given = f"decoder blocks = {cfg.blocks} must divide the last stage's {depths[-1]} channels"
            raise ConfigError(f"{given} (depth * mults[-1]) and deter = {deter}: change one of them.")
        self.from_deter = BlockLinear(deter, pixels, cfg.blocks)
        self.from_stoch = nn.Sequential(
            Linear(stoch, 2 * cfg.units), RMSNormSiLU(2 * cfg.units), Linear(2 * cfg.units, pixels)
        )
        self.norm = RMSNormSiLU(depths[-1])
        widths = depths[::-1]
        pairs = list(pairwise(widths))
        self.convs = nn.ModuleList([DoublingConv(i, o, cfg.kernel) for i, o in pairs])
        self.norms = nn.ModuleList([RMSNormSiLU(o) for o in widths[1:]])
        self.output = DoublingConv(widths[-1], sum(p.shape[2] for p in parts), cfg.kernel)

    def forward(self, deter: Tensor, stoch: Tensor) -> Tensor:
        """``[..., D]`` and ``[..., S*C]`` to unit pixels ``[..., H, W, channels]``."""
        h, w, c = self.small
        x = self.from_deter(deter.flatten(0, -2))  # [M, blocks * h * w * c / blocks]
        x = x.view(-1, self.blocks, h, w, c // self.blocks).permute(0, 2, 3, 1, 4).reshape(-1, h, w, c)
        x = self.norm(x + self.from_stoch(stoch.flatten(0, -2)).view(-1, h, w, c))  # [M, h, w, c]
        stages = cast(list[tuple[DoublingConv, RMSNormSiLU]], list(zip(self.convs, self.norms, strict=True)))
        for (conv, norm), size in zip(stages, self.sizes[1:-1], strict=True):
            x = _crop(conv_unfold_norm_silu(x, *conv.folded(x.dtype), norm.weight, norm.eps), size)
        pixels = _crop(conv_unfold_sigmoid(x, *self.output.folded(x.dtype)), self.sizes[-1])  # [M, H, W, channels]
        return pixels.view(*deter.shape[:-1], *pixels.shape[1:])


def _crop(x: Tensor, size: tuple[int, int]) -> Tensor:
    """``[M, h, w, C]`` to ``[M, *size, C]``: odd sizes were rounded up on the way down."""
    return x if x.shape[1:3] == size else x[:, : size[0], : size[1]].contiguous()
