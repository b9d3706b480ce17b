"""Value estimators as settings of a learner: ``value_estimator=TDLambda(0.9)``.

Each class names one function of ``objectives/returns.py``, which describes the rows of a window and the results at the
ends of episodes; its fields are the function's arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypedDict, Unpack

import torch.nn.functional as F
from torch import Tensor

from reverie.core.bounds import AtLeast, Within
from reverie.core.config import Choice
from reverie.core.errors import ConfigError, missing_method_error
from reverie.core.kernel_dispatch import accelerated
from reverie.core.types import Batch
from reverie.objectives.returns import Bootstrap, Estimate, gae, n_step, n_step_bootstrap, td0, td1, td_lambda, vtrace


class EstimatorInputs(TypedDict):
    """Inputs of every estimator, as in :func:`reverie.objectives.returns.td0`."""

    reward: Tensor  # [B, T]
    terminal: Tensor  # [B, T]
    last: Tensor  # [B, T]
    value: Tensor  # [B, T]
    discount: float


@dataclass(frozen=True)
class ValueEstimator(Choice):
    """How a row's value is estimated from the rows after it: a function of ``returns.py`` and its settings.

    Fields may be positional. A custom estimator is a frozen dataclass derived from this class, which defines
    :attr:`function`.
    """

    function: ClassVar[Callable[..., Tensor]]
    """Returns the targets of rows 0 ... T-2, ``[B, T - 1]``, from :class:`EstimatorInputs` and the fields, by name."""
    needs_behavior: ClassVar[bool] = False
    """Whether it needs the log-probabilities of the behavior policy."""
    whole_window: ClassVar[bool] = False
    """Whether it looks ahead to the end of the window, so that in windows of a single transition it equals TD0."""

    @property
    def min_rows(self) -> int:
        """Smallest number of rows T of a window."""
        return 2

    @accelerated
    def __call__(self, batch: Batch, value: Tensor, discount: float) -> Tensor:
        """Return the targets y of rows 0 ... T-2, ``[B, T - 1]``, from the ``value`` of rows 1 ... T-1, ``[B, T - 1]``.

        No target depends on the value of row 0. The last row of an episode has no target, and the result there must not
        be used: ``returns.transition_mask`` is the mask of all other rows.

        Raises:
            ValueError: the values have another shape, such as ``[B, T - 1, 1]``.
        """
        if value.shape != batch.reward[:, 1:].shape:
            raise ValueError(
                f"values of shape {tuple(value.shape)}: expected [B, T - 1] = {tuple(batch.reward[:, 1:].shape)}."
            )
        return self.function(
            reward=batch.reward, terminal=batch.is_terminal, last=batch.is_last, value=F.pad(value, (1, 0)),
            discount=discount, **vars(self),
        )  # fmt: skip

    def estimate(
        self, *, log_pi: Tensor | None = None, log_mu: Tensor | None = None, **inputs: Unpack[EstimatorInputs]
    ) -> Estimate:
        """Return advantage and target, ``[B, T - 1]`` each. The advantage is target - value unless overridden.

        At the last row of an episode the target is the row's own value.

        Args:
            log_pi: ``[B, T]`` log-probability of each row's action under the learning policy; only read by V-trace.
            log_mu: ``[B, T]`` the same under the behavior policy.
            inputs: rows ``[B, T]`` and the discount.

        Raises:
            ConfigError: the estimator needs log-probabilities.
        """
        target = self.function(**inputs, **vars(self))  # [B, T-1]
        return Estimate(target - inputs["value"][:, :-1], target)

    def check_window(self, rows: int, setting: str = "batch_length") -> None:
        """Raise ConfigError if windows of ``rows`` rows, the length of which is a ``setting``, are too short."""
        if rows < self.min_rows:
            raise ConfigError(
                f"value_estimator = {self.to_text()} in windows of {rows} rows: expected at least {self.min_rows}. "
                f"Increase {setting}, or choose an estimator that looks less far ahead."
            )


@dataclass(frozen=True)
class SingleBootstrap(ValueEstimator, base=True):
    """Estimators that bootstrap from a single row, so that the row's value may be a distribution."""

    def bootstrap(self, *, reward: Tensor, terminal: Tensor, last: Tensor, discount: float) -> Bootstrap:
        """Return the target's sum of rewards, its discount and the row whose value that multiplies, ``[B, T - 1]``."""
        n = self.steps(reward.shape[1])
        return n_step_bootstrap(reward=reward, terminal=terminal, last=last, discount=discount, n=n)

    def steps(self, rows: int) -> int:
        """Return the largest number of rewards that are summed in a window of ``rows`` rows."""
        raise missing_method_error(self, "steps")

    def function(
        self, *, reward: Tensor, terminal: Tensor, last: Tensor, value: Tensor, discount: float, **_: object
    ) -> Tensor:
        """Return the n-step targets ``[B, T - 1]``, with n by :meth:`steps`."""
        n = self.steps(reward.shape[1])
        return n_step(reward=reward, terminal=terminal, last=last, value=value, discount=discount, n=n)


@dataclass(frozen=True)
class TD0(SingleBootstrap):
    """One reward plus the discounted value of the next row. Off-policy."""

    function: ClassVar[Callable[..., Tensor]] = staticmethod(td0)

    def steps(self, rows: int) -> int:
        """Return 1."""
        return 1


@dataclass(frozen=True)
class TD1(SingleBootstrap):
    """All rewards up to the end of the episode or window, then the value there."""

    function: ClassVar[Callable[..., Tensor]] = staticmethod(td1)
    whole_window: ClassVar[bool] = True

    def steps(self, rows: int) -> int:
        """Return all of the window, ``rows - 1``."""
        return rows - 1


@dataclass(frozen=True)
class NStep(SingleBootstrap):
    """n rewards, or fewer where the episode or the window ends earlier, then the value of the row reached."""

    function: ClassVar[Callable[..., Tensor]] = staticmethod(n_step)
    n: Annotated[int, AtLeast(1)] = 3
    """Number of rewards that are summed before the value."""

    @property
    def min_rows(self) -> int:
        """Smallest number of rows of a window: a row and n after it."""
        return self.n + 1

    def steps(self, rows: int) -> int:
        """Return n."""
        return self.n


@dataclass(frozen=True)
class TDLambda(ValueEstimator):
    """A weighted mean of all n-step returns; the weight of n + 1 steps is lambda times that of n."""

    function: ClassVar[Callable[..., Tensor]] = staticmethod(td_lambda)
    whole_window: ClassVar[bool] = True
    lam: Annotated[float, Within("[0, 1]")] = 0.95
    """Lambda, from 0 (as TD0) to 1 (as TD1)."""


def gae_target(**inputs: Any) -> Tensor:
    """Return the target of :func:`reverie.objectives.returns.gae`, ``[B, T - 1]``."""
    return gae(**inputs).target


@dataclass(frozen=True)
class GAE(ValueEstimator):
    """Generalized advantage estimation. Its targets equal TDLambda's."""

    function: ClassVar[Callable[..., Tensor]] = staticmethod(gae_target)
    whole_window: ClassVar[bool] = True
    lam: Annotated[float, Within("[0, 1]")] = 0.95
    """Lambda, from 0 (least variance) to 1 (least bias)."""

    def estimate(
        self, *, log_pi: Tensor | None = None, log_mu: Tensor | None = None, **inputs: Unpack[EstimatorInputs]
    ) -> Estimate:
        """Return advantage and target, ``[B, T - 1]`` each. The log-probabilities are not read."""
        return gae(**inputs, lam=self.lam)


@dataclass(frozen=True, kw_only=True)
class VTrace(ValueEstimator):
    """Off-policy values of the learning policy from another policy's actions. Needs the log-probabilities of both."""

    needs_behavior: ClassVar[bool] = True
    lam: Annotated[float, Within("[0, 1]")] = 1.0
    """Lambda, from 0 (one step) to 1."""
    rho_max: Annotated[float, Within("(0, inf]")] = 1.0
    """Upper bound of the weight of a temporal-difference error, above 0. It determines the policy whose values are
    learned, between the behavior policy and the learning policy."""
    c_max: Annotated[float, Within("[0, inf]")] = 1.0
    """Upper bound of the weight of later errors, from 0 to rho_max. It determines the speed of convergence."""

    def estimate(
        self, *, log_pi: Tensor | None = None, log_mu: Tensor | None = None, **inputs: Unpack[EstimatorInputs]
    ) -> Estimate:
        """Return advantage and target, ``[B, T - 1]`` each.

        Raises:
            ConfigError: there are no log-probabilities.
        """
        if log_pi is None or log_mu is None:
            raise ConfigError(f"value_estimator = {self.to_text()} needs the log-probabilities log_pi and log_mu.")
        return vtrace(**inputs, log_pi=log_pi, log_mu=log_mu, **vars(self))

    def function(self, **_: object) -> Tensor:
        """Raise ConfigError: V-trace also needs log-probabilities."""
        raise ConfigError(f"value_estimator = {self.to_text()} needs the log-probabilities log_pi and log_mu.")
