"""Probes: heads that predict observations from latents beside the world model, to show what these contain."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from reverie.core.checks import check_pattern
from reverie.core.config import Config
from reverie.core.specs import ObsSpec
from reverie.core.types import Obs
from reverie.nn.decoder import Prediction, predicted
from reverie.nn.encoder import numbers, select
from reverie.nn.heads import DenseHeadConfig
from reverie.nn.optim import GlobalAdamConfig


@dataclass(frozen=True, kw_only=True)
class ProbeConfig(Config):
    """Heads of the latents, one for each vector or categorical observation that they predict.

    The world model neither reads nor reconstructs what they predict; what they are given it does, unless left out of
    ``encoder.keys`` and ``decoder.keys``.
    """

    keys: str = ""
    """Regular expression: observations whose whole key matches it are predicted; empty: there are no probes."""
    given: str = ""
    """Regular expression: vectors and categoricals that probes read beside the latents; empty: none."""
    head: DenseHeadConfig = field(default_factory=DenseHeadConfig)
    """Layers of each."""
    gradients: bool = False
    """Whether probes train the latents as well; then they share the world model's optimiser."""
    optim: GlobalAdamConfig = field(default_factory=GlobalAdamConfig)
    """Optimiser of the probes."""

    def __post_init__(self) -> None:
        check_pattern(self, "keys")
        check_pattern(self, "given")

    def build(self, spec: ObsSpec, feature: int) -> Probe:
        """Return the probes for features of ``feature`` numbers.

        Raises:
            ConfigError: no key matches.
        """
        return Probe(spec, feature, self)


class Probe(nn.Module):
    """A head for each key."""

    def __init__(self, spec: ObsSpec, feature: int, cfg: ProbeConfig) -> None:
        super().__init__()
        self.parts, self.given = select(spec, cfg.keys), select(spec, cfg.given) if cfg.given else {}
        inputs = feature + sum(part.width for part in self.given.values())
        bodies = [cfg.head.body(inputs) for _ in self.parts]
        lasts = [cfg.head.last(body.width, p.width) for body, p in zip(bodies, self.parts.values(), strict=True)]
        self.heads = nn.ModuleList(nn.Sequential(*pair) for pair in zip(bodies, lasts, strict=True))

    def forward(self, feature: Tensor, obs: Obs) -> dict[str, Prediction]:
        """Predict each key from features ``[..., F]`` and observations ``[..., *shape]``."""
        x = torch.cat([feature, numbers(obs, self.given).to(feature.dtype)], -1) if self.given else feature
        return {k: predicted(head(x), part) for (k, part), head in zip(self.parts.items(), self.heads, strict=True)}

    def losses(self, feature: Tensor, obs: Obs) -> dict[str, Tensor]:
        """Return -ln p of each key ``[...]``."""
        return {k: prediction.loss(obs[k]) for k, prediction in self(feature, obs).items()}
