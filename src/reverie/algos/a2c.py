"""A2C: the synchronous form of A3C, Mnih et al., "Asynchronous methods for deep reinforcement learning", ICML 2016.

Each update is a single step on a whole, short rollout of several environments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from reverie.algos.on_policy import OnPolicy, OnPolicyConfig, OnPolicyObjective
from reverie.core.bounds import Above, ScheduledFloat, Within
from reverie.core.errors import ConfigError
from reverie.core.types import Batch
from reverie.nn.optim import GlobalRMSpropConfig, Optimizer
from reverie.objectives.estimators import GAE, ValueEstimator
from reverie.objectives.td import Losses

# ---------------------------------------------------------------------- losses


class A2CObjective(OnPolicyObjective):
    """The losses of A2C: the policy gradient, the value loss and the entropy bonus."""

    def forward(self, batch: Batch) -> Losses:
        """E[-A ln pi(a|s)], the value's squared error and the entropy: Mnih et al. 2016, section 4."""
        evaluation = self.evaluate_actions(batch)
        return self.losses(batch, evaluation, -evaluation.log_prob * self.advantage(batch), evaluation.value)


# ---------------------------------------------------------------------- learner


class A2C(OnPolicy):
    """The learner of A2C."""

    losses: type[A2CObjective] = A2CObjective
    cfg: A2CConfig

    def build_optim(self) -> Optimizer:
        c = self.cfg
        settings = GlobalRMSpropConfig(
            implementation=c.rms_implementation,
            lr=c.lr,
            alpha=c.rms_alpha,
            eps=c.rms_eps,
            max_grad_norm=c.max_grad_norm,
        )
        return settings.build(self.parameters())


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class A2CConfig(OnPolicyConfig):
    """Settings of A2C, with the defaults of Stable-Baselines3."""

    batch_size: int = 1
    """Always 1: a batch is one whole rollout."""
    rollout: int = 5
    value_estimator: ValueEstimator = field(default_factory=lambda: GAE(1.0))
    """How advantages and targets are computed: the paper's GAE(1.0) sums the rollout's rewards, then bootstraps."""
    normalize_advantage: bool = False
    lr: Annotated[ScheduledFloat, Above(0)] = 7e-4
    rms_implementation: Literal["tensorflow", "torch"] = "torch"
    """Which library's RMSProp to follow. tensorflow: the mean square starts at 1 and eps is added to it; torch: it
    starts at 0 and eps is added to its root."""
    rms_alpha: Annotated[float, Within("[0, 1)")] = 0.99
    """Decay rate of the mean square: alpha of PyTorch's RMSprop."""
    rms_eps: Annotated[float, Above(0)] = 1e-5
    """RMSProp's epsilon."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size != 1:
            raise ConfigError(
                f"batch_size = {self.batch_size}: a batch is one whole rollout. Remove this option and set "
                "algo.rollout."
            )


A2CConfig.learner = A2C
