"""Pictures are made, complete, and only where there is something to show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from reverie.log.plot import dream_errors, dream_traces, learning_curve
from reverie.log.sinks import JsonlSink


def colours(png: Path) -> set[tuple[int, ...]]:
    """All RGB values of a picture."""
    pixels = np.asarray(Image.open(png).convert("RGB")).reshape(-1, 3)
    return {tuple(int(v) for v in row) for row in np.unique(pixels, axis=0)}


BLUE, ORANGE = (59, 111, 182), (217, 119, 43)


def test_curve_shows_training_and_evaluation(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "m.jsonl")
    for step in range(100):
        sink.write({"episode/score": float(step)} | ({"eval/score": 50.0} if step % 25 == 0 else {}), step * 10)
    sink.close()
    png = learning_curve(tmp_path / "m.jsonl", tmp_path / "curve.png", "dreamer_v3 on X")
    assert png == tmp_path / "curve.png"
    assert {BLUE, ORANGE} <= colours(png)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["curve.png", "m.jsonl"]


@pytest.mark.parametrize("name", ["episode/score", "eval/score"])
def test_curve_of_a_single_point(tmp_path: Path, name: str) -> None:
    sink = JsonlSink(tmp_path / "m.jsonl")
    sink.write({name: 1.0}, 5)
    sink.close()
    assert learning_curve(tmp_path / "m.jsonl", tmp_path / "curve.png") is not None


def test_no_scores_no_curve(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "m.jsonl")
    sink.write({"loss/a": 1.0, "episode/score": float("nan")}, 5)
    sink.close()
    assert learning_curve(tmp_path / "m.jsonl", tmp_path / "curve.png") is None
    assert not (tmp_path / "curve.png").exists()


@pytest.mark.parametrize("dims", [1, 4, 30])
def test_traces_of_any_width(tmp_path: Path, dims: int) -> None:
    truth = np.random.default_rng(0).normal(size=(20, dims))
    png = dream_traces(tmp_path / "t.png", truth, truth + 0.1, 5, [f"x{i}" for i in range(dims)], "dream")
    assert ORANGE in colours(png)


def test_errors_with_and_without_baseline(tmp_path: Path) -> None:
    errors = {"state": np.linspace(0, 1, 9), "reward": np.zeros(9), "continue": np.ones(9)}
    png = dream_errors(tmp_path / "e.png", errors, {"state": np.ones(9)}, "error")
    assert ORANGE in colours(png)


DARK = (61, 67, 75)


@pytest.mark.parametrize("baseline", [0.0, 1.0])
def test_the_baseline_is_seen_even_where_it_is_nothing(tmp_path: Path, baseline: float) -> None:
    errors = {"reward": np.zeros(9)}
    png = dream_errors(tmp_path / "e.png", errors, {"reward": np.full(9, baseline)}, units={"reward": "metres"})
    assert {DARK, ORANGE} <= colours(png)


def test_the_horizon_of_training_is_marked_where_more_is_shown(tmp_path: Path) -> None:
    errors, truth = {"a": np.linspace(0, 1, 9)}, np.linspace(0, 1, 20)[:, None]
    draw = {
        "errors": lambda png, horizon: dream_errors(png, errors, {}, trained_horizon=horizon),
        "traces": lambda png, horizon: dream_traces(png, truth, truth, 5, ["a"], trained_horizon=horizon),
    }
    for name, picture in draw.items():
        plain, marked, beyond = (picture(tmp_path / f"{name}{h}.png", h).read_bytes() for h in (None, 4, 15))
        assert plain == beyond != marked
