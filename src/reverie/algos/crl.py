"""CRL: Eysenbach et al., "Contrastive learning as goal-conditioned reinforcement learning", NeurIPS 2022.

As in OGBench's code (impls/agents/crl.py). Critics learn to tell a later state of an episode, the goal, from those of
other episodes. Their outputs are logits, whose differences are those of ln p(g | s, a), the discounted probability to
visit the goal. There is no bootstrapping, and no target network.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor, nn

from reverie.algos.base import Algorithm
from reverie.algos.goal_conditioned import ActorLossConfig, GoalConditioned
from reverie.core.bounds import AtLeast
from reverie.core.goals import GoalShares
from reverie.core.kernel_dispatch import NotesChanges
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Batch, Obs, PolicyOutput
from reverie.nn.goal_networks import BilinearValue, build_goal_actor
from reverie.nn.optim import frozen
from reverie.objectives.goals import contrastive_loss, imitation_loss, start_and_goal, value_imitation_loss
from reverie.objectives.td import Losses

# ---------------------------------------------------------------------- losses


class CRLObjective(NotesChanges, nn.Module):
    """The losses of CRL over an actor, two critics f_e(s, a, g) and, for ``awr``, a value f(s, g)."""

    def __init__(self, actor: nn.Module, critic: BilinearValue, value: BilinearValue | None, cfg: CRLConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.actor = actor
        self.critic = critic
        self.value = value

    def forward(self, batch: Batch) -> Losses:
        """Return the terms ``critic``, ``actor`` and, for ``awr``, ``value`` of a batch ``[B, 2]``.

        Those of critics and value are :func:`~reverie.objectives.goals.contrastive_loss` of all pairs in the batch.
        """
        obs, actor = start_and_goal(batch, "value"), self.actor_loss(batch)
        terms = {"critic": contrastive_loss(self.critic.pairs(obs, batch.action[:, :-1]))}
        if self.value is not None:
            terms["value"] = contrastive_loss(self.value.pairs(obs))
        return Losses(terms | actor.terms, actor.metrics)

    def actor_loss(self, batch: Batch) -> Losses:
        """Return the term ``actor``, with Q = min_e f_e(s, a, g), and V = f(s, g) for the advantage."""
        obs, action = start_and_goal(batch, "actor"), batch.action[:, :-1]
        policy = self.actor(obs)
        if self.value is not None:
            with torch.no_grad():
                advantage = self.critic(obs, action).amin(0) - self.value(obs).squeeze(0)  # [B, 1]
            return imitation_loss(policy.log_prob(action), advantage, self.cfg.alpha, batch)
        with frozen(self.critic):
            value = self.critic(obs, policy.mode()).amin(0)  # [B, 1]
        return value_imitation_loss(value, policy.log_prob(action), self.cfg.alpha, batch)

    def values(self, obs: Obs, action: Tensor) -> Tensor:
        """f_e(s, a, g) ``[2, ...]`` of observations with a goal and actions ``[..., A]``."""
        return self.critic(obs, action)


# ---------------------------------------------------------------------- learner


class CRL(GoalConditioned):
    """The learner of CRL: an actor, two critics and perhaps a value, their update and the policy."""

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: CRLConfig, device: torch.device) -> None:
        super().__init__(obs_spec, cfg, device)
        spec, settings = self.preprocess.spec, (cfg.representation_width, cfg.networks, cfg.dtype)
        actor = build_goal_actor(spec, action_spec, cfg.networks, cfg.dtype)
        critic = BilinearValue(spec, action_spec.width, 2, *settings)
        value = BilinearValue(spec, 0, 1, *settings) if cfg.actor_loss == "awr" else None
        self.objective: CRLObjective = CRLObjective(actor, critic, value, cfg)
        self.make_optim_and_policy()

    def goal_distance(self, output: PolicyOutput) -> Tensor:
        return Algorithm.goal_distance(self, output)  # values are logits, not numbers of steps


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class CRLConfig(ActorLossConfig):
    """Settings of CRL, with the defaults of OGBench's code."""

    alpha: Annotated[float, AtLeast(0)] = 0.1
    """Weight of imitation in ddpg_bc, inverse temperature in awr. The authors choose it for each environment."""
    representation_width: Annotated[int, AtLeast(1)] = 512
    """D, the width of phi and psi."""
    value_goals: GoalShares = field(default_factory=lambda: GoalShares(geometric=True))
    """Goals of the critics' loss."""


CRLConfig.learner = CRL
