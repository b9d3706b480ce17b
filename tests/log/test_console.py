"""The console: aligned lines into a file, a live panel on a terminal, the same numbers on both; several runs."""

import io
import re
import signal
from dataclasses import dataclass, field

import numpy as np
import pytest
from rich.console import Console

from reverie.core.clock import Clock as RunClock
from reverie.core.clock import Watch
from reverie.log.console import (
    ConsoleSink,
    JsonlTail,
    RecentMean,
    RunProgress,
    RunsDisplay,
    SpeedMeter,
    format_duration,
    format_number,
)
from reverie.run.signal_handling import Interrupt
from run_logs import logged


@dataclass
class Clock:
    """What a display reads."""

    length: int = 1000
    unit: str = "steps"
    position: int = 0
    updates: int = 0
    episodes: int = 0
    seconds: float = 0.0
    max_seconds: float | None = None
    watch: Watch = field(default_factory=Watch)

    @property
    def progress(self) -> float:
        return self.position / self.length


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    isatty = staticmethod(lambda: True)


def screen(panel, width=120):
    console = Console(file=io.StringIO(), width=width, record=True)
    console.print(panel)
    return console.export_text()


VALUES = {"episode/score": 21.5, "loss/dyn": 1.25, "loss/policy": -0.0101, "train/ent": 3.0, "report": np.zeros(3)}


def test_lines_are_aligned_and_hold_what_matters():
    stream, clock = io.StringIO(), Clock()
    sink = ConsoleSink(clock, "dreamer_v3 on CartPole-v1", stream, lambda: clock.seconds)
    for step in (100, 200_000):
        clock.position, clock.updates, clock.seconds = step, step // 2, step / 10
        sink.write(VALUES, step)
    sink.close()
    title, header, first, second = stream.getvalue().splitlines()
    assert "CartPole-v1" in title
    assert header.split() == ["time", "step", "updates", "steps/s", "left", "return", "eval", "dyn", "policy"]
    assert len(header) == len(first) == len(second)
    time, step, *_, score, evaluated, dyn, policy = second.split()
    assert (time, step, score, evaluated, dyn, policy) == ("5:33:20", "200,000", "21.5", "-", "1.25", "-0.010")


@pytest.mark.parametrize(("length", "warnings"), [(400_000, 0), (500_000, 1)])
def test_a_long_run_warns_once_a_minute_after_learning_began(length, warnings, said):
    """At ten steps a second, of which 500,000 take 14 hours."""
    clock, now, stream = Clock(length=length), [0.0], io.StringIO()
    sink = ConsoleSink(clock, "t", stream, time_fn=lambda: now[0])
    for second in range(0, 200, 2):
        now[0], clock.position, clock.updates = second, 10 * second, max(0, second - 50)
        sink.write({"loss/critic": 1.0}, clock.position)
        assert not said or second >= 110
    assert ["Ctrl-C stops the run and saves it" in line for line in said] == [True] * warnings


def test_a_pipe_gets_a_line_a_minute_and_those_of_evaluations():
    stream, now = io.StringIO(), [0.0]
    sink = ConsoleSink(Clock(), "t", stream, time_fn=lambda: now[0])
    for step in range(25):  # an entry each 5 s
        now[0] = 5.0 * step
        sink.write({"loss/critic": float(step), "loss/actor": 1.0}, step)
        if step == 20:
            ends = {"eval/score_iqm_low": 6.0, "eval/score_iqm_high": 1234.5}
            sink.write({"eval/score": 7.0, "eval/score_iqm": 7.25} | ends, step)
    sink.close()
    lines = stream.getvalue().splitlines()[1:]
    assert [line.split()[1] for line in lines if "step" not in line] == ["0", "12", "20", "24"]
    assert max(map(len, lines)) <= 80
    assert [line.split()[-1] for line in lines if "step" in line] == ["critic", "%]"]  # losses; then no room
    assert lines[4].endswith(" 7.25 [6, 1234]")


def test_the_return_is_that_of_the_last_hundred_episodes_however_few_an_entry_has():
    recent = RecentMean(episodes=7)
    assert recent.text() == "-"
    for score, total in ((0.0, 9), (1.0, 10), (None, 10), (0.5, 14)):
        recent.add({"counters/episodes": total} | ({} if score is None else {"episode/score": score}))
    assert recent.text() == format_number((2 * 0.0 + 1 * 1.0 + 4 * 0.5) / 7)
    for total in (111, 112, 210):
        recent.add({"counters/episodes": total, "episode/score": total / 100})
    assert recent.text() == format_number((1 * 1.12 + 98 * 2.1 + 97 * 1.11) / 196)


def test_terminal_gets_a_panel():
    clock = Clock(position=250, updates=125)
    sink = ConsoleSink(clock, "dreamer_v3 on CartPole-v1", Terminal())
    sink.write(VALUES | {"episode/length": 21.5, "eval/score": 99.0}, 250)
    text = screen(sink.panel())
    sink.close()
    for piece in ("dreamer_v3 on CartPole-v1", "25%", "250 / 1,000", "21.5", "99", "policy", "-0.010", "125", "left"):
        assert piece in text


def test_the_panel_shows_the_curve_and_the_best_evaluation():
    sink = ConsoleSink(Clock(), "t", Terminal())
    for step, score in enumerate((0.0, 3.5, 7.0)):
        sink.write({"episode/score": score, "eval/score": -abs(score - 3.0)}, 1000 * step)
    text = screen(sink.panel())
    sink.close()
    for piece in ("return ▁▅█ 0.000 to 7", "-4 at 2,000", "best so far", "-0.500 at 1,000"):
        assert piece in text


def test_the_length_of_episodes_is_a_mean_of_the_same_ones_as_the_return():
    sink = ConsoleSink(Clock(), "t", Terminal())
    for total, score in ((1, 10.0), (2, 20.0)):
        sink.write({"episode/score": score, "episode/length": score, "counters/episodes": total}, total)
    text = screen(sink.panel())
    sink.close()
    assert [line.split()[-1] for line in re.findall("(?:return|length)  .* 15 ", text)] == ["15", "15"]


def test_after_a_signal_the_panel_says_what_the_run_does(capfd):
    clock, out = RunClock(length=1000), Terminal()
    sink = ConsoleSink(clock, "dreamer_v3 on CartPole-v1", out)
    assert screen(sink._view(), 80).splitlines()[-1] == ""  # where the terminal echoes ^C
    Interrupt(clock).handle(signal.SIGINT, None)
    assert capfd.readouterr().err == ""
    *panel, first, second, echo = screen(sink._view(), 80).splitlines()
    assert (panel[-1][0], f"{first.rstrip()} {second}", echo) == ("╰", clock.watch.notice, "")
    assert clock.watch.notice.startswith("SIGINT: finishing this iteration, then saving.")
    sink.close()
    assert screen(sink._view(), 80).splitlines()[-1][0] == "╰"
    Interrupt(clock).handle(signal.SIGTERM, None)
    assert "SIGTERM: finishing" in capfd.readouterr().err


def test_pace_knows_rate_and_time_left():
    clock, now = Clock(), [0.0]
    pace = SpeedMeter(clock, lambda: now[0])
    assert pace.time_left_text() == "-"
    now[0], clock.position = 9.0, 1  # what the first step took, environments and kernels were made in
    assert pace.time_left_text() == "-"
    for _ in range(10):
        now[0] += 1.0
        clock.position += 50
        assert pace.rate() == 50.0
    assert pace.time_left_text() == "0:00:09"
    now[0] += 120.0  # a pause: what is older than a minute is forgotten
    pace.rate()
    now[0] += 1.0
    clock.position += 50
    assert pace.rate() == 50.0
    now[0] += 65.0  # a display that asks once a minute
    clock.position += 130
    assert pace.rate() == 2.0


@pytest.mark.parametrize("period", [1.0, 5.0, 70.0])
def test_the_time_left_is_shown_when_it_is_steady(period):
    """The first updates compile kernels: ten seconds for two steps say nothing about the next ones."""
    clock, now, shown = Clock(length=100_000, updates=1), [0.0], []
    pace = SpeedMeter(clock, lambda: now[0])
    for seconds, steps in [(1.0, 1), (10.0, 2), *[(period, int(100 * period))] * 60]:
        now[0] += seconds
        clock.position += steps
        shown.append((pace.seconds_left(), (clock.length - clock.position) / 100))
    known = [(left, truth) for left, truth in shown if left is not None]
    assert len(known) > 20
    assert all(left < 2 * truth or truth < 0 for left, truth in known)
    clock.position = clock.length
    assert pace.time_left_text() == "0:00:00"


def test_numbers_are_short():
    found = [format_number(v) for v in (None, float("nan"), 0.0, 0.5, 1234567.0, 2e-5, 500.0, 1234.5)]
    assert found == ["-", "nan", "0.000", "0.500", "1.23e+06", "2.00e-05", "500", "1234"]
    assert format_duration(3661.9) == "1:01:01"


def entry(path, step, **values):
    values = {name.replace("__", "/"): value for name, value in values.items()}
    logged(path, [(step, values | {"time/seconds": step / 10})])


def test_a_tail_reads_each_line_once_and_only_when_it_is_whole(tmp_path):
    tail = JsonlTail(tmp_path / "m.jsonl")
    assert tail.read() == []
    entry(tail.path, 10, a=1.0)
    assert ([row["a"] for row in tail.read()], tail.read()) == ([1.0], [])
    with tail.path.open("a") as file:
        file.write('{"step": 20, "a"')
        file.flush()
        assert tail.read() == []
        file.write(': 2.0}\nnonsense\n[3]\n{"no": "step"}\n{"step": 30, "a": 3.0}\n')
    assert [row["a"] for row in tail.read()] == [2.0, 3.0]


def test_a_tail_begins_anew_where_lines_were_set_aside(tmp_path):
    path = tmp_path / "m.jsonl"
    tail = JsonlTail(path)
    for lines, new in (([10, 20, 30], [10, 20, 30]), ([10], [10]), ([10, 15], [15])):
        path.write_text("".join(f'{{"step": {step}}}\n' for step in lines))
        assert [row["step"] for row in tail.read()] == new


def test_a_lane_knows_how_far_its_run_is(tmp_path):
    entry(tmp_path / "m.jsonl", 200, episode__score=-5.0, counters__updates=90.0)
    lane = RunProgress("seed 3", tmp_path / "m.jsonl", 1000)
    assert (lane.position, lane.updates) == (200, 90)
    lane.begin()
    assert lane.cells() == {
        "steps": "200 / 1,000", "done": "20%", "return": "-5", "eval": "-", "rate": "-", "left": "-",
    }  # fmt: skip
    entry(lane.tail.path, 300, eval__score=7.0)
    lane.read()
    now = [100.0]
    lane.speed._marks, lane.speed._phase, lane.speed._time_fn = [(80.0, 200), (90.0, 300)], (True, True), lambda: now[0]
    entry(lane.tail.path, 400)
    lane.read()
    assert lane.cells().items() >= {"return": "-5", "eval": "7", "rate": "10", "left": "0:01:00"}.items()


def test_in_a_file_each_change_and_each_half_minute_is_a_line(tmp_path):
    stream, now = io.StringIO(), [0.0]
    lanes = [RunProgress("seed 9", tmp_path / "a", 100, "updates"), RunProgress("seed 10", tmp_path / "b", 100)]
    lanes[1].state, lanes[1].note = "finished", "finished already"
    board = RunsDisplay(lanes, "t", stream, lambda: now[0])
    lanes[0].begin()
    board.show_state(lanes[0])
    entry(tmp_path / "a", 50, episode__score=12.5)
    for now[0] in (10.0, 29.0, 31.0, 45.0, 62.0):
        board.update()
    lanes[0].state, lanes[0].note = "failed", "failed: the reward is nan"
    board.show_state(lanes[0])
    board.close()
    assert stream.getvalue().splitlines() == [
        "0:00:00  seed 10  finished already",
        "0:00:00  seed 9   started",
        "0:00:31  seed 9    50%  50 / 100 updates  return 12.5  eval -  - updates/s  - left",
        "0:01:02  seed 9    50%  50 / 100 updates  return 12.5  eval -  - updates/s  - left",
        "0:01:02  seed 9   failed: the reward is nan",
    ]


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_shows_a_line_for_each(tmp_path, width):
    entry(tmp_path / "a", 6_300, episode__score=-312.4, eval__score=-250.1)
    lanes = [RunProgress("seed 0", tmp_path / "a", 15_000), RunProgress("seed 1", tmp_path / "b", 15_000)]
    lanes[0].begin()
    board = RunsDisplay(lanes, "td3 on Pendulum-v1", Terminal())
    lines = screen(board.panel(), width).splitlines()
    assert all(len(line) <= width for line in lines)
    (first,) = (line for line in lines if "seed 0" in line)
    assert all(piece in first for piece in ("42%", "6,300 / 15,000", "-312.4", "-250.1"))
    assert "waiting" in next(line for line in lines if "seed 1" in line)
    entry(tmp_path / "a", 7_500)
    board.last -= 2.0
    board.update()
    assert "7,500" in screen(board.panel(), width)
    lanes[0].state = "stopped"
    board.show_state(lanes[0])
    board.close()
    assert "stopped" in next(line for line in screen(board.panel(), width).splitlines() if "seed 0" in line)
