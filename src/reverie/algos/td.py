"""Temporal-difference learning with target networks: settings, and the base class of the losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple

from torch import Tensor, nn

from reverie.algos.model_free import ValueConfig, check_sequences
from reverie.core.bounds import AtLeast, ScheduledFloat, Within, largest_value
from reverie.core.errors import ConfigError, missing_method_error
from reverie.core.kernel_dispatch import NotesChanges
from reverie.core.types import Batch
from reverie.nn.optim import register_scheduled
from reverie.objectives.estimators import TD0, ValueEstimator
from reverie.objectives.td import Losses, RegressionLoss, obs_before, regression_error

CLIPPED_SHARE = 0.25
"""Maximum distance of returns from the atoms, as a share of their range."""


class AtomRange(NamedTuple):
    """The smallest and the largest atom: the returns that a categorical critic can represent."""

    low: float
    high: float
    advice: str
    """What to do if returns lie outside."""

    def warning(self, excess: float) -> str:
        """Return a warning if returns lie outside by an ``excess`` that is a large share of the range; else ""."""
        if excess <= CLIPPED_SHARE * (self.high - self.low):
            return ""
        return (
            f"the returns are outside of the atoms, {self.low:g} to {self.high:g}: targets pile up at the outermost "
            f"atom, and values beyond it cannot be learned. {self.advice}, or scale rewards: algo.reward_scale = "
            f"return_std(10, {self.high:g})"
        )


class TDObjective(NotesChanges, nn.Module):
    """The losses of temporal-difference learning over any networks, usable on their own.

    ``objective(batch)`` returns the loss terms by name. The gradient of each term reaches only its own networks. Each
    paper's subclass defines :meth:`targets` or :meth:`critic_loss` and, if there is an actor, :meth:`actor_loss`.
    """

    discount: Any
    """Gamma: a number, or a tensor ``[]`` that follows a schedule, of which definitions run instead of kernels."""

    def __init__(self, cfg: Any) -> None:
        """``cfg``: settings of the algorithm."""
        super().__init__()
        self.cfg = cfg
        register_scheduled(self, "discount", cfg.discount)

    def forward(self, batch: Batch) -> Losses:
        """Return the terms ``critic`` and ``actor`` of a batch ``[B, T]``."""
        critic, actor = self.critic_loss(batch), self.actor_loss(batch)
        return Losses(critic.terms | actor.terms, critic.metrics | actor.metrics, critic.priority)

    def critic_loss(self, batch: Batch) -> Losses:
        """Return the term ``critic`` of a batch ``[B, T]``: sum_i E[(Q_i(s, a) - y)^2], or another ``critic_loss``."""
        values = self.values(obs_before(batch.obs), batch.action[:, :-1])  # [(K,) B, T-1]
        return regression_error(values, self.targets(batch), batch, getattr(self.cfg, "critic_loss", "l2"))

    def actor_loss(self, batch: Batch) -> Losses:
        """Return the term ``actor`` of a batch ``[B, T]``; by default there is none."""
        return Losses({})

    def targets(self, batch: Batch) -> Tensor:
        """Return the TD targets y ``[B, T - 1]`` of the critic, without gradient."""
        raise missing_method_error(self, "targets")

    def values(self, *inputs: Any) -> Tensor:
        """Return the values ``[(K,) ...]`` of actions ``[..., A]`` in observations ``[..., *shape]``."""
        critic: Any = self.critic
        values: Tensor = critic(*inputs)
        return values


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class TDConfig(ValueConfig):
    """Settings of temporal-difference learning with target networks."""

    estimators: ClassVar[type[ValueEstimator]] = ValueEstimator
    """Class of the value estimators that fit."""

    discount: Annotated[ScheduledFloat, Within("[0, 1]")] = 0.99  # type: ignore[assignment]  # of more types
    """Discount factor gamma per agent step; or a schedule over env steps, [[0, 0.97], [1e6, 0.99]]."""
    value_estimator: ValueEstimator = field(default_factory=TD0)
    """How targets are computed from the rows of a window. The paper uses TD(0)."""
    tau: Annotated[float, Within("(0, 1]")] = 0.005
    """Step size of the target networks per target update; 1 copies the networks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen, fit = self.value_estimator, self.estimators
        if not isinstance(chosen, fit) or chosen.needs_behavior:
            kinds = [k for k, v in fit.variants().items() if not v.needs_behavior]
            raise ConfigError(
                f"value_estimator = {chosen.to_text()}: {self.algorithm} expects one of {', '.join(kinds)}, or a "
                f"subclass of {fit.__name__} that needs rows alone."
            )
        chosen.check_window(self.batch_length)
        check_sequences(getattr(self.networks, "memory", None), self.batch_length, alone=2)

    @property
    def atoms(self) -> AtomRange | None:
        """Range of the atoms of categorical critics; None: values have no range."""
        return None

    def scale_warning(self, episodes: Sequence[tuple[float, int]]) -> str:
        if self.atoms is None or self.reward_scale is not None:
            return ""
        # discounted returns, if all rewards of an episode are equal
        gamma = largest_value(self.discount)
        values = [total / length * sum(gamma**step for step in range(length)) for total, length in episodes]
        low, high, _ = self.atoms
        return self.atoms.warning(max((max(low - value, value - high) for value in values), default=0.0))

    def check_run(self, *, random_steps: int, learning_starts: int, frame_stack: int) -> None:
        super().check_run(random_steps=random_steps, learning_starts=learning_starts, frame_stack=frame_stack)
        if self.batch_length == 2 and self.value_estimator.whole_window:
            raise ConfigError(
                f"algo.value_estimator = {self.value_estimator.to_text()}, algo.batch_length = 2: there is nothing to "
                "look ahead to, so it equals td0. Set algo.batch_length to at least 3, or use td0."
            )


def check_critic_counts(critics: int, drawn: int | None) -> None:
    """Raise ConfigError if more critics are drawn for targets than there are."""
    if drawn is not None and drawn > critics:
        raise ConfigError(
            f"num_target_critics = {drawn}, num_critics = {critics}: there are fewer critics. Increase num_critics, or "
            "lower num_target_critics."
        )


@dataclass(frozen=True, kw_only=True)
class CriticConfig(TDConfig):
    """Settings of critics that are trained by regression on their targets."""

    critic_loss: RegressionLoss = "l2"
    """Loss of the critic's error u: l2 is the paper's, l1 is abs(u), smooth_l1 is u^2 / 2 up to abs(u) = 1 and abs(u) -
    1/2 beyond."""
    critic_weight_decay: Annotated[float, AtLeast(0)] = 0.0
    """Weight decay of the critic: this times each parameter is added to its gradient, as in PyTorch's Adam."""
    max_grad_norm: Annotated[float, AtLeast(0)] = 0.0
    """Maximum gradient norm, separately for the actor and for the critic; 0 does not clip."""
    decoupled_weight_decay: Annotated[float, AtLeast(0)] = 0.0
    """Weight decay of the actor and the critic as in AdamW (Loshchilov and Hutter 2019): each update shrinks every
    parameter by the share of the learning rate times this."""
    adam_beta1: Annotated[float, Within("[0, 1)")] = 0.9
    """Decay rate of the momentum in the optimizers of the actor and the critic."""

    @property
    def adam(self) -> dict[str, Any]:
        """Settings of :class:`~reverie.nn.adam.Adam` for the actor and the critic."""
        return {
            "max_grad_norm": self.max_grad_norm,
            "decoupled_decay": self.decoupled_weight_decay,
            "beta1": self.adam_beta1,
        }
