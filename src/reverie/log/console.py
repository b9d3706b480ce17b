"""The console output of a run: a live display on a terminal, a line a minute anywhere else."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol, TextIO

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from reverie.log.metrics import Values, scalars

GONE = (errno.EPIPE, errno.EIO)
"""Errors of writing when there is no reader any more: a closed pipe, a closed terminal."""
HEADER_EVERY = 25
LINE_EVERY = 60.0
"""Seconds between two lines where the output is no terminal, evaluations apart."""
COLUMNS = 100
"""Width of these lines."""
INTERVAL = {"iqm": "eval/score_iqm", "low95": "eval/score_iqm_low", "high95": "eval/score_iqm_high"}
"""Columns for the interquartile mean of evaluations and the bounds of its 95 % interval."""

ESTIMATE = {"estimated by FQE": "estimate/return"}
"""The column of estimates from recorded data, named so that nobody takes them for evaluations."""


def tell(text: str, stream: TextIO | None = None) -> None:
    """Print a line to ``stream`` (default: standard output). Without a reader, output is discarded from then on."""
    stream = sys.stdout if stream is None else stream
    with outlived(stream):
        print(text, file=stream, flush=True)


@contextlib.contextmanager
def outlived(stream: TextIO) -> Iterator[None]:
    """Ignore that ``stream`` has lost its reader: redirect it to the null device, so that the run goes on."""
    try:
        yield
    except OSError as error:
        if error.errno not in GONE:
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class Progress(Protocol):
    """The parts of the run's clock that the display reads."""

    @property
    def position(self) -> int:
        """Steps so far, or updates where nothing is collected."""
        ...

    @property
    def updates(self) -> int:
        """Gradient updates so far."""
        ...

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        ...


def console_sink(
    clock: Progress, length: int, title: str, stream: TextIO | None = None, unit: str = "steps"
) -> PlainSink | LiveSink:
    """Return the display for ``stream`` (default: standard output). ``unit``: what is counted, steps or updates."""
    stream = sys.stdout if stream is None else stream
    kind = LiveSink if stream.isatty() else PlainSink
    return kind(clock, length, title, stream, unit)


class Pace:
    """Measures steps per second and the time left, over about the last minute of this process.

    The time before the first step is not counted: it went into environments, a checkpoint or compilation.
    """

    def __init__(self, clock: Progress, length: int, now: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._total, self._now = clock, length, now
        self._marks: list[tuple[float, int]] = [(now(), clock.position)]
        self._moves, self._learns = False, clock.updates > 0
        self._rate = 0.0  # the last one known: at the first moment of learning there is no newer one

    def rate(self) -> float:
        """Return env steps per second."""
        now, steps = self._now(), self._clock.position
        since, before = self._marks[0]
        if steps > before and not self._moves:
            self._moves, self._marks = True, [(now, steps)]
            return self._rate
        if now - self._marks[-1][0] >= 1.0:
            self._marks = [*(m for m in self._marks if now - m[0] <= 60.0), (now, steps)]
        if self._clock.updates and not self._learns:  # without updates, steps were faster than they will be
            self._learns, self._marks = True, [(now, steps)]
        if steps > before or now - since > 60.0:
            self._rate = (steps - before) / (now - since) if now > since else 0.0
        return self._rate

    def shown(self) -> str:
        """Return the rate as text, ``-`` while it is unknown."""
        return short(self.rate() or None)

    def left(self) -> str:
        """Return the time left as ``h:mm:ss``, or ``-`` while it is unknown."""
        rate = self.rate()
        return span((self._total - self._clock.position) / rate) if rate > 0 else "-"


class PlainSink:
    """Prints aligned lines of at most 100 columns: of each evaluation, and else of one entry a minute.

    The header is repeated every 25 lines and when the columns change. Losses that do not fit are left out.
    """

    def __init__(
        self, clock: Progress, length: int, title: str, stream: TextIO, unit: str = "steps",
        now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._clock, self._stream, self._pace, self._unit = clock, stream, Pace(clock, length), unit
        self._columns: list[str] = []
        self._lines = 0
        self._latest: dict[str, float] = {}
        self._now, self._last = now, -math.inf
        self._unshown: int | None = None
        tell(title, stream)

    def write(self, values: Values, step: int) -> None:
        """Print a line with the newest values, if ``values`` has scalars and a line is due."""
        new = scalars(values)
        if not new:
            return
        self._latest.update(new)
        judged = any(name.startswith(("eval/", "estimate/")) for name in new)
        if judged or self._now() - self._last >= LINE_EVERY:
            self._print(step)
        else:
            self._unshown = step

    def _print(self, step: int) -> None:
        self._last, self._unshown = self._now(), None
        row = {"time": span(self._clock.seconds), "step": f"{step:,}", "updates": f"{self._clock.updates:,}"}
        if self._unit == "updates":
            del row["step"]
        row |= {f"{self._unit}/s": self._pace.shown(), "left": self._pace.left()}
        row |= {"return": short(self._latest.get("episode/score")), "eval": short(self._latest.get("eval/score"))}
        row |= {name: short(self._latest[key]) for name, key in INTERVAL.items() if key in self._latest}
        row |= {name: short(self._latest[key]) for name, key in ESTIMATE.items() if key in self._latest}
        for name, value in losses(self._latest):
            if len(self._line(row, row)) + 1 + max(9, len(name)) <= COLUMNS:
                row[name] = short(value)
        if list(row) != self._columns or self._lines % HEADER_EVERY == 0:
            self._columns = list(row)
            tell(self._line(row, row), self._stream)
        tell(self._line(row.values(), row), self._stream)
        self._lines += 1

    @staticmethod
    def _line(cells: Iterable[str], columns: Iterable[str]) -> str:
        return " ".join(f"{cell:>{max(9, len(name))}}" for cell, name in zip(cells, columns, strict=True))

    def close(self) -> None:
        """Print the newest entry if it was not due, and flush the stream, which belongs to the caller."""
        if self._unshown is not None:
            self._print(self._unshown)
        self._stream.flush()


class LiveSink:
    """Shows a panel, redrawn four times a second: progress, rate, time left, scores and losses."""

    def __init__(self, clock: Progress, length: int, title: str, stream: TextIO, unit: str = "steps") -> None:
        self._clock, self._total, self._title, self._stream, self._unit = clock, length, title, stream, unit
        self._pace = Pace(clock, length)
        self._latest: dict[str, float] = {}
        self._closed = False
        self._live = Live(self, console=Console(file=stream), refresh_per_second=4)
        self._live.start()

    def write(self, values: Values, step: int) -> None:
        """Keep the scalars of ``values`` for the next redraw."""
        self._latest.update(scalars(values))

    def close(self) -> None:
        """Draw a last time, without the time left, and release the terminal."""
        self._closed = True
        with outlived(self._stream):
            self._live.stop()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the panel; Rich calls this at each refresh."""
        yield Panel(Group(self._bar(), Text(), self._tables()), title=Text(self._title), title_align="left")

    def _bar(self) -> Table:
        steps = self._clock.position
        row = Table.grid(padding=(0, 2), expand=True)
        row.add_column(ratio=1)
        for _ in range(3):
            row.add_column(justify="right", no_wrap=True)
        share = f"{min(1.0, steps / max(1, self._total)):.0%}  "
        bar = ProgressBar(total=max(1, self._total), completed=min(steps, self._total))
        count = f"{steps:,} / {self._total:,} {self._unit}"
        if not self._closed:
            row.add_row(bar, share + count, f"{self._pace.shown()} {self._unit}/s", f"{self._pace.left()} left")
        elif steps >= self._total:
            row.add_row(bar, f"{steps:,} {self._unit}", "", "done")
        else:  # ``stop_score`` was reached, or a signal came
            row.add_row(bar, f"{steps:,} of at most {self._total:,} {self._unit}", "", "ended early")
        return row

    def _tables(self) -> Columns:
        get = self._latest.get
        run = {"return": short(get("episode/score")), "episode length": short(get("episode/length"))}
        run |= {"evaluation": short(get("eval/score")), **between(self._latest)}
        run |= {name: short(get(key)) for name, key in ESTIMATE.items() if key in self._latest}
        run |= {"episodes": count(get("counters/episodes"))}
        run |= {"updates": count(self._clock.updates), "elapsed": span(self._clock.seconds)}
        loss = {name: short(value) for name, value in losses(self._latest)}
        return Columns([_table("run", run), _table("loss", loss)], padding=(0, 6))


def _table(title: str, cells: dict[str, str]) -> Table:
    """Return a table of names and values in columns of at most seven lines."""
    grid = Table.grid(padding=(0, 2))
    items = list(cells.items())
    height = max(1, min(7, len(items)))
    for line in range(height):
        row: list[Text] = []
        for name, value in items[line::height]:
            row += [Text(name, style="dim"), Text(value, justify="right")]
        grid.add_row(*row)
    if not items:
        grid.add_row(Text(f"no {title} yet", style="dim"))
    return grid


def between(values: Mapping[str, float]) -> dict[str, str]:
    """Return the cell with the newest interquartile mean and its interval, as far as they are known."""
    shown = {name: short(values[key]) for name, key in INTERVAL.items() if key in values}
    ends = f" ({shown['low95']} to {shown['high95']})" if len(shown) == len(INTERVAL) else ""
    return {"IQM, 95 %" if ends else "IQM": f"{shown['iqm']}{ends}"} if "iqm" in shown else {}


def losses(values: dict[str, float]) -> list[tuple[str, float]]:
    """Return the values of ``loss/<term>`` with the short names of the terms, sorted by name.

    A term that shares its name with a quantity in ``train/``, such as a temperature, is called ``<term> loss``.
    """
    terms = sorted(name for name in values if name.startswith("loss/"))
    short = [name.removeprefix("loss/").removeprefix("reconstruction/") for name in terms]
    named = [f"{name} loss" if f"train/{name}" in values else name for name in short]
    return [(name, values[term]) for name, term in zip(named, terms, strict=True)]


def span(seconds: float) -> str:
    """Return seconds as ``h:mm:ss``."""
    whole = int(max(0.0, seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def count(number: float | None) -> str:
    """Return an integer with thousands separators, or ``-`` for None."""
    return "-" if number is None else f"{int(number):,}"


def short(number: float | None) -> str:
    """Return a number with about four digits, or ``-`` for None."""
    if number is None or math.isnan(number):
        return "-" if number is None else "nan"
    size = abs(number)
    if size >= 1e6 or 0 < size < 1e-3:
        return f"{number:.2e}"
    return f"{number:.0f}" if size >= 1000 else f"{number:.4g}" if size >= 1 else f"{number:.3f}"
