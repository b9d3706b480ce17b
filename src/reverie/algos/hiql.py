"""HIQL: Park et al., "HIQL: Offline goal-conditioned RL with latent states as actions", NeurIPS 2023.

As in OGBench's code (impls/agents/hiql.py). A value V(s, phi(s, g)) is learned as in GCIVL. A high-level policy
chooses phi(s, w) of a state w on the way to the goal, and a low-level policy the action toward w. Values, their targets
and the low-level policy share phi, which has no target network.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor, nn

from reverie.algos.goal_conditioned import ExpectileConfig, GoalConditioned
from reverie.core.bounds import AtLeast, Within
from reverie.core.goals import GoalSampling
from reverie.core.kernel_dispatch import NotesChanges
from reverie.core.specs import GOAL, ActionSpec, ObsSpec, without_mask
from reverie.core.types import Batch, Obs
from reverie.nn.goal_networks import PHI, HierarchicalActor, SubgoalEncoder, build_goal_network, with_phi
from reverie.nn.target_network import TargetNetwork
from reverie.objectives.goals import (
    imitation_loss,
    implicit_value_loss,
    next_and_goal,
    obs_of_goal,
    progress,
    rows_and_goal,
    start_and_goal,
)  # fmt: skip
from reverie.objectives.td import Losses

# ---------------------------------------------------------------------- losses


class HIQLObjective(NotesChanges, nn.Module):
    """The losses of HIQL.

    ``phi(obs)`` maps observations with a goal to representations ``[..., D]``, and ``value(obs)`` observations with a
    representation to the values ``[2, ...]`` of both networks.
    """

    def __init__(self, actor: HierarchicalActor, value: nn.Module, phi: nn.Module, cfg: HIQLConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.actor = actor
        self.value = value
        self.phi = phi
        self.target_value: TargetNetwork = TargetNetwork(value, cfg.tau)

    def forward(self, batch: Batch) -> Losses:
        """Return the terms ``value``, ``actor/low`` and ``actor/high`` of a batch ``[B, 2]``."""
        value, low, high = self.value_loss(batch), self.low_actor_loss(batch), self.high_actor_loss(batch)
        return Losses(value.terms | low.terms | high.terms, value.metrics | low.metrics | high.metrics)

    def represent(self, obs: Obs) -> Obs:
        """Return observations with a goal, with the goal's representation too."""
        return obs | {PHI: self.phi(obs)}

    def value_loss(self, batch: Batch) -> Losses:
        """Return the term ``value``: see :func:`~reverie.objectives.goals.implicit_value_loss`.

        Its gradient also trains phi. The targets use the same phi, without gradient.
        """
        start = self.represent(start_and_goal(batch, "value"))  # [B, 1, ...]
        with torch.no_grad():
            after = self.phi(next_and_goal(batch, "value"))
            rows = batch.obs | {PHI: torch.cat([start[PHI], after], 1)}  # [B, 2, ...]
        return implicit_value_loss(
            self.value(start), self.target_value(rows), batch, self.cfg.discount, self.cfg.expectile
        )

    def low_actor_loss(self, batch: Batch) -> Losses:
        """Return the term ``actor/low``: E[-min(exp(alpha (V(s', w) - V(s, w))), 100) ln pi(a | s, phi(s, w))]."""
        rows, start = rows_and_goal(batch, "low"), start_and_goal(batch, "low")
        with torch.no_grad():
            rows = self.represent(rows)
            advantage = progress(self.value(rows).mean(0))  # [B, 1]
        start = self.represent(start) if self.cfg.actor_trains_phi else start | {PHI: rows[PHI][:, :1]}
        log_pi = self.actor.low(start).log_prob(batch.action[:, :-1])
        return imitation_loss(log_pi, advantage, self.cfg.low_alpha, batch, "/low")

    def high_actor_loss(self, batch: Batch) -> Losses:
        """Return the term ``actor/high``: E[-min(exp(alpha (V(w, g) - V(s, g))), 100) ln pi(phi(s, w) | s, g)].

        w is the state that the episode reaches after K steps.
        """
        start, goal = start_and_goal(batch, "actor"), rows_and_goal(batch, "actor")
        target = obs_of_goal(batch, "high")  # [B, 1, ...]
        with torch.no_grad():
            pair = goal | {key: torch.cat([start[key], x], 1) for key, x in target.items()}  # [B, 2, ...]
            advantage = progress(self.value(self.represent(pair)).mean(0))  # [B, 1]
            subgoal = self.phi(start_and_goal(batch, "high"))  # [B, 1, D]
        log_pi = self.actor.high(start).log_prob(subgoal)
        return imitation_loss(log_pi, advantage, self.cfg.high_alpha, batch, "/high")

    def values(self, obs: Obs, _: Tensor) -> Tensor:
        """V(s, g) of observations with a goal, ``[...]``; actions do not matter."""
        values: Tensor = self.value(self.represent(obs)).mean(0)
        return values


# ---------------------------------------------------------------------- learner


class HIQL(GoalConditioned):
    """The learner of HIQL: two policies, two values and phi, their update and the policy."""

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: HIQLConfig, device: torch.device) -> None:
        super().__init__(obs_spec, cfg, device)
        spec, width = self.preprocess.spec, cfg.representation_width
        actor = HierarchicalActor(spec, action_spec, width, cfg.networks, cfg.dtype)
        value = build_goal_network(with_phi(spec, width), None, cfg.networks, cfg.dtype, copies=2)
        phi = SubgoalEncoder(spec, width, cfg.networks, cfg.dtype)
        self.objective: HIQLObjective = HIQLObjective(actor, value, phi, cfg)
        self.make_optim_and_policy()

    @property
    def goal_sampling(self) -> GoalSampling:
        keys = [key for key in without_mask(self.preprocess.spec) if not key.startswith(GOAL)]  # a target is a state
        return replace(super().goal_sampling, keys=keys, subgoal_steps=self.cfg.subgoal_steps)


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class HIQLConfig(ExpectileConfig):
    """Settings of HIQL, with the defaults of OGBench's code."""

    expectile: Annotated[float, Within("(0, 1)")] = 0.7
    """Tau: a value is this expectile of its targets. At 0.5 it is their mean; near 1 it approaches their maximum."""
    low_alpha: Annotated[float, Within("[0, inf]")] = 3.0
    """Inverse temperature of the weights exp(alpha A) of the low-level policy: 0 imitates all actions equally."""
    high_alpha: Annotated[float, Within("[0, inf]")] = 3.0
    """Inverse temperature of the weights of the high-level policy."""
    subgoal_steps: Annotated[int, AtLeast(1)] = 25
    """K, steps from a state to its subgoal. The authors use 25 in mazes of points and ants, 100 of humanoids, and 10
    for manipulation."""
    representation_width: Annotated[int, AtLeast(1)] = 10
    """D, the width of phi."""
    actor_trains_phi: bool = False
    """Train phi by the loss of the low-level policy, too. The authors do so for images."""


HIQLConfig.learner = HIQL
