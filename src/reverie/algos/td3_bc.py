"""TD3+BC: Fujimoto and Gu, "A minimalist approach to offline reinforcement learning", NeurIPS 2021.

TD3 with two changes: the actor also imitates the actions of the dataset (equations 3 and 5), and observations are
normalised (equation 4).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from reverie.algos.td3 import TD3, TD3Config, TD3Objective
from reverie.core.checks import at_least
from reverie.core.stats import Stats
from reverie.core.types import Batch
from reverie.nn.actor_critic import first
from reverie.nn.normalise import Normalise, Running
from reverie.nn.optim import frozen
from reverie.objectives.returns import transition_mask
from reverie.objectives.td import Losses, before, mean_over


@dataclass(frozen=True, kw_only=True)
class TD3BCConfig(TD3Config):
    """Settings of TD3+BC: the paper's table 3 (appendix C), whose settings of TD3 are those of TD3's own code."""

    needs_data: ClassVar[bool] = True

    alpha: float = 2.5
    """Weight of the value in the actor's loss relative to imitation, 0 or more: equation 5."""
    normalise: Normalise | None = field(default_factory=Running)
    """Normalise vectors: (x - mean) / std over all rows of the dataset, equation 4. None: leave them as they are."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, alpha=0)

    def common(self) -> dict[str, Any]:
        """Return the settings that the objective takes unchanged, by name."""
        return {**super().common(), "alpha": self.alpha}


@dataclass(frozen=True, kw_only=True)
class TD3BCStats(Stats):
    """Metrics of an update of TD3+BC."""

    loss_critic: Tensor
    """E[w (Q - y)^2], summed over both critics."""
    train_value: Tensor
    """Mean Q of the dataset's actions over both critics."""
    train_target: Tensor
    """Mean target y."""
    loss_actor: Tensor | None = None
    """-lambda E[Q_1(s, pi(s))] + E[(pi(s) - a)^2]; only in updates of the actor."""
    loss_cloning: Tensor | None = None
    """Imitation term of that loss, E[(pi(s) - a)^2]; only in updates of the actor."""
    train_lambda: Tensor | None = None
    """Lambda, the weight of the value: alpha over the mean absolute value; only in updates of the actor."""


class TD3BCObjective(TD3Objective):
    """The losses of TD3+BC: those of :class:`~reverie.algos.td3.TD3Objective` but for the actor's."""

    def __init__(self, actor: nn.Module, critic: nn.Module, *, alpha: float = 2.5, **settings: Any) -> None:
        """``alpha``: that of equation 5. The rest is as in TD3."""
        super().__init__(actor, critic, **settings)
        self.alpha = alpha

    def actor_loss(self, batch: Batch) -> Losses:
        """-lambda E[Q_1(s, pi(s))] + E[(pi(s) - a)^2], lambda = alpha / E[abs(Q_1)]: equations 3 and 5.

        As in the authors' code (github.com/sfujim/TD3_BC), lambda uses the values of pi(s), not of the dataset's
        actions, and has no gradient; squares are averaged over the dimensions of an action.
        """
        obs, mask = before(batch.obs), transition_mask(batch.is_last)
        action = self.actor(obs)  # [B, T-1, A]
        with frozen(self.critic):
            value = first(self.critic, obs, action)  # [B, T-1]
        size = mean_over(value.detach().abs(), mask)
        factor = self.alpha / size.clamp(min=max(1.0, self.alpha) * torch.finfo(size.dtype).tiny)  # finite
        cloning = mean_over((action - batch.action[:, :-1]).square().mean(-1), mask)
        loss = cloning - factor * mean_over(value, mask)
        metrics = {"loss/actor": loss.detach(), "loss/cloning": cloning.detach(), "train/lambda": factor}
        return Losses({"actor": loss}, metrics)


class TD3BC(TD3):
    """The learner of TD3+BC: actor and two critics, their updates and the policy."""

    losses = TD3BCObjective
    stats = TD3BCStats


TD3BCConfig.learner = TD3BC
