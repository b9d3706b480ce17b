"""GCIVL: goal-conditioned implicit V-learning, of OGBench (Park et al., ICLR 2025; its code: impls/agents/gcivl.py).

A variant of IQL without action values. The value of a state is an expectile of its one-step targets, with a weight by
the target networks and an error by the networks. The policy imitates the actions that lead toward the goal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from reverie.algos.goal_conditioned import ExpectileConfig, GoalConditioned
from reverie.core.bounds import Within
from reverie.core.kernel_dispatch import NotesChanges
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Batch, Obs
from reverie.nn.goal_networks import build_goal_actor, build_goal_network
from reverie.nn.target_network import TargetNetwork
from reverie.objectives.goals import imitation_loss, implicit_value_loss, progress, rows_and_goal, start_and_goal
from reverie.objectives.td import Losses

# ---------------------------------------------------------------------- losses


class GCIVLObjective(NotesChanges, nn.Module):
    """The losses of GCIVL.

    For observations with a goal, ``actor(obs)`` gives a distribution with ``log_prob(action)`` ``[...]`` and
    ``value(obs)`` the values ``[2, ...]`` of both networks.
    """

    def __init__(self, actor: nn.Module, value: nn.Module, cfg: GCIVLConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.actor = actor
        self.value = value
        self.target_value: TargetNetwork = TargetNetwork(value, cfg.tau)

    def forward(self, batch: Batch) -> Losses:
        """Return the terms ``value`` and ``actor`` of a batch ``[B, 2]``."""
        value, actor = self.value_loss(batch), self.actor_loss(batch)
        return Losses(value.terms | actor.terms, value.metrics | actor.metrics)

    def value_loss(self, batch: Batch) -> Losses:
        """Return the term ``value``: see :func:`~reverie.objectives.goals.implicit_value_loss`."""
        targets = self.target_value(rows_and_goal(batch, "value"))  # [2, B, 2]
        values = self.value(start_and_goal(batch, "value"))  # [2, B, 1]
        return implicit_value_loss(values, targets, batch, self.cfg.discount, self.cfg.expectile)

    def actor_loss(self, batch: Batch) -> Losses:
        """Return the term ``actor``: E[-min(exp(alpha (V(s', g) - V(s, g))), 100) ln pi(a | s, g)]."""
        with torch.no_grad():
            advantage = progress(self.value(rows_and_goal(batch, "actor")).mean(0))  # [B, 1]
        policy = self.actor(start_and_goal(batch, "actor"))
        return imitation_loss(policy.log_prob(batch.action[:, :-1]), advantage, self.cfg.alpha, batch)

    def values(self, obs: Obs, _: Tensor) -> Tensor:
        """V(s, g) of observations with a goal, ``[...]``; actions do not matter."""
        values: Tensor = self.value(obs).mean(0)
        return values


# ---------------------------------------------------------------------- learner


class GCIVL(GoalConditioned):
    """The learner of GCIVL: an actor and two values, their update and the policy."""

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: GCIVLConfig, device: torch.device) -> None:
        super().__init__(obs_spec, cfg, device)
        actor = build_goal_actor(self.preprocess.spec, action_spec, cfg.networks, cfg.dtype)
        value = build_goal_network(self.preprocess.spec, None, cfg.networks, cfg.dtype, copies=2)
        self.objective: GCIVLObjective = GCIVLObjective(actor, value, cfg)
        self.make_optim_and_policy()


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class GCIVLConfig(ExpectileConfig):
    """Settings of GCIVL, with the defaults of OGBench's code."""

    alpha: Annotated[float, Within("[0, inf]")] = 10.0
    """Inverse temperature of the actor's weights exp(alpha A): 0 imitates all actions equally."""


GCIVLConfig.learner = GCIVL
