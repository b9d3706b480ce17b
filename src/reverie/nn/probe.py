"""Probes: additional heads that predict observations from latents, to show the information in them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor, nn

from reverie.core.bounds import Regex
from reverie.core.config import Choice, Config
from reverie.core.specs import ObsPart, ObsSpec
from reverie.core.types import Metrics, Obs
from reverie.nn.adam import GlobalAdamConfig
from reverie.nn.decoder import Prediction, make_prediction
from reverie.nn.encoder import select_keys, vectors_and_one_hots
from reverie.nn.heads import DenseHeadConfig
from reverie.objectives.kl import importance_bound


@dataclass(frozen=True)
class ProbeHead(Choice, ABC):
    """Which observations are predicted, and the layers that predict them."""

    keys: Annotated[str, Regex()] = ""
    """Regular expression: vectors and categoricals whose whole key matches it are predicted, each by its own layers."""
    inputs: Annotated[str, Regex()] = ""
    """Regular expression: vectors and categoricals that are inputs in addition to the latents. Empty: none."""

    @abstractmethod
    def build(self, inputs: int, outputs: int) -> nn.Module:
        """Return the layers of one key: from ``[..., inputs]`` to ``[..., outputs]``."""


@dataclass(frozen=True)
class Mlp(DenseHeadConfig, ProbeHead):
    """Dense layers: ``MapProbeHead`` and ``GoalsProbe`` of PyDreamer (models/probes.py)."""

    def build(self, inputs: int, outputs: int) -> nn.Module:
        body = self.hidden_layers(inputs)
        return nn.Sequential(body, self.output_layer(body.width, outputs))


@dataclass(frozen=True, kw_only=True)
class ProbeConfig(Config):
    """Heads of the latents, one for each vector or categorical observation that they predict.

    The world model neither encodes nor reconstructs their targets; it does encode and reconstruct their inputs, unless
    excluded from ``encoder.keys`` and ``decoder.keys``.
    """

    heads: tuple[ProbeHead, ...] = ()
    """What is predicted, such as mlp('map', inputs='map_coord') mlp('goal.*', units=200); none by default."""
    gradients: bool = False
    """Whether probes train the latents as well; then they share the world model's optimizer. Not on DreamerV3."""
    optim: GlobalAdamConfig = field(default_factory=GlobalAdamConfig)
    """Optimizer of the probes."""

    def targets(self, spec: ObsSpec) -> list[str]:
        """Return the keys that are predicted, in their order."""
        return [key for head in self.heads for key in select_keys(spec, head.keys)]

    def model_parts(self, spec: ObsSpec) -> ObsSpec:
        """Return the parts that the world model reads."""
        probed = self.targets(spec)
        return {key: part for key, part in spec.items() if key not in probed}


class Probe(nn.Module):
    """A head for each key."""

    def __init__(self, spec: ObsSpec, feature: int, cfg: ProbeConfig) -> None:
        super().__init__()
        self.gradients: bool = cfg.gradients
        self.parts: dict[str, ObsPart] = {key: spec[key] for key in cfg.targets(spec)}
        self.given: dict[str, ObsSpec] = {}
        heads = []
        for head in cfg.heads:
            spec_read = select_keys(spec, head.inputs) if head.inputs else {}
            inputs = feature + sum(part.width for part in spec_read.values())
            for key, part in select_keys(spec, head.keys).items():
                self.given[key] = spec_read
                heads.append(head.build(inputs, part.width))
        self.heads: nn.ModuleList = nn.ModuleList(heads)

    def forward(self, feature: Tensor, obs: Obs, keys: Collection[str] | None = None) -> dict[str, Prediction]:
        """Predict ``keys``, or all, from features ``[..., F]`` and the inputs among observations ``[..., *shape]``."""
        out = {}
        for (key, part), head in zip(self.parts.items(), self.heads, strict=True):
            if keys is None or key in keys:
                x = feature
                if spec_read := self.given[key]:
                    x = torch.cat([feature, vectors_and_one_hots(obs, spec_read).to(feature.dtype)], -1)
                out[key] = make_prediction(head(x), part)
        return out

    def loss(self, feature: Tensor, obs: Obs, samples: int = 1) -> tuple[Tensor, Metrics]:
        """Return the sum of all heads' losses ``[]`` on features ``[B * samples, T, F]``, and their metrics."""
        predictions = self(feature if self.gradients else feature.detach(), obs)
        losses = {k: importance_bound(v.loss(obs[k]), samples).mean() for k, v in predictions.items()}
        metrics = {f"loss/probe/{k}": v.detach() for k, v in losses.items()}
        metrics |= {f"train/probe/{k}": v for k, v in self.errors(predictions, obs, samples).items()}
        return torch.stack(list(losses.values())).sum(), metrics

    def errors(self, predictions: Mapping[str, Prediction], obs: Obs, samples: int = 1) -> Metrics:
        """Return ``KEY_accuracy`` of classes and ``KEY_mse`` of numbers, of rows ``[B * samples, T]``.

        Predictions are averaged over the samples of a row: the accuracy is the share of elements whose likeliest class
        is the true one, the error the mean square over all numbers.
        """
        metrics = {}
        for key, prediction in predictions.items():
            mean, target = prediction.value().detach(), obs[key][::samples]
            mean = mean.view(len(target), samples, *mean.shape[1:]).float().mean(1)  # [B, T, ...]
            if self.parts[key].kind == "categorical":
                metrics[f"{key}_accuracy"] = (mean.argmax(-1) == target.reshape(mean.shape[:-1])).float().mean()
            else:
                metrics[f"{key}_mse"] = (mean - target).square().mean()
        return metrics
