"""Networks of goal-conditioned learners: actors and values of observations with a goal, as in OGBench's code.

All have GELU between their layers and Glorot's initialization. Values have a layer norm after each GELU.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from reverie.core.specs import ActionSpec, ObsSpec, num_classes_per_choice, num_continuous
from reverie.core.types import Obs
from reverie.nn.actor_critic import CategoricalActor
from reverie.nn.network import Network, NetworkConfig
from reverie.nn.normals import DiagonalNormal

ACTOR_SCALE = 0.1
"""Factor of the initial weights of an actor's last layer."""


class UnitNormal(DiagonalNormal):
    """N(mean, 1) over ``[..., A]``; the likeliest action is the mean, clipped to [-1, 1]."""

    def __init__(self, mean: Tensor, log_std: Tensor | None = None) -> None:
        super().__init__(mean, mean.new_zeros(()) if log_std is None else log_std)

    def mode(self) -> Tensor:
        return self.mean.clamp(-1, 1)


class NormalActor(Network):
    """A policy pi(a | s, g) = N(f(s, g), 1), without tanh."""

    def __init__(self, obs_spec: ObsSpec, width: int, cfg: NetworkConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(obs_spec, width, cfg, dtype, activation="gelu")

    def forward(self, obs: Obs) -> UnitNormal:  # type: ignore[override]
        return UnitNormal(super().forward(obs))


def build_goal_actor(obs_spec: ObsSpec, action_spec: ActionSpec, cfg: NetworkConfig, dtype: torch.dtype) -> nn.Module:
    """Return a policy of observations with a goal: normal distributions, or the probabilities of classes."""
    actor: Any
    if num_continuous(action_spec):
        actor = NormalActor(obs_spec, action_spec.width, cfg, dtype)
    else:
        actor = CategoricalActor(obs_spec, num_classes_per_choice(action_spec), cfg, dtype, activation="gelu")
    actor.body.initialize_glorot(last=ACTOR_SCALE)
    return cast(nn.Module, actor)
