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
from reverie.core.config import at_least
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.stats import Stats
from reverie.core.types import Batch
from reverie.nn.frozen import frozen
from reverie.nn.mlp import continuous_width, first
from reverie.nn.normalise import Normalise, Running
from reverie.objectives.returns import followed
from reverie.objectives.td import Losses, before, mean_over


@dataclass(frozen=True, kw_only=True)
class TD3BCConfig(TD3Config):
    """Settings of TD3+BC: the paper's table 3 (appendix C), which for TD3 are those of its authors' code."""

    needs_data: ClassVar[bool] = True

    alpha: float = 2.5
    """How much the values of actions count beside imitating those of the dataset: equation 5."""
    normalise: Normalise | None = field(default_factory=Running)
    """Vectors less their mean, over their standard deviation, of all rows of the dataset: equation 4. None: as they
    are."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, alpha=0)

    def common(self) -> dict[str, Any]:
        """What an objective takes over as it is."""
        return {**super().common(), "alpha": self.alpha}

    def build(self, obs_spec: ObsSpec, action_spec: ActionSpec, device: str = "cpu", seed: int = 0) -> TD3BC:
        """A learner for these observations and continuous actions, its weights drawn from ``seed``."""
        continuous_width("td3_bc", action_spec)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return TD3BC(obs_spec, action_spec, self.where_vectors(obs_spec), torch.device(device))


@dataclass(frozen=True, kw_only=True)
class TD3BCStats(Stats):
    """What an update of TD3+BC says."""

    loss_critic: Tensor
    """Of both critics: E[w (Q - y)^2], summed over them."""
    train_value: Tensor
    """The mean of what both critics say of the dataset's actions."""
    train_target: Tensor
    """The mean of their targets y."""
    loss_actor: Tensor | None = None
    """-lambda E[Q_1(s, pi(s))] + E[(pi(s) - a)^2]; only when the actor learns."""
    loss_cloning: Tensor | None = None
    """Its second term: how far the actor is from the dataset's actions."""
    train_lambda: Tensor | None = None
    """Lambda, what a unit of value counts: alpha over the mean size of values."""


class TD3BCObjective(TD3Objective):
    """The losses of TD3+BC: those of :class:`~reverie.algos.td3.TD3Objective` but for the actor's."""

    def __init__(self, actor: nn.Module, critic: nn.Module, *, alpha: float = 2.5, **settings: Any) -> None:
        """``alpha``: see equation 5; the rest as in TD3."""
        super().__init__(actor, critic, **settings)
        self.alpha = alpha

    def actor_loss(self, batch: Batch) -> Losses:
        """-lambda E[Q_1(s, pi(s))] + E[(pi(s) - a)^2], lambda = alpha / E[abs(Q_1)]: equations 3 and 5.

        As in the authors' code (github.com/sfujim/TD3_BC), lambda is of the values of pi(s), not of those of the
        dataset's actions, it has no gradient, and squares are averaged over the numbers of an action.
        """
        obs, mask = before(batch.obs), followed(batch.is_last)
        action = self.actor(obs)  # [B, T-1, A]
        with frozen(self.critic):
            value = first(self.critic, obs, action)  # [B, T-1]
        size = mean_over(value.detach().abs(), mask)
        factor = self.alpha / size.clamp(min=torch.finfo(size.dtype).tiny)
        cloning = mean_over((action - batch.action[:, :-1]).square().mean(-1), mask)
        loss = cloning - factor * mean_over(value, mask)
        metrics = {"loss/actor": loss.detach(), "loss/cloning": cloning.detach(), "train/lambda": factor}
        return Losses({"actor": loss}, metrics)


class TD3BC(TD3):
    """Actor and two critics, and the updates that train them from recorded rows."""

    losses = TD3BCObjective
    stats = TD3BCStats
