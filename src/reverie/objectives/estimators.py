"""Which value estimator a learner uses, chosen by an object: ``value_estimator=TDLambda(0.9)``.

Each object is the configuration of one function of ``objectives/returns.py``. What a window holds and what comes out at
the ends of episodes is said there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypedDict, Unpack

from torch import Tensor

from reverie.core.config import Choice
from reverie.core.errors import ConfigError
from reverie.objectives.returns import Bootstrap, Estimate, gae, n_step, n_step_bootstrap, td0, td1, td_lambda, vtrace


class Rows(TypedDict):
    """What every estimator reads, as in :func:`reverie.objectives.returns.td0`."""

    reward: Tensor  # [B, T]
    terminal: Tensor  # [B, T]
    last: Tensor  # [B, T]
    value: Tensor  # [B, T]
    discount: float


@dataclass(frozen=True)
class ValueEstimator(Choice):
    """How the value of a row is estimated from what followed it. Fields may be given by position, as papers do.

    One of your own is a frozen dataclass that is derived from this and has :meth:`look_ahead`.
    """

    needs_behaviour: ClassVar[bool] = False
    """Whether it must know how likely each action was, and so cannot do with rows alone."""

    @property
    def rows(self) -> int:
        """The least number of rows T of a window."""
        return 2

    def targets(self, *, reward: Tensor, terminal: Tensor, last: Tensor, value: Tensor, discount: float) -> Tensor:
        """What rows 0 ... T-2 turned out to be worth, from rows ``[B, T]`` alone: ``[B, T - 1]``.

        Gradients flow through whatever has one: detach ``value`` if they should not. At the last row of an episode
        the target is its own value; ``returns.followed`` is the mask of all others.

        Raises:
            ConfigError: the window is too short, or the estimator needs more than rows.
        """
        self.check_window(reward.shape[1])
        return self.look_ahead(reward=reward, terminal=terminal, last=last, value=value, discount=discount)

    def estimate(self, *, log_pi: Tensor | None = None, log_mu: Tensor | None = None, **rows: Unpack[Rows]) -> Estimate:
        """Advantage and target ``[B, T - 1]``; the advantage is target - value unless the estimator has its own.

        Args:
            log_pi: ``[B, T]`` log-probability of each row's action under the policy that learns; for V-trace alone.
            log_mu: ``[B, T]`` the same under the policy that acted.
            rows: those of :meth:`targets`.

        Raises:
            ConfigError: as :meth:`targets`.
        """
        target = self.targets(**rows)  # [B, T-1]
        return Estimate(target - rows["value"][:, :-1], target)

    def check_window(self, rows: int) -> None:
        """Check that a window of so many rows is long enough.

        Raises:
            ConfigError: it is not.
        """
        if rows < self.rows:
            raise ConfigError(
                f"value_estimator = {self} in windows of {rows} rows: expected at least {self.rows} rows. "
                f"Give longer windows{self._shorter(rows)}."
            )

    def look_ahead(self, **rows: Unpack[Rows]) -> Tensor:
        """What a kind computes: the targets ``[B, T - 1]`` of a window that is long enough."""
        raise NotImplementedError

    def _shorter(self, rows: int) -> str:
        """What else would do, in the words of an error."""
        return ""


@dataclass(frozen=True)
class OneRow(ValueEstimator, base=True):
    """Those that bootstrap from a single row, and so serve learners for whom a row is worth more than a number."""

    def bootstrap(self, *, reward: Tensor, terminal: Tensor, last: Tensor, discount: float) -> Bootstrap:
        """The target as a sum of rewards, a discount and the row whose value it multiplies, ``[B, T - 1]`` each.

        Raises:
            ConfigError: the window is too short.
        """
        self.check_window(reward.shape[1])
        return n_step_bootstrap(
            reward=reward, terminal=terminal, last=last, discount=discount, n=self.steps(reward.shape[1])
        )

    def steps(self, rows: int) -> int:
        """How many rewards are summed at most in a window of so many rows."""
        raise NotImplementedError

    def look_ahead(self, **rows: Unpack[Rows]) -> Tensor:
        """So many rewards and the value of the row reached."""
        return n_step(**rows, n=self.steps(rows["reward"].shape[1]))


@dataclass(frozen=True)
class TD0(OneRow):
    """One reward, then the value of the next row. Any policy may have acted."""

    def steps(self, rows: int) -> int:
        """One."""
        return 1

    def look_ahead(self, **rows: Unpack[Rows]) -> Tensor:
        """The next reward and the value of the next row."""
        return td0(**rows)


@dataclass(frozen=True)
class TD1(OneRow):
    """All rewards up to the end of the episode or window, then the value there."""

    def steps(self, rows: int) -> int:
        """All."""
        return rows - 1

    def look_ahead(self, **rows: Unpack[Rows]) -> Tensor:
        """All rewards and the value of the last row."""
        return td1(**rows)


@dataclass(frozen=True)
class NStep(OneRow):
    """n rewards, fewer where the episode or the window ends before, then the value of the row reached."""

    n: int = 3
    """Rewards that are summed before the value."""

    def __post_init__(self) -> None:
        if not isinstance(self.n, int) or self.n < 1:
            raise ConfigError(f"NStep.n = {self.n}: expected a whole number, 1 or more.")

    @property
    def rows(self) -> int:
        """The row itself and n after it."""
        return self.n + 1

    def steps(self, rows: int) -> int:
        """As many as asked for."""
        return self.n

    def _shorter(self, rows: int) -> str:
        return f", or n = {rows - 1} or less" if rows > 1 else ""


@dataclass(frozen=True)
class TDLambda(ValueEstimator):
    """A mean of all n-step returns, that of n + 1 steps weighing lambda times that of n."""

    lam: float = 0.95
    """Lambda, from 0 (as TD0) to 1 (as TD1)."""

    def __post_init__(self) -> None:
        _check_lam(self, self.lam)

    def look_ahead(self, **rows: Unpack[Rows]) -> Tensor:
        """The lambda-returns."""
        return td_lambda(**rows, lam=self.lam)


@dataclass(frozen=True)
class GAE(ValueEstimator):
    """Generalised advantage estimation. Its targets are those of TDLambda."""

    lam: float = 0.95
    """Lambda, from 0 (least variance) to 1 (least bias)."""

    def __post_init__(self) -> None:
        _check_lam(self, self.lam)

    def estimate(self, *, log_pi: Tensor | None = None, log_mu: Tensor | None = None, **rows: Unpack[Rows]) -> Estimate:
        """Advantage and target ``[B, T - 1]``. The log-probabilities are not read."""
        self.check_window(rows["reward"].shape[1])
        return gae(**rows, lam=self.lam)

    def look_ahead(self, **rows: Unpack[Rows]) -> Tensor:
        """The lambda-returns."""
        return gae(**rows, lam=self.lam).target


@dataclass(frozen=True, kw_only=True)
class VTrace(ValueEstimator):
    """The value under the policy that learns of what another policy did. It needs the probabilities of both."""

    needs_behaviour: ClassVar[bool] = True
    lam: float = 1.0
    """Lambda, from 0 (one step) to 1."""
    rho_max: float = 1.0
    """Where the weight of an error is cut. It decides between which two policies the values settle."""
    c_max: float = 1.0
    """Where the weight of what is carried on is cut, at most rho_max. It decides how fast they settle."""

    def __post_init__(self) -> None:
        _check_lam(self, self.lam)
        if not self.rho_max > 0:
            raise ConfigError(f"VTrace.rho_max = {self.rho_max}: expected a number above 0.")
        if not 0 <= self.c_max <= self.rho_max:
            raise ConfigError(
                f"VTrace.c_max = {self.c_max}: expected a number from 0 to rho_max = {self.rho_max}, without which "
                "V-trace need not converge (Espeholt et al. 2018, section 4.1)."
            )

    def estimate(self, *, log_pi: Tensor | None = None, log_mu: Tensor | None = None, **rows: Unpack[Rows]) -> Estimate:
        """Advantage and target ``[B, T - 1]``.

        Raises:
            ConfigError: there are no log-probabilities, or the window is too short.
        """
        self.check_window(rows["reward"].shape[1])
        if log_pi is None or log_mu is None:
            missing = " and ".join(k for k, v in {"log_pi": log_pi, "log_mu": log_mu}.items() if v is None)
            raise ConfigError(f"value_estimator = {self} without {missing}: {_NEEDS_BEHAVIOUR}")
        return vtrace(**rows, log_pi=log_pi, log_mu=log_mu, lam=self.lam, rho_max=self.rho_max, c_max=self.c_max)

    def look_ahead(self, **rows: Unpack[Rows]) -> Tensor:
        """Nothing, from rows alone."""
        raise ConfigError(f"value_estimator = {self} without log_pi and log_mu: {_NEEDS_BEHAVIOUR}")


ESTIMATORS: tuple[type[ValueEstimator], ...] = (TD0, TD1, NStep, TDLambda, GAE, VTrace)
"""All of them."""

FROM_ROWS: tuple[type[ValueEstimator], ...] = (TD0, TD1, NStep, TDLambda, GAE)
"""Those that need no log-probabilities of the policy that acted."""

FROM_ONE_ROW: tuple[type[OneRow], ...] = (TD0, TD1, NStep)
"""Those that bootstrap from a single row, as learners of distributions must."""


def check_estimator(
    estimator: ValueEstimator, *, algorithm: str, rows: int, fits: type[ValueEstimator] = ValueEstimator
) -> None:
    """Check a setting ``value_estimator`` before anything is built with it.

    Args:
        estimator: the setting.
        algorithm: who is to use it, for the error.
        rows: T, the rows of the algorithm's windows.
        fits: what it must be, for its estimate to make sense: any that needs rows alone, a :class:`OneRow`, a kind.

    Raises:
        ConfigError: the estimator does not fit, or needs longer windows.
    """
    if not isinstance(estimator, fits) or estimator.needs_behaviour > fits.needs_behaviour:
        known = _names(FROM_ONE_ROW if fits is OneRow else FROM_ROWS)
        why = _reason(estimator)
        raise ConfigError(
            f"value_estimator = {estimator!r}: {algorithm} expects one of {known}, or your own that is derived from "
            f"{fits.__name__}.{why}"
        )
    try:
        estimator.check_window(rows)
    except ConfigError as error:
        raise ConfigError(f"{error} Their length is batch_length.") from None


def _reason(estimator: object) -> str:
    if not isinstance(estimator, ValueEstimator):
        return ""
    if estimator.needs_behaviour:
        return " It needs the log-probabilities of the policy that acted, which this learner does not have."
    return " The estimate must rest on the value of a single row."


def _names(estimators: Sequence[type[ValueEstimator]]) -> str:
    return ", ".join(e.__name__ for e in estimators)


def _check_lam(estimator: ValueEstimator, lam: float) -> None:
    if not (math.isfinite(lam) and 0 <= lam <= 1):
        raise ConfigError(f"{type(estimator).__name__}.lam = {lam}: expected a number from 0 to 1.")


_NEEDS_BEHAVIOUR = (
    "V-trace weighs what happened by how much likelier the learning policy was to do it than the policy that acted. "
    f"Give both log-probabilities to estimate(), or use one of {_names(FROM_ROWS)}."
)
