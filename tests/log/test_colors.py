"""One table of colors, for figures and for the viewer."""

import re
from pathlib import Path

import pytest

from reverie import viewer
from reverie.algos.table import ALGORITHMS
from reverie.log.colors import ALGORITHM_HUES, BLUE, DARK, FAR, GOAL, HUES, NEAR, ORANGE, algorithm_hue, assign_hues


def test_each_algorithm_has_a_color():
    listed = " ".join(ALGORITHM_HUES).split()
    assert sorted(listed) == sorted(entry.name for entry in ALGORITHMS)
    assert len(ALGORITHM_HUES) == len(HUES)
    assert algorithm_hue("my_package:Mine") in range(len(HUES))


@pytest.mark.parametrize(
    ("algorithms", "hues"),
    [
        (["sac", "ppo"], [2, 0]),
        (["ppo", "crr", "dreamer_v3", "ppo"], [0, 2, 1, 3]),  # what is left, in order; dreamer_v3 keeps its color
        (["ppo"] * 10, [*range(8), 0, 0]),
    ],
)
def test_lines_of_a_chart_differ_as_long_as_there_are_colors(algorithms, hues):
    assert assign_hues(algorithms) == hues


def test_the_page_has_the_colors_of_figures():
    style = (Path(viewer.__file__).parent / "static/style.css").read_text()
    values = dict(re.findall(r"--(\w+): ([^;]+);", style))
    pairs = {f"light-dark({color}, {DARK[color]})" for color in (BLUE, ORANGE)}
    assert pairs == {values["real"], values["dream"]}
    names = [values[name][6:-1] for name in ("near", "far", "goal")]
    assert [values[name].split("(")[1].split(",")[0] for name in names] == [NEAR, FAR, GOAL]
    hues = [values[f"hue{number}"] for number in range(len(HUES))]
    hues = [values[hue[6:-1]] if hue.startswith("var(") else hue for hue in hues]
    assert hues == [f"light-dark({color}, {DARK[color]})" for color in HUES]
