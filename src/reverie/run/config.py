"""Settings of a run's life: its periods, the metric that ranks its evaluations, and its callbacks."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from reverie.core.bounds import AtLeast
from reverie.core.config import ClassCall, Config, parse_call
from reverie.core.errors import ConfigError, short_repr

EVALUATION_METRICS = (
    "eval/cut_off", "eval/drawn", "eval/elo", "eval/episodes", "eval/length", "eval/lost", "eval/lost_to_perfect",
    "eval/optimal_moves", "eval/optimal_moves_hard", "eval/score", "eval/score_iqm", "eval/score_iqm_high",
    "eval/score_iqm_low", "eval/score_median", "eval/score_previous", "eval/score_std", "eval/success_rate", "eval/won",
)  # fmt: skip
"""Metrics of evaluations that can rank them, besides values of the environment's info, tasks, losses and estimates."""
UNIT_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, kw_only=True)
class Schedule(Config):
    """Periods of logs, evaluations, checkpoints and reports.

    A number counts env steps; 30s, 5m, 2h are times. Offline runs count updates instead of env steps.
    """

    log_every: int | str = "5s"
    """Write metrics this often, and check losses for NaN and infinity. 0: only at the end."""
    eval_every: int | str = 0
    """Interval of evaluations, in env steps or such as 5m. 0: never during training."""
    save_every: int | str = "5m"
    """Write a checkpoint this often. 0: only at the end."""
    report_every: int | str = "5m"
    """Write the learner's expensive reports, such as videos of predictions, this often. 0: never."""

    dream_snapshots: Annotated[int | None, AtLeast(0)] = None
    """Snapshots of the weights of an agent with a world model, for the film of its training in the viewer. None: 12, if
    they take less than 100 MB together and there are at least 100 updates between two of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("log_every", "eval_every", "save_every", "report_every"):
            parse_period(getattr(self, name), name)


def parse_period(value: int | str, name: str = "period") -> tuple[float, bool]:
    """Return ``(amount, is_seconds)``: ``1000`` and ``1e3`` are env steps, ``30s``, ``5m`` and ``2h`` are seconds."""
    match = re.fullmatch(r"\s*((?:\d+\.?\d*|\.\d+)(?:[eE]\+?\d+)?)\s*([smh]?)\s*", str(value))
    if match is None or not math.isfinite(amount := float(match[1])):
        raise ConfigError(
            f"{name} = {value!r}: expected a number of env steps such as 10000 or 5e6, or a time such as 30s, 5m or "
            "2h (units in lower case; write millions of steps as 5e6, not 5M)."
        )
    return amount * UNIT_SECONDS.get(match[2], 1.0), bool(match[2])


class ScoreMetric(NamedTuple):
    """The metric that ranks evaluations, and whether the highest or the lowest value is best."""

    name: str
    minimize: bool

    @classmethod
    def parse(cls, text: str) -> ScoreMetric:
        """Parse the setting ``score_metric``: ``NAME``, ``NAME:max`` or ``NAME:min``."""
        name, _, direction = text.partition(":")
        if not name or direction not in ("", "max", "min") or text.endswith(":"):
            raise ConfigError(
                f"score_metric = {text!r}: expected the name of an evaluation metric, such as eval/score, or NAME:min "
                "if the lowest value is best."
            )
        return cls(name, direction == "min")

    def is_at_least_as_good(self, value: float, reference: float) -> bool:
        """Return whether ``value`` is as good as ``reference``, or better."""
        return value <= reference if self.minimize else value >= reference


def parse_callback(text: str) -> ClassCall:
    """Parse an entry of the setting ``callbacks``, ``module:Class(setting=value)``, without importing its module."""
    error_prefix = f"callbacks = {short_repr(text)}"
    call = parse_call(text, error_prefix)
    if ":" not in call.name:
        raise ConfigError(f"{error_prefix}: expected module:Class or module:Class(setting=value).")
    return call
