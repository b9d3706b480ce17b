"""Pictures are made, complete, and only where there is something to show."""

import numpy as np
import pytest
from PIL import Image, ImageColor

from reverie.log import colors as colors_table
from reverie.log import style
from reverie.log.aggregate import MeasurementSettings, SeedSummary, aggregate
from reverie.log.jsonl import FINAL
from reverie.log.plot import plot_dream_traces, plot_learning_curve, plot_seeds_curve
from run_logs import logged

pytestmark = pytest.mark.usefixtures("drawn")


def colors(png):
    """All RGB values of a picture."""
    image = Image.open(png).convert("RGB")
    return {color for _, color in image.getcolors(image.width * image.height)}


BLUE, ORANGE, DARK = map(ImageColor.getrgb, (colors_table.BLUE, colors_table.ORANGE, colors_table.TEXT))


def test_curve_shows_training_and_evaluation(tmp_path):
    scores = [{"episode/score": float(i)} | ({"eval/score": 50.0} if i % 25 == 0 else {}) for i in range(100)]
    scores[50]["eval/success_rate"] = 0.5
    log = logged(tmp_path / "m.jsonl", zip(range(0, 1000, 10), scores, strict=True))
    png = plot_learning_curve(log, tmp_path / "curve.png", "dreamer_v3 on X")
    assert png == tmp_path / "curve.png"
    assert Image.open(png).height > Image.open(png).width  # below is a panel of success rates
    assert {BLUE, ORANGE} <= colors(png)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["curve.png", "m.jsonl"]


@pytest.mark.parametrize("dims", [1, 13])
def test_traces_of_any_width(tmp_path, dims):
    truth = np.random.default_rng(0).normal(size=(20, dims))
    png = plot_dream_traces(tmp_path / "t.png", truth, truth + 0.1, 5, [f"x{i}" for i in range(dims)], "dream")
    assert ORANGE in colors(png)


def shaded(png):
    """Whether there is an area of thin orange: an interval."""
    thin = np.array([255 + (c - 255) * 0.2 for c in ORANGE])
    away = np.abs(np.asarray(Image.open(png).convert("RGB"), float) - thin).max(-1)
    return bool((away <= 2).sum() > 2000)


def test_an_evaluation_at_the_end_has_a_mark_of_its_own(tmp_path):
    pictures = {}
    for name, third, mark in (("apart", 300, 1), ("again", 200, 0)):
        rows = []
        for step, score in zip((100, 200, third), (1.0, 2.0, -9.0), strict=True):
            ends = {"eval/score_iqm_low": score - 1, "eval/score_iqm_high": score + 1}
            rows.append((step, {"eval/score": score, "eval/score_iqm": score, **ends}))
        rows[-1][1][FINAL] = mark
        png = plot_learning_curve(logged(tmp_path / f"{name}.jsonl", rows), tmp_path / f"{name}.png")
        pictures[name] = DARK in colors(png)
    assert pictures == {"apart": True, "again": False}


STEPS = np.arange(1.0, 6.0) * 1000


def test_curves_of_seeds_with_their_interval(tmp_path):
    def drawn(name, shifts, *, evaluates=True, final=50.0):
        how = MeasurementSettings("env steps", evaluates, 1000.0, early=False)
        runs = {
            i: SeedSummary(5000, final if final is None else final + x, None, None, (STEPS, STEPS / 100 + x))
            for i, x in enumerate(shifts)
        }
        return plot_seeds_curve(tmp_path / name, aggregate(runs, how), title="bc on a$b_$")  # not a formula

    png = drawn("a.png", [-9.0, -1.0, 0.0, 1.0, 9.0])
    assert {ORANGE, DARK} <= colors(png)
    assert shaded(png)
    training = drawn("b.png", [-9.0, -1.0, 0.0, 1.0, 9.0], evaluates=False, final=None)
    assert BLUE in colors(training)
    assert ORANGE not in colors(training)
    assert not shaded(drawn("c.png", [-9.0, 0.0, 9.0]))


@style.styled
def test_labels_beside_lines_are_apart():
    figure, (axes,) = style.new_panels(1, 1, (4, 3), title="a$b_$")
    axes.plot([0, 1], [0, 1])
    style.label_lines(
        axes, [(y, text, color) for y, text, color in zip((1, 0.99, 1), "abc", colors_table.HUES, strict=False)]
    )
    places = sorted(text.get_position()[1] for text in axes.texts)
    assert min(np.diff(places)) * axes.bbox.height * 72 / figure.dpi > 9  # the size of their font
