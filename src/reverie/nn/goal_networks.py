"""Networks of goal-conditioned learners: actors and values of observations with a goal, as in OGBench's code.

All have GELU between their layers and Glorot's initialization. Values have a layer norm after each GELU.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.core.specs import GOAL, ActionSpec, ObsPart, ObsSpec, num_classes_per_choice, num_continuous
from reverie.core.types import Obs
from reverie.nn.actors import CategoricalActor
from reverie.nn.network import Network, NetworkConfig
from reverie.nn.normals import ClippedNormal
from reverie.objectives.goals import interval_distance

PHI = "(phi)"
"""Key of a representation ``[..., D]`` of a state or of a goal among observations."""
ACTOR_SCALE = 0.1
"""Factor of the initial weights of an actor's last layer."""


class NormalActor(Network):
    """A policy pi(a | s, g) = N(f(s, g), 1), without tanh."""

    def __init__(self, obs_spec: ObsSpec, width: int, cfg: NetworkConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(obs_spec, width, cfg, dtype, activation="gelu")
        body: Any = self.body
        body.initialize_glorot(last=ACTOR_SCALE)

    def forward(self, obs: Obs) -> ClippedNormal:  # type: ignore[override]
        mean: Tensor = super().forward(obs)
        return ClippedNormal(mean, mean.new_zeros(mean.shape[-1]))


def build_goal_actor(obs_spec: ObsSpec, action_spec: ActionSpec, cfg: NetworkConfig, dtype: torch.dtype) -> nn.Module:
    """Return a policy of observations with a goal: normal distributions, or the probabilities of classes."""
    if num_continuous(action_spec):
        return NormalActor(obs_spec, action_spec.width, cfg, dtype)
    actor = CategoricalActor(obs_spec, num_classes_per_choice(action_spec), cfg, dtype, activation="gelu")
    body: Any = actor.body
    body.initialize_glorot(last=ACTOR_SCALE)
    return actor


def build_goal_network(
    obs_spec: ObsSpec, outputs: int | None, cfg: NetworkConfig, dtype: torch.dtype, *, copies: int | None = None,
    extra_inputs: int = 0,
) -> Network:  # fmt: skip
    """Return a network of values or representations; the arguments are those of :class:`Network`."""
    network = Network(
        obs_spec, outputs, cfg, dtype, extra_inputs=extra_inputs, is_critic=True, copies=copies, activation="gelu"
    )
    body: Any = network.body
    body.initialize_glorot()
    return network


def _without_goal(spec: ObsSpec) -> ObsSpec:
    """Return ``spec`` without the goal."""
    return {key: part for key, part in spec.items() if not key.startswith(GOAL)}


def with_phi(spec: ObsSpec, width: int) -> ObsSpec:
    """Return ``spec`` with a representation of ``width`` numbers instead of the goal."""
    return {**_without_goal(spec), PHI: ObsPart(kind="vector", shape=(width,), dtype="float32")}


# ---------------------------------------------------------------------- HIQL


def _scale(x: Tensor) -> Tensor:
    """Return representations ``[..., D]`` scaled to the length sqrt(D); zeros, which have no direction, stay zeros.

    The first update has zeros where a normalized state and its goal are the mean: their gradient would be infinite.
    """
    is_zero = (x == 0).all(-1, keepdim=True)
    return F.normalize(x, dim=-1).masked_fill(is_zero, 0.0) * math.sqrt(x.shape[-1])


class SubgoalEncoder(nn.Module):
    """phi(s, g), the representation ``[..., D]`` of a goal relative to a state, of length sqrt(D)."""

    def __init__(self, obs_spec: ObsSpec, width: int, cfg: NetworkConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.network: Network = build_goal_network(obs_spec, width, cfg, dtype)

    def forward(self, obs: Obs) -> Tensor:
        return _scale(self.network(obs))


class HierarchicalActor(nn.Module):
    """A policy pi(a | s, z) toward a representation z of a subgoal, which another policy chooses for the goal.

    z is the mean of N(f(s, g), I), scaled to the length sqrt(D).
    """

    def __init__(
        self, obs_spec: ObsSpec, action_spec: ActionSpec, width: int, cfg: NetworkConfig, dtype: torch.dtype
    ) -> None:
        """``width``: D."""
        super().__init__()
        self.high: NormalActor = NormalActor(obs_spec, width, cfg, dtype)
        self.low: nn.Module = build_goal_actor(with_phi(obs_spec, width), action_spec, cfg, dtype)

    def subgoal(self, obs: Obs) -> Tensor:
        """Return the representation ``[..., D]`` that is chosen for observations with a goal."""
        return _scale(self.high(obs).mean)

    def forward(self, obs: Obs) -> Any:
        """Return the distribution of actions for observations with a goal."""
        return self.low(obs | {PHI: self.subgoal(obs)})


# ---------------------------------------------------------------------- CRL and QRL


class BilinearValue(nn.Module):
    """K values f(s, a, g) = phi(s, a)^T psi(g) / sqrt(D), or f(s, g) without an action."""

    def __init__(
        self, obs_spec: ObsSpec, inputs: int, copies: int, width: int, cfg: NetworkConfig, dtype: torch.dtype
    ) -> None:
        """``inputs``: width of an action, or 0. ``copies``: K. ``width``: D."""
        super().__init__()
        goal = {key: part for key, part in obs_spec.items() if key.startswith(GOAL)}
        self.phi: Network = build_goal_network(
            _without_goal(obs_spec), width, cfg, dtype, copies=copies, extra_inputs=inputs
        )
        self.psi: Network = build_goal_network(goal, width, cfg, dtype, copies=copies)
        self.scale: float = width**-0.5

    def forward(self, obs: Obs, *action: Tensor) -> Tensor:
        """Return the values ``[K, ...]`` of observations with a goal and of actions ``[..., A]``."""
        values: Tensor = (self.phi(obs, *action) * self.psi(obs)).sum(-1)
        return self.scale * values

    def pairs(self, obs: Obs, *action: Tensor) -> Tensor:
        """Return the values ``[K, B, B]`` of each of B states, ``[B, 1, ...]``, with each of their goals."""
        phi, psi = self.phi(obs, *action).flatten(1, 2), self.psi(obs).flatten(1, 2)  # [K, B, D]
        logits: Tensor = self.scale * phi @ psi.mT
        return logits


class Quasimetric(nn.Module):
    """A distance from representations to representations, ``[..., D]`` each, that obeys the triangle inequality.

    See :func:`~reverie.objectives.goals.interval_distance`, whose mixture of mean and maximum is learned.
    """

    def __init__(self) -> None:
        super().__init__()
        self.mixture: nn.Parameter = nn.Parameter(torch.zeros(()))

    def forward(self, start: Tensor, goal: Tensor) -> Tensor:
        """Return distances ``[...]``."""
        return interval_distance(start, goal, self.mixture.sigmoid())
