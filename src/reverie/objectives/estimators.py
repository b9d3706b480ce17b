"""Value estimators as settings of a learner: ``value_estimator=TDLambda(0.9)``.

Each class configures one function of ``objectives/returns.py``, which describes the rows of a window and the results at
the ends of episodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, TypedDict, Unpack

from torch import Tensor

from reverie.core.bounds import AtLeast, Within
from reverie.core.config import Choice
from reverie.core.errors import ConfigError, missing_method_error
from reverie.objectives.returns import Bootstrap, Estimate, gae, n_step, n_step_bootstrap, td0, td1, td_lambda, vtrace


class Rows(TypedDict):
    """Inputs of every estimator, as in :func:`reverie.objectives.returns.td0`."""

    reward: Tensor  # [B, T]
    terminal: Tensor  # [B, T]
    last: Tensor  # [B, T]
    value: Tensor  # [B, T]
    discount: float


@dataclass(frozen=True)
class ValueEstimator(Choice):
    """How a row's value is estimated from the rows after it. Fields may be given by position.

    To write your own, derive a frozen dataclass from this and implement :meth:`look_ahead`.
    """

    needs_behaviour: ClassVar[bool] = False
    """Whether it needs the log-probabilities of the policy that acted, beside the rows."""
    whole_window: ClassVar[bool] = False
    """Whether it looks ahead to the end of the window, so that in windows of a single transition it equals TD0."""

    @property
    def rows(self) -> int:
        """Smallest number of rows T of a window."""
        return 2

    def targets(self, **rows: Unpack[Rows]) -> Tensor:
        """Return the value targets of rows 0 ... T-2, ``[B, T - 1]``, from rows ``[B, T]`` alone.

        Gradients flow through all inputs that have one: detach ``value`` to prevent it. At the last row of an episode
        the target is the row's own value; ``returns.transition_mask`` is the mask of all other rows.

        Raises:
            ConfigError: the window is too short, or the estimator needs more than rows.
        """
        self.check_window(rows["reward"].shape[1])
        return self.look_ahead(**rows)

    def estimate(self, *, log_pi: Tensor | None = None, log_mu: Tensor | None = None, **rows: Unpack[Rows]) -> Estimate:
        """Return advantage and target, ``[B, T - 1]`` each. The advantage is target - value unless overridden.

        Args:
            log_pi: ``[B, T]`` log-probability of each row's action under the learning policy; only read by V-trace.
            log_mu: ``[B, T]`` the same under the policy that acted.
            rows: those of :meth:`targets`.

        Raises:
            ConfigError: as :meth:`targets`.
        """
        target = self.targets(**rows)  # [B, T-1]
        return Estimate(target - rows["value"][:, :-1], target)

    def check_window(self, rows: int) -> None:
        """Raise ConfigError if windows of ``rows`` rows are too short."""
        if rows < self.rows:
            raise ConfigError(
                f"value_estimator = {self.text()} in windows of {rows} rows: expected batch_length of at least "
                f"{self.rows}, or an estimator that looks less far ahead."
            )

    def look_ahead(self, **rows: Unpack[Rows]) -> Tensor:
        """Compute the targets ``[B, T - 1]`` of a window that is long enough. Subclasses implement this."""
        raise missing_method_error(self, "look_ahead")


@dataclass(frozen=True)
class OneRow(ValueEstimator, base=True):
    """Estimators that bootstrap from a single row, so that the row's value may be a distribution."""

    def bootstrap(self, *, reward: Tensor, terminal: Tensor, last: Tensor, discount: float) -> Bootstrap:
        """Return the target's sum of rewards, its discount and the row whose value that multiplies, ``[B, T - 1]``.

        Raises:
            ConfigError: the window is too short.
        """
        self.check_window(rows := reward.shape[1])
        return n_step_bootstrap(reward=reward, terminal=terminal, last=last, discount=discount, n=self.steps(rows))

    def steps(self, rows: int) -> int:
        """Return the largest number of rewards that are summed in a window of ``rows`` rows."""
        raise missing_method_error(self, "steps")

    def look_ahead(self, **rows: Unpack[Rows]) -> Tensor:
        """Compute the n-step targets, with n by :meth:`steps`."""
        return n_step(**rows, n=self.steps(rows["reward"].shape[1]))


@dataclass(frozen=True)
class TD0(OneRow):
    """One reward plus the discounted value of the next row. Off-policy."""

    def steps(self, rows: int) -> int:
        """Return 1."""
        return 1

    def look_ahead(self, **rows: Unpack[Rows]) -> Tensor:
        """Compute the one-step targets."""
        return td0(**rows)


@dataclass(frozen=True)
class TD1(OneRow):
    """All rewards up to the end of the episode or window, then the value there."""

    whole_window: ClassVar[bool] = True

    def steps(self, rows: int) -> int:
        """Return all of the window, ``rows - 1``."""
        return rows - 1

    def look_ahead(self, **rows: Unpack[Rows]) -> Tensor:
        """Compute the targets of TD(1)."""
        return td1(**rows)


@dataclass(frozen=True)
class NStep(OneRow):
    """n rewards, or fewer where the episode or the window ends earlier, then the value of the row reached."""

    n: Annotated[int, AtLeast(1)] = 3
    """Number of rewards that are summed before the value."""

    @property
    def rows(self) -> int:
        """Smallest number of rows of a window: a row and n after it."""
        return self.n + 1

    def steps(self, rows: int) -> int:
        """Return n."""
        return self.n


@dataclass(frozen=True)
class TDLambda(ValueEstimator):
    """A weighted mean of all n-step returns; the weight of n + 1 steps is lambda times that of n."""

    whole_window: ClassVar[bool] = True
    lam: Annotated[float, Within("[0, 1]")] = 0.95
    """Lambda, from 0 (as TD0) to 1 (as TD1)."""

    def look_ahead(self, **rows: Unpack[Rows]) -> Tensor:
        """Compute the lambda-returns."""
        return td_lambda(**rows, lam=self.lam)


@dataclass(frozen=True)
class GAE(ValueEstimator):
    """Generalised advantage estimation. Its targets are those of TDLambda."""

    whole_window: ClassVar[bool] = True
    lam: Annotated[float, Within("[0, 1]")] = 0.95
    """Lambda, from 0 (least variance) to 1 (least bias)."""

    def estimate(self, *, log_pi: Tensor | None = None, log_mu: Tensor | None = None, **rows: Unpack[Rows]) -> Estimate:
        """Return advantage and target, ``[B, T - 1]`` each. The log-probabilities are not read."""
        self.check_window(rows["reward"].shape[1])
        return gae(**rows, lam=self.lam)

    def look_ahead(self, **rows: Unpack[Rows]) -> Tensor:
        """Compute the lambda-returns."""
        return gae(**rows, lam=self.lam).target


@dataclass(frozen=True, kw_only=True)
class VTrace(ValueEstimator):
    """Off-policy values of the learning policy from another policy's actions. Needs the log-probabilities of both."""

    needs_behaviour: ClassVar[bool] = True
    lam: Annotated[float, Within("[0, 1]")] = 1.0
    """Lambda, from 0 (one step) to 1."""
    rho_max: Annotated[float, Within("(0, inf]")] = 1.0
    """Upper bound of the weight of a temporal-difference error, above 0. It determines the policy whose values are
    learned, between the acting and the learning one."""
    c_max: Annotated[float, Within("[0, inf]")] = 1.0
    """Upper bound of the weight of later errors, from 0 to rho_max. It determines the speed of convergence."""

    def estimate(self, *, log_pi: Tensor | None = None, log_mu: Tensor | None = None, **rows: Unpack[Rows]) -> Estimate:
        """Return advantage and target, ``[B, T - 1]`` each.

        Raises:
            ConfigError: there are no log-probabilities, or the window is too short.
        """
        self.check_window(rows["reward"].shape[1])
        if log_pi is None or log_mu is None:
            raise ConfigError(f"value_estimator = {self.text()} needs the log-probabilities log_pi and log_mu.")
        return vtrace(**rows, log_pi=log_pi, log_mu=log_mu, lam=self.lam, rho_max=self.rho_max, c_max=self.c_max)

    def look_ahead(self, **rows: Unpack[Rows]) -> Tensor:
        """Raise ConfigError: V-trace cannot do with rows alone."""
        return self.estimate(**rows).target
