"""Several runs at a glance: what their metrics say, on a terminal and in a file."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from reverie.log.board import Lane, LiveBoard, NoBoard, PlainBoard, Tail, board_of
from reverie.log.metrics import JsonlSink


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Always."""
        return True


def entry(path: Path, step: int, **values: float) -> None:
    sink = JsonlSink(path)
    sink.write({name.replace("__", "/"): value for name, value in values.items()} | {"time/seconds": step / 10}, step)
    sink.close()


def screen(board: LiveBoard, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, record=True)
    console.print(board)
    return console.export_text()


def test_a_tail_reads_each_line_once_and_only_when_it_is_whole(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "m.jsonl")
    assert tail.read() == []
    entry(tail.path, 10, a=1.0)
    assert [row["a"] for row in tail.read()] == [1.0]
    assert tail.read() == []
    with tail.path.open("a") as file:
        file.write('{"step": 20, "a"')
        file.flush()
        assert tail.read() == []
        file.write(': 2.0}\nnonsense\n[3]\n{"no": "step"}\n{"step": 30, "a": 3.0}\n')
    assert [row["a"] for row in tail.read()] == [2.0, 3.0]


def test_a_tail_begins_anew_where_lines_were_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 10}\n{"step": 20}\n{"step": 30}\n')
    tail = Tail(path)
    assert len(tail.read()) == 3
    path.write_text('{"step": 10}\n')
    assert [row["step"] for row in tail.read()] == [10]
    path.write_text('{"step": 10}\n{"step": 15}\n')
    assert [row["step"] for row in tail.read()] == [15]


def test_a_lane_knows_how_far_its_run_is(tmp_path: Path) -> None:
    entry(tmp_path / "m.jsonl", 200, episode__score=-5.0, counters__updates=90.0)
    lane = Lane("seed 3", tmp_path / "m.jsonl", 1000)
    assert (lane.position, lane.updates, lane.seconds) == (200, 90, 20.0)
    lane.begin()
    assert lane.cells() == {
        "steps": "200 / 1,000", "share": "20%", "unit": "steps", "return": "-5", "eval": "-", "rate": "-", "left": "-",
    }  # fmt: skip
    entry(lane.tail.path, 300, eval__score=7.0)
    lane.read()
    now = [100.0]
    assert lane.pace is not None
    lane.pace._marks, lane.pace._moves, lane.pace._now = [(90.0, 300)], True, lambda: now[0]
    entry(lane.tail.path, 400)
    lane.read()
    assert {name: lane.cells()[name] for name in ("return", "eval", "rate", "left")} == {
        "return": "-5", "eval": "7", "rate": "10", "left": "0:01:00",
    }  # fmt: skip


def test_numbers_that_were_not_finite_do_not_take_the_place_of_others(tmp_path: Path) -> None:
    entry(tmp_path / "m.jsonl", 1, episode__score=3.0)
    entry(tmp_path / "m.jsonl", 2, episode__score=float("nan"))
    assert Lane("x", tmp_path / "m.jsonl", 10).cells()["return"] == "3"


def test_in_a_file_each_change_and_each_half_minute_is_a_line(tmp_path: Path) -> None:
    stream, now = io.StringIO(), [0.0]
    lanes = [Lane("seed 9", tmp_path / "a", 100, "updates"), Lane("seed 10", tmp_path / "b", 100)]
    lanes[1].state, lanes[1].note = "finished", "finished already"
    board = PlainBoard(lanes, stream, lambda: now[0])
    lanes[0].begin()
    board.changed(lanes[0])
    entry(tmp_path / "a", 50, episode__score=12.5)
    for now[0] in (10.0, 29.0, 31.0, 45.0, 62.0):
        board.update()
    lanes[0].state, lanes[0].note = "failed", "failed: the reward is nan"
    board.changed(lanes[0])
    board.close()
    assert stream.getvalue().splitlines() == [
        "0:00:00  seed 10  finished already",
        "0:00:00  seed 9   started",
        "0:00:31  seed 9    50%  50 / 100 updates  return 12.5  eval -  - updates/s  - left",
        "0:01:02  seed 9    50%  50 / 100 updates  return 12.5  eval -  - updates/s  - left",
        "0:01:02  seed 9   failed: the reward is nan",
    ]


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_shows_a_line_for_each(tmp_path: Path, width: int) -> None:
    entry(tmp_path / "a", 6_300, episode__score=-312.4, eval__score=-250.1)
    lanes = [Lane("seed 0", tmp_path / "a", 15_000), Lane("seed 1", tmp_path / "b", 15_000)]
    lanes[0].begin()
    board = board_of(lanes, "td3 on Pendulum-v1", Terminal())
    assert isinstance(board, LiveBoard)
    lines = screen(board, width).splitlines()
    assert all(len(line) <= width for line in lines)
    (first,) = (line for line in lines if "seed 0" in line)
    assert all(piece in first for piece in ("42%", "6,300 / 15,000", "-312.4", "-250.1"))
    assert "waiting" in next(line for line in lines if "seed 1" in line)
    entry(tmp_path / "a", 7_500)
    board.read -= 2.0
    board.update()
    assert "7,500" in screen(board, width)
    lanes[0].state = "stopped"
    board.changed(lanes[0])
    board.close()
    assert "stopped" in next(line for line in screen(board, width).splitlines() if "seed 0" in line)


def test_who_wants_no_display_has_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    board, lane = NoBoard(), Lane("x", tmp_path / "m", 1)
    for _ in range(2):
        board.changed(lane)
        board.update()
    board.close()
    assert capsys.readouterr().out == ""
    assert isinstance(board_of([lane], "t", io.StringIO()), PlainBoard)
