"""The log entries of a run: counters, rates, episodes and the learner's metrics, under fixed names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from reverie.core.clock import Clock
from reverie.core.errors import DataError
from reverie.core.files import writing
from reverie.core.protocols import Meter, Sink, Source
from reverie.run.collect import EpisodeStats, means_of

OWN = {"counters", "episode", "estimate", "eval", "time", "step", "env/restarts", "replay/replay_ratio",
       "replay/windows"}  # fmt: skip
"""Names of the loop's own measurements, and groups of them: the word before the first slash."""


def check_names(names: Iterable[str]) -> None:
    """Raise DataError if one of the ``names`` of a learner's measurements is the loop's own, which it would replace."""
    for name in names:
        if {name, name.partition("/")[0]} & OWN:
            raise DataError(f"the metric '{name}' has a name of the training loop's own: use 'train/mine'.")


class MetricsLog:
    """Collects values since the last entry and writes them to every sink."""

    def __init__(
        self, clock: Clock, meter: Meter, source: Source, sinks: Sequence[Sink], finished: list[EpisodeStats]
    ) -> None:
        """``finished``: the episodes until they are logged, a list that others may share."""
        self.clock = clock
        self.meter = meter
        self.source = source
        self.sinks = sinks
        self.finished = finished
        self.restarts: int = 0
        self.begun: tuple[int, int] = (clock.env_steps, clock.updates)
        self.last: tuple[float, int, int] = clock.logged or (clock.seconds, *self.begun)

    def episodes(self, finished: Iterable[EpisodeStats], restarts: int = 0) -> None:
        """Count finished episodes and keep them for the next entry; ``restarts`` is the number of restarts so far."""
        self.restarts = restarts
        before = len(self.finished)
        self.finished.extend(finished)
        self.clock.episodes += len(self.finished) - before

    def write(self, values: Mapping[str, float | np.ndarray]) -> None:
        """Write ``values`` to every sink, at the current position of the run; RunError if one cannot write."""
        with writing(Path("the logs")):
            for sink in self.sinks if values else ():
                sink.write(values, self.clock.position)

    def log(self) -> None:
        """Write one entry with everything; none if this process made no env steps and no updates since the last."""
        if (self.clock.env_steps, self.clock.updates) in (self.last[1:], self.begun):
            return
        values = self.meter.flush()
        if self.finished:
            values["episode/score"] = float(np.mean([episode.score for episode in self.finished]))
            values["episode/length"] = float(np.mean([episode.length for episode in self.finished]))
            means = means_of(episode.info for episode in self.finished)
            values |= {f"episode/{name}": value for name, value in means.items()}
            self.finished.clear()
        self.write({**values, **self._rates(), **self._counters()})

    def _rates(self) -> dict[str, float]:
        """Return the rates since the last entry."""
        now = (self.clock.seconds, self.clock.env_steps, self.clock.updates)
        seconds, env_steps, updates = (b - a for a, b in zip(self.last, now, strict=True))
        self.last = self.clock.logged = now
        rates = {
            "time/env_steps_per_second": env_steps / max(seconds, 1e-9),
            "time/updates_per_second": updates / max(seconds, 1e-9),
            "time/seconds": self.clock.seconds,
        }
        if env_steps:
            rates["replay/replay_ratio"] = updates / env_steps
        return rates

    def _counters(self) -> dict[str, float]:
        names = ("env_steps", "frames", "updates", "episodes")
        counters = {f"counters/{name}": float(getattr(self.clock, name)) for name in names}
        return {**counters, "env/restarts": float(self.restarts), "replay/windows": float(len(self.source))}
