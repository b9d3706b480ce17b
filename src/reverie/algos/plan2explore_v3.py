"""Plan2Explore (Sekar et al., ICML 2020) on DreamerV3: ``plan2explore.py``, with DreamerV3's behaviors and optimizer.

The ensemble predicts from a state and the action taken there, as in the paper. The disagreement is the reward of the
next row: DreamerV3's values exclude a state's own reward, so it is the reward of that action. The world model does not
learn from rewards (``grad_heads``), so the task critic's loss on replayed rows does not train it either.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from reverie.algos import dreamer_v3
from reverie.algos.dreamer_v3 import ActorCritic, DreamerV3, DreamerV3Config, WorldModelLosses, imagination_loss
from reverie.algos.imagination import Trajectory
from reverie.algos.plan2explore import EnsembleConfig, ExplorationConfig, ExplorationMixin
from reverie.algos.world_model import Context, Posterior
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Batch, Metrics
from reverie.nn.heads import HeadConfig
from reverie.nn.optim import Optimizer

# ---------------------------------------------------------------------- learner


class Plan2ExploreV3(ExplorationMixin, DreamerV3):
    """The learner of DreamerV3, with an ensemble and an exploring behavior, which share one more optimizer."""

    cfg: Plan2ExploreV3Config
    explorer: ActorCritic

    def __init__(
        self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: Plan2ExploreV3Config, device: torch.device
    ) -> None:
        super().__init__(obs_spec, action_spec, cfg, device)
        self.make_ensemble(action_spec)
        self.explorer = ActorCritic()
        self.explorer.make_heads(self.world.rssm.feature_width, action_spec, cfg)
        self.to(device)
        heads = (self.ensemble, self.explorer.actor, self.explorer.critic)
        self.explore_optim: Optimizer = cfg.optim.build([p for head in heads for p in head.parameters()])

    def learn(self, context: Context, rows: Batch) -> tuple[WorldModelLosses, Metrics]:
        """Update as DreamerV3 does, and train the ensemble and the exploring behavior at the same weights."""
        losses = self.losses(context, rows)
        explored, metrics = self.exploring_loss(rows, losses.post)
        metrics |= losses.metrics | self.optim.step(self.total(losses.terms))
        metrics |= {f"expl/{k}": v for k, v in self.explore_optim.step(explored).items()}
        self.slow_critic.update()
        self.explorer.slow_critic.update()
        return losses, metrics

    def exploring_loss(self, rows: Batch, post: Posterior) -> tuple[Tensor, Metrics]:
        """Return the sum ``[]`` of the weighted losses of ensemble, exploring actor and critic, and metrics."""
        dream = self.imagine(self.explorer.actor, post.latent)
        with torch.no_grad():
            reward, cont = self.intrinsic_reward(dream), self.world.cont(dream.feature).prob()
        terms, _, metrics = imagination_loss(self.explorer, dream, reward, cont)
        ensemble, means = self.ensemble.loss(post, rows.action), {k: v.mean() for k, v in terms.items()}
        metrics |= {f"loss/{k}": v.detach() for k, v in means.items()}
        total = ensemble + self.cfg.loss_scales.actor * means["actor"] + self.cfg.loss_scales.critic * means["critic"]
        return total, {f"expl/{k}": v for k, v in metrics.items()} | {"loss/ensemble": ensemble.detach()}

    def disagreement(self, dream: Trajectory) -> Tensor:
        """Return the disagreement about each state's prediction from the previous action, ``[H + 1, ...]``.

        0 for the first.
        """
        disagreement = self.ensemble.disagreement(dream.feature[:-1], dream.action[:-1])  # [H, B, T]
        return torch.cat([torch.zeros_like(disagreement[:1]), disagreement])

    def critic_feature(self, post: Posterior) -> Tensor:
        """Return features without gradient, for the critic alone, unless ``reward`` is in ``grad_heads``."""
        feature = post.latent.feature
        return feature if "reward" in self.cfg.grad_heads else feature.detach()


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class EnsembleV3Config(EnsembleConfig):
    """The ensemble, with the layers of DreamerV3's heads."""

    head: HeadConfig = field(default_factory=lambda: HeadConfig(layers=3))  # type: ignore[assignment]
    """Layers of each predictor."""


@dataclass(frozen=True, kw_only=True)
class Plan2ExploreV3Config(ExplorationConfig, DreamerV3Config):
    """Settings of Plan2Explore on DreamerV3: the settings of DreamerV3, and of the ensemble and its rewards."""

    ensemble: EnsembleV3Config = field(default_factory=EnsembleV3Config)
    """The predictors."""


def with_size(name: str, base: DreamerV3Config | None = None) -> DreamerV3Config:
    """Return ``base`` with the widths of a named size of DreamerV3, the ensemble's included."""
    config = dreamer_v3.with_size(name, base or Plan2ExploreV3Config())
    return config.merge({"ensemble.head.units": config.reward.units})


Plan2ExploreV3Config.learner = Plan2ExploreV3
