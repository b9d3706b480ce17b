"""Plan2Explore (Sekar et al., ICML 2020) on DreamerV1: ``plan2explore.py``, with DreamerV1's behaviours.

As there, the ensemble is given the action that led to a state: DreamerV1's values include the own reward too. The
policy's gradient goes through the world model and the ensemble.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from reverie.algos.dreamer_v1 import ActorCritic, DreamerV1, DreamerV1Config
from reverie.algos.imagination import ActionDraw
from reverie.algos.plan2explore import Explorer, Exploring, ExploringConfig, ExploringStats, actions_before
from reverie.algos.world_model import Context, DenseDreamerStats, Posterior, WorldModel, stopped_heads
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Batch, Metrics, Stats
from reverie.nn.optim import GlobalAdamConfig
from reverie.nn.rssm import LatentDraw


@dataclass(frozen=True, kw_only=True)
class Plan2ExploreV1Config(ExploringConfig, DreamerV1Config):
    """Settings of Plan2Explore on DreamerV1: those of DreamerV1, and of the ensemble and its rewards."""

    ensemble_optim: GlobalAdamConfig = field(default_factory=lambda: GlobalAdamConfig(lr=3e-4, eps=1e-7))
    """Optimiser of the ensemble."""

    def __post_init__(self) -> None:
        super().__post_init__()
        stopped_heads(self.grad_heads)

    def world(self, obs_spec: ObsSpec, action_spec: ActionSpec, stopped: Collection[str] = ()) -> WorldModel:
        """Return the world model, which ``grad_heads`` alone train."""
        return super().world(obs_spec, action_spec, stopped_heads(self.grad_heads).union(stopped))


@dataclass(frozen=True, kw_only=True)
class Plan2ExploreV1Stats(ExploringStats, DenseDreamerStats):
    """Metrics of an update: those of the task as of DreamerV1, and those of exploring."""


class ExploringBehaviour(ActorCritic, nn.Module):
    """DreamerV1's actor and critic once more."""

    def __init__(self, width: int, action_spec: ActionSpec, cfg: DreamerV1Config) -> None:
        super().__init__()
        self.cfg = cfg
        self.make_heads(width, action_spec)


class Plan2ExploreV1(Exploring, DreamerV1):
    """The learner: that of DreamerV1, an ensemble and an exploring behaviour, all trained at the same weights."""

    stats: ClassVar[type[Stats]] = Plan2ExploreV1Stats
    cfg: Plan2ExploreV1Config
    explorer: ExploringBehaviour

    def __init__(
        self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: Plan2ExploreV1Config, device: torch.device
    ) -> None:
        super().__init__(obs_spec, action_spec, cfg, device)
        self.make_ensemble(action_spec)
        self.explorer = ExploringBehaviour(self.world.rssm.feature_width, action_spec, cfg)
        self.to(device)
        self.optims.update(
            ensemble=cfg.ensemble_optim.build(self.ensemble.parameters()),
            explore_actor=cfg.actor_optim.build(self.explorer.actor.parameters()),
            explore_critic=cfg.critic_optim.build(self.explorer.critic.parameters()),
        )
        self._policy = Explorer(self, self.explorer, cfg.noise)

    def behaviour_losses(
        self, rows: Batch, context: Context | None, post: Posterior, draw_z: LatentDraw | None, draw_a: ActionDraw
    ) -> tuple[dict[str, Tensor], Metrics]:
        """Return what each optimiser but the model's minimises, ``[]`` each, and metrics."""
        losses, metrics = super().behaviour_losses(rows, context, post, draw_z, draw_a)
        reward, start = self.intrinsic_reward, self.starts(post)
        explored = self.explorer.imagined_losses(self.world, start, draw_z, draw_a, reward)
        ensemble = self.ensemble.loss(post, actions_before(rows, context))
        losses |= {"ensemble": ensemble, "explore_actor": explored.actor.mean()}
        losses |= {"explore_critic": explored.critic.mean()}
        metrics |= {f"explore/{k}": v for k, v in explored.metrics().items()} | {"loss/ensemble": ensemble.detach()}
        return losses, metrics


Plan2ExploreV1Config.learner = Plan2ExploreV1
