"""Value estimators as settings of a learner: ``value_estimator=TDLambda(0.9)``.

Each class configures one function of ``objectives/returns.py``, which describes the rows of a window and the results at
the ends of episodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypedDict, Unpack

from torch import Tensor

from reverie.core.config import Choice
from reverie.core.errors import ConfigError, brief, unwritten
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

    def targets(self, *, reward: Tensor, terminal: Tensor, last: Tensor, value: Tensor, discount: float) -> Tensor:
        """Return the value targets of rows 0 ... T-2, ``[B, T - 1]``, from rows ``[B, T]`` alone.

        Gradients flow through all inputs that have one: detach ``value`` to prevent it. At the last row of an episode
        the target is the row's own value; ``returns.transition_mask`` is the mask of all other rows.

        Raises:
            ConfigError: the window is too short, the estimator needs more than rows, or its targets have another shape.
        """
        self.check_window(reward.shape[1])
        found: object = self.look_ahead(reward=reward, terminal=terminal, last=last, value=value, discount=discount)
        if not isinstance(found, Tensor):
            raise ConfigError(
                f"value_estimator = {self}: look_ahead returned {brief(found)}; expected a tensor of targets, one for "
                "each row but the last, [B, T - 1]."
            )
        if found.shape != (wanted := reward[:, 1:].shape):
            raise ConfigError(
                f"value_estimator = {self}: its targets have the shape {tuple(found.shape)}; expected one for each row "
                f"but the last, [B, T - 1] = {tuple(wanted)}."
            )
        return found

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
                f"value_estimator = {self} in windows of {rows} rows: expected at least {self.rows} rows. "
                f"Use longer windows{self._shorter(rows)}."
            )

    def look_ahead(self, **rows: Unpack[Rows]) -> Tensor:
        """Compute the targets ``[B, T - 1]`` of a window that is long enough. Subclasses implement this."""
        raise unwritten(self, "look_ahead")

    def _shorter(self, rows: int) -> str:
        """Return an alternative to longer windows, for the error message."""
        return ""


@dataclass(frozen=True)
class OneRow(ValueEstimator, base=True):
    """Estimators that bootstrap from a single row, so that the row's value may be a distribution."""

    def bootstrap(self, *, reward: Tensor, terminal: Tensor, last: Tensor, discount: float) -> Bootstrap:
        """Return the target's sum of rewards, its discount and the row whose value that multiplies, ``[B, T - 1]``.

        Raises:
            ConfigError: the window is too short.
        """
        self.check_window(reward.shape[1])
        n = self.checked_steps(reward.shape[1])
        return n_step_bootstrap(reward=reward, terminal=terminal, last=last, discount=discount, n=n)

    def steps(self, rows: int) -> int:
        """Return the largest number of rewards that are summed in a window of ``rows`` rows."""
        raise unwritten(self, "steps")

    def checked_steps(self, rows: int) -> int:
        """Return ``steps(rows)``.

        Raises:
            ConfigError: it is below 1.
        """
        if (n := self.steps(rows)) < 1:
            raise ConfigError(f"steps({rows}) of {self!r} returned {n}: expected at least 1.")
        return n

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

    n: int = 3
    """Number of rewards that are summed before the value, at least 1."""

    def __post_init__(self) -> None:
        if not isinstance(self.n, int) or self.n < 1:
            raise ConfigError(f"NStep.n = {self.n}: expected an integer, at least 1.")

    @property
    def rows(self) -> int:
        """Smallest number of rows of a window: a row and n after it."""
        return self.n + 1

    def steps(self, rows: int) -> int:
        """Return n."""
        return self.n

    def _shorter(self, rows: int) -> str:
        return f", or n of at most {rows - 1}" if rows > 1 else ""


@dataclass(frozen=True)
class TDLambda(ValueEstimator):
    """A weighted mean of all n-step returns; the weight of n + 1 steps is lambda times that of n."""

    whole_window: ClassVar[bool] = True
    lam: float = 0.95
    """Lambda, from 0 (as TD0) to 1 (as TD1)."""

    def __post_init__(self) -> None:
        _check_lam(self, self.lam)

    def look_ahead(self, **rows: Unpack[Rows]) -> Tensor:
        """Compute the lambda-returns."""
        return td_lambda(**rows, lam=self.lam)


@dataclass(frozen=True)
class GAE(ValueEstimator):
    """Generalised advantage estimation. Its targets are those of TDLambda."""

    whole_window: ClassVar[bool] = True
    lam: float = 0.95
    """Lambda, from 0 (least variance) to 1 (least bias)."""

    def __post_init__(self) -> None:
        _check_lam(self, self.lam)

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
    lam: float = 1.0
    """Lambda, from 0 (one step) to 1."""
    rho_max: float = 1.0
    """Upper bound of the weight of a temporal-difference error, above 0. It determines the policy whose values are
    learned, between the acting and the learning one."""
    c_max: float = 1.0
    """Upper bound of the weight of later errors, from 0 to rho_max. It determines the speed of convergence."""

    def __post_init__(self) -> None:
        _check_lam(self, self.lam)
        if not self.rho_max > 0:
            raise ConfigError(f"VTrace.rho_max = {self.rho_max}: expected a number above 0.")
        if not 0 <= self.c_max <= self.rho_max:
            raise ConfigError(
                f"VTrace.c_max = {self.c_max}: expected a number from 0 to rho_max = {self.rho_max}; above it, "
                "V-trace may not converge (Espeholt et al. 2018, section 4.1)."
            )

    def estimate(self, *, log_pi: Tensor | None = None, log_mu: Tensor | None = None, **rows: Unpack[Rows]) -> Estimate:
        """Return advantage and target, ``[B, T - 1]`` each.

        Raises:
            ConfigError: there are no log-probabilities, or the window is too short.
        """
        self.check_window(rows["reward"].shape[1])
        if log_pi is None or log_mu is None:
            missing = " and ".join(k for k, v in {"log_pi": log_pi, "log_mu": log_mu}.items() if v is None)
            raise ConfigError(f"value_estimator = {self} without {missing}: {_NEEDS_BEHAVIOUR}")
        return vtrace(**rows, log_pi=log_pi, log_mu=log_mu, lam=self.lam, rho_max=self.rho_max, c_max=self.c_max)

    def look_ahead(self, **rows: Unpack[Rows]) -> Tensor:
        """Raise ConfigError: V-trace cannot do with rows alone."""
        raise ConfigError(f"value_estimator = {self} without log_pi and log_mu: {_NEEDS_BEHAVIOUR}")


ESTIMATORS: tuple[type[ValueEstimator], ...] = (TD0, TD1, NStep, TDLambda, GAE, VTrace)
"""All estimators."""

FROM_ROWS: tuple[type[ValueEstimator], ...] = (TD0, TD1, NStep, TDLambda, GAE)
"""Estimators that need no log-probabilities of the policy that acted."""

FROM_ONE_ROW: tuple[type[OneRow], ...] = (TD0, TD1, NStep)
"""Estimators that bootstrap from a single row, as learners of distributions need."""


def check_estimator(
    estimator: ValueEstimator, *, algorithm: str, rows: int, fits: type[ValueEstimator] = ValueEstimator
) -> None:
    """Check a setting ``value_estimator`` before anything is built with it.

    Args:
        estimator: the setting.
        algorithm: name of the algorithm that is to use it, for the error.
        rows: T, rows of the algorithm's windows.
        fits: class that the estimator must have: any that needs rows alone, :class:`OneRow` or another subclass.

    Raises:
        ConfigError: the estimator does not fit, or needs longer windows.
    """
    if not isinstance(estimator, fits) or estimator.needs_behaviour > fits.needs_behaviour:
        known = _names(FROM_ONE_ROW if fits is OneRow else FROM_ROWS)
        why = _reason(estimator)
        raise ConfigError(
            f"value_estimator = {estimator!r}: {algorithm} expects one of {known}, or your own subclass of "
            f"{fits.__name__}.{why}"
        )
    try:
        estimator.check_window(rows)
    except ConfigError as error:
        raise ConfigError(f"{error} The length of windows is batch_length.") from None
    if isinstance(estimator, OneRow) and type(estimator).bootstrap is OneRow.bootstrap:
        estimator.checked_steps(rows)


def _reason(estimator: object) -> str:
    if not isinstance(estimator, ValueEstimator):
        return ""
    if estimator.needs_behaviour:
        return " It needs the log-probabilities of the acting policy, which this algorithm does not have."
    return " The estimate must bootstrap from the value of a single row."


def _names(estimators: Sequence[type[ValueEstimator]]) -> str:
    return ", ".join(e.__name__ for e in estimators)


def _check_lam(estimator: ValueEstimator, lam: float) -> None:
    if not (math.isfinite(lam) and 0 <= lam <= 1):
        raise ConfigError(f"{type(estimator).__name__}.lam = {lam}: expected a number in [0, 1].")


_NEEDS_BEHAVIOUR = (
    "V-trace weights each row by the ratio of its action's probabilities under the learning and the acting policy. "
    f"Pass log_pi and log_mu to estimate(), or use one of {_names(FROM_ROWS)}."
)
