"""The recurrent state-space model of DreamerV3 (Hafner et al. 2025): a block-diagonal GRU and categorical latents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from reverie.core.bounds import AtLeast, Within
from reverie.core.config import Config
from reverie.core.errors import ConfigError
from reverie.nn.distributions import safe_log, straight_through
from reverie.nn.functional import gru, sample_classes, unimix_probs
from reverie.nn.layers import BlockLinear, Linear, RMSNormSiLU
from reverie.nn.state_space import LogitNet, StateSpaceModel


class RSSM(StateSpaceModel):
    """A block-diagonal GRU, and a posterior and a prior over S categorical variables of C classes."""

    def __init__(self, embed: int, action: int, cfg: RSSMConfig) -> None:
        super().__init__()
        self.cfg = c = cfg
        self.in_deter: nn.Sequential = nn.Sequential(Linear(c.deter, c.hidden), RMSNormSiLU(c.hidden))
        self.in_stoch: nn.Sequential = nn.Sequential(Linear(c.stoch * c.classes, c.hidden), RMSNormSiLU(c.hidden))
        self.in_action: nn.Sequential = nn.Sequential(Linear(action, c.hidden), RMSNormSiLU(c.hidden))
        extra = [3 * c.hidden] + [0] * c.recurrent_layers  # the first layer also reads the three embedded inputs
        blocks = [BlockLinear(c.deter, c.deter, c.blocks, shared_width) for shared_width in extra[:-1]]
        self.recurrent: nn.ModuleList = nn.ModuleList(blocks)
        self.recurrent_norms: nn.ModuleList = nn.ModuleList([RMSNormSiLU(c.deter) for _ in range(c.recurrent_layers)])
        self.gates: BlockLinear = BlockLinear(c.deter, 3 * c.deter, c.blocks, extra[-1])
        logits = c.stoch * c.classes
        self.posterior: LogitNet = LogitNet([c.deter + embed, *[c.hidden] * c.posterior_layers, logits])
        self.prior_net: LogitNet = LogitNet([c.deter, *[c.hidden] * c.prior_layers, logits])

    def step(self, h: Tensor, z: Tensor, action: Tensor) -> Tensor:
        """f: a block-diagonal GRU; each block reads its part of h, and the embedded h, z and action."""
        inputs = [self.in_deter(h), self.in_stoch(z.flatten(1)), self.in_action(bound(action))]  # [M, hidden] each
        shared: Tensor | None = torch.cat(inputs, -1)  # [M, 3 hidden], which the first layer alone reads
        x = h  # [M, D]
        for layer, norm in zip(self.recurrent, self.recurrent_norms, strict=True):
            x, shared = norm(layer(x, shared)), None
        gates = self.gates(x, shared).view(len(h), self.cfg.blocks, 3, -1)  # three gates of each block
        return gru(gates, h)

    def stats(self, logits: Tensor) -> Tensor:
        """Return probabilities ``[..., S, C]`` in float32, with unimix."""
        return unimix_probs(logits.view(*logits.shape[:-1], self.cfg.stoch, self.cfg.classes), self.cfg.unimix)

    def sample(self, stats: Tensor) -> Tensor:
        """Return one-hot z ``[..., S, C]`` with the straight-through gradient."""
        return straight_through(stats, (self.draw or sample_classes)(stats))

    def stats_by_name(self, stats: Tensor) -> dict[str, Tensor]:
        """Return ``logits``, ln p of each class."""
        return {"logits": safe_log(stats)}

    @property
    def is_bounded(self) -> bool:
        """Whether |h| <= 1, as in a GRU. False for a custom ``step``, unless overridden."""
        return type(self).step is RSSM.step


def bound(action: Tensor) -> Tensor:
    """Clip actions to [-1, 1]. As in the authors' code, the gradient treats the clipping factor as a constant."""
    if not action.requires_grad:
        return action.clamp(-1, 1)  # the same numbers by one operation
    return action / action.detach().abs().clamp(min=1)


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
