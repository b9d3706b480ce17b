"""The log entries of a run: counters, rates, episodes and the learner's metrics, under fixed names.

Also checks for NaN and infinity in loss terms, without making updates wait for the device, and in parameters.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from reverie.core.clock import Clock
from reverie.core.errors import DataError, count_noun
from reverie.core.files import disk_errors_as_run_error
from reverie.core.logger import logger
from reverie.core.protocols import BatchSource, MeterLike, Sink
from reverie.core.types import Batch, MetricVector, read_scalars
from reverie.run.episodes import CollectorProtocol, Episodes, join_episodes

LOOP_METRICS = {"counters", "episode", "estimate", "eval", "heldout", "human", "time", "step", "env/restarts",
                "env/filtered_rate", "replay/measured_ratio", "replay/windows"}  # fmt: skip
"""Metric names that are reserved for the training loop, and groups of them: the word before the first slash."""


def check_metric_names(names: Iterable[str]) -> None:
    """Raise DataError if one of the ``names`` of a learner's metrics is reserved for the training loop."""
    for name in names:
        if {name, name.partition("/")[0]} & LOOP_METRICS:
            problem = f"the metric name '{name}' is reserved for the training loop"
            raise DataError(f"{problem}. Use another one, such as 'train/{name}'.")


class MetricsLog:
    """Collects values since the last entry and writes them to every sink."""

    def __init__(
        self, clock: Clock, meter: MeterLike, source: BatchSource, sinks: Sequence[Sink],
        collector: CollectorProtocol | None = None,
        exploration: Callable[[int], float | None] = lambda env_steps: None, log_episodes: bool = False,
    ) -> None:  # fmt: skip
        """``collector`` keeps the episodes that are not logged yet, and measures its time by task.

        ``exploration`` returns the policy's exploration parameters at an env step. ``log_episodes``: log a line for
        each finished episode.
        """
        self.clock = clock
        self.meter = meter
        self.source = source
        self.sinks = sinks
        self.collector = collector
        self.exploration = exploration
        self.finished: list[Episodes] = [] if collector is None else collector.unlogged_episodes
        self.seconds: dict[str, float] = {"time/update_seconds": 0.0} if collector is None else collector.seconds
        self.log_episodes = log_episodes
        self.unwritten: list[tuple[int, Episodes]] = []  # with the positions of the run at which they ended
        self.begun: tuple[int, int] = (clock.env_steps, clock.updates)
        self.last: tuple[float, int, int] = clock.last_log or (clock.seconds, *self.begun)

    def add_episodes(self, finished: Iterable[Episodes]) -> None:
        """Count finished episodes and keep them for the next entry."""
        for episodes in finished:
            self.finished.append(episodes)
            self.unwritten.append((self.clock.position, episodes))
            self.clock.episodes += len(episodes)
            self.clock.longest_episode = max(self.clock.longest_episode, int(episodes.longest.max(initial=0)))
            if self.log_episodes:
                self._log_each(episodes)

    def _log_each(self, episodes: Episodes) -> None:
        first = self.clock.episodes - len(episodes) + 1
        for number, (score, length) in enumerate(zip(episodes.score, episodes.length, strict=True), first):
            steps = count_noun(int(length), "step")
            logger.info(f"episode {number:,}: return {score:g} in {steps}, {self.clock.position_text}")

    def timed(self, updates: int) -> Iterator[int]:
        """Yield the numbers of this many updates, and measure the time until the last one is complete."""
        begin = time.perf_counter()
        try:
            yield from range(updates)
        finally:
            self.seconds["time/update_seconds"] += time.perf_counter() - begin

    def write(self, values: Mapping[str, float | str | np.ndarray]) -> None:
        """Write ``values`` to every sink, at the current position of the run; RunError if a sink cannot write."""
        with disk_errors_as_run_error(Path("the logs")):
            for sink in self.sinks if values else ():
                sink.write(values, self.clock.position)

    def log(self) -> dict[str, float]:
        """Write one entry with all metrics, and return it.

        {} if this process has made no progress since the last entry.
        """
        if (self.clock.env_steps, self.clock.updates) in (self.last[1:], self.begun):
            return {}
        self.write_episodes()
        values = self.meter.flush()
        if len(finished := join_episodes(self.finished)):
            values |= finished.means()
        self.finished.clear()
        entry = {**values, **self._spent(), **self._rates(), **self._counters()}
        self.write(entry)
        return entry

    def write_episodes(self) -> None:
        """Write finished episodes to the sinks that take them. Before a checkpoint: none is repeated or lost."""
        if self.collector is not None:
            self.add_episodes(self.collector.pop_late_episodes())
        steps = [step for step, episodes in self.unwritten for _ in episodes.score]
        rows = join_episodes([episodes for _, episodes in self.unwritten]).rows()
        self.unwritten.clear()
        entries = [{"step": step, **row} for step, row in zip(steps, rows, strict=True)]
        with disk_errors_as_run_error(Path("the logs")):
            for sink in self.sinks if entries else ():
                if hasattr(sink, "write_episodes"):
                    sink.write_episodes(entries)

    def _spent(self) -> dict[str, float]:
        """Return the seconds since the last entry by task, and the policy's exploration parameters."""
        spent = dict(self.seconds)
        self.seconds.update(dict.fromkeys(self.seconds, 0.0))
        amount = None if self.collector is None else self.exploration(self.clock.schedule_position)
        return spent if amount is None else {**spent, "train/exploration": amount}

    def _rates(self) -> dict[str, float]:
        """Return the rates since the last entry."""
        current = (self.clock.seconds, self.clock.env_steps, self.clock.updates)
        seconds, env_steps, updates = (b - a for a, b in zip(self.last, current, strict=True))
        self.last = self.clock.last_log = current
        rates = {
            "time/env_steps_per_second": env_steps / max(seconds, 1e-9),
            "time/updates_per_second": updates / max(seconds, 1e-9),
            "time/seconds": self.clock.seconds,
        }
        if env_steps:
            rates["replay/measured_ratio"] = updates / env_steps
        return rates

    def _counters(self) -> dict[str, float]:
        names = ("env_steps", "frames", "updates", "episodes")
        counters = {f"counters/{name}": float(getattr(self.clock, name)) for name in names}
        restarts = 0 if self.collector is None else self.collector.restarts
        counters |= {} if self.collector is None else self.collector.pop_action_rates()
        return {**counters, "env/restarts": float(restarts), "replay/windows": float(len(self.source))}


class FirstNonFinite(NamedTuple):
    """The state, on the device, of K loss terms that are reported together."""

    first: Tensor  # [K] int64, the first update at which each term was not finite; NO_UPDATE: none
    value: Tensor  # [K] the value at that update


NO_UPDATE = 2**62
"""The number of an update that does not come."""
FOLD = 64
"""Number of updates that are checked together on a device, as each operation there costs the host time."""


class FiniteCheck:
    """Checks every metric named ``loss/...``; remembers the first update at which each was NaN or infinite.

    Terms on the CPU are read at once; others are checked on their device. Updates can report different terms: TD3's
    critic reports twice as often as its actor.
    """

    def __init__(self, learner: object = None) -> None:
        """``learner``: the module whose parameters and optimizer moments are checked; other objects have none."""
        self.learner = learner
        self.read: dict[str, tuple[int, float]] = {}
        """The first update at which each term was not finite, and its value."""
        self.batch: Batch | None = None
        """A copy of the batch of the first of these updates, on a CPU."""
        self.seen: dict[tuple[str, ...], FirstNonFinite] = {}
        self._pending: dict[tuple[str, ...], list[tuple[int, Tensor]]] = {}  # by the names of the values
        self._terms: dict[tuple[str, ...], tuple[str, ...]] = {}  # the loss terms among the names of an update

    def add(self, metrics: Mapping[str, Tensor], update: int, batch: Batch | None = None) -> None:
        """Check the loss terms of update number ``update``, counted from 1, on ``batch``."""
        names, numbers = read_scalars(metrics)
        terms = self._terms.get(names)
        if terms is None:
            check_metric_names(names)
            terms = self._terms[names] = tuple(name for name in names if name.startswith("loss/"))
        if not terms:
            return
        if numbers is None:
            self._watch(metrics, terms, update)
        elif not all(map(math.isfinite, numbers)):
            for name, value in zip(names, numbers, strict=True):
                if name in terms and not math.isfinite(value):
                    self.read.setdefault(name, (update, value))
            if self.read and self.batch is None and batch is not None:
                self.batch = batch.map(Tensor.clone)  # the next batch is written to the same memory

    def _watch(self, metrics: Mapping[str, Tensor], terms: tuple[str, ...], update: int) -> None:
        if isinstance(metrics, MetricVector):
            names, values = metrics.names, metrics.vector
        else:
            names, values = terms, torch.stack([metrics[name] for name in terms]).detach()
        pending = self._pending.setdefault(names, [])
        pending.append((update, values))
        if len(pending) == FOLD:
            self._fold(names)

    def _fold(self, names: tuple[str, ...]) -> None:
        """Check the loss terms among the pending values of ``names``."""
        terms = tuple(name for name in names if name.startswith("loss/"))
        updates, vectors = zip(*self._pending.pop(names), strict=True)
        every = torch.stack(vectors).float()  # [n, names]
        values = torch.stack([every[:, names.index(name)] for name in terms], 1)  # [n, K]
        numbers = torch.tensor(updates).to(values.device, non_blocking=True)[:, None]
        first, row = torch.where(torch.isfinite(values), NO_UPDATE, numbers).min(0)  # [K]
        newest = FirstNonFinite(first, values.gather(0, row[None])[0])
        if (before := self.seen.get(terms)) is not None:
            is_new = newest.first < before.first
            newest = FirstNonFinite(*(torch.where(is_new, new, old) for new, old in zip(newest, before, strict=True)))
        self.seen[terms] = newest

    def bad_loss(self) -> str | None:
        """Describe the first term that was NaN or infinite; None if all were finite. Waits for the device."""
        for names in [*self._pending]:
            self._fold(names)
        bad = [(update, term, value) for term, (update, value) in self.read.items()]
        bad += [
            (update, term, value)
            for terms, state in self.seen.items()
            for update, value, term in zip(state.first.tolist(), state.value.tolist(), terms, strict=True)
            if update != NO_UPDATE
        ]
        if not bad:
            return None
        update, term, value = min(bad, key=lambda entry: entry[0])
        return f"{term} became {value} at update {update}"

    def describe_problem(self, updates: int) -> str | None:
        """Describe a loss, a weight or a moment that is NaN or infinite after ``updates``; None if all are finite.

        Reads all parameters and waits for the device. A loss is computed before its update, so it cannot show that this
        update failed; and a parameter whose moments are not finite can stay finite because it never changes.
        """
        named = self.learner.named_parameters() if isinstance(self.learner, nn.Module) else ()
        # others can be masks with -inf
        learned = ((name, values) for name, values in named if values.requires_grad)
        problem = self.bad_loss()
        if (name := next((name for name, values in learned if not torch.isfinite(values).all()), None)) is not None:
            bad_weights = f"weights in {name} are not finite after update {updates}"
            return bad_weights if problem is None else f"{problem}, and {bad_weights}"
        if problem is not None:
            return problem
        find: Callable[[], str | None] | None = getattr(self.learner, "find_nonfinite_optimizer", None)
        if find is not None and (name := find()) is not None:
            return f"the optimizer moments of {name} are not finite after update {updates}"
        return None
