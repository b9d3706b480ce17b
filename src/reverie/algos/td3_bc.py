"""TD3+BC: Fujimoto and Gu, "A minimalist approach to offline reinforcement learning", NeurIPS 2021.

TD3 with two changes: the actor also imitates the actions of the dataset (equations 3 and 5), and observations are
normalized (equation 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from reverie.algos.model_free import OfflineConfig
from reverie.algos.td3 import TD3, TD3Config, TD3Objective
from reverie.core.bounds import AtLeast
from reverie.core.collectives import mean_across_ranks
from reverie.core.types import Batch
from reverie.nn.optim import frozen
from reverie.objectives.returns import transition_mask
from reverie.objectives.td import Losses, masked_mean, obs_before

# ---------------------------------------------------------------------- losses


class TD3BCObjective(TD3Objective):
    """The losses of TD3+BC: :class:`~reverie.algos.td3.TD3Objective` with another loss of the actor."""

    cfg: TD3BCConfig

    def actor_loss(self, batch: Batch) -> Losses:
        """-lambda E[Q_1(s, pi(s))] + E[(pi(s) - a)^2], lambda = alpha / E[abs(Q_1)]: equations 3 and 5.

        As in the authors' code (github.com/sfujim/TD3_BC), lambda uses the values of pi(s), not of the dataset's
        actions, and has no gradient; squares are averaged over the dimensions of an action.
        """
        obs, mask, alpha = obs_before(batch.obs), transition_mask(batch.is_last), self.cfg.alpha
        action = self.actor(obs)  # [B, T-1, A]
        with frozen(self.critic):
            value = self.critic(obs, action, copy=0)  # [B, T-1]
        size = mean_across_ranks(masked_mean(value.detach().abs(), mask))
        factor = alpha / size.clamp(min=max(1.0, alpha) * torch.finfo(size.dtype).tiny)  # finite
        cloning = masked_mean((action - batch.action[:, :-1]).square().mean(-1), mask)
        loss = cloning - factor * masked_mean(value, mask)
        return Losses({"actor": loss}, {"loss/bc": cloning.detach(), "train/lambda": factor})


# ---------------------------------------------------------------------- learner


class TD3BC(TD3):
    """The learner of TD3+BC: actor and two critics, their updates and the policy."""

    losses: type[TD3BCObjective] = TD3BCObjective


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class TD3BCConfig(OfflineConfig, TD3Config):
    """Settings of TD3+BC: the paper's table 3 (appendix C), which takes the settings of TD3 from TD3's own code."""

    alpha: Annotated[float, AtLeast(0)] = 2.5
    """Weight of the value in the actor's loss relative to imitation: equation 5."""


TD3BCConfig.learner = TD3BC
