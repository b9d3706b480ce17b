"""Rules of recorded data: what breaks one is found, and the good episodes go elsewhere."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from d4rl_files import columns
from d4rl_files import write as write_hdf5
from minari_files import buffer
from minari_files import write as write_minari
from recordings import FORMATS, LIVED, Lived, same_rows
from reverie.core.rows import Rows
from reverie.core.types import FLAGS
from reverie.datasets.convert import good, write
from reverie.datasets.detect import open_reader
from reverie.datasets.reader import About
from reverie.datasets.validate import BLANK, DataReport, Rules, outside, replay, validate


def report(tmp_path, change, lived=LIVED):
    values = columns(lived)
    change(values)
    return validate(open_reader(str(write_hdf5(tmp_path / "a.hdf5", values))))


def at(name, index, value):
    return lambda values: values[name].__setitem__(index, value)


@pytest.mark.parametrize(
    ("change", "rule", "bad"),
    [
        (at("observations", (5, 1), np.nan), "obs is NaN or infinite", [2]),
        (at("rewards", 4, np.inf), "reward is NaN or infinite", [2]),
        (at("actions", 13, np.nan), "action is NaN or infinite", [4]),
        (at("next_observations", (2, 0), -np.inf), "obs is NaN or infinite", [0]),
        (at("observations", (0, 0), 1e35), "never written", [0]),
    ],
)
def test_rules_of_numbers(tmp_path, change, rule, bad):
    found = report(tmp_path, change)
    assert any(rule in text for text in found.findings), found
    assert set(bad) <= set(found.bad)
    assert found.bad == bad
    assert not found.sound


def test_rows_that_were_never_written(tmp_path):
    lived = [*LIVED, Lived(6, 14, "truncated")]

    def blank(values):
        for name in ("observations", "next_observations", "actions", "rewards"):
            values[name][14:] = 0

    found = report(tmp_path, blank, lived)
    assert found.bad == [5]
    assert any("all values are 0: never written?" in text for text in found.findings)


def test_a_step_out_of_order(tmp_path):
    found = report(tmp_path, lambda values: values["observations"].__setitem__(6, [77, 77]))
    assert found.bad == [2]
    assert "out of order?: 1 row in 1 episode, first in episode 2" in str(*found.findings.values())


def test_the_same_episode_twice(tmp_path):
    found = report(tmp_path, lambda values: None, [*LIVED, LIVED[2]])
    assert found.bad == [5]
    assert any("duplicate of an earlier episode" in text for text in found.findings)


def test_bounds_of_declared_spaces(tmp_path):
    actions = [e.actions.copy() for e in LIVED]
    actions[2][1] = 1.5
    observations = [e.observations.copy() for e in LIVED]
    observations[4][0] = -3
    source = write_minari(
        tmp_path / "d", [buffer(e, o, a) for e, o, a in zip(LIVED, observations, actions, strict=True)],
        spaces.Box(0, 99, (2,), np.float32),
    )  # fmt: skip
    found = validate(open_reader(str(source)))
    assert found.bad == [2, 4]
    assert {"obs is outside the bounds of its space", "action is outside the bounds of its space"} == set(
        found.findings
    )


def test_values_of_another_kind_than_declared(tmp_path):
    source = write_minari(
        tmp_path / "d", [buffer(e, e.observations + 0.5) for e in LIVED], spaces.Box(0, 99, (2,), np.int64)
    )
    found = validate(open_reader(str(source)))
    assert found.bad == [0, 1, 2, 3, 4]
    assert "obs has dtype float32; its space declares int64" in found.findings
    source = write_minari(tmp_path / "e", [buffer(e, e.observations[:, :1]) for e in LIVED])
    assert "obs has shape (1,); its space declares (2,)" in validate(open_reader(str(source))).findings


@pytest.mark.parametrize("to", FORMATS)
def test_the_good_episodes_go_elsewhere(tmp_path, to):
    path = tmp_path / "a.hdf5"
    found = report(tmp_path, lambda values: values["rewards"].__setitem__([3, 12], np.nan))
    assert found.bad == [1, 4]
    before = path.read_bytes()
    write(open_reader(str(path)), str(tmp_path / "good"), to, good(found))
    same_rows(write_hdf5(tmp_path / "b.hdf5", columns([LIVED[0], LIVED[2], LIVED[3]])), tmp_path / "good")
    assert path.read_bytes() == before


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


def breaks(values, space):
    """Return the rules that some of ``values`` ``[n, ...]`` break."""
    found = outside("obs", values, space)
    return [rule for rule, wrong in found if wrong.any()]


@pytest.mark.parametrize(
    ("low", "high", "inside", "beyond"),
    [
        (-1e-6, 1e-6, [-1e-6, 1.00001e-6], [2e-6, -1.1e-6]),
        (-1, 1000, [-1.005, 1000.005], [-1.1, 1000.1]),  # the error of sums grows with the range
        (7, 7, [6.99999, 7.00001], [6.999, 7.001]),
        (0, np.inf, [-0.99e-5, 1e38], [-1.01e-5]),  # as with a range of 1
        (-np.inf, -5, [-4.99996, -1e38], [-4.9999]),
        (-3e38, 3e38, [-3e38, 3e38], [3.2e38]),
    ],
)
def test_a_tolerance_in_units_of_the_bounds(low, high, inside, beyond):
    space = spaces.Box(low, high, (1,), np.float32)
    assert not breaks(np.array(inside, np.float32)[:, None], space)
    for value in beyond:
        assert breaks(np.array([[value]], np.float32), space) == ["obs is outside the bounds of its space"]
