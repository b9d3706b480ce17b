"""Pictures are made, complete, and only where there is something to show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from reverie.log.aggregate import Measured, OfSeed, aggregate
from reverie.log.metrics import FINAL, JsonlSink
from reverie.log.plot import dream_traces, learning_curve, seeds_curve

pytestmark = pytest.mark.usefixtures("drawn")


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


@pytest.mark.parametrize("dims", [1, 13])
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


def test_curves_of_seeds_with_their_interval(tmp_path: Path) -> None:
    def drawn(name: str, shifts: list[float], *, evaluates: bool = True, final: float | None = 50.0) -> Path:
        how = Measured("env steps", evaluates, 1000.0, early=False)
        runs = {
            i: OfSeed(5000, final if final is None else final + x, None, None, (STEPS, STEPS / 100 + x))
            for i, x in enumerate(shifts)
        }
        png = seeds_curve(tmp_path / name, aggregate(runs, how), title="bc on a$b_$")  # not a formula
        assert png is not None
        return png

    png = drawn("a.png", [-9.0, 0.0, 9.0])
    assert {ORANGE, DARK} <= colours(png)
    assert shaded(png)
    training = drawn("b.png", [-9.0, 0.0, 9.0], evaluates=False, final=None)
    assert BLUE in colours(training)
    assert not {ORANGE, DARK} & colours(training)
    assert not shaded(drawn("c.png", [-9.0, 0.0]))
