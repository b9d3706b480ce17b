"""GCBC, goal-conditioned behavior cloning: Ghosh et al., "Learning to reach goals via iterated supervised learning".

The policy imitates the actions of a recorded episode, given a later observation of it as the goal. The goals, networks
and defaults are those of OGBench (Park et al., ICLR 2025).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from reverie.algos.goal_conditioned import GoalConditioned, GoalConfig
from reverie.core.kernel_dispatch import NotesChanges
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Batch
from reverie.nn.goal_networks import build_goal_actor
from reverie.objectives.goals import start_and_goal
from reverie.objectives.returns import transition_mask
from reverie.objectives.td import Losses, masked_mean


class GCBCObjective(NotesChanges, nn.Module):
    """The loss of GCBC. ``actor(obs)`` gives a distribution for observations with a goal."""

    def __init__(self, actor: nn.Module) -> None:
        super().__init__()
        self.actor = actor

    def forward(self, batch: Batch) -> Losses:
        """L = E[-ln pi(a | s, g)] of a batch ``[B, 2]``."""
        log_pi = self.actor(start_and_goal(batch, "actor")).log_prob(batch.action[:, :-1])  # [B, 1]
        return Losses({"actor": -masked_mean(log_pi, transition_mask(batch.is_last))})


class GCBC(GoalConditioned):
    """The learner of GCBC: an actor, its update and its policy."""

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: GCBCConfig, device: torch.device) -> None:
        super().__init__(obs_spec, cfg, device)
        actor = build_goal_actor(self.preprocess.spec, action_spec, cfg.networks, cfg.dtype)
        self.objective: GCBCObjective = GCBCObjective(actor)
        self.make_optim_and_policy()


@dataclass(frozen=True, kw_only=True)
class GCBCConfig(GoalConfig):
    """Settings of GCBC."""


GCBCConfig.learner = GCBC
