"""What a run needs of its experiment: a :class:`Trainable`, and the results of its measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from reverie.core.clock import Clock
from reverie.core.protocols import BatchSource, Env, Learner, MeterLike, Stateful
from reverie.run.collect import CollectorProtocol
from reverie.run.evaluate import ScoreMetric
from reverie.run.folder import SavedConfig
from reverie.run.schedule import Schedule

EvaluationPurpose = Literal["evaluation", "confirmation", "test"]
"""Seed of an evaluation: during training, again if that was good, and at the end, which is used by nothing before."""


class MeasurementResult(Protocol):
    """An evaluation, or an estimate from recorded data."""

    def metrics(self) -> Mapping[str, float | np.ndarray]:
        """Return the numbers, and the video if there is one, under their names in the logs."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for eval.json or estimate.json."""


def scalars_of_result(measurement: MeasurementResult) -> dict[str, float]:
    """Return the scalar metrics of ``measurement``, without the video."""
    return {name: value for name, value in measurement.metrics().items() if not isinstance(value, np.ndarray)}


@dataclass(frozen=True, kw_only=True)
class Trainable(Protocol):
    """What a run knows of its experiment."""

    algo: Learner
    source: BatchSource
    """Source of the learner's batches."""
    collector: CollectorProtocol | None
    """None in a run on recorded data alone."""
    clock: Clock
    meter: MeterLike
    schedule: Schedule
    """How often to log, evaluate, save and report."""
    score: ScoreMetric
    """Number of evaluations that says which agent is the best."""
    log_episodes: bool
    """Whether a line is logged for each finished episode."""
    stop_score: float | None
    """Score of an evaluation during training that ends the run; None if there are none, or it never ends."""
    patience: int | None
    """Evaluations in a row, none better than the best one before, that end the run; None: it never ends by them."""
    measurement: Literal["", "eval", "estimate"]
    """What the run makes at its end: an evaluation, an estimate, or nothing."""
    heldout: Callable[[], Mapping[str, float]] = dict
    """Returns what is measured of the learner on rows that it does not learn from."""
    store: Any = None
    """The :class:`reverie.replay.persistent.PersistentReplay` of the collected rows; None if there is none."""

    @property
    def saved(self) -> SavedConfig:
        """The resolved settings."""

    @property
    def spec(self) -> Mapping[str, Any]:
        """Content of spec.json: observations, actions, and spaces by which an agent without an environment can act."""

    def parts(self) -> dict[str, Stateful]:
        """Return the parts of a checkpoint in the order in which they are loaded."""

    def measure(self, which: EvaluationPurpose) -> MeasurementResult:
        """Evaluate, or estimate, as ``measures`` says."""

    def callback_env(self, which: Literal["training", "evaluation"]) -> Env:
        """Return the environments of training or of evaluations; RunError if callbacks cannot reach all of them."""

    def begin(self) -> None:
        """Take the first rows of a new run, and begin to store."""

    def load_initial(self) -> None:
        """Begin with the agent of another run, if the settings name one."""

    def describe(self) -> None:
        """Say what is about to be trained, and what is assumed of the data."""

    def no_update_reason(self) -> str:
        """Return why a finished run has made no update; "" if it made some or its settings asked for none."""

    def close(self, *, failed: bool) -> None:
        """Close environments and store; the store at once if the run has ``failed``."""
