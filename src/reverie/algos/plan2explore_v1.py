"""Plan2Explore (Sekar et al., ICML 2020) on DreamerV1: ``plan2explore.py``, with DreamerV1's behaviors.

As there, the ensemble reads the action that led to a state: DreamerV1's values include a state's own reward too. The
policy's gradient goes through the world model and the ensemble.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from reverie.algos.dreamer_v1 import DreamerV1, DreamerV1Config, ImaginationActorCritic, imagination_loss_v1
from reverie.algos.plan2explore import ExplorationConfig, ExplorationMixin, previous_actions
from reverie.algos.world_model import Context, Posterior
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Batch, Metrics
from reverie.nn.adam import GlobalAdamConfig

# ---------------------------------------------------------------------- learner


class Plan2ExploreV1(ExplorationMixin, DreamerV1):
    """The learner of DreamerV1, with an ensemble and an exploring behavior, all trained at the same weights."""

    cfg: Plan2ExploreV1Config
    explorer: ImaginationActorCritic

    def __init__(
        self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: Plan2ExploreV1Config, device: torch.device
    ) -> None:
        super().__init__(obs_spec, action_spec, cfg, device)
        self.make_ensemble(action_spec)
        self.explorer = ImaginationActorCritic()
        self.explorer.make_heads(self.world.rssm.feature_width, action_spec, cfg)
        self.to(device)
        self.optims.update(
            ensemble=cfg.ensemble_optim.build(self.ensemble.parameters()),
            explore_actor=cfg.actor_optim.build(self.explorer.actor.parameters()),
            explore_critic=cfg.critic_optim.build(self.explorer.critic.parameters()),
        )

    def behavior_losses(
        self, rows: Batch, context: Context | None, post: Posterior
    ) -> tuple[dict[str, Tensor], Metrics]:
        losses, metrics = super().behavior_losses(rows, context, post)
        explored = imagination_loss_v1(self.explorer, self.world, self.start(post), self.intrinsic_reward)
        ensemble = self.ensemble.loss(post, previous_actions(rows, context))
        losses |= {"ensemble": ensemble, "explore_actor": explored.actor.mean()}
        losses |= {"explore_critic": explored.critic.mean()}
        metrics |= {f"expl/{k}": v for k, v in explored.metrics().items()} | {"loss/ensemble": ensemble.detach()}
        return losses, metrics


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class Plan2ExploreV1Config(ExplorationConfig, DreamerV1Config):
    """Settings of Plan2Explore on DreamerV1: the settings of DreamerV1, and of the ensemble and its rewards."""

    ensemble_optim: GlobalAdamConfig = field(default_factory=lambda: GlobalAdamConfig(lr=3e-4, eps=1e-7))
    """Optimizer of the ensemble."""


Plan2ExploreV1Config.learner = Plan2ExploreV1
