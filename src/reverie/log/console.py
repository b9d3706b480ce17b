"""The console output of one run or of several: a live display on a terminal, a line now and then anywhere else."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from reverie.core.files import LARGEST_LOG, open_file
from reverie.core.logger import survive_broken_pipe, tell
from reverie.log.metrics import Values, row_of, scalars

if TYPE_CHECKING:
    from reverie.core.clock import Clock

HEADER_EVERY = 25
LINE_EVERY, LANE_EVERY = 60.0, 30.0
"""Seconds between two lines where the output is no terminal: of a run, evaluations apart; of each of several runs."""
COLUMNS = 100
"""Width of the lines of a run."""
RARE = {"iqm": "eval/score_iqm", "low95": "eval/score_iqm_low", "high95": "eval/score_iqm_high",
        "estimated by FQE": "estimate/return"}  # fmt: skip
"""Values that are shown once they are known: the interquartile mean of evaluations with its 95 % interval, and the
estimate from recorded data, named so that nobody takes it for an evaluation."""


class Pace:
    """Measures steps per second and the time left, over about the last minute of this process.

    The time before the first step is not counted, nor are the steps before the first update, which were faster.
    """

    def __init__(self, clock: Clock | Lane, now: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._now = clock, now
        self._marks: list[tuple[float, int]] = [(now(), clock.position)]
        self._phase = (False, clock.updates > 0)  # whether steps, and updates, were made
        self._rate = 0.0  # the last one known

    def rate(self) -> float:
        """Return steps per second."""
        now, steps = self._now(), self._clock.position
        phase = (self._phase[0] or steps > self._marks[0][1], self._clock.updates > 0)
        if phase != self._phase:
            self._phase, self._marks = phase, [(now, steps)]
            return self._rate
        recent = [mark for mark in self._marks if now - mark[0] <= 60.0]
        since, before = (recent or self._marks[-1:])[0]  # without a terminal it is asked about once a minute
        if now - self._marks[-1][0] >= 1.0:
            self._marks = [*recent, (now, steps)]
        if now > since and (steps > before or now - since > 60.0):
            self._rate = (steps - before) / (now - since)
        return self._rate

    def shown(self) -> str:
        """Return the rate as text, ``-`` while it is unknown."""
        return short(self.rate() or None)

    def left(self) -> str:
        """Return the time left as ``h:mm:ss``, or ``-`` while it is unknown."""
        rate = self.rate()
        return span((self._clock.length - self._clock.position) / rate) if rate > 0 else "-"


# ---------------------------------------------------------------- one run


class ConsoleSink:
    """Shows a run: on a terminal a panel, redrawn four times a second; else lines of at most 100 columns.

    The panel has progress, rate, time left, scores and losses. There is a line of each evaluation, and else of one
    entry a minute.
    """

    def __init__(
        self, clock: Clock, title: str, stream: TextIO | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        """``stream``: default standard output."""
        self._clock, self._title, self._now = clock, title, now
        self._stream = sys.stdout if stream is None else stream
        self._pace = Pace(clock)
        self._latest: dict[str, float] = {}
        self._columns: list[str] = []
        self._lines, self._last = 0, -math.inf
        self._unshown: int | None = None
        self._closed = False
        self._live: Live | None = None
        if self._stream.isatty():
            self._live = Live(get_renderable=self.panel, console=Console(file=self._stream), refresh_per_second=4)
            self._live.start()
        else:
            tell(title, self._stream)

    def write(self, values: Values, step: int) -> None:
        """Keep the scalars of ``values`` for the panel, or print a line with the newest ones if it is due."""
        if not (new := scalars(values)):
            return
        self._latest.update(new)
        if any(name.startswith(("eval/", "estimate/")) for name in new) or self._now() - self._last >= LINE_EVERY:
            self._print(step)
        else:
            self._unshown = step

    def close(self) -> None:
        """Print the newest entry if it was not due; draw the panel a last time, and release the terminal."""
        self._closed = True
        if self._unshown is not None:
            self._print(self._unshown)
        if self._live is not None:
            with survive_broken_pipe(self._stream):
                self._live.stop()

    def _print(self, step: int) -> None:
        self._last, self._unshown = self._now(), None
        if self._live is not None:  # a thread redraws it
            return
        clock, unit = self._clock, self._clock.unit
        row = {"time": span(clock.seconds)} | ({"step": f"{step:,}"} if unit == "steps" else {})
        row |= {"updates": f"{clock.updates:,}", f"{unit}/s": self._pace.shown(), "left": self._pace.left()}
        row |= {"return": short(self._latest.get("episode/score")), "eval": self._score()}
        row |= self._rare()
        for name, value in self._losses().items():
            if len(self._line(row, row)) + 1 + max(9, len(name)) <= COLUMNS:
                row[name] = value
        if list(row) != self._columns or self._lines % HEADER_EVERY == 0:
            self._columns = list(row)
            tell(self._line(row, row), self._stream)
        tell(self._line(row.values(), row), self._stream)
        self._lines += 1

    @staticmethod
    def _line(cells: Iterable[str], columns: Iterable[str]) -> str:
        return " ".join(f"{cell:>{max(9, len(name))}}" for cell, name in zip(cells, columns, strict=True))

    def _score(self) -> str:
        """Return the score of the newest evaluation, with a mark if some of its episodes were cut off."""
        return short(self._latest.get("eval/score")) + "*" * (self._latest.get("eval/cut_off", 0) > 0)

    def _rare(self) -> dict[str, str]:
        """Return the cells of the values of :data:`RARE` that are known."""
        return {name: short(self._latest[key]) for name, key in RARE.items() if key in self._latest}

    def _losses(self) -> dict[str, str]:
        """Return the cells of losses by term, sorted; called ``<term> loss`` where ``train/<term>`` exists."""
        terms = sorted(name for name in self._latest if name.startswith("loss/"))
        names = {term: term.removeprefix("loss/").removeprefix("reconstruction/") for term in terms}
        return {x + " loss" * (f"train/{x}" in self._latest): short(self._latest[term]) for term, x in names.items()}

    def panel(self) -> Panel:
        """Return what a terminal shows now."""
        return Panel(Group(self._bar(), Text(), self._tables()), title=Text(self._title), title_align="left")

    def _bar(self) -> Table:
        steps, length, unit = self._clock.position, self._clock.length, self._clock.unit
        row = Table.grid(padding=(0, 2), expand=True)
        row.add_column(ratio=1)
        for _ in range(3):
            row.add_column(justify="right", no_wrap=True)
        bar = ProgressBar(total=max(1, length), completed=min(steps, length))
        if not self._closed:
            count = f"{share(steps, length)}  {steps:,} / {length:,} {unit}"
            row.add_row(bar, count, f"{self._pace.shown()} {unit}/s", f"{self._pace.left()} left")
        elif steps >= length:
            row.add_row(bar, f"{steps:,} {unit}", "", "done")
        else:  # a score, patience or a callback ended it, or a signal came
            row.add_row(bar, f"{steps:,} of at most {length:,} {unit}", "", "ended early")
        return row

    def _tables(self) -> Columns:
        get = self._latest.get
        run = {"return": short(get("episode/score")), "episode length": short(get("episode/length"))}
        run |= {"evaluation": self._score(), **self._rare()}
        run |= {"episodes": f"{get('counters/episodes', 0):,.0f}", "updates": f"{self._clock.updates:,}"}
        run |= {"elapsed": span(self._clock.seconds)}
        return Columns([_table(run), _table(self._losses() or {"no loss yet": ""})], padding=(0, 6))


def _table(cells: dict[str, str]) -> Table:
    """Return a table of names and values in columns of at most seven lines."""
    grid = Table.grid(padding=(0, 2))
    items = [(Text(name, style="dim"), Text(value, justify="right")) for name, value in cells.items()]
    height = min(7, len(items))
    for line in range(height):
        grid.add_row(*(cell for item in items[line::height] for cell in item))
    return grid


# ---------------------------------------------------------------- several runs


LaneState = Literal["waiting", "running", "finished", "stopped", "failed"]

STYLES: dict[LaneState, str] = {"waiting": "dim", "running": "", "finished": "green", "stopped": "yellow",
                                "failed": "red"}  # fmt: skip


class Tail:
    """Reads the lines that were appended to a ``metrics.jsonl`` since the last time."""

    def __init__(self, path: Path) -> None:
        self.path: Path = path
        self.offset: int = 0

    def read(self) -> list[dict[str, Any]]:
        """Return the new complete lines; damaged ones are skipped."""
        size = self.path.stat().st_size if self.path.exists() else 0
        if size < self.offset:  # a resumed run has moved some lines to another file
            self.offset = 0
        if size == self.offset:
            return []
        with open_file(self.path, LARGEST_LOG) as file:
            file.seek(self.offset)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self.offset += len(whole)
        return [row for line in whole.splitlines() if (row := row_of(line)) is not None]


class Lane:
    """One of several runs: its name, its state, and the newest values of its metrics."""

    def __init__(self, name: str, metrics: Path, length: int, unit: str = "steps") -> None:
        """``length`` is that of the run in steps; ``unit`` is their name in the display."""
        self.name: str = name
        self.length: int = length
        self.unit: str = unit
        self.state: LaneState = "waiting"
        self.note: str = ""  # a few words on its state; empty if ``state`` says enough
        self.tail: Tail = Tail(metrics)
        self.pace: Pace | None = None
        self.values: dict[str, float] = {}
        self.read()

    def __repr__(self) -> str:
        return f"<{self.name}: {self.note or self.state}>"

    @property
    def position(self) -> int:
        """Steps (in ``unit``) of the last entry."""
        return int(self.values.get("step", 0))

    @property
    def updates(self) -> int:
        """Updates of the last entry."""
        return int(self.values.get("counters/updates", 0))

    def begin(self) -> None:
        """Note that the process was started: from its first entry on the pace is measured."""
        self.read()
        self.state, self.note, self.pace = "running", "", None

    def read(self) -> None:
        """Read new entries."""
        rows = self.tail.read()
        for row in rows:
            self.values.update({name: value for name, value in row.items() if value is not None})
        if rows and self.state == "running" and self.pace is None:
            self.pace = Pace(self)

    def cells(self) -> dict[str, str]:
        """Return the cells of its line by name."""
        shown = {"share": share(self.position, self.length), "steps": f"{self.position:,} / {self.length:,}"}
        shown |= {"return": short(self.values.get("episode/score")), "eval": short(self.values.get("eval/score"))}
        rate, left = (self.pace.shown(), self.pace.left()) if self.pace is not None else ("-", "-")
        return shown | {"rate": rate, "left": left}


class Board:
    """Shows several runs with a line for each: redrawn on a terminal, appended now and then anywhere else."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        title: str,
        stream: TextIO | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``lanes``: none shows nothing. ``stream``: default standard output; only a terminal shows the ``title``."""
        self.lanes: Sequence[Lane] = lanes
        self.title: str = title
        self.now: Callable[[], float] = now
        self.stream: TextIO = sys.stdout if stream is None else stream
        self.since: float = now()
        self.last: float = self.since
        self.live: Live | None = None
        if lanes and self.stream.isatty():
            self.live = Live(get_renderable=self.panel, console=Console(file=self.stream), refresh_per_second=2)
            self.live.start()
        for lane in lanes:
            if lane.state != "waiting":
                self.changed(lane)

    def update(self) -> None:
        """Read the metrics if it is time; called often."""
        if self.now() - self.last >= (1.0 if self.live is not None else LANE_EVERY):
            self.last = self.now()
            for lane in (lane for lane in self.lanes if lane.state == "running"):
                lane.read()
                part, steps, score, evaluated, rate, left = lane.cells().values()
                scores = f"return {score}  eval {evaluated}"
                self._print(lane, f"{part:>4}  {steps} {lane.unit}  {scores}  {rate} {lane.unit}/s  {left} left")

    def changed(self, lane: Lane) -> None:
        """Show the new state of ``lane``."""
        self._print(lane, lane.note or ("started" if lane.state == "running" else lane.state))

    def _print(self, lane: Lane, text: str) -> None:
        if self.lanes and self.live is None:  # a terminal is redrawn by a thread
            width = max(len(lane.name) for lane in self.lanes)
            tell(f"{span(self.now() - self.since)}  {lane.name:<{width}}  {text}", self.stream)

    def close(self) -> None:
        """Draw a last time and release the terminal."""
        if self.live is not None:
            self.live.stop()

    def panel(self) -> Panel:
        """Return what a terminal shows now."""
        grid = Table(box=None, expand=True, header_style="dim", padding=(0, 1))
        grid.add_column("", no_wrap=True)
        grid.add_column("", ratio=1, min_width=8)
        unit = self.lanes[0].unit
        for name in ("", unit, "return", "eval", f"{unit}/s", "left"):
            grid.add_column(name, justify="right", no_wrap=True)
        for lane in self.lanes:
            cells, running = lane.cells(), lane.state == "running"
            bar = ProgressBar(total=max(1, lane.length), completed=min(lane.position, lane.length))
            rest = [cells[name] if running or lane.position else "" for name in ("share", "steps", "return", "eval")]
            ending = Text(cells["left"] if running else lane.state, style=STYLES[lane.state])
            grid.add_row(lane.name, bar, *rest, cells["rate"] if running else "", ending)
        return Panel(grid, title=Text(self.title), title_align="left")


# ---------------------------------------------------------------- numbers as text


def share(done: int, total: int) -> str:
    """Return a part as percentage of ``total``."""
    return f"{min(1.0, done / max(1, total)):.0%}"


def span(seconds: float) -> str:
    """Return seconds as ``h:mm:ss``."""
    whole = int(max(0.0, seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def short(number: float | None) -> str:
    """Return a number with about four digits, or ``-`` for None."""
    if number is None or math.isnan(number):
        return "-" if number is None else "nan"
    size = abs(number)
    if size >= 1e6 or 0 < size < 1e-3:
        return f"{number:.2e}"
    return f"{number:.0f}" if size >= 1000 else f"{number:.4g}" if size >= 1 else f"{number:.3f}"
