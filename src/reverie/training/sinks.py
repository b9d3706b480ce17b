"""Everywhere that the measurements of a run go, and what is drawn of them at its end."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from reverie.core.protocols import Sink
from reverie.experiment import Experiment
from reverie.folder import RunFolder, writing
from reverie.log.console import console_sink
from reverie.log.sinks import JsonlSink, TensorBoardSink, VideoSink
from reverie.offline import Updates
from reverie.run.schedule import position
from reverie.training.telling import Say


@contextlib.contextmanager
def sinks_of(experiment: Experiment, folder: RunFolder, title: str, say: Say) -> Iterator[list[Sink]]:
    """Everywhere that measurements go. At the end all are closed, and the curve is drawn."""
    with contextlib.ExitStack() as stack:
        stack.callback(at_the_end, say, learning_curve, folder.metrics, folder.curve, title)
        with writing(folder.path):
            sinks = open_sinks(experiment, folder, title)
        for sink in sinks:
            stack.callback(at_the_end, say, sink.close)
        yield sinks


def open_sinks(experiment: Experiment, folder: RunFolder, title: str) -> list[Sink]:
    """Everywhere that measurements go."""
    config, clock = experiment.config, experiment.clock
    sinks: list[Sink] = [JsonlSink(folder.metrics, since=position(clock)), VideoSink(folder.videos)]
    if config.tensorboard:
        sinks.append(TensorBoardSink(folder.tensorboard, purge_step=position(clock) + 1 if position(clock) else None))
    if config.console:
        alone = config.data.alone
        shown, total = (Updates(clock), config.updates) if alone else (clock, config.steps)
        sinks.append(console_sink(shown, total, title, sys.stdout))
    return sinks


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
