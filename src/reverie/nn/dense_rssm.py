"""The recurrent state-space models of DreamerV1 and V2: dense layers, their cells and kinds of latents."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.core.bounds import AtLeast
from reverie.core.config import Choice, Config
from reverie.nn.distributions import straight_through
from reverie.nn.functional import gru, sample_classes
from reverie.nn.layers import Activation, Dense, LayerNorm, Linear, Norm, norm_act
from reverie.nn.normals import Normal
from reverie.nn.state_space import LatentDraw, LogitNet, StateSpaceModel
from reverie.objectives.kl import categorical_kl, gaussian_kl


@dataclass(frozen=True)
class LatentDistribution(Choice, ABC):
    """The distribution of z: S variables, each with C numbers in the feature."""

    @property
    @abstractmethod
    def classes(self) -> int:
        """C."""

    @property
    def outputs(self) -> int:
        """Numbers that a network outputs for each variable."""
        return self.classes

    @abstractmethod
    def stats(self, outputs: Tensor) -> Tensor:
        """Return the statistics ``[..., S, n]`` of a network's outputs ``[..., S * outputs]``, in float32."""

    @abstractmethod
    def sample(self, stats: Tensor, draw: LatentDraw | None) -> Tensor:
        """Return z ``[..., S, C]`` with gradient."""

    @abstractmethod
    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        """Return KL(p || q) ``[...]`` in nats, summed over the variables, from statistics ``[..., S, n]``."""

    @abstractmethod
    def log_prob(self, stats: Tensor, z: Tensor) -> Tensor:
        """Return ln p(z) ``[...]`` of z ``[..., S, C]``, summed over the variables, from statistics ``[..., S, n]``."""

    @abstractmethod
    def entropy(self, stats: Tensor) -> Tensor:
        """Return the entropy ``[...]`` in nats, summed over the variables."""

    @abstractmethod
    def stats_by_name(self, stats: Tensor) -> dict[str, Tensor]:
        """Return the statistics by name."""


@dataclass(frozen=True)
class Categorical(LatentDistribution):
    """One-hot vectors with the straight-through gradient: Hafner et al. (2021), algorithm 1.

    Statistics are the log-probabilities ``[..., S, C]``.
    """

    count: Annotated[int, AtLeast(1)] = 32
    """C, classes of each variable."""

    @property
    def classes(self) -> int:
        return self.count

    def stats(self, outputs: Tensor) -> Tensor:
        return torch.log_softmax(outputs.float().view(*outputs.shape[:-1], -1, self.count), -1)

    def sample(self, stats: Tensor, draw: LatentDraw | None) -> Tensor:
        probs = stats.exp()
        return straight_through(probs, (draw or sample_classes)(probs))

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        return categorical_kl(p, q)

    def log_prob(self, stats: Tensor, z: Tensor) -> Tensor:
        """Return ln p ``[...]`` of z, whose classes get no gradient."""
        return (stats * z.detach()).sum((-2, -1))

    def entropy(self, stats: Tensor) -> Tensor:
        return -(stats.exp() * stats).sum((-2, -1))

    def stats_by_name(self, stats: Tensor) -> dict[str, Tensor]:
        """Return ``logits``, ln p of each class, ``[..., S, C]``."""
        return {"logits": stats}


STD: dict[str, Callable[[Tensor], Tensor]] = {
    "softplus": F.softplus,
    "sigmoid": torch.sigmoid,
    "sigmoid2": lambda x: 2 * torch.sigmoid(x / 2),
    "double_sigmoid": lambda x: 2 * torch.sigmoid(x),
}
"""Functions from a network's output to a standard deviation."""


@dataclass(frozen=True)
class Gaussian(LatentDistribution):
    """Normal variables, reparameterized: Hafner et al. (2020). Statistics are mean and std ``[..., S, 2]``."""

    std: Literal["softplus", "sigmoid", "sigmoid2", "double_sigmoid"] = "softplus"
    """Function of the output that becomes the standard deviation; sigmoid2(x) is 2 sigmoid(x / 2), double_sigmoid(x) is
    2 sigmoid(x)."""
    min_std: Annotated[float, AtLeast(0)] = 0.1
    """Added to the standard deviation, 0 or more."""

    classes: ClassVar[int] = 1
    outputs: ClassVar[int] = 2

    def stats(self, outputs: Tensor) -> Tensor:
        mean, std = outputs.float().chunk(2, -1)  # [..., S]
        return torch.stack([mean, STD[self.std](std) + self.min_std], -1)

    def sample(self, stats: Tensor, draw: LatentDraw | None) -> Tensor:
        mean, std = stats.unbind(-1)  # [..., S]
        return (mean + std * (draw or torch.randn_like)(mean)).unsqueeze(-1)

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        return gaussian_kl(p, q)

    def log_prob(self, stats: Tensor, z: Tensor) -> Tensor:
        mean, std = stats.unbind(-1)
        return Normal(mean, std=std).log_prob(z[..., 0])

    def entropy(self, stats: Tensor) -> Tensor:
        mean, std = stats.unbind(-1)
        return Normal(mean, std=std).entropy()

    def stats_by_name(self, stats: Tensor) -> dict[str, Tensor]:
        """Return ``mean`` and ``std``, ``[..., S]``."""
        return {"mean": stats[..., 0], "std": stats[..., 1]}


class LayerNormGRU(nn.Module):
    """The GRU of DreamerV2: one layer norm over all three gates; the update gate begins at sigmoid(-1)."""

    def __init__(self, inputs: int, deter: int, bias: bool = True) -> None:
        super().__init__()
        self.layer: Dense = Dense(inputs + deter, 3 * deter, bias)
        self.norm: LayerNorm = LayerNorm(3 * deter)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        """Return the next h from the inputs x ``[M, inputs]`` and h ``[M, D]``."""
        gates = self.norm(self.layer(torch.cat([x, h], -1)))  # [M, 3 D]
        return gru(gates.view(len(h), 1, 3, -1), h)


class KerasGRU(nn.Module):
    """The GRU of DreamerV1, Keras and PyTorch: h' = u h + (1 - u) tanh(c(x) + r c(h)), with two biases.

    ``normed``: with a layer norm of each gate and no biases, ``gru_layernorm`` of PyDreamer; h' = u n + (1 - u) h.
    """

    def __init__(self, inputs: int, deter: int, normed: bool = False) -> None:
        super().__init__()
        self.from_input: Dense = Dense(inputs, 3 * deter, bias=not normed)
        self.from_state: Dense = Dense(deter, 3 * deter, bias=not normed)
        nn.init.orthogonal_(self.from_state.weight)
        self.norms: nn.ModuleList = nn.ModuleList([LayerNorm(deter) if normed else nn.Identity() for _ in range(3)])
        self.normed = normed

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        """Return the next h from the inputs x ``[M, inputs]`` and h ``[M, D]``."""
        return self.gate(self.from_input(x), self.from_state(h), h)

    def gate(self, from_x: Tensor, from_h: Tensor, h: Tensor) -> Tensor:
        """Return the next h ``[M, D]`` from the parts ``[M, 3 D]`` of update, reset and candidate by x and by h."""
        (update, reset, new), (update_h, reset_h, new_h) = from_x.chunk(3, -1), from_h.chunk(3, -1)
        update_norm, reset_norm, new_norm = self.norms
        new = torch.tanh(new_norm(new + torch.sigmoid(reset_norm(reset + reset_h)) * new_h))  # [M, D]
        share = torch.sigmoid(update_norm(update + update_h))
        return torch.lerp(h, new, share) if self.normed else torch.lerp(new, h, share)


MakeCell = Callable[[int, int], LayerNormGRU | KerasGRU]
"""Builds a recurrent cell for given widths of its input and of h: a module from ``[M, inputs]``, ``[M, D]`` to h."""

CELLS: dict[str, MakeCell] = {
    "layer_norm_gru": LayerNormGRU,
    "bare_layer_norm_gru": partial(LayerNormGRU, bias=False),  # ``gru_layernorm_dv2`` of PyDreamer
    "keras_gru": KerasGRU,
    "normed_gates_gru": partial(KerasGRU, normed=True),
}


class CellStack(nn.Module):
    """Stacked cells, each with its part of h: the first reads the inputs, each other one reads the cell below."""

    def __init__(self, make: MakeCell, inputs: int, deter: int, layers: int) -> None:
        super().__init__()
        width = deter // layers
        self.cells: nn.ModuleList = nn.ModuleList([make(width if i else inputs, width) for i in range(layers)])

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        """Return the next h from the inputs x ``[M, inputs]`` and h ``[M, D]``."""
        shares = []
        for cell, share in zip(self.cells, h.chunk(len(self.cells), -1), strict=True):
            x = cell(x, share.contiguous())
            shares.append(x)
        return torch.cat(shares, -1)


@dataclass(frozen=True, kw_only=True)
class DenseRSSMConfig(Config):
    """Sizes and parts of the RSSM of DreamerV1 and V2."""

    deter: Annotated[int, AtLeast(1)] = 1024
    """D, the width of the deterministic state h."""
    hidden: Annotated[int, AtLeast(1)] = 1024
    """Width of the hidden layers."""
    stoch: Annotated[int, AtLeast(1)] = 32
    """S, the number of latent variables."""
    latent: LatentDistribution = field(default_factory=Categorical)
    """Distribution of each latent variable: categorical(32) has 32 classes, gaussian(std=sigmoid2) is a number."""
    cell: Literal["layer_norm_gru", "bare_layer_norm_gru", "keras_gru", "normed_gates_gru"] = "layer_norm_gru"
    """The recurrent cell: layer_norm_gru of DreamerV2, bare_layer_norm_gru without a bias, keras_gru of DreamerV1 (also
    PyTorch's GRU), or normed_gates_gru with a norm of each gate."""
    layers: Annotated[int, AtLeast(1)] = 1
    """Number of stacked cells, a divisor of ``deter``: each has its part of h."""
    norm: Norm = "none"
    """Normalization before each activation."""
    act: Activation = "elu"
    """Activation of the hidden layers."""
    init: Literal["joint", "split"] = "joint"
    """Initial weights of layers with two inputs, such as h and the observation: initialized as one layer, or split into
    two, with orthogonal weights of h in the cell, as in PyDreamer (functions.py: init_weights_tf2)."""

    @property
    def classes(self) -> int:
        """C, the numbers of each latent variable."""
        return self.latent.classes

    def build(self, embed: int, action: int) -> DenseRSSM:
        """Return an RSSM for observations of ``embed`` features and flat actions of ``action`` numbers."""
        return DenseRSSM(embed, action, self)


class DenseRSSM(StateSpaceModel):
    """The RSSM of DreamerV1 and V2: dense layers around a cell; Hafner et al. (2020), equation 9 and (2021), 1."""

    cfg: DenseRSSMConfig

    def __init__(self, embed: int, action: int, cfg: DenseRSSMConfig) -> None:
        super().__init__()
        self.cfg = c = cfg

        def after(width: int) -> list[nn.Module]:
            return norm_act(width, c.norm, c.act)

        self.width: int = c.stoch * c.classes
        self.input: Dense = Dense(self.width + action, c.hidden)  # reads [z, a]
        self.after: nn.Sequential = nn.Sequential(*after(c.hidden))
        make = CELLS[c.cell]
        self.gru: KerasGRU | LayerNormGRU | CellStack = (
            make(c.hidden, c.deter) if c.layers == 1 else CellStack(make, c.hidden, c.deter, c.layers)
        )
        outputs = c.stoch * c.latent.outputs
        self.posterior: LogitNet = LogitNet((c.deter + embed, c.hidden, outputs), Dense, after)
        self.prior_net: LogitNet = LogitNet((c.deter, c.hidden, outputs), Dense, after)
        if c.init == "split":
            self._split(self.input, self.width)
            self._split(self.posterior.first, c.deter)
            for cell in self.gru.modules():
                if isinstance(cell, LayerNormGRU):
                    nn.init.orthogonal_(self._split(cell.layer, -(c.deter // c.layers)))

    @staticmethod
    def _split(layer: Linear, column: int) -> Tensor:
        """Initialize the weights of the inputs before and after ``column`` as two layers; return the latter."""
        parts = layer.weight.detach().tensor_split([column], 1)
        return [nn.init.xavier_uniform_(part) for part in parts][1]

    def step(self, h: Tensor, z: Tensor, action: Tensor) -> Tensor:
        """f: a dense layer of z and the action, then the cell."""
        x = self.after(self.input(torch.cat([z.flatten(1), action], -1)))  # [M, hidden]
        next_h: Tensor = self.gru(x, h)
        return next_h

    def stats(self, logits: Tensor) -> Tensor:
        return self.cfg.latent.stats(logits)

    def sample(self, stats: Tensor) -> Tensor:
        return self.cfg.latent.sample(stats, self.draw)

    def stats_by_name(self, stats: Tensor) -> dict[str, Tensor]:
        return self.cfg.latent.stats_by_name(stats)
