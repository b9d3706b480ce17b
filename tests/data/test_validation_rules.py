"""Each rule on rows made by hand: which rows break it, and which values just do not."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from reverie.core.rows import Rows
from reverie.core.types import FLAGS
from reverie.datasets.reader import About
from reverie.datasets.validate import BLANK, DataReport, Rules, replay

BOX = spaces.Box(-1, 1, (1,), np.float32)
ABOUT = About(observation=BOX, action=BOX)


class Validator:
    """The rules and their report, an episode at a time."""

    def __init__(self, about: About, longest: int | None = None) -> None:
        self.rules, self.report = Rules(about, longest), DataReport()

    def add(self, rows: Rows) -> bool:
        self.report.episodes += 1
        before = len(self.report.bad)
        for rule, wrong in self.rules(rows):
            self.report.add(rule, wrong)
        self.report.rows += len(rows["reward"])
        return len(self.report.bad) == before


def episode(steps: int, seed: int = 0) -> Rows:
    """An episode of ``steps`` steps, truncated, that breaks no rule: ``steps + 1`` rows."""
    rng, total = np.random.default_rng(seed), steps + 1
    rows = {name: rng.uniform(0.1, 0.9, (total, 1)).astype(np.float32) for name in ("obs", "action")}
    rows |= {name: np.zeros(total, bool) for name in FLAGS} | {"reward": np.ones(total, np.float32)}
    rows["is_first"][0] = rows["is_last"][-1] = True
    rows["reward"][0] = 0
    return rows


def broken(rows: Rows, about: About = ABOUT, longest: int | None = None) -> dict[str, str]:
    """Return what a validation says about an episode of 3 rows that is sound, and then ``rows``."""
    validator, before = Validator(about, longest), episode(2, seed=99)
    before["obs"] = np.resize(rows["obs"], (3, *rows["obs"].shape[1:]))
    assert validator.add(before)
    sound = validator.add(rows)
    assert sound == (not validator.report.findings)
    assert validator.report.bad == ([] if sound else [1])
    return {rule: str(found).removeprefix(f"{rule}: ") for rule, found in validator.report.findings.items()}


@pytest.mark.parametrize(
    ("name", "row", "value", "rule"),
    [
        ("is_first", 0, False, "not is_first, though no episode is running"),
        ("is_last", 2, True, "not is_first, though no episode is running"),
        ("is_terminal", 2, True, "is_terminal without is_last"),
        ("reward", 0, 1.0, "non-zero reward on an is_first row"),
        ("is_last", 5, False, "episode ends without is_last"),
    ],
)
def test_flags(name, row, value, rule):
    rows = episode(5)
    assert not broken(rows)
    rows[name][row] = value
    at = 3 + row + (name == "is_last" and row == 2)
    assert broken(rows) == {rule: f"1 row in 1 episode, first in row {at}, episode 1"}


def test_as_many_steps_as_the_environment_allows():
    assert not broken(episode(5), longest=5)
    assert broken(episode(7), longest=5) == {
        "episode exceeds its environment's limit of 5 steps": "2 rows in 1 episode, first in row 9, episode 1"
    }


def test_how_many_rows_of_zeros_were_never_written():
    for count, said in [(BLANK - 1, {}), (BLANK, {"all values are 0: never written?": f"{BLANK} rows in 1 episode, "
                                                   "first in row 7, episode 1"})]:  # fmt: skip
        rows = episode(20)
        for name in ("obs", "action", "reward"):
            rows[name][4 : 4 + count] = 0
        assert broken(rows) == said
        for name in ("obs", "action", "reward"):
            other = {k: v.copy() for k, v in rows.items()}
            other[name][4 : 4 + count] = 0.5
            assert not broken(other)


class Sums(gymnasium.Env):
    """Adds up the actions, from a start that the seed decides; ends where the sum is 4 or more."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        self.x = np.full(1, seed, np.float32)
        return self.x.copy(), {}

    def step(self, action):
        self.x = self.x + action
        return self.x.copy(), float(action[0]) / 4, bool(self.x[0] >= 4), False, {}


@pytest.mark.parametrize(
    ("name", "row", "value", "wrong"),
    [
        ("obs", 0, 2.0, [0]),
        ("obs", 2, 2.01, [2]),
        ("obs", 4, 4.01, [4]),
        ("reward", 3, 0.26, [3]),
        ("is_terminal", 4, False, [4]),
        ("is_terminal", 1, True, [1]),
        ("action", 1, 0.75, [2]),  # the rows after it differ as well, as they follow from it
        ("action", 4, 9.0, []),  # of the last row: nothing is taken there
        ("obs", 2, 2.001, []),  # rounding
    ],
)
def test_a_replay_shows_the_first_row_that_differs(name, row, value, wrong):
    rows = episode(4)
    rows["action"] = np.ones((5, 1), np.float32)
    rows["obs"] = np.arange(5, dtype=np.float32)[:, None]
    rows["reward"][1:] = 0.25
    rows["is_terminal"][4] = True
    assert not replay(Sums(), rows, ABOUT, seed=0).any()
    rows[name][row] = value
    assert np.flatnonzero(replay(Sums(), rows, ABOUT, seed=0)).tolist() == wrong
