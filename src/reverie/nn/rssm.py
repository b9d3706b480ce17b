"""Recurrent state-space models: that of DreamerV3, and those of DreamerV1 and V2 with their cells and latents.

Hafner et al. (2025), equation 1::

    sequence model     h_t = f(h_{t-1}, z_{t-1}, a_{t-1})
    posterior          z_t ~ q(z_t | h_t, x_t)
    prior              z^_t ~ p(z^_t | h_t)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.core.accelerate import accelerated
from reverie.core.bounds import AtLeast, Within
from reverie.core.config import Choice, Config
from reverie.core.errors import ConfigError
from reverie.nn.distributions import Normal, log_of, straight_through
from reverie.nn.functional import StepLinear, draw, gru, linear, step_linear, unimix_probs
from reverie.nn.layers import (
    Activation,
    BlockLinear,
    BlockSteps,
    Dense,
    LayerNorm,
    Linear,
    Norm,
    RMSNormSiLU,
    StepLayers,
    norm_act,
)
from reverie.objectives.kl import categorical_kl, gaussian_kl

LatentDraw = Callable[[Tensor], Tensor]
"""What is random in z: a function from probabilities ``[..., C]`` to class indices ``[...]``, such as the arg max; for
Gaussian latents from means ``[...]`` to standard normal noise ``[...]``."""


@dataclass(frozen=True, kw_only=True)
class RSSMConfig(Config):
    """Sizes of the RSSM."""

    deter: Annotated[int, AtLeast(1)] = 2048
    """D, the width of the deterministic state h; a multiple of ``blocks``."""
    hidden: Annotated[int, AtLeast(1)] = 256
    """Width of the hidden layers."""
    stoch: Annotated[int, AtLeast(1)] = 32
    """S, the number of categorical latents."""
    classes: Annotated[int, AtLeast(1)] = 16
    """C, the number of classes of each latent."""
    blocks: Annotated[int, AtLeast(1)] = 8
    """Number of blocks of the block-diagonal recurrent weights."""
    unimix: Annotated[float, Within("[0, 1)")] = 0.01
    """Share of the uniform distribution mixed into posterior and prior, in [0, 1)."""
    posterior_layers: Annotated[int, AtLeast(0)] = 1
    """Number of hidden layers of the posterior."""
    prior_layers: Annotated[int, AtLeast(0)] = 2
    """Number of hidden layers of the prior."""
    recurrent_layers: Annotated[int, AtLeast(0)] = 1
    """Number of hidden layers before the gates."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.deter % self.blocks:
            raise ConfigError(f"deter = {self.deter} is not a multiple of blocks = {self.blocks}: choose one that is.")

    def build(self, embed: int, action: int) -> RSSM:
        """Return an RSSM for observations of ``embed`` features and flat actions of ``action`` numbers."""
        return RSSM(embed, action, self)


class Latent(NamedTuple):
    """The model state s = (h, z)."""

    deter: Tensor  # [..., D]
    stoch: Tensor  # [..., S, C] one-hot; Gaussian latents have C = 1

    @property
    def feature(self) -> Tensor:
        """The input of heads, h and z concatenated: ``[..., D + S*C]``."""
        return torch.cat([self.deter, self.stoch.flatten(-2)], -1)

    def write_feature(self, out: Tensor) -> None:
        """Write :attr:`feature` into ``out`` ``[..., D + S*C]``."""
        # ``out.data`` hides the write from autograd, which may have saved other rows of this memory and would complain.
        torch.cat([self.deter, self.stoch.flatten(-2)], -1, out=out.data)

    def map(self, fn: Callable[[Tensor], Tensor]) -> Latent:
        """Apply ``fn`` to both tensors."""
        return Latent(fn(self.deter), fn(self.stoch))


class Cell(NamedTuple):
    """The layers of the sequence model and the prior, prepared once for all steps of a sequence."""

    in_deter: StepLayers
    in_stoch: StepLayers
    in_action: StepLayers
    recurrent: list[BlockSteps]
    norms: list[RMSNormSiLU]
    gates: BlockSteps
    prior: StepLayers


class LogitNet(nn.Module):
    """An MLP that outputs logits. Its first linear layer is separate, so that it can be computed in two parts."""

    def __init__(
        self,
        widths: Sequence[int],
        linear: Callable[[int, int], Linear] = Linear,
        after: Callable[[int], list[nn.Module]] = lambda width: [RMSNormSiLU(width)],
    ) -> None:
        """``linear`` makes each linear layer, ``after`` the norm and activation after all but the last."""
        super().__init__()
        linears = [linear(i, o) for i, o in pairwise(widths)]
        self.first: Linear = linears[0]
        rest = [m for layer in linears[1:] for m in (*after(layer.weight.shape[1]), layer)]
        self.rest: nn.Sequential = nn.Sequential(*rest)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., inputs]`` to logits ``[..., outputs]``."""
        logits: Tensor = self.rest(self.first(x))
        return logits

    @property
    def layers(self) -> nn.Sequential:
        """All layers, in their order."""
        return nn.Sequential(self.first, *self.rest)


class StateSpaceModel(nn.Module, ABC):
    """The model of h and z over time, given observations (:meth:`observe`) or its own prior (:meth:`imagine_step`)."""

    cfg: Any
    posterior: LogitNet
    prior_net: LogitNet

    @property
    def feature_width(self) -> int:
        """F = D + S*C, the width of :attr:`Latent.feature`."""
        return int(self.cfg.deter + self.cfg.stoch * self.cfg.classes)

    def initial(self, rows: int, dtype: torch.dtype) -> Latent:
        """Return the state before the first observation: zeros ``[rows, ...]`` of ``dtype``."""
        weight = self.prior_net.first.weight
        deter = torch.zeros(rows, self.cfg.deter, dtype=dtype, device=weight.device)
        stoch = torch.zeros(rows, self.cfg.stoch, self.cfg.classes, dtype=dtype, device=weight.device)
        return Latent(deter, stoch)

    def bound(self, action: Tensor) -> Tensor:
        """Return the actions ``[..., A]`` that the model sees."""
        return action

    @abstractmethod
    def action_input(self, action: Tensor) -> Tensor:
        """Embed previous actions ``[..., A]``: ``[..., hidden]``."""

    @abstractmethod
    def cell(self, dtype: torch.dtype) -> Any:
        """Return the layers of a step, to be prepared once for a whole sequence. It has ``in_action`` and ``prior``."""

    @abstractmethod
    def sequence_step(self, latent: Latent, action: Tensor, cell: Any) -> Tensor:
        """Return h_t ``[M, D]`` from the previous latent and the embedded previous action ``[M, hidden]``."""

    @abstractmethod
    def stats(self, logits: Tensor) -> Tensor:
        """Return the statistics ``[..., S, n]`` of z's distribution, in float32, from a network's outputs."""

    @abstractmethod
    def sample(self, stats: Tensor, draw_z: LatentDraw | None) -> Tensor:
        """Return z ``[..., S, C]`` with gradient, drawn by ``draw_z``; None: at random."""

    @abstractmethod
    def named(self, stats: Tensor) -> dict[str, Tensor]:
        """Return the statistics of z's distribution, as :meth:`prior` gives them, by name."""

    def prior(self, deter: Tensor) -> Tensor:
        """Return p(z | h) as statistics ``[..., S, n]``."""
        return self.stats(self.prior_net(deter))

    def observe(
        self, latent: Latent, embed: Tensor, action: Tensor, is_first: Tensor, draw_z: LatentDraw | None = None
    ) -> tuple[Latent, Tensor]:
        """Return the posterior's latents ``[B, T, ...]`` and statistics ``[B, T, S, n]`` of a sequence.

        Args:
            latent: the state before the first row, ``[B, ...]``.
            embed: ``[B, T, E]`` embedded observations.
            action: ``[B, T, A]``, the action *before* each row.
            is_first: ``[B, T]`` bool; where it is set, the previous state and action are reset to 0.
            draw_z: what is random in z; None samples.
        """
        keep = (~is_first).to(embed.dtype)  # [B, T]
        actions = self.action_input((action * keep.unsqueeze(-1)).to(embed.dtype))  # [B, T, hidden]
        # The posterior's first layer is linear in [h, x]: the part for x is computed as one product for all T rows.
        weight_x = self.posterior.first.weight[:, self.cfg.deter :]
        from_embed = linear(embed, weight_x, self.posterior.first.bias)  # [B, T, hidden]
        return self.filter(latent, actions, from_embed, keep, draw_z)

    @accelerated
    def filter(
        self, latent: Latent, actions: Tensor, from_embed: Tensor, keep: Tensor, draw_z: LatentDraw | None
    ) -> tuple[Latent, Tensor]:
        """Do the recurrent part of :meth:`observe`: its other inputs ``[B, T, ...]`` are computed already."""
        dtype = from_embed.dtype
        weight_h = self.posterior.first.weight[:, : self.cfg.deter]
        from_deter, rest = step_linear(weight_h.to(dtype), None), StepLayers(self.posterior.rest, dtype)
        cell, deters, stochs, stats = self.cell(dtype), [], [], []
        for a, x, k in zip(actions.unbind(1), from_embed.unbind(1), keep.unbind(1), strict=True):
            latent = Latent(latent.deter * k[:, None], latent.stoch * k[:, None, None])
            deter = self.sequence_step(latent, a, cell)  # [B, D]
            p = self.stats(rest(from_deter(deter, x)))  # [B, S, n]
            latent = Latent(deter, self.sample(p, draw_z).to(deter.dtype))
            deters.append(latent.deter)
            stochs.append(latent.stoch)
            stats.append(p)
        return Latent(torch.stack(deters, 1), torch.stack(stochs, 1)), torch.stack(stats, 1)

    def observe_step(
        self, latent: Latent, embed: Tensor, action: Tensor, is_first: Tensor, draw_z: LatentDraw | None = None
    ) -> Latent:
        """Do :meth:`observe` for a single row ``[N, ...]``, and return its latent."""
        post, _ = self.observe(latent, embed[:, None], action[:, None], is_first[:, None], draw_z)
        return post.map(lambda x: x[:, 0])

    def imagine_step(self, latent: Latent, action: Tensor, cell: Any, draw_z: LatentDraw | None = None) -> Latent:
        """Take one step under the prior, from a latent ``[M, ...]`` and flat actions ``[M, A]`` to the next latent."""
        deter = self.sequence_step(latent, cell.in_action(self.bound(action.to(latent.deter.dtype))), cell)
        return Latent(deter, self.sample(self.stats(cell.prior(deter)), draw_z).to(deter.dtype))

    @accelerated
    def dream_step(
        self, feature: Tensor, action: Tensor, out: Tensor, cell: Any, draw_z: LatentDraw | None = None
    ) -> None:
        """Do :meth:`imagine_step` without gradient, from features ``[M, F]`` to features ``out`` ``[M, F]``."""
        self.imagine_step(self.split(feature), action, cell, draw_z).write_feature(out)

    def split(self, feature: Tensor) -> Latent:
        """Return the latent of a feature ``[..., F]``: the inverse of :attr:`Latent.feature`."""
        deter, stoch = torch.split(feature, [self.cfg.deter, self.cfg.stoch * self.cfg.classes], -1)
        return Latent(deter, stoch.view(*stoch.shape[:-1], self.cfg.stoch, self.cfg.classes))


# ---------------------------------------------------------------------- DreamerV3


class RSSM(StateSpaceModel):
    """The recurrent state-space model of DreamerV3: a block-diagonal GRU and categorical latents."""

    def __init__(self, embed: int, action: int, cfg: RSSMConfig) -> None:
        super().__init__()
        self.cfg = c = cfg
        self.in_deter: nn.Sequential = nn.Sequential(Linear(c.deter, c.hidden), RMSNormSiLU(c.hidden))
        self.in_stoch: nn.Sequential = nn.Sequential(Linear(c.stoch * c.classes, c.hidden), RMSNormSiLU(c.hidden))
        self.in_action: nn.Sequential = nn.Sequential(Linear(action, c.hidden), RMSNormSiLU(c.hidden))
        extra = [3 * c.hidden] + [0] * c.recurrent_layers  # the first layer also reads the three embedded inputs
        blocks = [BlockLinear(c.deter, c.deter, c.blocks, more) for more in extra[:-1]]
        self.recurrent: nn.ModuleList = nn.ModuleList(blocks)
        self.recurrent_norms: nn.ModuleList = nn.ModuleList([RMSNormSiLU(c.deter) for _ in range(c.recurrent_layers)])
        self.gates: BlockLinear = BlockLinear(c.deter, 3 * c.deter, c.blocks, extra[-1])
        logits = c.stoch * c.classes
        self.posterior: LogitNet = LogitNet([c.deter + embed, *[c.hidden] * c.posterior_layers, logits])
        self.prior_net: LogitNet = LogitNet([c.deter, *[c.hidden] * c.prior_layers, logits])

    @property
    def bounded(self) -> bool:
        """Whether |h| <= 1, as in a GRU. With a ``sequence_step`` of your own it is False, unless you override it."""
        return type(self).sequence_step is RSSM.sequence_step

    def bound(self, action: Tensor) -> Tensor:
        """Clip actions to [-1, 1]. Its gradient is the authors': the factor that clips counts as a constant."""
        if not action.requires_grad:
            return action.clamp(-1, 1)  # the same numbers by one operation
        return action / action.detach().abs().clamp(min=1)

    def action_input(self, action: Tensor) -> Tensor:
        embedded: Tensor = self.in_action(self.bound(action))
        return embedded

    def cell(self, dtype: torch.dtype) -> Cell:
        return Cell(
            in_deter=StepLayers(self.in_deter, dtype),
            in_stoch=StepLayers(self.in_stoch, dtype),
            in_action=StepLayers(self.in_action, dtype),
            recurrent=[layer.steps(dtype) for layer in self.recurrent if isinstance(layer, BlockLinear)],
            norms=[norm for norm in self.recurrent_norms if isinstance(norm, RMSNormSiLU)],
            gates=self.gates.steps(dtype),
            prior=StepLayers(self.prior_net.layers, dtype),
        )

    def sequence_step(self, latent: Latent, action: Tensor, cell: Cell) -> Tensor:
        inputs = [cell.in_deter(latent.deter), cell.in_stoch(latent.stoch.flatten(1)), action]
        shared: Tensor | None = torch.cat(inputs, -1)  # [M, 3 * hidden]
        x = latent.deter  # [M, D]
        for layer, norm in zip(cell.recurrent, cell.norms, strict=True):
            x, shared = norm(layer(x, shared)), None  # [M, D]
        gates = cell.gates(x, shared).view(len(x), self.cfg.blocks, 3, -1)  # three gates of each block
        return gru(gates, latent.deter)

    def stats(self, logits: Tensor) -> Tensor:
        """Return probabilities ``[..., S, C]`` in float32, with unimix."""
        return unimix_probs(logits.view(*logits.shape[:-1], self.cfg.stoch, self.cfg.classes), self.cfg.unimix)

    def sample(self, stats: Tensor, draw_z: LatentDraw | None) -> Tensor:
        """Return one-hot z ``[..., S, C]`` with the straight-through gradient."""
        return straight_through(stats, (draw_z or draw)(stats))

    def named(self, stats: Tensor) -> dict[str, Tensor]:
        """Return z's distribution by name: ``logits``, ln p of each class."""
        return {"logits": log_of(stats)}


# ---------------------------------------------------------------------- DreamerV1 and V2


@dataclass(frozen=True)
class LatentKind(Choice, ABC):
    """What z is: S variables, each with C numbers in the feature."""

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
    def sample(self, stats: Tensor, draw_z: LatentDraw | None) -> Tensor:
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
    def named(self, stats: Tensor) -> dict[str, Tensor]:
        """Return the statistics by name."""


@dataclass(frozen=True)
class Categorical(LatentKind):
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

    def sample(self, stats: Tensor, draw_z: LatentDraw | None) -> Tensor:
        probs = stats.exp()
        return straight_through(probs, (draw_z or draw)(probs))

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        return categorical_kl(p, q)

    def log_prob(self, stats: Tensor, z: Tensor) -> Tensor:
        """See :class:`LatentKind`. Classes get no gradient."""
        return (stats * z.detach()).sum((-2, -1))

    def entropy(self, stats: Tensor) -> Tensor:
        return -(stats.exp() * stats).sum((-2, -1))

    def named(self, stats: Tensor) -> dict[str, Tensor]:
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
class Gaussian(LatentKind):
    """Normal variables, reparameterised: Hafner et al. (2020). Statistics are mean and deviation ``[..., S, 2]``."""

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

    def sample(self, stats: Tensor, draw_z: LatentDraw | None) -> Tensor:
        mean, std = stats.unbind(-1)  # [..., S]
        return (mean + std * (draw_z or torch.randn_like)(mean)).unsqueeze(-1)

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        return gaussian_kl(p, q)

    def log_prob(self, stats: Tensor, z: Tensor) -> Tensor:
        return Normal(*stats.unbind(-1)).log_prob(z[..., 0])

    def entropy(self, stats: Tensor) -> Tensor:
        return Normal(*stats.unbind(-1)).entropy()

    def named(self, stats: Tensor) -> dict[str, Tensor]:
        """Return ``mean`` and ``std``, ``[..., S]``."""
        return {"mean": stats[..., 0], "std": stats[..., 1]}


class LayerNormGRU(nn.Module):
    """The GRU of DreamerV2: one layer norm over all three gates; the update gate begins at sigmoid(-1)."""

    def __init__(self, inputs: int, deter: int, bias: bool = True) -> None:
        super().__init__()
        self.layer: Dense = Dense(inputs + deter, 3 * deter, bias)
        self.norm: LayerNorm = LayerNorm(3 * deter)

    def steps(self, dtype: torch.dtype) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the step from ``x [M, inputs]`` and ``h [M, D]`` to the next h, for a whole sequence."""
        layer = self.layer.steps(dtype)

        def step(x: Tensor, h: Tensor) -> Tensor:
            gates = self.norm(layer(torch.cat([x, h], -1)))  # [M, 3 D]
            return gru(gates.view(len(h), 1, 3, -1), h)

        return step


class KerasGRU(nn.Module):
    """The GRU of DreamerV1, that of Keras and PyTorch: h' = u h + (1 - u) tanh(c(x) + r c(h)), with two biases.

    ``normed``: with a layer norm of each gate and no biases, ``gru_layernorm`` of PyDreamer; h' = u n + (1 - u) h.
    """

    def __init__(self, inputs: int, deter: int, normed: bool = False) -> None:
        super().__init__()
        self.from_input: Dense = Dense(inputs, 3 * deter, bias=not normed)
        self.from_state: Dense = Dense(deter, 3 * deter, bias=not normed)
        nn.init.orthogonal_(self.from_state.weight)
        self.norms: nn.ModuleList = nn.ModuleList([LayerNorm(deter) if normed else nn.Identity() for _ in range(3)])
        self.normed = normed

    def steps(self, dtype: torch.dtype) -> Callable[[Tensor, Tensor], Tensor]:
        from_input, from_state = self.from_input.steps(dtype), self.from_state.steps(dtype)
        update_norm, reset_norm, new_norm = self.norms

        def step(x: Tensor, h: Tensor) -> Tensor:
            (update, reset, new), (update_h, reset_h, new_h) = from_input(x).chunk(3, -1), from_state(h).chunk(3, -1)
            new = torch.tanh(new_norm(new + torch.sigmoid(reset_norm(reset + reset_h)) * new_h))  # [M, D]
            share = torch.sigmoid(update_norm(update + update_h))
            return torch.lerp(h, new, share) if self.normed else torch.lerp(new, h, share)

        return step


MakeCell = Callable[[int, int], LayerNormGRU | KerasGRU]
"""A recurrent cell for the numbers of its inputs and of h: a module with a method ``steps``."""

CELLS: dict[str, MakeCell] = {
    "layer_norm_gru": LayerNormGRU,
    "bare_layer_norm_gru": partial(LayerNormGRU, bias=False),  # ``gru_layernorm_dv2`` of PyDreamer
    "keras_gru": KerasGRU,
    "normed_gates_gru": partial(KerasGRU, normed=True),
}


class CellStack(nn.Module):
    """Cells one above the other, each with its share of h: the first reads the inputs, the others the one below."""

    def __init__(self, make: MakeCell, inputs: int, deter: int, layers: int) -> None:
        super().__init__()
        width = deter // layers
        self.cells: nn.ModuleList = nn.ModuleList([make(width if i else inputs, width) for i in range(layers)])

    def steps(self, dtype: torch.dtype) -> Callable[[Tensor, Tensor], Tensor]:
        steps = [cell.steps(dtype) for cell in self.cells if isinstance(cell, LayerNormGRU | KerasGRU)]

        def step(x: Tensor, h: Tensor) -> Tensor:
            out = []
            for one, share in zip(steps, h.chunk(len(steps), -1), strict=True):
                x = one(x, share.contiguous())
                out.append(x)
            return torch.cat(out, -1)

        return step


@dataclass(frozen=True, kw_only=True)
class DenseRSSMConfig(Config):
    """Sizes and parts of the RSSM of DreamerV1 and V2."""

    deter: Annotated[int, AtLeast(1)] = 1024
    """D, the width of the deterministic state h."""
    hidden: Annotated[int, AtLeast(1)] = 1024
    """Width of the hidden layers."""
    stoch: Annotated[int, AtLeast(1)] = 32
    """S, the number of latent variables."""
    latent: LatentKind = field(default_factory=Categorical)
    """What each of them is: categorical(32) has 32 classes, gaussian(std=sigmoid2) is a number."""
    cell: Literal["layer_norm_gru", "bare_layer_norm_gru", "keras_gru", "normed_gates_gru"] = "layer_norm_gru"
    """The recurrent cell: layer_norm_gru of DreamerV2, the same without a bias, keras_gru of DreamerV1 (also PyTorch's
    GRU), or that with a norm of each gate."""
    layers: Annotated[int, AtLeast(1)] = 1
    """Number of cells one above the other, a divisor of ``deter``: each has its share of h."""
    norm: Norm = "none"
    """Normalisation before each activation."""
    act: Activation = "elu"
    """Activation of the hidden layers."""
    init: Literal["joint", "split"] = "joint"
    """Initial weights of layers that read two things, such as h and the observation: drawn as of one layer, or split as
    of two, with orthogonal weights of h in the cell, as in PyDreamer (functions.py: init_weights_tf2)."""

    @property
    def classes(self) -> int:
        """C, the numbers of each latent variable."""
        return self.latent.classes

    def build(self, embed: int, action: int) -> DenseRSSM:
        """Return an RSSM for observations of ``embed`` features and flat actions of ``action`` numbers."""
        return DenseRSSM(embed, action, self)


class DenseCell(NamedTuple):
    """The layers of a step of :class:`DenseRSSM`, prepared once for all steps of a sequence."""

    in_stoch: StepLinear
    in_action: StepLinear
    after: nn.Sequential
    step: Callable[[Tensor, Tensor], Tensor]
    prior: StepLayers


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
    def _split(layer: Linear, place: int) -> Tensor:
        """Draw the weights of the inputs before and after ``place`` anew, as of two layers; return the latter."""
        parts = layer.weight.detach().tensor_split([place], 1)
        return [nn.init.xavier_uniform_(part) for part in parts][1]

    def action_input(self, action: Tensor) -> Tensor:
        """Return the part of the first layer for previous actions ``[..., A]``, with its bias: ``[..., hidden]``."""
        return linear(action, self.input.weight[:, self.width :], self.input.bias)

    def cell(self, dtype: torch.dtype) -> DenseCell:
        weight = self.input.weight.to(dtype)
        return DenseCell(
            in_stoch=step_linear(weight[:, : self.width], None),
            in_action=step_linear(weight[:, self.width :], self.input.bias.to(dtype)),
            after=self.after,
            step=self.gru.steps(dtype),
            prior=StepLayers(self.prior_net.layers, dtype),
        )

    def sequence_step(self, latent: Latent, action: Tensor, cell: DenseCell) -> Tensor:
        return cell.step(cell.after(cell.in_stoch(latent.stoch.flatten(1), action)), latent.deter)

    def stats(self, logits: Tensor) -> Tensor:
        return self.cfg.latent.stats(logits)

    def named(self, stats: Tensor) -> dict[str, Tensor]:
        return self.cfg.latent.named(stats)

    def sample(self, stats: Tensor, draw_z: LatentDraw | None) -> Tensor:
        return self.cfg.latent.sample(stats, draw_z)
