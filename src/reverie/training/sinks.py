"""Everywhere that the measurements of a run go, and what is drawn of them at its end."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reverie.core.errors import ConfigError
from reverie.core.protocols import Sink
from reverie.core.randomness import left_as_found
from reverie.experiment import Experiment, ExperimentConfig
from reverie.folder import RunFolder, write_json, writing
from reverie.log.console import console_sink
from reverie.log.sinks import JsonlSink, TensorBoardSink, VideoSink
from reverie.log.trackers import MlflowSink, Tracked, WandbSink
from reverie.offline import Updates
from reverie.run.schedule import position
from reverie.training.telling import Say


@contextlib.contextmanager
def sinks_of(
    experiment: Experiment, folder: RunFolder, title: str, say: Say, own: Sequence[Sink] = ()
) -> Iterator[list[Sink]]:
    """Everywhere that measurements go, to ``own`` sinks last. At the end all are closed, and the curve is drawn."""
    clipped = experiment.config.env.clip_reward != "none" and experiment.env is not None
    with contextlib.ExitStack() as stack:
        curve = f"{title}; training returns are of clipped rewards" if clipped else title
        stack.callback(at_the_end, say, learning_curve, folder.metrics, folder.curve, curve)
        own = [Apart(sink) for sink in own]
        for sink in own:
            stack.callback(at_the_end, say, sink.close)
        sinks: list[Sink] = []
        for opened in open_sinks(experiment, folder, title, say):
            stack.callback(at_the_end, say, opened.close)
            sinks.append(opened)
        yield [*sinks, *own]


class Apart:
    """A sink of the user's: what it draws at random is none of the run's numbers."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink

    def write(self, values: Mapping[str, float | np.ndarray], step: int) -> None:
        """Hand them on."""
        with left_as_found():
            self.sink.write(values, step)

    def close(self) -> None:
        """Close it."""
        with left_as_found():
            self.sink.close()


class Patient:
    """A sink of files: where these cannot be written, the run goes on, and it is tried again with the next ones."""

    def __init__(self, sink: Sink, meanwhile: str, say: Say) -> None:
        """``meanwhile``: what becomes of the measurements, which is said once for each time that it begins."""
        self.sink, self.meanwhile, self.say, self.failed = sink, meanwhile, say, False

    def write(self, values: Mapping[str, float | np.ndarray], step: int) -> None:
        """Hand them on. A file that is buffered keeps what it could not write."""
        try:
            self.sink.write(values, step)
        except OSError as error:
            if not self.failed:
                self.say(f"not written: {error}. The run goes on, and {self.meanwhile}")
            self.failed = True
        else:
            self.failed = False

    def close(self) -> None:
        """Close it."""
        self.sink.close()


def check_sinks(sinks: Sequence[Sink]) -> None:
    """Whether all of them can be written to.

    Raises:
        ConfigError: one cannot.
    """
    for sink in sinks:
        if lacks := [name for name in ("write", "close") if not callable(getattr(sink, name, None))]:
            raise ConfigError(
                f"sinks: {type(sink).__name__} has no method {' and no '.join(lacks)}: expected "
                "write(values, step) and close(), as reverie.core.protocols.Sink."
            )


def open_sinks(experiment: Experiment, folder: RunFolder, title: str, say: Say) -> Iterator[Sink]:
    """One after the other of ours: files first, which trackers may hand on."""
    config, clock = experiment.config, experiment.clock
    with writing(folder.path):
        lines = JsonlSink(folder.metrics, since=position(clock))
        yield Patient(lines, f"lines of {folder.metrics} wait in memory", say)
        yield Patient(VideoSink(folder.videos), "it is left out", say)
        if config.tensorboard:
            board = TensorBoardSink(folder.tensorboard, purge_step=position(clock) + 1 if position(clock) else None)
            yield Patient(board, f"{folder.metrics} has all of it", say)
        yield from open_trackers(config, folder, title, say)
    if config.console:
        alone = config.data.alone
        shown, total = (Updates(clock), config.updates) if alone else (clock, config.steps)
        yield console_sink(shown, total, title, sys.stdout)


def open_trackers(config: ExperimentConfig, folder: RunFolder, title: str, say: Say) -> Iterator[Sink]:
    """Those of others that are wanted. What they call the run is kept, so that it goes on there as well."""
    known = json.loads(folder.tracked.read_text(encoding="utf-8")) if folder.tracked.exists() else {}
    run = Tracked(folder.path, folder.videos, title, json.loads(json.dumps(config.to_dict())))
    for name in (name for name in TRACKERS if getattr(config, name)):
        sink = WandbSink(run, known.get(name), say) if name == "wandb" else MlflowSink(run, known.get(name), say)
        if known.get(name) != sink.ident:
            known[name] = sink.ident
            write_json(folder.tracked, known)
        say(f"{TRACKERS[name]}: {sink.where}")
        yield sink


TRACKERS = {"wandb": "Weights & Biases", "mlflow": "MLflow"}
"""Settings, and what they switch on."""


def learning_curve(metrics: Path, png: Path, title: str) -> Path | None:
    """Draw what :func:`reverie.log.plot.learning_curve` does."""
    from reverie.log.plot import learning_curve as draw  # a fifth of all imports, which training can start without

    return draw(metrics, png, title)


def at_the_end(say: Say, write: Callable[..., Any], *args: Any) -> None:
    """Call ``write``; a disk that fails now is told of, but takes nothing away from what was reached."""
    try:
        write(*args)
    except OSError as error:
        say(f"not written: {error}")
