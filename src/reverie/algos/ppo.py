"""PPO: Schulman et al., "Proximal policy optimization algorithms", arXiv:1707.06347, 2017.

The details follow Stable-Baselines3. Where other implementations differ, there are settings: docs/on_policy.md lists
them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Self

import torch
from torch import Tensor, nn

from reverie.algos.on_policy import OnPolicy, OnPolicyConfig, OnPolicyObjective
from reverie.core.bounds import Above, AtLeast, ScheduledFloat
from reverie.core.collectives import mean_across_ranks
from reverie.core.errors import ConfigError
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Batch, Update, Window
from reverie.nn.adam import Adam
from reverie.nn.optim import Optimizer, register_scheduled
from reverie.objectives.policy import clipped_objective
from reverie.objectives.td import Losses

# ---------------------------------------------------------------------- losses


class PPOObjective(OnPolicyObjective):
    """The losses of PPO: the clipped surrogate objective, the value loss and the entropy bonus."""

    cfg: PPOConfig
    clip: float | Tensor

    def __init__(self, network: nn.Module, cfg: PPOConfig) -> None:
        super().__init__(network, cfg)
        register_scheduled(self, "clip", cfg.clip_range)

    def forward(self, batch: Batch) -> Losses:
        """Equation 9, negated: PPO's clipped loss, c1 times the value's squared error, -c2 times the entropy."""
        clip, evaluation = self.clip, self.evaluate_actions(batch)
        before, advantage = batch.extras["log_prob"], self.advantage(batch)
        actor, divergence, clipped = clipped_objective(evaluation.log_prob, before, advantage, batch.is_last, clip)
        value = self.clipped_value(evaluation.value, batch.extras["value"])
        return self.losses(batch, evaluation, actor, value, approx_kl=divergence, clip_fraction=clipped)

    def clipped_value(self, value: Tensor, before: Tensor) -> Tensor:
        """Return the value ``[B, T]`` for the loss, clipped to within ``value_clip_range`` of the value ``before``."""
        limit = self.cfg.value_clip_range
        return value if limit is None else before + (value - before).clamp(-limit, limit)


# ---------------------------------------------------------------------- learner


class PPO(OnPolicy):
    """The learner of PPO."""

    losses: type[PPOObjective] = PPOObjective
    objective: PPOObjective
    cfg: PPOConfig

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: PPOConfig, device: torch.device) -> None:
        super().__init__(obs_spec, action_spec, cfg, device)
        self.window: Window = replace(self.window, batch=cfg.batch_size // cfg.batch_length, epochs=cfg.epochs)

    def build_optim(self) -> Optimizer:
        c = self.cfg
        return Adam(self.parameters(), c.lr, c.adam_eps, max_grad_norm=c.max_grad_norm)

    def update(self, batch: Batch) -> Update:
        """Update with a batch. With ``target_kl``, first wait for the KL divergence, which may end the updates."""
        limit = self.cfg.target_kl
        if limit is not None:
            metrics = self.run_in_train_mode(self.compute_metrics, batch).metrics
            over = mean_across_ranks(metrics["train/approx_kl"]) > 1.5 * limit
            if bool(over):
                return Update(metrics=metrics, rollout_done=over)
        return super().update(batch)

    @torch.no_grad()
    def compute_metrics(self, batch: Batch) -> Update:
        """Return the metrics of a batch, without learning from it."""
        return Update(metrics=self.objective(batch).metrics)


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class PPOConfig(OnPolicyConfig):
    """Settings of PPO, with the defaults of Stable-Baselines3, which mostly are the paper's for MuJoCo (table 3)."""

    batch_size: int = 64
    """Time steps in a minibatch. It must divide the time steps of a rollout evenly. Presets adapt it, and the rollout,
    to the number of environments."""
    epochs: Annotated[int, AtLeast(1)] = 10
    """Number of passes over each rollout."""
    clip_range: Annotated[ScheduledFloat, Above(0)] = 0.2
    """Epsilon: the policy gains nothing from probability ratios outside of [1 - clip_range, 1 + clip_range]."""
    value_clip_range: Annotated[float | None, Above(0)] = None
    """Maximum change of a value in its loss, in units of returns, as clip_range_vf of Stable-Baselines3; None does not
    clip."""
    target_kl: Annotated[float | None, Above(0)] = None
    """Stop the updates on a rollout at a minibatch whose KL divergence exceeds 1.5 times this; None: never."""
    adam_eps: Annotated[float, Above(0)] = 1e-5
    """Adam's epsilon, added to the root of the second moment."""

    def with_envs(self, before: int, num: int) -> Self:
        """Return the settings for ``num`` environments of a preset with ``before``.

        With fewer environments, a rollout has as many minibatches as before, of the same size or a little larger. With
        more, it grows, and a minibatch is the largest divisor of its rows that is not larger than before.
        """
        if self.batch_length > 1 or num == before or before * self.rollout % self.batch_size:
            return self
        minibatches = before * self.rollout // self.batch_size
        if num < before:
            rollout = minibatches * math.ceil(self.batch_size / num)
            return self.merge({"rollout": rollout, "batch_size": rollout * num // minibatches})
        rows = num * self.rollout
        return self.replace("batch_size", max(n for n in range(1, self.batch_size + 1) if rows % n == 0))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size % self.batch_length:
            raise ConfigError(
                f"batch_size = {self.batch_size}, batch_length = {self.batch_length}: batch_size must be a multiple of "
                "batch_length."
            )


PPOConfig.learner = PPO
