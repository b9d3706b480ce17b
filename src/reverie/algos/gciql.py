"""GCIQL: goal-conditioned implicit Q-learning, of OGBench (Park et al., ICLR 2025; its code: impls/agents/gciql.py).

IQL with goals, and with a choice of the policy's loss. Unlike IQL, all networks take a step on the same losses.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reverie.algos.goal_conditioned import ActorLossConfig, ExpectileConfig, GoalConditioned
from reverie.core.kernel_dispatch import NotesChanges
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Batch, Obs
from reverie.nn.goal_networks import build_goal_actor, build_goal_network
from reverie.nn.optim import frozen
from reverie.nn.target_network import TargetNetwork
from reverie.objectives.goals import (
    expectile_error,
    imitation_loss,
    next_and_goal,
    start_and_goal,
    value_imitation_loss,
)
from reverie.objectives.returns import transition_mask
from reverie.objectives.td import Losses, masked_mean, squared_error

# ---------------------------------------------------------------------- losses


class GCIQLObjective(NotesChanges, nn.Module):
    """The losses of GCIQL.

    For observations with a goal, ``actor(obs)`` gives a distribution with ``log_prob(action)`` and ``mode()``,
    ``critic(obs, action)`` the values ``[2, ...]`` of both critics and ``value(obs)`` a value ``[...]``.
    """

    def __init__(self, actor: nn.Module, critic: nn.Module, value: nn.Module, cfg: GCIQLConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.actor = actor
        self.critic = critic
        self.value = value
        self.target_critic: TargetNetwork = TargetNetwork(critic, cfg.tau)

    def forward(self, batch: Batch) -> Losses:
        """Return the terms ``value``, ``critic`` and ``actor`` of a batch ``[B, 2]``."""
        value, critic, actor = self.value_loss(batch), self.critic_loss(batch), self.actor_loss(batch)
        metrics = value.metrics | critic.metrics | actor.metrics
        return Losses(value.terms | critic.terms | actor.terms, metrics)

    def value_loss(self, batch: Batch) -> Losses:
        """L_V = E[abs(tau - 1(u < 0)) u^2], u = min_i Q'_i(s, a, g) - V(s, g)."""
        obs, mask = start_and_goal(batch, "value"), transition_mask(batch.is_last)
        value = self.value(obs)  # [B, 1]
        error = self.target_critic(obs, batch.action[:, :-1]).amin(0) - value
        loss = masked_mean(expectile_error(error, error, self.cfg.expectile), mask)
        return Losses({"value": loss}, {"train/state_value": masked_mean(value.detach(), mask)})

    def critic_loss(self, batch: Batch) -> Losses:
        """L_Q = sum_i E[(r + gamma (1 - terminal) V(s', g) - Q_i(s, a, g))^2]."""
        with torch.no_grad():
            after = self.value(next_and_goal(batch, "value"))  # [B, 1]
        target = batch.reward[:, 1:] + self.cfg.discount * ~batch.is_terminal[:, 1:] * after
        return squared_error(self.critic(start_and_goal(batch, "value"), batch.action[:, :-1]), target, batch)

    def actor_loss(self, batch: Batch) -> Losses:
        """Return the term ``actor``, with Q = min_i Q_i(s, a, g), and V(s, g) for the advantage."""
        obs, action = start_and_goal(batch, "actor"), batch.action[:, :-1]
        policy = self.actor(obs)
        if self.cfg.actor_loss == "awr":
            with torch.no_grad():
                advantage = self.critic(obs, action).amin(0) - self.value(obs)  # [B, 1]
            return imitation_loss(policy.log_prob(action), advantage, self.cfg.alpha, batch)
        with frozen(self.critic):
            value = self.critic(obs, policy.mode()).amin(0)  # [B, 1]
        return value_imitation_loss(value, policy.log_prob(action), self.cfg.alpha, batch)

    def values(self, obs: Obs, action: Tensor) -> Tensor:
        """Q_i(s, a, g) ``[2, ...]`` of observations with a goal and actions ``[..., A]``."""
        values: Tensor = self.critic(obs, action)
        return values


# ---------------------------------------------------------------------- learner


class GCIQL(GoalConditioned):
    """The learner of GCIQL: an actor, two critics and a value, their update and the policy."""

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: GCIQLConfig, device: torch.device) -> None:
        super().__init__(obs_spec, cfg, device)
        spec, c = self.preprocess.spec, cfg.networks
        actor = build_goal_actor(spec, action_spec, c, cfg.dtype)
        critic = build_goal_network(spec, None, c, cfg.dtype, copies=2, extra_inputs=action_spec.width)
        value = build_goal_network(spec, None, c, cfg.dtype)
        self.objective: GCIQLObjective = GCIQLObjective(actor, critic, value, cfg)
        self.make_optim_and_policy()


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class GCIQLConfig(ActorLossConfig, ExpectileConfig):
    """Settings of GCIQL, with the defaults of OGBench's code."""


GCIQLConfig.learner = GCIQL
