"""The console: aligned lines into a file, a live panel on a terminal, the same numbers on both."""

from __future__ import annotations

import io
import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from rich.console import Console

from reverie.log.console import LiveSink, Pace, PlainSink, console_sink, losses, short, span


@dataclass
class Clock:
    """The three numbers that a display reads."""

    position: int = 0
    updates: int = 0
    seconds: float = 0.0


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Always."""
        return True


VALUES = {"episode/score": 21.5, "loss/dyn": 1.25, "loss/policy": -0.0101, "train/ent": 3.0, "report": np.zeros(3)}


def test_lines_are_aligned_and_hold_what_matters() -> None:
    stream, clock = io.StringIO(), Clock()
    sink = console_sink(clock, 1000, "dreamer_v3 on CartPole-v1", stream)
    assert isinstance(sink, PlainSink)
    for step in (100, 200_000):
        clock.position, clock.updates, clock.seconds = step, step // 2, step / 10
        sink.write(VALUES, step)
    sink.close()
    title, header, first, second = stream.getvalue().splitlines()
    assert "CartPole-v1" in title
    assert header.split() == ["time", "step", "updates", "steps/s", "left", "return", "eval", "dyn", "policy"]
    assert len(header) == len(first) == len(second)
    cells = dict(zip(header.split(), second.split(), strict=True))
    assert cells["time"] == "5:33:20"
    assert cells["step"] == "200,000"
    assert cells["return"] == "21.5"
    assert cells["eval"] == "-"
    assert cells["dyn"] == "1.25"
    assert cells["policy"] == "-0.010"


def test_header_returns_when_columns_change_and_now_and_then() -> None:
    stream, minutes = io.StringIO(), itertools.count(0.0, 60.0)
    sink = PlainSink(Clock(), 1000, "t", stream, now=lambda: next(minutes))
    sink.write({"episode/score": 1.0}, 1)
    sink.write({"loss/dyn": 1.0}, 2)
    for step in range(60):
        sink.write({"loss/dyn": 1.0}, step)
    headers = [line for line in stream.getvalue().splitlines() if "steps/s" in line]
    assert len(headers) == 4


def test_a_pipe_gets_a_line_a_minute_and_those_of_evaluations() -> None:
    stream, now = io.StringIO(), [0.0]
    sink = PlainSink(Clock(), 1000, "t", stream, now=lambda: now[0])
    for step in range(25):  # an entry each 5 s
        now[0] = 5.0 * step
        sink.write({"loss/critic": float(step), "loss/actor": 1.0}, step)
        if step == 20:
            sink.write({"eval/score": 7.0, "eval/score_iqm": 7.0, "eval/score_iqm_low": 6.0}, step)
    sink.close()
    lines = stream.getvalue().splitlines()[1:]
    assert [line.split()[1] for line in lines if "step" not in line] == ["0", "12", "20", "24"]
    assert max(map(len, lines)) <= 100
    assert [line.split()[-1] for line in lines if "step" in line] == ["critic", "actor"]  # actor, critic; then no room


def test_arrays_alone_print_nothing() -> None:
    stream = io.StringIO()
    sink = console_sink(Clock(), 1000, "t", stream)
    sink.write({"report": np.zeros((2, 2))}, 1)
    assert stream.getvalue() == "t\n"


def test_terminal_gets_a_panel() -> None:
    clock = Clock(position=250, updates=125)
    sink = console_sink(clock, 1000, "dreamer_v3 on CartPole-v1", Terminal())
    assert isinstance(sink, LiveSink)
    sink.write(VALUES | {"episode/length": 21.5, "eval/score": 99.0}, 250)
    screen = Console(file=io.StringIO(), width=120, record=True)
    screen.print(sink)
    sink.close()
    text = screen.export_text()
    for piece in ("dreamer_v3 on CartPole-v1", "25%", "250 / 1,000", "21.5", "99", "policy", "-0.010", "125", "left"):
        assert piece in text


def test_the_loss_of_a_quantity_is_not_taken_for_it() -> None:
    values = {"loss/temperature": -1.0, "loss/actor": 2.0, "train/temperature": 0.2, "loss/reconstruction/image": 3.0}
    assert losses(values) == [("actor", 2.0), ("image", 3.0), ("temperature loss", -1.0)]


def test_how_sure_an_evaluation_is_stands_on_both() -> None:
    scores = {"eval/score": -150.5, "eval/score_iqm": -148.0, "eval/score_iqm_low": -160.0, "eval/score_iqm_high": -140}
    stream, clock = io.StringIO(), Clock()
    plain, live = console_sink(clock, 1000, "t", stream), console_sink(clock, 1000, "t", Terminal())
    for sink in (plain, live):
        sink.write(scores, 100)
        sink.close()
    _, header, line = stream.getvalue().splitlines()
    cells = dict(zip(header.split(), line.split(), strict=True))
    assert [cells[name] for name in ("eval", "iqm", "low95", "high95")] == ["-150.5", "-148", "-160", "-140"]
    screen = Console(file=io.StringIO(), width=120, record=True)
    screen.print(live)
    assert "IQM, 95 %" in (text := screen.export_text())
    assert "-148 (-160 to -140)" in text


def test_too_few_episodes_show_no_interval() -> None:
    stream = io.StringIO()
    console_sink(Clock(), 1000, "t", stream).write({"eval/score": 1.0, "eval/score_iqm": 1.0}, 100)
    assert "iqm" in stream.getvalue()
    assert "95" not in stream.getvalue()


@pytest.mark.parametrize(
    ("steps", "shown", "hidden"), [(250, ("250 of at most 1,000", "ended early"), "25%"), (1000, ("done",), "100%")]
)
def test_the_last_panel_does_not_guess(steps: int, shown: tuple[str, ...], hidden: str) -> None:
    sink = console_sink(Clock(position=steps), 1000, "t", Terminal())
    sink.close()
    screen = Console(file=io.StringIO(), width=120, record=True)
    screen.print(sink)
    text = screen.export_text()
    assert all(piece in text for piece in shown)
    assert hidden not in text
    assert " left" not in text


def test_pace_knows_rate_and_time_left() -> None:
    clock, now = Clock(), [0.0]
    pace = Pace(clock, 1000, lambda: now[0])
    assert pace.left() == "-"
    now[0], clock.position = 9.0, 1  # what the first step took, environments and kernels were made in
    assert pace.left() == "-"
    for _ in range(10):
        now[0] += 1.0
        clock.position += 50
        assert pace.rate() == 50.0
    assert pace.left() == "0:00:09"
    now[0] += 120.0  # a pause: what is older than a minute is forgotten
    pace.rate()
    now[0] += 1.0
    clock.position += 50
    assert pace.rate() == 50.0


def test_pace_forgets_what_was_before_the_first_update() -> None:
    clock, now = Clock(), [0.0]
    pace = Pace(clock, 1000, lambda: now[0])
    clock.position = 1
    assert pace.rate() == 0.0
    now[0], clock.position, clock.updates = 5.0, 501, 1
    assert pace.rate() == pace.rate() == 100.0  # nothing is known yet of steps with updates
    now[0], clock.position, clock.updates = 10.0, 551, 50
    assert pace.rate() == 10.0
    assert pace.left() == "0:00:44"


def test_pace_of_a_continued_run_does_not_count_what_came_before_its_first_step() -> None:
    clock, now = Clock(), [0.0]
    clock.position, clock.updates = 3993, 1448
    pace = Pace(clock, 10_000, lambda: now[0])
    now[0], clock.position = 8.0, 3994
    assert (pace.rate(), pace.shown(), pace.left()) == (0.0, "-", "-")
    now[0], clock.position = 10.0, 4194
    assert (pace.rate(), pace.shown()) == (100.0, "100")


def test_numbers_are_short() -> None:
    assert [short(v) for v in (None, float("nan"), 0.0, 0.5, 1234567.0, 2e-5, 500.0, 1234.5)] == [
        "-", "nan", "0.000", "0.500", "1.23e+06", "2.00e-05", "500", "1234",
    ]  # fmt: skip
    assert span(3661.9) == "1:01:01"


def test_a_run_on_recorded_data_alone_counts_updates():
    clock, stream = Clock(), io.StringIO()
    clock.position = clock.updates = 20  # it counts updates as steps
    console_sink(clock, 100, "t", stream, "updates").write({"loss/critic": 1.0}, 20)
    header = stream.getvalue().splitlines()[1].split()
    assert header[:4] == ["time", "updates", "updates/s", "left"]
    live, drawn = console_sink(clock, 100, "t", terminal := Terminal(), "updates"), ""
    live.close()
    drawn = terminal.getvalue()
    assert "20 of at most 100 updates" in drawn
    assert "steps" not in drawn
