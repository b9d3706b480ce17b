"""The estimated return of a policy, and its formatting."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from reverie.core.errors import count_noun
from reverie.core.statistics import IntervalEstimate
from reverie.core.types import Mode

Method = Literal["fqe", "wis", "dr"]
METHODS: dict[str, str] = {
    "fqe": "fitted Q evaluation (FQE)",
    "wis": "per-decision weighted importance sampling (WIS)",
    "dr": "the weighted doubly robust estimator (DR), importance sampling combined with fitted Q evaluation (FQE)",
}
"""The estimation methods and their descriptions."""
MIN_EFFECTIVE_EPISODES = 10.0
"""Effective number of episodes below which importance sampling is unreliable."""


@dataclass(frozen=True, kw_only=True)
class ReturnEstimate:
    """Estimated return of a policy from the initial states of a dataset's episodes, and the recorded returns."""

    value: IntervalEstimate
    """Estimated mean discounted return of the policy, with a 95 % bootstrap interval over episodes, which excludes the
    error of FQE itself."""
    behavior: IntervalEstimate
    """The same for the behavior policy, which took the recorded actions, as a reference for ``value``: by FQE with the
    recorded next actions; for method "wis", by importance sampling with ratios of 1."""
    dataset_return: IntervalEstimate
    """Mean discounted return of the recorded episodes. It excludes rewards after a truncation, which ``value``
    includes."""
    discount: float
    """Discount factor gamma of both."""
    episodes: int
    """Number of recorded episodes with at least one step."""
    num_truncated: int
    """Number of truncated episodes among these."""
    updates: int
    """Gradient updates of FQE so far, including earlier estimates."""
    loss: float
    """FQE's loss, the mean squared temporal-difference error, over the last 100 updates; NaN without FQE."""
    mode: Mode
    """How the policy chose actions: "eval" most likely, "explore" sampled."""
    reward_clipping: str = "none"
    """How the rewards of both returns were clipped during collection; "none" if they are the true rewards."""
    truncated_weight: float = 0.0
    """Fraction of the discount weight, (1 - gamma) sum_t gamma^t, beyond the recorded steps, in [0, 1]: the mean over
    episodes of gamma^n for episodes truncated after n steps, and 0 for terminal episodes."""
    method: Method = "fqe"
    """How the policy's return was estimated."""
    diverged: bool = False
    """Whether FQE's loss grew far above its smallest; the estimate is then invalid."""
    effective_episodes: float | None = None
    """Effective number of episodes of importance sampling; None without it."""
    agreement: dict[str, float] = field(default_factory=dict)
    """Agreement of the policy's actions with the recorded actions: see :func:`action_agreement`. With little agreement,
    the error of the estimate is unbounded."""

    def metrics(self) -> dict[str, float]:
        """Return the numbers under their metric names, without intervals that are unknown."""
        metrics = {"updates": float(self.updates), "loss": self.loss, "discount": self.discount, **self.agreement}
        for name, part in self._intervals().items():
            metrics |= {name: part.value} | (
                {f"{name}_low": part.low, f"{name}_high": part.high} if part.has_interval else {}
            )
        return {f"estimate/{name}": value for name, value in metrics.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for estimate.json."""
        intervals = {name: {k: v for k, v in x._asdict().items() if np.isfinite(v)}
                     for name, x in self._intervals().items()}  # fmt: skip
        numbers = {
            "method": self.method,
            "discount": self.discount,
            "episodes": self.episodes,
            "num_truncated": self.num_truncated,
            "truncated_weight": self.truncated_weight,
            "updates": self.updates,
            "diverged": self.diverged,
            "clipped": self.reward_clipping,
        }
        method_text = f"discounted return, estimated by {METHODS[self.method]} from recorded data (docs/offline.md)"
        header = {"what": method_text, "deterministic": self.mode == "eval"}
        optional = {"loss": self.loss, "effective_episodes": self.effective_episodes}
        optional = {name: x for name, x in optional.items() if x == x is not None}
        return {**header, **intervals, **numbers, **optional, **self.agreement}

    def _intervals(self) -> dict[str, IntervalEstimate]:
        return {"return": self.value, "logging_return": self.behavior, "recorded_return": self.dataset_return}

    def format(self) -> str:
        """Format the estimate for the terminal, in four to seven lines."""
        truncated = f", {self.num_truncated:,} of them truncated" if self.num_truncated else ""
        clipped_text = "" if self.reward_clipping == "none" else f", of rewards clipped by {self.reward_clipping}"
        fqe_text = "" if self.method == "wis" else f", {count_noun(self.updates, 'update')}, loss {self.loss:.3g}"
        error_text = "" if self.method == "wis" else " and do not include the error of FQE itself"
        lines = [
            f"estimated by {self.method.upper()}, no episodes played: discounted return of the policy "
            f"{_format_interval(self.value)}",
            "  the behavior policy, which took the recorded actions, by the same method: "
            f"{_format_interval(self.behavior)}",
            f"  recorded: {_format_interval(self.dataset_return)} in "
            f"{count_noun(self.episodes, 'episode')}{truncated}; "
            f"discount {self.discount:g}{fqe_text}{clipped_text}",
            f"  intervals are for the mean over episodes{error_text}",
        ]
        if self.diverged:
            lines.append("  FQE diverged: its loss grew far above its smallest, so this estimate is invalid")
        if self.effective_episodes is not None:
            warning = ": too few to rely on" if self.effective_episodes < MIN_EFFECTIVE_EPISODES else ""
            lines.append(f"  effective number of episodes: {self.effective_episodes:.1f} of {self.episodes:,}{warning}")
        if (same_action := self.agreement.get("same_action")) is not None:
            lines.append(f"  the policy takes the recorded action in {same_action:.0%} of the steps")
        if (distance := self.agreement.get("action_distance")) is not None:
            lines.append(
                f"  the policy's actions differ from the recorded ones by {distance:.2f} of half their range (RMS)"
            )
        if self.truncated_weight >= 0.01:
            end = " to the end of the longest one" if self.method == "wis" else ""
            lines.append(
                f"  recorded returns end where episodes were truncated, with {self.truncated_weight:.0%} of the "
                f"discount weight beyond; the other estimates continue{end}"
            )
        return "\n".join(lines)


def _format_interval(interval: IntervalEstimate) -> str:
    return f"{interval.value:.2f}" + (
        f" (95 % {interval.low:.2f} to {interval.high:.2f})" if interval.has_interval else ""
    )
