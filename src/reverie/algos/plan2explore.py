"""Plan2Explore: Sekar et al., "Planning to explore via self-supervised world models", ICML 2020, on DreamerV2.

Two behaviors on one world model: one explores what an ensemble of predictors disagrees about, the other learns the
task from the predicted rewards. It computes what the authors' code of DreamerV2 computes (``expl.py``, version 2.2.0).
The paper's ensemble predicts from a state and the action taken there. That code, and this one, use the action that led
to the state: values include a state's own reward, which must therefore not depend on the next action.
On the world models of DreamerV1 and V3: ``plan2explore_v1.py`` and ``plan2explore_v3.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from reverie.algos.dreamer_v2 import Behavior, DreamerV2, DreamerV2Config, RewardNormConfig
from reverie.algos.imagination import Trajectory
from reverie.algos.world_model import Context, Posterior, WorldModel, repeat_windows
from reverie.core.bounds import AtLeast
from reverie.core.config import Config
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Batch, Metrics, Mode
from reverie.nn.actor import DreamerActor
from reverie.nn.adam import GlobalAdamConfig
from reverie.nn.heads import DenseHeadConfig
from reverie.nn.normalization import MagnitudeScale
from reverie.nn.optim import gradient_steps

# ---------------------------------------------------------------------- losses


class Ensemble(nn.Module):
    """Predictors that differ only in their initial weights."""

    def __init__(self, inputs: int, outputs: int, cfg: EnsembleConfig) -> None:
        super().__init__()
        self.cfg = cfg
        bodies = [cfg.head.hidden_layers(inputs) for _ in range(cfg.num_models)]
        self.models: nn.ModuleList = nn.ModuleList(
            nn.Sequential(body, cfg.head.output_layer(body.width, outputs)) for body in bodies
        )

    def forward(self, feature: Tensor, action: Tensor) -> Tensor:
        """Predict ``[models, ..., outputs]`` from features ``[..., F]`` and an action for each ``[..., A]``."""
        x = torch.cat([feature, action], -1) if self.cfg.action_conditioned else feature
        return torch.stack([model(x) for model in self.models]).float()

    def loss(self, post: Posterior, action: Tensor) -> Tensor:
        """Return -ln p of the targets under unit normals around the predictions, the sum over the models: ``[]``.

        ``action``: the action input of each row's predictions, ``[B, T, A]``. Pairs of rows may cross the boundary of
        two episodes.
        """
        target = self.target(post)[:, self.cfg.offset :]  # [B, T - offset, outputs]
        feature, rows = post.latent.feature.detach(), target.shape[1]
        error: Tensor = self(feature[:, :rows], action[:, :rows].to(feature.dtype)) - target
        return (0.5 * (error.square() + math.log(2 * math.pi)).sum(-1)).flatten(1).mean(1).sum()

    def target(self, post: Posterior) -> Tensor:
        """Return the prediction targets, ``[B, T, outputs]``, without gradient."""
        latent = post.latent
        targets = {"stoch": latent.stoch.flatten(-2), "deter": latent.deter, "embed": post.embed}
        return targets.get(self.cfg.target, latent.feature).detach().float()

    def disagreement(self, feature: Tensor, action: Tensor) -> Tensor:
        """Return the standard deviation of the predictions ``[...]``, the mean over their numbers.

        Sekar et al. (2020), equation 5, has the variance.
        """
        deviation = self(feature, action).std(0, correction=0).mean(-1)
        return deviation.log() if self.cfg.log_disagreement else deviation


def previous_actions(rows: Batch, context: Context | None) -> Tensor:
    """Return the action before each row ``[B, T, A]``: zeros where an episode begins."""
    first = torch.zeros_like(rows.action[:, 0]) if context is None else context.action
    before = torch.cat([first[:, None], rows.action[:, :-1]], 1)
    return before * (~rows.is_first)[..., None]


# ---------------------------------------------------------------------- learner


class ExplorationMixin:
    """What Plan2Explore adds to a Dreamer: an ensemble and its rewards, a behavior that explores, and its policy."""

    cfg: ExplorationConfig
    world: WorldModel
    actor: DreamerActor
    explorer: Any

    def make_ensemble(self, action_spec: ActionSpec) -> None:
        """Create the ensemble, and the norms of its rewards."""
        self.ensemble: Ensemble = self.cfg.ensemble.build(self.world, action_spec.width)
        self.intrinsic_norm: MagnitudeScale = self.cfg.expl_reward_norm.build()
        self.extrinsic_norm: MagnitudeScale = self.cfg.expl_reward_norm.build()

    def actor_for(self, mode: Mode) -> DreamerActor:
        """Return the exploring policy for ``explore``, and the zero-shot task policy for ``eval``."""
        return self.explorer.actor if mode != "eval" else self.actor

    def disagreement(self, dream: Trajectory) -> Tensor:
        """Return the disagreement at each state ``[H + 1, ...]``, given the action that led to it."""
        previous = torch.cat([torch.zeros_like(dream.action[:1]), dream.action[:-1]])  # [H+1, ..., A]
        return self.ensemble.disagreement(dream.feature, previous)

    def intrinsic_reward(self, dream: Trajectory) -> Tensor:
        """Return the weighted sum ``[H + 1, ...]`` of disagreement and predicted rewards. Updates their norms."""
        disagreement = self.disagreement(dream)
        self.intrinsic_norm.update(disagreement)
        reward: Tensor = self.cfg.intrinsic_scale * self.intrinsic_norm(disagreement)
        if self.cfg.extrinsic_scale:
            predicted = self.world.reward(dream.feature).mean()
            self.extrinsic_norm.update(predicted)
            reward = reward + self.cfg.extrinsic_scale * self.extrinsic_norm(predicted)
        return reward


class Plan2Explore(ExplorationMixin, DreamerV2):
    """The learner of Plan2Explore: world model, task behavior, ensemble, exploring behavior, in this order."""

    cfg: Plan2ExploreConfig
    explorer: Behavior

    def __init__(
        self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: Plan2ExploreConfig, device: torch.device
    ) -> None:
        super().__init__(obs_spec, action_spec, cfg, device)
        self.make_ensemble(action_spec)
        self.explorer = Behavior(self.world.rssm.feature_width, action_spec, cfg)
        self.to(device)
        self.explorer.make_optims()
        self.optims["ensemble"] = cfg.ensemble_optim.build(self.ensemble.parameters())
        self.optims.update({f"explore_{name}": optim for name, optim in self.explorer.optims.items()})

    def learn(self, rows: Batch, context: Context | None = None) -> tuple[dict[str, Tensor], Metrics, Posterior]:
        """Update as DreamerV2 does, then train the ensemble and the exploring behavior.

        Ensemble and behaviors learn from latents that were computed before the world model's update.
        """
        terms, metrics, post = super().learn(rows, context)
        rows = repeat_windows(rows, self.samples)
        loss = self.ensemble.loss(post, previous_actions(rows, context))
        metrics |= gradient_steps({"ensemble": loss}, self.optims) | {"loss/ensemble": loss.detach()}
        start = post.latent.detach()
        for key, value in self.explorer.learn(self.world, start, rows.is_terminal, self.intrinsic_reward).items():
            prefix, _, name = key.rpartition("/")
            optimized = key.startswith("opt/")  # opt/loss/actor is opt/loss/explore_actor
            metrics[f"{prefix}/explore_{name}" if optimized else f"expl/{key}"] = value
        return terms, metrics, post


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class EnsembleConfig(Config):
    """The ensemble whose disagreement is the reward for exploring."""

    num_models: Annotated[int, AtLeast(2)] = 10
    """Number of predictors."""
    target: Literal["stoch", "deter", "embed", "feature"] = "stoch"
    """What they predict of a later row: z, h, the embedded observation, or h and z."""
    offset: Annotated[int, AtLeast(0)] = 1
    """How many rows later."""
    action_conditioned: bool = True
    """Predict from a row's feature and the action that led to it (on DreamerV3: the action taken there); otherwise from
    the feature alone."""
    log_disagreement: bool = False
    """Take the logarithm of the disagreement as the reward."""
    head: DenseHeadConfig = field(default_factory=DenseHeadConfig)
    """Layers of each predictor."""

    def build(self, world: WorldModel, action: int) -> Ensemble:
        """Return the ensemble for a world model, and for flat actions of ``action`` numbers."""
        c = world.rssm.cfg
        widths = {"stoch": c.stoch * c.classes, "deter": c.deter, "feature": world.rssm.feature_width}
        width = world.encoder.width if self.target == "embed" else widths[self.target]
        return Ensemble(world.rssm.feature_width + action * self.action_conditioned, width, self)


@dataclass(frozen=True, kw_only=True)
class ExplorationConfig(Config):
    """Settings that Plan2Explore adds to a Dreamer's."""

    grad_heads: tuple[str, ...] = ("decoder", "cont")
    """Heads among decoder, reward and cont whose losses also train the latents: without reward, the model is
    independent of the task."""
    ensemble: EnsembleConfig = field(default_factory=EnsembleConfig)
    """The predictors."""
    intrinsic_scale: float = 1.0
    """Weight of the disagreement in the exploration reward."""
    extrinsic_scale: float = 0.0
    """Weight of the predicted task reward in the exploration reward; 0 explores without it."""
    expl_reward_norm: RewardNormConfig = field(default_factory=RewardNormConfig)
    """Normalization of the two rewards, each by its own magnitude; off by default."""


@dataclass(frozen=True, kw_only=True)
class Plan2ExploreConfig(ExplorationConfig, DreamerV2Config):
    """Settings of Plan2Explore: the settings of DreamerV2, and of the ensemble and its rewards."""

    ensemble_optim: GlobalAdamConfig = field(default_factory=lambda: GlobalAdamConfig(lr=3e-4, weight_decay=1e-6))
    """Optimizer of the ensemble."""


Plan2ExploreConfig.learner = Plan2Explore
