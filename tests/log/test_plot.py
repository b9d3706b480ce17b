"""Pictures are made, complete, and only where there is something to show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from reverie.log.dataset_plot import dataset_plot
from reverie.log.metrics import FINAL, JsonlSink
from reverie.log.plot import compared_curves, dream_errors, dream_traces, learning_curve, seeds_curve


def colours(png: Path) -> set[tuple[int, ...]]:
    """All RGB values of a picture."""
    pixels = np.asarray(Image.open(png).convert("RGB")).reshape(-1, 3)
    return {tuple(int(v) for v in row) for row in np.unique(pixels, axis=0)}


def pixels(png: Path, colour: tuple[int, ...]) -> int:
    """How many have exactly this colour."""
    return int((np.asarray(Image.open(png).convert("RGB")) == colour).all(-1).sum())


BLUE, ORANGE, GREY = (59, 111, 182), (217, 119, 43), (138, 143, 152)


def test_curve_shows_training_and_evaluation(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "m.jsonl")
    for step in range(100):
        sink.write({"episode/score": float(step)} | ({"eval/score": 50.0} if step % 25 == 0 else {}), step * 10)
    sink.close()
    png = learning_curve(tmp_path / "m.jsonl", tmp_path / "curve.png", "dreamer_v3 on X")
    assert png == tmp_path / "curve.png"
    assert {BLUE, ORANGE} <= colours(png)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["curve.png", "m.jsonl"]


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


def shaded(png: Path) -> bool:
    """Whether there is an area of thin orange: an interval."""
    thin = np.array([255 + (c - 255) * 0.2 for c in ORANGE])
    pixels = np.asarray(Image.open(png).convert("RGB"), float)
    return bool((np.abs(pixels - thin).max(-1) <= 2).sum() > 2000)


def evaluated(path: Path, *more: str) -> Path:
    """Metrics of evaluations at five steps that say their mean and ``more``."""
    sink = JsonlSink(path)
    for step in range(5):
        values = {"eval/score": 1.0 * step, "eval/score_iqm": 2.0 * step}
        values |= {"eval/score_iqm_low": 2.0 * step - 3, "eval/score_iqm_high": 2.0 * step + 3}
        sink.write({name: value for name, value in values.items() if name in ("eval/score", *more)}, step * 100)
    sink.close()
    return path


def test_the_interval_of_evaluations_is_shaded(tmp_path: Path) -> None:
    more = ("eval/score_iqm", "eval/score_iqm_low", "eval/score_iqm_high")
    known = learning_curve(evaluated(tmp_path / "a.jsonl", *more), tmp_path / "a.png")
    few = learning_curve(evaluated(tmp_path / "b.jsonl", more[0]), tmp_path / "b.png")
    old = learning_curve(evaluated(tmp_path / "c.jsonl"), tmp_path / "c.png")
    assert known is not None
    assert few is not None
    assert old is not None  # of a version that measured means alone
    assert [shaded(png) for png in (known, few, old)] == [True, False, False]


def test_an_evaluation_at_the_end_has_a_mark_of_its_own(tmp_path: Path) -> None:
    pictures = {}
    last = {"apart": {FINAL: 1}, "again": {FINAL: 0}}
    for name, mark in last.items():
        sink = JsonlSink(tmp_path / f"{name}.jsonl")
        for step, score in zip((100, 200, 300 if "apart" in name else 200), (1.0, 2.0, -9.0), strict=True):
            ends = {"eval/score_iqm_low": score - 1, "eval/score_iqm_high": score + 1}
            sink.write({"eval/score": score, "eval/score_iqm": score, **ends, **(mark if score < 0 else {})}, step)
        sink.close()
        png = learning_curve(tmp_path / f"{name}.jsonl", tmp_path / f"{name}.png")
        assert png is not None
        pictures[name] = DARK in colours(png)
    assert pictures == {"apart": True, "again": False}


@pytest.mark.parametrize("returns", [[1.0, 1.0 + 2**-52, np.inf], [np.nan]])
def test_returns_of_any_size_are_drawn(tmp_path: Path, returns: list[float]) -> None:
    png = dataset_plot(tmp_path / "d.png", returns, [3] * len(returns), {})
    assert (pixels(png, BLUE) > 500) == bool(np.isfinite(returns).any())


STEPS = np.arange(1.0, 6.0) * 1000
SEEDS = [(STEPS, STEPS / 100 + shift) for shift in (-9.0, 0.0, 9.0)]
NOTHING = (np.zeros(0),) * 4


def test_curves_of_seeds_with_their_interval(tmp_path: Path) -> None:
    middle = (STEPS, STEPS / 100, STEPS / 100 - 6, STEPS / 100 + 6)
    title = "bc on a$b_$"  # not a formula
    final = tuple(np.array([x]) for x in (5000.0, 52.0, 45.0, 60.0))
    png = seeds_curve(tmp_path / "a.png", SEEDS, middle, final, title=title)  # type: ignore[arg-type]
    assert png is not None
    assert {ORANGE, DARK} <= colours(png)
    assert shaded(png)
    training = seeds_curve(tmp_path / "b.png", SEEDS, middle, NOTHING, what="training")
    assert training is not None
    assert BLUE in colours(training)
    assert not {ORANGE, DARK} & colours(training)
    unsure = (STEPS, STEPS / 100, *(np.full(5, np.nan),) * 2)
    few = seeds_curve(tmp_path / "c.png", SEEDS[:2], unsure, NOTHING)
    assert few is not None
    assert not shaded(few)


def test_the_legend_of_a_comparison_has_every_name_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr("reverie.log.plot.save_figure", lambda figure, png: drawn.append(figure))
    compared_curves(tmp_path / "a.png", {"X": dict.fromkeys(("_runs", "a$b_$"), (STEPS, STEPS, STEPS, STEPS))})
    texts = drawn[0].axes[0].get_legend().get_texts()
    assert [text.get_text().strip() for text in texts] == ["_runs", "a$b_$"]
    assert not any(text.get_parse_math() for text in texts)
