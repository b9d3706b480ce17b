"""A display of several runs with a line for each: redrawn on a terminal, appended now and then anywhere else."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from reverie.log.console import Pace, short, span

LaneState = Literal["waiting", "running", "finished", "stopped", "failed"]

PERIOD = 30.0
"""Seconds between two lines about a run, if the output is no terminal."""


class Tail:
    """Reads the lines that were appended to a ``metrics.jsonl`` since the last time."""

    def __init__(self, path: Path) -> None:
        self.path, self.offset = path, 0

    def read(self) -> list[dict[str, Any]]:
        """Return the new complete lines; damaged ones are skipped."""
        size = self.path.stat().st_size if self.path.exists() else 0
        if size < self.offset:  # a resumed run has moved some lines to another file
            self.offset = 0
        if size == self.offset:
            return []
        with self.path.open("rb") as file:
            file.seek(self.offset)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self.offset += len(whole)
        rows = []
        for line in whole.splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and "step" in row:
                rows.append(row)
        return rows


class Lane:
    """One of the runs: its name, its state, and the newest values of its metrics."""

    pace: Pace | None
    state: LaneState
    note: str
    """A few words on its state; empty if ``state`` says enough."""

    def __init__(self, name: str, metrics: Path, total: int, unit: str = "steps") -> None:
        """``total`` is the length of the run in steps; ``unit`` is their name in the display."""
        self.name, self.total, self.unit, self.state, self.note = name, total, unit, "waiting", ""
        self.tail, self.pace = Tail(metrics), None
        self.values: dict[str, float] = {}
        self.read()

    @property
    def position(self) -> int:
        """Return the steps (in ``unit``) of the last entry."""
        return int(self.values.get("step", 0))

    @property
    def updates(self) -> int:
        """Return the updates of the last entry."""
        return int(self.values.get("counters/updates", 0))

    @property
    def seconds(self) -> float:
        """Return the seconds that the run has taken, as of the last entry."""
        return float(self.values.get("time/seconds", 0.0))

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
            self.pace = Pace(self, self.total)

    def cells(self) -> dict[str, str]:
        """Return the cells of its line by name."""
        share = f"{min(1.0, self.position / max(1, self.total)):.0%}"
        shown = {"steps": f"{self.position:,} / {self.total:,}", "share": share, "unit": self.unit}
        shown |= {"return": short(self.values.get("episode/score")), "eval": short(self.values.get("eval/score"))}
        rate, left = (self.pace.shown(), self.pace.left()) if self.pace is not None else ("-", "-")
        return shown | {"rate": rate, "left": left}


class Board(Protocol):
    """Displays the lanes of several runs."""

    def update(self) -> None:
        """Refresh the display if it is time; called often."""
        ...

    def changed(self, lane: Lane) -> None:
        """Show the new state of ``lane``."""
        ...

    def close(self) -> None:
        """End the display."""
        ...


def board_of(lanes: Sequence[Lane], title: str, stream: TextIO | None = None) -> Board:
    """Return the display for ``stream`` (default: standard output); only a terminal shows ``title``."""
    stream = sys.stdout if stream is None else stream
    return LiveBoard(lanes, title, stream) if stream.isatty() else PlainBoard(lanes, stream)


class NoBoard:
    """Shows nothing."""

    def update(self) -> None:
        """Do nothing."""

    def changed(self, lane: Lane) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class PlainBoard:
    """Prints a line when a run begins or ends, and every half minute for each running one."""

    def __init__(self, lanes: Sequence[Lane], stream: TextIO, now: Callable[[], float] = time.monotonic) -> None:
        self.lanes, self.stream, self.now = lanes, stream, now
        self.width = max((len(lane.name) for lane in lanes), default=0)
        self.since = self.last = now()
        for lane in lanes:
            if lane.state != "waiting":
                self.changed(lane)

    def update(self) -> None:
        """Print a line for each running run, if it is time."""
        if self.now() - self.last >= PERIOD:
            self.last = self.now()
            for lane in self.lanes:
                if lane.state == "running":
                    lane.read()
                    self._print(lane, line(lane.cells()))

    def changed(self, lane: Lane) -> None:
        """Print the state of ``lane``."""
        self._print(lane, lane.note or ("started" if lane.state == "running" else lane.state))

    def close(self) -> None:
        """Do nothing: the stream belongs to the caller."""

    def _print(self, lane: Lane, text: str) -> None:
        print(f"{span(self.now() - self.since)}  {lane.name:<{self.width}}  {text}", file=self.stream, flush=True)


def line(cells: dict[str, str]) -> str:
    """Return the cells of a run as one line of text."""
    return (
        f"{cells['share']:>4}  {cells['steps']} {cells['unit']}  return {cells['return']}  eval {cells['eval']}  "
        f"{cells['rate']} {cells['unit']}/s  {cells['left']} left"
    )


class LiveBoard:
    """Shows a panel with a line for each run, redrawn twice a second."""

    def __init__(self, lanes: Sequence[Lane], title: str, stream: TextIO) -> None:
        self.lanes, self.title = lanes, title
        self.read = time.monotonic()
        self.live = Live(self, console=Console(file=stream), refresh_per_second=2)
        self.live.start()

    def update(self) -> None:
        """Read the metrics once a second; a thread redraws the panel."""
        if time.monotonic() - self.read >= 1.0:
            self.read = time.monotonic()
            for lane in self.lanes:
                if lane.state == "running":
                    lane.read()

    def changed(self, lane: Lane) -> None:
        """Do nothing: the next redraw shows it."""

    def close(self) -> None:
        """Draw a last time and release the terminal."""
        self.live.stop()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the panel; Rich calls this at each refresh."""
        yield Panel(self._table(), title=Text(self.title), title_align="left")

    def _table(self) -> Table:
        grid = Table(box=None, expand=True, header_style="dim", padding=(0, 1))
        grid.add_column("", no_wrap=True)
        grid.add_column("", ratio=1, min_width=8)
        unit = self.lanes[0].unit if self.lanes else "steps"
        for name in ("", unit, "return", "eval", f"{unit}/s", "left"):
            grid.add_column(name, justify="right", no_wrap=True)
        for lane in self.lanes:
            cells = lane.cells()
            bar = ProgressBar(total=max(1, lane.total), completed=min(lane.position, lane.total))
            ending = cells["left"] if lane.state == "running" else lane.state
            if lane.state == "running":
                rest = [cells[name] for name in ("share", "steps", "return", "eval", "rate")]
            else:
                rest = [cells[name] if lane.position else "" for name in ("share", "steps", "return", "eval")] + [""]
            grid.add_row(lane.name, bar, *rest, Text(ending, style=STYLES[lane.state]))
        return grid


STYLES: dict[LaneState, str] = {
    "waiting": "dim",
    "running": "",
    "finished": "green",
    "stopped": "yellow",
    "failed": "red",
}
"""Rich styles of the states."""
