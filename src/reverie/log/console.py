"""The console output of one run or of several: a live display on a terminal, occasional lines anywhere else."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, TextIO

from reverie.core import wall_clock
from reverie.core.files import LARGEST_LINE, LARGEST_LOG, iter_lines, open_file
from reverie.core.logger import logger, print_line, survive_broken_pipe
from reverie.core.terminal import printable
from reverie.log.jsonl import Values, parse_entry, scalars

if TYPE_CHECKING:  # rich draws on terminals only
    from rich.columns import Columns
    from rich.console import Group
    from rich.live import Live
    from rich.panel import Panel
    from rich.table import Table

    from reverie.core.clock import Clock

LINES_PER_HEADER = 25
LINE_PERIOD, RUN_LINE_PERIOD = 60.0, 30.0
"""Seconds between two lines if the output is not a terminal: of a single run, except for evaluations; of each of
several runs."""
LONG_HOURS = 12.0
"""Hours left above which a run warns, once."""
COLUMNS = 80
"""Width of the lines of a run."""
IQM = "IQM [95 %]"
WIDTHS = dict.fromkeys(("time", "updates", "steps/s", "left", "return", "eval"), 7) | {"step": 8, IQM: 23}
"""Widths of columns; others have at least 9 characters. ``IQM`` has three numbers of up to six."""
RETURN_EPISODES = 100
"""Episodes in a mean return: as in Stable-Baselines3's ``ep_rew_mean``."""


BARS = " ▁▂▃▄▅▆▇█"


def sparkline(values: Iterable[float], floor: float | None = None, width: int = 30) -> str:
    """Return bars of eight heights for ``values``, averaged to at most ``width`` bars; "" without a finite value.

    ``floor``: the value without a bar, at most the smallest one. None: the smallest value has the lowest bar.
    """
    finite = [value for value in values if math.isfinite(value)]
    parts = min(width, len(finite))
    means = [fmean(finite[i * len(finite) // parts : (i + 1) * len(finite) // parts]) for i in range(parts)]
    low, high = min(means, default=0.0), max(means, default=0.0)
    floor = low - (high - low or 1.0) / 7 if floor is None else floor
    return "".join(BARS[math.ceil(8 * (mean - floor) / (high - floor or 1.0) - 1e-9)] for mean in means)


class RecentMean:
    """The mean return, or another ``metric``, of the last ``RETURN_EPISODES`` training episodes, in whole log entries.

    An entry has the mean of the episodes since the entry before it: a few, of which short ones can be the best ones.
    """

    def __init__(self, episodes: float = 0, metric: str = "episode/score") -> None:
        """``episodes``: number of earlier episodes, which are not known."""
        self._total, self._metric = episodes, metric
        self._entries: deque[tuple[float, float]] = deque()  # mean, number of episodes

    def add(self, values: Mapping[str, float]) -> None:
        """Add a log entry. Without a count of episodes it weighs as one episode."""
        if self._metric not in values:
            return
        total = values.get("counters/episodes", self._total + 1)
        self._entries.append((values[self._metric], max(1.0, total - self._total)))
        self._total = total
        while sum(count for _, count in self._entries) - self._entries[0][1] >= RETURN_EPISODES:
            self._entries.popleft()

    def text(self) -> str:
        """Return the mean as text, ``-`` before the first episode."""
        total = sum(count for _, count in self._entries)
        return format_number(sum(score * count for score, count in self._entries) / total if total else None)


class SpeedMeter:
    """Measures steps per second and the time left, over about the last minute of this process.

    The time before the first step is not counted, nor are the steps before the first update, which were faster.
    """

    def __init__(self, clock: Clock | RunProgress, time_fn: Callable[[], float] = wall_clock.monotonic) -> None:
        self._clock, self._time_fn = clock, time_fn
        self._marks: list[tuple[float, int]] = [(time_fn(), clock.position)]
        self._phase = (False, clock.updates > 0)  # whether steps, and updates, were made
        self._rate = 0.0  # the last one known
        self._learning_since: float | None = None

    def rate(self) -> float:
        """Return steps per second."""
        seconds, steps = self._time_fn(), self._clock.position
        phase = (self._phase[0] or steps > self._marks[0][1], self._clock.updates > 0)
        if phase[1] and self._learning_since is None:
            self._learning_since = seconds
        if phase != self._phase:
            self._phase, self._marks = phase, [(seconds, steps)]
            return self._rate
        recent = [mark for mark in self._marks if seconds - mark[0] <= 60.0]
        since, before = (recent or self._marks[-1:])[0]  # without a terminal it is called about once a minute
        if seconds - self._marks[-1][0] >= 1.0:
            self._marks = [*(recent or self._marks[-1:]), (seconds, steps)]
        if seconds > since and (steps > before or seconds - since > 60.0):
            self._rate = (steps - before) / (seconds - since)
        return self._rate

    def rate_text(self) -> str:
        """Return the rate as text, ``-`` while it is unknown."""
        return format_number(self.rate() or None)

    @property
    def learning_seconds(self) -> float:
        """Seconds since the first update of this process."""
        return 0.0 if self._learning_since is None else self._time_fn() - self._learning_since

    def seconds_left(self) -> float | None:
        """Return the seconds left, or None while they are unknown: before the rate is steady."""
        rate = self.rate()
        if rate <= 0 or (self._clock.position < self._clock.length and not self._is_steady()):
            return None
        seconds_left = (self._clock.length - self._clock.position) / rate
        if not isinstance(self._clock, RunProgress) and self._clock.max_seconds is not None:
            seconds_left = min(seconds_left, max(0.0, self._clock.max_seconds - self._clock.seconds))
        return seconds_left

    def _is_steady(self) -> bool:
        """Whether the two halves of the measured time have rates within a factor of 2; compiling kernels is slow."""
        if len(self._marks) < 3:
            return False
        first, *inner, last = self._marks
        middle = min(inner, key=lambda mark: abs(2 * mark[0] - first[0] - last[0]))
        rates = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in ((first, middle), (middle, last))]
        return max(rates) <= 2 * min(rates)

    def time_left_text(self) -> str:
        """Return the time left as ``h:mm:ss``, or ``-`` while it is unknown."""
        seconds_left = self.seconds_left()
        return "-" if seconds_left is None else format_duration(seconds_left)


# ---------------------------------------------------------------- one run


class ConsoleSink:
    """Shows a run: on a terminal a panel, redrawn four times a second; else lines of at most 80 columns.

    The panel has progress, rate, time left, scores and losses. Each evaluation gets a line; other entries get one line
    a minute.
    """

    def __init__(
        self,
        clock: Clock,
        title: str,
        stream: TextIO | None = None,
        time_fn: Callable[[], float] = wall_clock.monotonic,
    ) -> None:
        """``stream``: default standard output."""
        self._clock, self._title, self._time_fn = clock, title, time_fn
        self._stream = sys.stdout if stream is None else stream
        self._speed = SpeedMeter(clock, time_fn)
        self._latest: dict[str, float] = {}
        self._return, self._length = RecentMean(clock.episodes), RecentMean(clock.episodes, "episode/length")
        self._curve: list[
            float
        ] = []  # returns of training episodes, averaged over twice as many entries when it is full
        self._best: tuple[float, int] | None = None  # score and step
        self._best_label = "best so far" if clock.position == 0 else "best since resume"
        self._evaluated = 0  # step of the newest evaluation
        self._columns: list[str] = []
        self._lines, self._last = 0, -math.inf
        self._unshown: int | None = None
        self._closed = self._is_checked = False
        self._live: Live | None = None
        if self._stream.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(get_renderable=self._view, console=Console(file=self._stream), refresh_per_second=4)
            self._live.start()
            clock.watch.has_panel = True
        else:
            print_line(title, self._stream)

    def write(self, values: Values, step: int) -> None:
        """Keep the scalars of ``values`` for the panel, or print a line with the newest ones if it is due."""
        if not (new := scalars(values)):
            return
        self._latest.update(new)
        self._return.add(new)
        self._length.add(new)
        if "episode/score" in new:
            self._curve.append(new["episode/score"])
        if "eval/score" in new:
            self._evaluated = step
            self._best = max(self._best or (-math.inf, 0), (new["eval/score"], step))
        self._warn_of_long_run()
        if any(name.startswith(("eval/", "estimate/")) for name in new) or self._time_fn() - self._last >= LINE_PERIOD:
            self._print(step)
        else:
            self._unshown = step

    def _warn_of_long_run(self) -> None:
        """Warn once, a minute after learning began, if more than ``LONG_HOURS`` are left."""
        seconds_left = self._speed.seconds_left()
        if self._is_checked or seconds_left is None or self._speed.learning_seconds < LINE_PERIOD:
            return
        self._is_checked = True
        if seconds_left > 3600 * LONG_HOURS:
            hours = seconds_left / 3600
            logger.warning(
                f"about {hours:,.0f} hours are left. Ctrl-C stops the run and saves it; --resume continues it, "
                f"also with fewer {self._clock.unit}"
            )

    def close(self) -> None:
        """Print the newest entry if it was not due; draw the panel once more, and release the terminal."""
        self._closed = True
        if self._unshown is not None:
            self._print(self._unshown)
        if self._live is not None:
            with survive_broken_pipe(self._stream):
                self._live.stop()
            self._clock.watch.has_panel = False

    def _view(self) -> Panel | Group:
        return self.panel() if self._closed else _above_echo(self.panel(), self._clock.watch.notice)

    def _print(self, step: int) -> None:
        self._last, self._unshown = self._time_fn(), None
        if self._live is not None:  # a thread redraws it
            return
        clock, unit = self._clock, self._clock.unit
        row = {"time": format_duration(clock.seconds)} | ({"step": f"{step:,}"} if unit == "steps" else {})
        rate, time_left = self._speed.rate_text(), self._speed.time_left_text()
        row |= {"updates": f"{clock.updates:,}", f"{unit}/s": rate, "left": time_left}
        row |= {"return": self._return.text(), "eval": self._score()}
        row |= self._occasional_metrics()
        for name, value in self._losses().items():
            if len(self._line(row, row)) + 1 + _column_width(name) <= COLUMNS:
                row[name] = value
        if list(row) != self._columns or self._lines % LINES_PER_HEADER == 0:
            self._columns = list(row)
            print_line(self._line(row, row), self._stream)
        print_line(self._line(row.values(), row), self._stream)
        self._lines += 1

    @staticmethod
    def _line(cells: Iterable[str], columns: Iterable[str]) -> str:
        return " ".join(f"{cell:>{_column_width(name)}}" for cell, name in zip(cells, columns, strict=True))

    def _score(self) -> str:
        """Return the score of the newest evaluation, with a mark if some of its episodes were cut off."""
        return format_number(self._latest.get("eval/score")) + "*" * (self._latest.get("eval/cut_off", 0) > 0)

    def _occasional_metrics(self) -> dict[str, str]:
        """Return the cells that are known: an evaluation's interquartile mean, and FQE's estimate from a dataset."""
        latest, cells = self._latest, {}
        if "eval/score_iqm" in latest:
            ends = [format_number(latest.get(f"eval/score_iqm_{end}")) for end in ("low", "high")]
            interval = f" [{ends[0]}, {ends[1]}]" if "-" not in ends else ""
            cells[IQM] = format_number(latest["eval/score_iqm"]) + interval
        if "estimate/return" in latest:
            cells["estimated by FQE"] = format_number(latest["estimate/return"])
        return cells

    def _losses(self) -> dict[str, str]:
        """Return the cells of losses by term, sorted; called ``<term> loss`` where ``train/<term>`` exists."""
        terms = sorted(name for name in self._latest if name.startswith("loss/"))
        names = {term: term.removeprefix("loss/").removeprefix("reconstruction/") for term in terms}
        latest = self._latest
        return {x + " loss" * (f"train/{x}" in latest): format_number(latest[term]) for term, x in names.items()}

    def panel(self) -> Panel:
        """Return what a terminal shows now."""
        from rich.console import Group
        from rich.panel import Panel
        from rich.text import Text

        spark = Text()
        if len(self._curve) > 1:
            shown = sparkline(self._curve[:: 1 + len(self._curve) // 1000])
            spark = Text(f"return {shown} {format_number(min(self._curve))} to {format_number(max(self._curve))}\n")
        return Panel(
            Group(self._bar(), Text(), spark, self._tables()), title=Text(printable(self._title)), title_align="left"
        )

    def _bar(self) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        steps, length, unit = self._clock.position, self._clock.length, self._clock.unit
        row = Table.grid(padding=(0, 2), expand=True)
        row.add_column(ratio=1)
        for _ in range(3):
            row.add_column(justify="right", no_wrap=True)
        bar = ProgressBar(total=1.0, completed=self._clock.progress)
        if not self._closed:
            count = f"{self._clock.progress:.0%}  {steps:,} / {length:,} {unit}"
            row.add_row(bar, count, f"{self._speed.rate_text()} {unit}/s", f"{self._speed.time_left_text()} left")
        elif steps >= length:
            row.add_row(bar, f"{steps:,} {unit}", "", "done")
        else:  # ended by a score, patience, a callback or a signal
            row.add_row(bar, f"{steps:,} of at most {length:,} {unit}", "", "ended early")
        return row

    def _tables(self) -> Columns:
        from rich.columns import Columns

        get = self._latest.get
        run = {"return": self._return.text(), "episode length": self._length.text()}
        run |= {"evaluation": self._score(), **self._occasional_metrics()}
        if self._best is not None:
            run["evaluation"] += f" at {self._evaluated:,}"
            run[self._best_label] = f"{format_number(self._best[0])} at {self._best[1]:,}"
        run |= {"episodes": f"{get('counters/episodes', 0):,.0f}", "updates": f"{self._clock.updates:,}"}
        run |= {"elapsed": format_duration(self._clock.seconds)}
        return Columns([_table(run), _table(self._losses() or {"no loss yet": ""})], padding=(0, 6))


def _above_echo(panel: Panel, notice: str = "") -> Group:
    """Return ``panel`` above ``notice`` and an empty line: on the panel, the terminal's echo of ^C would tear it."""
    from rich.console import Group
    from rich.text import Text

    return Group(panel, Text(f"{printable(notice)}\n" if notice else ""))


def _column_width(name: str) -> int:
    return WIDTHS.get(name, max(9, len(name)))


def _table(cells: dict[str, str]) -> Table:
    """Return a table of names and values in columns of at most eight lines."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    items = [(Text(printable(name), style="dim"), Text(value, justify="right")) for name, value in cells.items()]
    height = min(8, len(items))
    for line in range(height):
        grid.add_row(*(cell for item in items[line::height] for cell in item))
    return grid


# ---------------------------------------------------------------- several runs


RunState = Literal["waiting", "running", "finished", "stopped", "failed"]

STYLES: dict[RunState, str] = {"waiting": "dim", "running": "", "finished": "green", "stopped": "yellow",
                                "failed": "red"}  # fmt: skip


class JsonlTail:
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
        rows = []
        with open_file(self.path, LARGEST_LOG) as file:
            file.seek(self.offset)
            for line in iter_lines(file):
                if len(line) < LARGEST_LINE and not line.endswith(b"\n"):  # it is being written
                    break
                self.offset += len(line)
                rows += [row] if (row := parse_entry(line)) is not None else []
        return rows


class RunProgress:
    """One of several runs: its name, its state, and the newest values of its metrics."""

    def __init__(self, name: str, metrics: Path, length: int, unit: str = "steps") -> None:
        """``length``: of the run, in steps. ``unit``: name of the steps in the display."""
        self.name: str = name
        self.length: int = length
        self.unit: str = unit
        self.state: RunState = "waiting"
        self.note: str = ""  # a few words on its state; empty if ``state`` says enough
        self.tail: JsonlTail = JsonlTail(metrics)
        self.speed: SpeedMeter | None = None
        self.values: dict[str, float] = {}
        self.recent_return: RecentMean = RecentMean()
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
        """Record that the process was started: the speed is measured from its first entry."""
        self.read()
        self.state, self.note, self.speed = "running", "", None

    def read(self) -> None:
        """Read new entries."""
        rows = self.tail.read()
        for row in rows:
            entry = {name: value for name, value in row.items() if value is not None}
            self.values.update(entry)
            self.recent_return.add(entry)
        if rows and self.state == "running" and self.speed is None:
            self.speed = SpeedMeter(self)

    def cells(self) -> dict[str, str]:
        """Return the cells of its line by name."""
        get = self.values.get
        cells = {"done": _format_share(self.position, self.length), "steps": f"{self.position:,} / {self.length:,}"}
        cells |= {"return": self.recent_return.text(), "eval": format_number(get("eval/score"))}
        speed = self.speed
        rate, time_left = (speed.rate_text(), speed.time_left_text()) if speed is not None else ("-", "-")
        return cells | {"rate": rate, "left": time_left}


class RunsDisplay:
    """Shows several runs with a line for each: redrawn on a terminal, appended occasionally anywhere else."""

    def __init__(
        self,
        runs: Sequence[RunProgress],
        title: str,
        stream: TextIO | None = None,
        time_fn: Callable[[], float] = wall_clock.monotonic,
    ) -> None:
        """``runs``: none shows nothing. ``stream``: default standard output; only a terminal shows the ``title``."""
        self.runs: Sequence[RunProgress] = runs
        self.title: str = title
        self.time_fn: Callable[[], float] = time_fn
        self.stream: TextIO = sys.stdout if stream is None else stream
        self.since: float = time_fn()
        self.last: float = self.since
        self.live: Live | None = None
        if runs and self.stream.isatty():
            from rich.console import Console
            from rich.live import Live

            self.live = Live(
                get_renderable=lambda: _above_echo(self.panel()),
                console=Console(file=self.stream),
                refresh_per_second=2,
            )
            self.live.start()
        for run in runs:
            if run.state != "waiting":
                self.show_state(run)

    def update(self) -> None:
        """Read the metrics if it is time; called often."""
        if self.time_fn() - self.last >= (1.0 if self.live is not None else RUN_LINE_PERIOD):
            self.last = self.time_fn()
            for run in (run for run in self.runs if run.state == "running"):
                run.read()
                part, steps, score, evaluated, rate, time_left = run.cells().values()
                scores = f"return {score}  eval {evaluated}"
                self._print(run, f"{part:>4}  {steps} {run.unit}  {scores}  {rate} {run.unit}/s  {time_left} left")

    def show_state(self, run: RunProgress) -> None:
        """Show the new state of ``run``."""
        self._print(run, run.note or ("started" if run.state == "running" else run.state))

    def _print(self, run: RunProgress, text: str) -> None:
        if self.runs and self.live is None:  # a terminal is redrawn by a thread
            width = max(len(run.name) for run in self.runs)
            print_line(f"{format_duration(self.time_fn() - self.since)}  {run.name:<{width}}  {text}", self.stream)

    def close(self) -> None:
        """Draw once more and release the terminal."""
        if self.live is not None:
            self.live.stop()

    def panel(self) -> Panel:
        """Return what a terminal shows now."""
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        grid = Table(box=None, expand=True, header_style="dim", padding=(0, 1))
        grid.add_column("", no_wrap=True)
        grid.add_column("", ratio=1, min_width=8)
        unit = self.runs[0].unit
        for name in ("", unit, "return", "eval", f"{unit}/s", "left"):
            grid.add_column(name, justify="right", no_wrap=True)
        for run in self.runs:
            cells, running = run.cells(), run.state == "running"
            bar = ProgressBar(total=max(1, run.length), completed=min(run.position, run.length))
            rest = [cells[name] if running or run.position else "" for name in ("done", "steps", "return", "eval")]
            ending = Text(cells["left"] if running else run.state, style=STYLES[run.state])
            grid.add_row(run.name, bar, *rest, cells["rate"] if running else "", ending)
        return Panel(grid, title=Text(printable(self.title)), title_align="left")


# ---------------------------------------------------------------- numbers as text


def _format_share(done: int, total: int) -> str:
    """Return a part as percentage of ``total``."""
    return f"{min(1.0, done / max(1, total)):.0%}"


def format_duration(seconds: float) -> str:
    """Return seconds as ``h:mm:ss``."""
    total = int(max(0.0, seconds))
    return f"{total // 3600}:{total // 60 % 60:02d}:{total % 60:02d}"


def format_number(number: float | None) -> str:
    """Return a number with about four digits, or ``-`` for None."""
    if number is None or math.isnan(number):
        return "-" if number is None else "nan"
    size = abs(number)
    if size >= 1e6 or 0 < size < 1e-3:
        return f"{number:.2e}"
    return f"{number:.0f}" if size >= 1000 else f"{number:.4g}" if size >= 1 else f"{number:.3f}"
