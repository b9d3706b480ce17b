"""Open every destination of a run's measurements, and draw the learning curve at the end."""

from __future__ import annotations

import contextlib
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reverie.core.clock import Clock
from reverie.core.errors import ConfigError
from reverie.core.protocols import Sink
from reverie.core.randomness import left_as_found
from reverie.core.words import Say
from reverie.experiment import Experiment, ExperimentConfig
from reverie.folder import RunFolder, write_json, writing
from reverie.log.console import console_sink
from reverie.log.sinks import JsonlSink, TensorBoardSink, VideoSink
from reverie.log.trackers import MlflowSink, Tracked, WandbSink
from reverie.run.schedule import position
from reverie.run.train import add_to


@contextlib.contextmanager
def sinks_of(
    experiment: Experiment,
    folder: RunFolder,
    title: str,
    say: Say,
    own: Sequence[Sink] = (),
    again: Mapping[str, float] | None = None,
) -> Iterator[list[Sink]]:
    """Open all sinks, those of the user (``own``) last. On exit all are closed, and the learning curve is drawn.

    ``again``: values that mark logged entries of the present step which will be made again.
    """
    with contextlib.ExitStack() as stack:
        stack.callback(draw_curve, experiment, folder, title, say)
        apart = [Apart(sink, say) for sink in own]
        for sink in apart:
            stack.push(sink.end)
        sinks: list[Sink] = []
        for opened in open_sinks(experiment, folder, title, say, again):
            stack.callback(at_the_end, say, opened.close)
            sinks.append(opened)
        yield [*sinks, *apart]


class Apart:
    """A user's sink, isolated from the run and from other sinks.

    What it draws from random generators changes no number of the run, and what it changes in the values that it is
    given changes none that other sinks see. Its errors do not end the run: the first one is reported.
    """

    def __init__(self, sink: Sink, say: Say) -> None:
        self.sink, self.say, self.name, self.missed = sink, say, type(sink).__name__, 0

    def write(self, values: Mapping[str, float | np.ndarray], step: int) -> None:
        """Pass a copy of the values on."""
        own = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in values.items()}
        try:
            with left_as_found():
                self.sink.write(own, step)
        except Exception as error:
            if not self.missed:
                self.say(
                    f"the sink {self.name} failed: {_placed(error)}. The run continues, and later entries go to it"
                )
            self.missed += 1

    def close(self) -> None:
        """Close the user's sink."""
        with left_as_found():
            self.sink.close()

    def end(self, kind: type[BaseException] | None, first: BaseException | None, trace: object) -> None:
        """Close the sink, as an exit callback; an error in that is a note on the one that ended the run, if any."""
        if self.missed:
            self.say(f"entries that the sink {self.name} missed because it failed: {self.missed}")
        try:
            self.close()
        except Exception as error:
            if first is None:
                self.say(f"closing the sink {self.name} failed: {_placed(error)}")
            else:
                add_to(first, f"Afterwards closing the sink {self.name} failed: {type(error).__name__}: {error}")


def _placed(error: Exception) -> str:
    """Return the type and message of an error that a sink raised, and the line in the sink's own file."""
    inside = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    said, own = f"{type(error).__name__}: {error}", [frame for frame in inside if frame.filename == inside[0].filename]
    return f"{said} ({own[-1].filename}:{own[-1].lineno} in {own[-1].name})" if own else said


class Patient:
    """A sink that writes files. If they cannot be written the run goes on, and the next write tries again."""

    def __init__(self, sink: Sink, meanwhile: str, say: Say) -> None:
        """``meanwhile``: what becomes of the measurements, reported once each time that writing begins to fail."""
        self.sink, self.meanwhile, self.say, self.failed = sink, meanwhile, say, False

    def write(self, values: Mapping[str, float | np.ndarray], step: int) -> None:
        """Pass the values on. ``JsonlSink`` keeps the lines that it could not write."""
        try:
            self.sink.write(values, step)
        except OSError as error:
            if not self.failed:
                self.say(f"cannot write a log file: {error}. The run continues, and {self.meanwhile}")
            self.failed = True
        else:
            self.failed = False

    def close(self) -> None:
        """Close the wrapped sink."""
        self.sink.close()


def check_sinks(sinks: Sequence[Sink]) -> None:
    """Raise ConfigError unless all sinks have the methods of a :class:`reverie.core.protocols.Sink`.

    Raises:
        ConfigError: a sink lacks ``write`` or ``close``, or is a class.
    """
    for sink in sinks:
        if isinstance(sink, type):
            raise ConfigError(f"sinks: {sink.__name__} is a class: expected an object of it, {sink.__name__}(...).")
        if lacks := [name for name in ("write", "close") if not callable(getattr(sink, name, None))]:
            raise ConfigError(
                f"sinks: {type(sink).__name__} has no method {' and no '.join(lacks)}: expected "
                "write(values, step) and close(), as in reverie.core.protocols.Sink."
            )


def open_sinks(
    experiment: Experiment, folder: RunFolder, title: str, say: Say, again: Mapping[str, float] | None = None
) -> Iterator[Sink]:
    """Yield the sinks of reverie one by one: files first, since the trackers may upload them."""
    config, clock = experiment.config, experiment.clock
    with writing(folder.path):
        lines = JsonlSink(folder.metrics, since=position(clock), again=again)
        yield Patient(lines, f"the entries of {folder.metrics} wait in memory", say)
        yield Patient(VideoSink(folder.videos), "the video is skipped", say)
        if config.tensorboard:
            since = position(clock) + 1 if folder.tensorboard.is_dir() else None  # a run may also start over
            board = TensorBoardSink(folder.tensorboard, purge_step=since)
            yield Patient(board, f"{folder.metrics} holds all measurements", say)
        yield from open_trackers(config, folder, title, say)
    if config.console:
        alone = config.data.alone
        shown, total = (UpdatesAsSteps(clock), config.updates) if alone else (clock, config.steps)
        yield console_sink(shown, total, title, sys.stdout, "updates" if alone else "steps")


class UpdatesAsSteps:
    """A clock that reports updates as its steps, for the progress display of a run on recorded data alone."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    @property
    def env_steps(self) -> int:
        """Number of updates."""
        return self.clock.updates

    @property
    def updates(self) -> int:
        """Number of updates."""
        return self.clock.updates

    @property
    def seconds(self) -> float:
        """Seconds of training so far."""
        return self.clock.seconds


def open_trackers(config: ExperimentConfig, folder: RunFolder, title: str, say: Say) -> Iterator[Sink]:
    """Yield the trackers that are switched on. Their ids of the run are stored, so that they continue it as well."""
    known = json.loads(folder.tracked.read_text(encoding="utf-8")) if folder.tracked.exists() else {}
    run = Tracked(folder.path, folder.shown, folder.videos, title, json.loads(json.dumps(config.to_dict())))
    for name in (name for name in TRACKERS if getattr(config, name)):
        sink = WandbSink(run, known.get(name), say) if name == "wandb" else MlflowSink(run, known.get(name), say)
        if known.get(name) != sink.ident:
            known[name] = sink.ident
            write_json(folder.tracked, known)
        say(f"{TRACKERS[name]}: {sink.where}")
        yield sink


TRACKERS = {"wandb": "Weights & Biases", "mlflow": "MLflow"}
"""Settings that switch a tracker on, and the tracker's name."""


def draw_curve(experiment: Experiment, folder: RunFolder, title: str, say: Say) -> None:
    """Draw the learning curve of the run at its end."""
    clipped = experiment.config.env.clip_reward != "none" and experiment.env is not None
    curve = f"{title}; training returns sum clipped rewards" if clipped else title
    unit = "updates" if experiment.config.data.alone else "env steps"
    at_the_end(say, learning_curve, folder.metrics, folder.curve, curve, unit)


def learning_curve(metrics: Path, png: Path, title: str, unit: str) -> Path | None:
    """Draw the learning curve, as :func:`reverie.log.plot.learning_curve`."""
    from reverie.log.plot import learning_curve as draw  # matplotlib: a fifth of all imports, not needed to start

    return draw(metrics, png, title, unit)


def at_the_end(say: Say, write: Callable[..., Any], *args: Any) -> None:
    """Call ``write``. A disk that fails is reported, but does not spoil a training that is over."""
    try:
        write(*args)
    except OSError as error:
        say(f"cannot write: {error}")
