"""Strips of an episode: its dream, where that goes wrong, and a critic beside the return."""

import numpy as np
import pytest

from reverie.agent.dream_strip import find_fall, make_dream_strip, make_value_strip
from reverie.core.specs import ObsPart
from reverie.log.strip import choose_columns

AGENT = ObsPart(kind="categorical", shape=(3,), dtype="int64", classes=(6, 4, 4))
GRID = ObsPart(kind="categorical", shape=(6, 4), dtype="int64", classes=(3,) * 24)


def walk(wrong, context=2, length=12):
    """An agent that walks right, and a dream in which it stands, turns or sees a wall wrongly: by row, the change."""
    agent = np.stack([np.minimum(np.arange(length), 5), np.ones(length, int), np.zeros(length, int)], 1)
    grid, dreamt = np.zeros((length, 6, 4), int), agent.copy()
    dreamt_grid = grid.copy()
    for row, change in wrong.items():
        dreamt[row] += change[:3]
        dreamt_grid[row, 0, 0] = change[3]
    predicted = {"agent": np.eye(6)[dreamt], "grid": np.eye(3)[dreamt_grid.reshape(length, -1)],
                 "reward": np.zeros(length), "cont": np.ones(length)}  # fmt: skip
    origins = ["seen"] * context + ["imagined"] * (length - context)
    real = {"agent": agent, "grid": grid, "reward": np.zeros(length)}
    return {"agent": AGENT, "grid": GRID}, real, predicted, origins


def test_cells_off():
    strip = make_dream_strip(*walk({0: (1, 0, 0, 0), 6: (-2, 1, 1, 1), 8: (0, 0, 1, 0)}))
    assert strip.texts == ["", "", *["matches"] * 4, "4 cells off", "matches", "1 class off", *["matches"] * 3]
    assert (strip.parting, {*strip.levels}) == (6, {"", "matches", "differs"})
    assert strip.sentence == "It saw 2 frames. The next 10 are imagined; at frame 6 it is 4 cells off."
    repeated = np.abs(np.minimum(np.arange(2, 12), 5) - 1).mean()
    assert strip.bars[6] == pytest.approx(5 / repeated)
    assert np.isnan(strip.bars[:2]).all()  # observed
    assert "all match" in make_dream_strip(*walk({})).sentence
    beside = make_dream_strip(*walk(dict.fromkeys(range(2, 12), (-2, 0, 0, 0))))
    assert (beside.parting, {*beside.texts[2:]}) == (2, {"2 cells off"})


def test_an_end_that_is_not_true_and_rows_without_truth():
    spec, real, predicted, origins = walk({})
    predicted["cont"][7:] = 0.1
    strip = make_dream_strip(spec, {key: x[:10] for key, x in real.items()}, predicted, origins)
    assert strip.texts[7:] == ["matches", "the dream has ended", "the dream has ended", "", ""]
    assert strip.sentence.endswith("; at frame 8 the dream has ended.")

    predicted["cont"][7:10], short = 0.9, {key: x[:10] for key, x in real.items()}
    strip = make_dream_strip(spec, short, predicted, origins, is_terminal=True)
    assert strip.sentence.endswith("; at frame 9 the episode ends, and the dream goes on.")
    predicted["cont"][9] = 0.1
    assert "all" not in make_dream_strip(spec, short, predicted, origins, is_terminal=True).sentence
    assert make_dream_strip(spec, short, predicted, origins, is_terminal=True).parting is None


def test_numbers_are_judged_by_what_nothing_changes_would_give():
    spec = {"o": ObsPart(kind="vector", shape=(1,), dtype="float32")}
    truth = np.array([0, 0, 1, 1, 1, 1.0], np.float32)[:, None]
    dreamt = truth + np.array([9, 9, 0.2, 0.3, 0.99, 1.1], np.float32)[:, None]
    predicted = {"o": dreamt, "reward": truth[:, 0], "cont": np.ones(6)}
    strip = make_dream_strip(spec, {"o": truth, "reward": truth[:, 0]}, predicted, ["seen"] * 2 + ["imagined"] * 4)
    assert strip.levels == ["", "", "matches", "near", "near", "differs"]
    assert strip.texts[3] == "near: 0.3 times “nothing changes”"
    assert strip.sentence.endswith("at frame 5 the error reaches that of “nothing changes”.")

    dreamt[[2, 5]] += [[5], [-1]]
    calm = make_dream_strip(spec, {"o": truth, "reward": truth[:, 0]}, predicted, ["seen"] * 2 + ["imagined"] * 4)
    assert (calm.levels[2], calm.parting) == ("differs", None)  # it comes near again


def test_pictures_are_judged_before_classes():
    spec, real, predicted, origins = walk({})
    eye = np.arange(12.0).reshape(-1, 1, 1, 1).repeat(4, 1)
    spec = {"eye": ObsPart(kind="image", shape=(4, 1, 1), dtype="uint8"), **spec}
    strip = make_dream_strip(spec, real | {"eye": eye}, predicted | {"eye": eye + 9}, origins)
    assert strip.levels[2] == "differs"


def test_missing_coordinates_and_an_observation_called_reward():
    spec, real, predicted, origins = walk({})
    real["agent"][6] = -1
    spec["reward"], real["obs/reward"] = ObsPart(kind="categorical", shape=(), dtype="int64", classes=(2,)), np.ones(12)
    strip = make_dream_strip(spec, real, predicted | {"obs/reward": np.eye(2)[np.ones((12, 1), int)]}, origins)
    assert strip.texts[2:] == ["matches"] * 10


def test_columns_keep_what_matters():
    assert choose_columns(7, (4, None)) == [*range(7)]
    columns = choose_columns(1000, (4, 500), 12)
    assert (len(columns), {0, 4, 500, 999} <= {*columns}, columns) == (12, True, sorted(columns))


def test_the_row_to_which_a_value_falls():
    """Not a fall: a reward that was expected, a gradual loss, values that are unknown."""
    values, rewards = np.array([5, 5, 5, 1, 1, 1, 1, 1.0]), np.zeros(8)
    assert find_fall(rewards, values, 1.0, is_terminal=False) == 3
    assert find_fall(np.array([0, 0, 0, 4.0, 0, 0, 0, 0]), values, 1.0, is_terminal=False) is None
    assert find_fall(rewards, np.ones(8), 1.0, is_terminal=True) == 7  # nothing comes, although 1 was expected
    assert find_fall(rewards, np.arange(8.0)[::-1], 1.0, is_terminal=True) is None
    assert find_fall(rewards, np.full(8, np.nan), 1.0, is_terminal=True) is None


def test_a_critic_beside_the_return():
    rewards, gaps = np.array([0, 1, 1, 2.0]), np.array([1, 2, 3, np.nan])
    strip = make_value_strip(rewards, np.array([4, 3, 2, 8.0]), gaps, 0.5, is_terminal=True)
    assert strip.lines["return that came"].tolist() == [2.0, 2.0, 2.0, 0.0]
    assert strip.sentence == "At frame 0 the critic expects 4; 2 came. On average it is off by 1."
    open_end = make_value_strip(rewards, np.array([4, 3, 2, 8.0]), gaps, 0.5, is_terminal=False)
    assert open_end.lines["return that came"].tolist() == [3.0, 4.0, 6.0, 8.0]
    going_on = make_value_strip(rewards, np.array([4, 3, 2, 8.0]), gaps, 0.5, is_terminal=False, is_over=False)
    assert "3 came so far, with its value of the last frame." in going_on.sentence
    unknown = np.full(4, np.nan)
    for learned, values, lines in ((rewards, unknown, set()), (unknown, rewards, {"critic"})):
        strip = make_value_strip(learned, values, gaps, 0.5, is_terminal=True)
        assert ("no critic" in strip.sentence, {*strip.lines}) == (True, lines)
