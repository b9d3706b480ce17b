"""Pictures are made, complete, and only where there is something to show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from reverie.log.metrics import FINAL, JsonlSink
from reverie.log.plot import dream_traces, learning_curve, seeds_curve


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


@pytest.mark.parametrize("dims", [1, 4, 30])
def test_traces_of_any_width(tmp_path: Path, dims: int) -> None:
    truth = np.random.default_rng(0).normal(size=(20, dims))
    png = dream_traces(tmp_path / "t.png", truth, truth + 0.1, 5, [f"x{i}" for i in range(dims)], "dream")
    assert ORANGE in colours(png)


DARK = (61, 67, 75)


def shaded(png: Path) -> bool:
    """Whether there is an area of thin orange: an interval."""
    thin = np.array([255 + (c - 255) * 0.2 for c in ORANGE])
    pixels = np.asarray(Image.open(png).convert("RGB"), float)
    return bool((np.abs(pixels - thin).max(-1) <= 2).sum() > 2000)


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
