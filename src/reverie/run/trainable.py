"""The experiment as a run sees it: a :class:`Trainable`, and the results of its measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from reverie.core.clock import Clock
from reverie.core.protocols import BatchSource, Env, Learner, MeterLike, Stateful
from reverie.run.config import Schedule, ScoreMetric
from reverie.run.episodes import CollectorProtocol
from reverie.run.folder import SavedConfig

EvaluationPurpose = Literal["evaluation", "confirmation", "test"]
"""Seeds of evaluations: during training, to confirm ``stop_score``, and at the end, where no earlier evaluation used
it."""


class MeasurementResult(Protocol):
    """An evaluation, or an estimate from a dataset."""

    def metrics(self) -> Mapping[str, float | np.ndarray]:
        """Return the numbers, and the video if there is one, under their metric names."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for eval.json or estimate.json."""


def scalars_of_result(measurement: MeasurementResult) -> dict[str, float]:
    """Return the scalar metrics of ``measurement``, without the video."""
    return {name: value for name, value in measurement.metrics().items() if not isinstance(value, np.ndarray)}


@dataclass(frozen=True, kw_only=True)
class Trainable(Protocol):
    """The experiment as a run sees it."""

    algo: Learner
    source: BatchSource
    """Source of the learner's batches."""
    collector: CollectorProtocol | None
    """None in an offline run."""
    clock: Clock
    meter: MeterLike
    schedule: Schedule
    """How often to log, evaluate, save and report."""
    score: ScoreMetric
    """Evaluation metric that selects the best agent."""
    log_episodes: bool
    """Whether a line is logged for each finished episode."""
    stop_score: float | None
    """Evaluation score at which training stops; None: never stop at a score."""
    patience: int | None
    """Stop after this many consecutive evaluations without improvement; None: never stop early."""
    measurement: Literal["", "eval", "estimate"]
    """The measurement at the end of the run: an evaluation, an estimate, or nothing."""
    heldout: Callable[[], Mapping[str, float]] | None = None
    """Returns metrics of the learner on held-out rows; None if there are none."""
    store: Any = None
    """The :class:`reverie.replay.persistent.PersistentReplay` of the collected rows; None if there is none."""

    @property
    def saved(self) -> SavedConfig:
        """The resolved settings."""

    @property
    def spec(self) -> Mapping[str, Any]:
        """Content of spec.json: observations, actions, and the spaces for an agent that acts without an environment."""

    def parts(self) -> dict[str, Stateful]:
        """Return the parts of a checkpoint in the order in which they are loaded."""

    def measure(self, which: EvaluationPurpose) -> MeasurementResult:
        """Evaluate, or estimate, according to ``measures``."""

    def keep_evaluated(self, values: Mapping[str, float]) -> None:
        """Called after each evaluation during training, with its logged numbers."""

    def callback_env(self, which: Literal["training", "evaluation"]) -> Env:
        """Return the training or evaluation environments; RunError if callbacks cannot access all of them."""

    def begin(self) -> None:
        """Collect the first rows of a new run, and start storing."""

    def load_initial(self) -> None:
        """Load the agent of another run, if the settings name one."""

    def describe(self, folder: Path) -> None:
        """Log a summary of the training run in ``folder``, and the assumptions about the data."""

    def largest_reward(self) -> float:
        """Return the largest absolute reward of the rows so far; 0 if it is unknown."""
        return 0.0

    def no_update_reason(self) -> str:
        """Return why a finished run has made no update; "" if it made any, or its settings ask for none."""

    def close(self, *, failed: bool) -> None:
        """Close environments and store; the store at once if the run has ``failed``."""
