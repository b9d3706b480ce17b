"""The recurrent state-space model of DreamerV3: a block-diagonal GRU and categorical latents.

Hafner et al. (2025), equation 1::

    sequence model     h_t = f(h_{t-1}, z_{t-1}, a_{t-1})
    posterior          z_t ~ q(z_t | h_t, x_t)
    prior              z^_t ~ p(z^_t | h_t)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from reverie.core.checks import at_least
from reverie.core.config import Config
from reverie.core.errors import ConfigError
from reverie.nn.compiled_rssm import CompiledRSSM
from reverie.nn.distributions import log_of, straight_through
from reverie.nn.fused import draw, gru, unimix_probs
from reverie.nn.layers import BlockLinear, BlockSteps, Linear, RMSNormSiLU, StepLayers
from reverie.nn.matmul import linear
from reverie.nn.sequence import StepLinear

Chooser = Callable[[Tensor], Tensor]
"""A function from probabilities ``[..., C]`` to class indices ``[...]``, such as sampling or the arg max."""


@dataclass(frozen=True, kw_only=True)
class RSSMConfig(Config):
    """Sizes of the RSSM."""

    deter: int = 2048
    """D, the width of the deterministic state h; a multiple of ``blocks``."""
    hidden: int = 256
    """Width of the hidden layers."""
    stoch: int = 32
    """S, the number of categorical latents."""
    classes: int = 16
    """C, the number of classes of each latent."""
    blocks: int = 8
    """Number of blocks of the block-diagonal recurrent weights."""
    unimix: float = 0.01
    """Share of the uniform distribution mixed into posterior and prior, in [0, 1)."""
    posterior_layers: int = 1
    """Number of hidden layers of the posterior."""
    prior_layers: int = 2
    """Number of hidden layers of the prior."""
    recurrent_layers: int = 1
    """Number of hidden layers before the gates."""

    def __post_init__(self) -> None:
        at_least(self, deter=1, hidden=1, stoch=1, classes=1, blocks=1)
        at_least(self, posterior_layers=0, prior_layers=0, recurrent_layers=0)
        if self.deter % self.blocks:
            raise ConfigError(f"deter = {self.deter} is not a multiple of blocks = {self.blocks}: choose one that is.")
        if not 0 <= self.unimix < 1:
            raise ConfigError(f"unimix = {self.unimix}: expected a share in [0, 1).")

    def build(self, embed: int, action: int) -> RSSM:
        """Return an RSSM for observations of ``embed`` features and flat actions of ``action`` numbers."""
        return RSSM(embed, action, self)


class Latent(NamedTuple):
    """The model state s = (h, z)."""

    deter: Tensor  # [..., D]
    stoch: Tensor  # [..., S, C] one-hot

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

    def __init__(self, inputs: int, hidden: int, layers: int, outputs: int) -> None:
        super().__init__()
        widths = [inputs] + [hidden] * layers + [outputs]
        linears = [Linear(i, o) for i, o in pairwise(widths)]
        self.first = linears[0]
        self.rest = nn.Sequential(*[m for layer in linears[1:] for m in (RMSNormSiLU(hidden), layer)])

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., inputs]`` to logits ``[..., outputs]``."""
        logits: Tensor = self.rest(self.first(x))
        return logits

    @property
    def layers(self) -> nn.Sequential:
        """All layers, in their order."""
        return nn.Sequential(self.first, *self.rest)


def _clipped(action: Tensor) -> Tensor:
    """Clip actions to [-1, 1]. Its gradient is the authors': the factor that clips counts as a constant."""
    if not action.requires_grad:
        return action.clamp(-1, 1)  # the same numbers by one operation
    return action / action.detach().abs().clamp(min=1)


class RSSM(nn.Module):
    """The model of h and z over time, given observations (:meth:`observe`) or its own prior (:meth:`imagine_step`)."""

    def __init__(self, embed: int, action: int, cfg: RSSMConfig) -> None:
        super().__init__()
        self.cfg = cfg
        c = cfg
        self.in_deter = nn.Sequential(Linear(c.deter, c.hidden), RMSNormSiLU(c.hidden))
        self.in_stoch = nn.Sequential(Linear(c.stoch * c.classes, c.hidden), RMSNormSiLU(c.hidden))
        self.in_action = nn.Sequential(Linear(action, c.hidden), RMSNormSiLU(c.hidden))
        extra = [3 * c.hidden] + [0] * c.recurrent_layers  # the first layer also reads the three embedded inputs
        self.recurrent = nn.ModuleList(
            [BlockLinear(c.deter, c.deter, c.blocks, extra[i]) for i in range(c.recurrent_layers)]
        )
        self.recurrent_norms = nn.ModuleList([RMSNormSiLU(c.deter) for _ in range(c.recurrent_layers)])
        self.gates = BlockLinear(c.deter, 3 * c.deter, c.blocks, extra[c.recurrent_layers])
        self.posterior = LogitNet(c.deter + embed, c.hidden, c.posterior_layers, c.stoch * c.classes)
        self.prior_net = LogitNet(c.deter, c.hidden, c.prior_layers, c.stoch * c.classes)
        self.compiled = CompiledRSSM(self, RSSM.cell, RSSM.sequence_step, RSSM.imagine_step, RSSM._probs)

    @property
    def feature_width(self) -> int:
        """F = D + S*C, the width of :attr:`Latent.feature`."""
        return self.cfg.deter + self.cfg.stoch * self.cfg.classes

    @property
    def bounded(self) -> bool:
        """Whether |h| <= 1, as in a GRU. With a ``sequence_step`` of your own it is False, unless you override it."""
        return type(self).sequence_step is RSSM.sequence_step

    def initial(self, rows: int, dtype: torch.dtype) -> Latent:
        """Return the state before the first observation: zeros ``[rows, ...]`` of ``dtype``."""
        weight = self.prior_net.first.weight
        deter = torch.zeros(rows, self.cfg.deter, dtype=dtype, device=weight.device)
        stoch = torch.zeros(rows, self.cfg.stoch, self.cfg.classes, dtype=dtype, device=weight.device)
        return Latent(deter, stoch)

    def action_input(self, action: Tensor) -> Tensor:
        """Embed previous actions ``[..., A]``, clipped to [-1, 1]: ``[..., hidden]``."""
        embedded: Tensor = self.in_action(_clipped(action))
        return embedded

    def cell(self, dtype: torch.dtype) -> Cell:
        """Return the layers of a step, to be prepared once for a whole sequence."""
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
        """Return h_t ``[M, D]`` from the previous latent and the embedded previous action ``[M, hidden]``."""
        inputs = [cell.in_deter(latent.deter), cell.in_stoch(latent.stoch.flatten(1)), action]
        shared: Tensor | None = torch.cat(inputs, -1)  # [M, 3 * hidden]
        x = latent.deter  # [M, D]
        for layer, norm in zip(cell.recurrent, cell.norms, strict=True):
            x, shared = norm(layer(x, shared)), None  # [M, D]
        gates = cell.gates(x, shared).view(len(x), self.cfg.blocks, 3, -1)  # three gates of each block
        return gru(gates, latent.deter)

    def _probs(self, logits: Tensor) -> Tensor:
        return unimix_probs(logits.view(*logits.shape[:-1], self.cfg.stoch, self.cfg.classes), self.cfg.unimix)

    def prior(self, deter: Tensor) -> Tensor:
        """Return p(z | h) as probabilities ``[..., S, C]`` in float32."""
        return self._probs(self.prior_net(deter))

    def named(self, stats: Tensor) -> dict[str, Tensor]:
        """Return z's distribution, as :meth:`prior` gives it, by name: ``logits``, ln p of each class."""
        return {"logits": log_of(stats)}

    def observe(
        self, latent: Latent, embed: Tensor, action: Tensor, is_first: Tensor, choose: Chooser = draw
    ) -> tuple[Latent, Tensor]:
        """Filter a sequence of observations.

        Args:
            latent: the state before the first row, ``[B, ...]``.
            embed: ``[B, T, E]`` embedded observations.
            action: ``[B, T, A]``, the action *before* each row.
            is_first: ``[B, T]`` bool; where it is set, the previous state and action are reset to 0.
            choose: picks the classes of z from their probabilities.

        Returns:
            Posterior latents ``[B, T, ...]`` and posterior probabilities ``[B, T, S, C]``.
        """
        keep = (~is_first).to(embed.dtype)  # [B, T]
        actions = self.action_input((action * keep.unsqueeze(-1)).to(embed.dtype))  # [B, T, hidden]
        # The posterior's first layer is linear in [h, x]: the part for x is computed as one product for all T rows.
        weight, bias = self.posterior.first.weight, self.posterior.first.bias
        weight_h, weight_x = torch.split(weight, [self.cfg.deter, embed.shape[-1]], 1)
        from_embed = linear(embed, weight_x, bias)  # [B, T, hidden]
        if choose is draw and self.compiled.fits(latent):
            deter, stoch, p = self.compiled.observe(latent, actions.transpose(0, 1), from_embed.transpose(0, 1), keep)
            return Latent(deter, stoch), p
        from_deter, rest = StepLinear(weight_h.to(embed.dtype), None), StepLayers(self.posterior.rest, embed.dtype)
        cell, deters, stochs, probs = self.cell(embed.dtype), [], [], []
        for a, x, k in zip(actions.unbind(1), from_embed.unbind(1), keep.unbind(1), strict=True):
            latent = Latent(latent.deter * k[:, None], latent.stoch * k[:, None, None])
            deter = self.sequence_step(latent, a, cell)  # [B, D]
            p = self._probs(rest(from_deter(deter, x)))  # [B, S, C]
            latent = Latent(deter, straight_through(p, choose(p)).to(deter.dtype))
            deters.append(latent.deter)
            stochs.append(latent.stoch)
            probs.append(p)
        return Latent(torch.stack(deters, 1), torch.stack(stochs, 1)), torch.stack(probs, 1)

    def observe_step(
        self, latent: Latent, embed: Tensor, action: Tensor, is_first: Tensor, choose: Chooser = draw
    ) -> Latent:
        """Do :meth:`observe` for a single row ``[N, ...]``, and return its latent."""
        post, _ = self.observe(latent, embed[:, None], action[:, None], is_first[:, None], choose)
        return post.map(lambda x: x[:, 0])

    def imagine_step(self, latent: Latent, action: Tensor, cell: Cell, choose: Chooser = draw) -> Latent:
        """Take one step under the prior, from a latent ``[M, ...]`` and flat actions ``[M, A]`` to the next latent."""
        deter = self.sequence_step(latent, cell.in_action(_clipped(action.to(latent.deter.dtype))), cell)
        probs = self._probs(cell.prior(deter))
        return Latent(deter, straight_through(probs, choose(probs)).to(deter.dtype))

    def dream_step(self, feature: Tensor, action: Tensor, out: Tensor, cell: Cell, choose: Chooser = draw) -> None:
        """Do :meth:`imagine_step` without gradient, from features ``[M, F]`` to features ``out`` ``[M, F]``."""
        latent = self.split(feature)
        if choose is draw and self.compiled.fits(latent):
            self.compiled.dream_step(feature, cell.in_action(_clipped(action.to(feature.dtype))), out, cell)
        else:
            self.imagine_step(latent, action, cell, choose).write_feature(out)

    def split(self, feature: Tensor) -> Latent:
        """Return the latent of a feature ``[..., F]``: the inverse of :attr:`Latent.feature`."""
        deter, stoch = torch.split(feature, [self.cfg.deter, self.cfg.stoch * self.cfg.classes], -1)
        return Latent(deter, stoch.view(*stoch.shape[:-1], self.cfg.stoch, self.cfg.classes))
