"""Rules of recorded data: what breaks one is found, and the good episodes go elsewhere."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from d4rl_files import columns
from d4rl_files import write as write_hdf5
from minari_files import buffer
from minari_files import write as write_minari
from recordings import LIVED, Lived, copied, same_rows
from reverie.core.types import FLAGS
from reverie.datasets.convert import drop_invalid_episodes
from reverie.datasets.format_detection import open_reader
from reverie.datasets.reader import DatasetInfo
from reverie.datasets.validate import DataReport, EpisodeRules, replay_episode, validate


def report(tmp_path, change, lived=LIVED):
    values = columns(lived)
    change(values)
    return validate(open_reader(str(write_hdf5(tmp_path / "a.hdf5", values))))


def at(name, index, value):
    return lambda values: values[name].__setitem__(index, value)


@pytest.mark.parametrize(
    ("change", "rule", "bad"),
    [
        (at("observations", (5, 1), np.nan), "obs is NaN or infinite", 2),
        (at("actions", 13, np.nan), "action is NaN or infinite", 4),
        (at("next_observations", (2, 0), -np.inf), "obs is NaN or infinite", 0),
        (at("observations", (0, 0), 1e35), "never written", 0),
        (at("observations", 6, 77), "out of order?: 1 row in 1 episode, first in episode 2", 2),
    ],
)
def test_rules_of_numbers(tmp_path, change, rule, bad):
    found = report(tmp_path, change)
    assert any(rule in f"{name} {told}" for name, told in found.findings.items()), found
    assert (found.invalid_episodes, found.is_valid) == ([bad], False)


def test_rows_that_were_never_written_and_copies(tmp_path):
    lived = [*LIVED, Lived(6, 14, "truncated"), LIVED[2]]

    def blank(values):
        for name in ("observations", "next_observations", "actions", "rewards"):
            values[name][14:28] = 0

    found = report(tmp_path, blank, lived)
    assert found.invalid_episodes == [5, 6]
    assert {"all values are 0: never written?", "duplicate of an earlier episode"} <= set(found.findings)


def test_bounds_of_declared_spaces(tmp_path):
    buffers = [buffer(e) for e in LIVED]
    buffers[2].actions[1] = 1.5
    buffers[4].observations[0] = -3
    source = write_minari(tmp_path / "d", buffers, spaces.Box(0, 99, (2,), np.float32))
    found = validate(open_reader(str(source)))
    assert found.invalid_episodes == [2, 4]
    assert set(found.findings) == {f"{name} is outside the bounds of its space" for name in ("obs", "action")}


@pytest.mark.parametrize("to", ["minari", "parquet"])
def test_the_good_episodes_go_elsewhere(tmp_path, to):
    path = tmp_path / "a.hdf5"
    found = report(tmp_path, at("rewards", [3, 12], np.nan))
    assert found.invalid_episodes == [1, 4]
    before = path.read_bytes()
    copied(path, tmp_path / "good", to, choose=drop_invalid_episodes(found))
    same_rows(write_hdf5(tmp_path / "b.hdf5", columns([LIVED[0], LIVED[2], LIVED[3]])), tmp_path / "good")
    assert path.read_bytes() == before


BOX = spaces.Box(-1, 1, (1,), np.float32)
ABOUT = DatasetInfo(observation=BOX, action=BOX)


def episode(steps, seed=0):
    """An episode of ``steps`` steps, truncated, that breaks no rule: ``steps + 1`` rows."""
    rng, total = np.random.default_rng(seed), steps + 1
    rows = {name: rng.uniform(0.1, 0.9, (total, 1)).astype(np.float32) for name in ("obs", "action")}
    rows |= {name: np.zeros(total, bool) for name in FLAGS} | {"reward": np.ones(total, np.float32)}
    rows["is_first"][0] = rows["is_last"][-1] = True
    rows["reward"][0] = 0
    return rows


def broken(rows):
    """Return what a validation says about an episode of 3 rows that is sound, and then ``rows``."""
    rules, report = EpisodeRules(ABOUT), DataReport()
    for each in (episode(2, seed=99), rows):
        report.episodes += 1
        for rule, wrong in rules(each):
            report.add(rule, wrong)
        report.rows += len(each["reward"])
    assert report.invalid_episodes == ([1] if report.findings else [])
    return {rule: str(found).removeprefix(f"{rule}: ") for rule, found in report.findings.items()}


@pytest.mark.parametrize(
    ("name", "row", "value", "rule"),
    [
        ("is_first", 0, False, "not is_first, although no episode is running"),
        ("is_last", 2, True, "not is_first, although no episode is running"),
        ("is_terminal", 2, True, "is_terminal without is_last"),
        ("reward", 0, 1.0, "non-zero reward on an is_first row"),
        ("is_last", 5, False, "episode ends without is_last"),
    ],
)
def test_flags(name, row, value, rule):
    rows = episode(5)
    assert not broken(rows)
    rows[name][row] = value
    step = row + (name == "is_last" and row == 2) - (rule.startswith("is_terminal"))
    assert broken(rows) == {rule: f"1 row in 1 episode, first in episode 1, step {step}"}


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
        ("reward", 3, 0.26, [3]),
        ("is_terminal", 4, False, [4]),
        ("action", 1, 0.75, [2]),  # the rows after it differ as well, as they follow from it
        ("action", 4, 9.0, []),  # of the last row: nothing is taken there
        ("obs", 2, 2.001, []),  # rounding
    ],
)
def test_a_replay_shows_the_first_row_that_differs(name, row, value, wrong):
    rows = episode(4)
    rows |= {"action": np.ones((5, 1), np.float32), "obs": np.arange(5, dtype=np.float32)[:, None]}
    rows["reward"][1:], rows["is_terminal"][4] = 0.25, True
    assert not replay_episode(Sums(), rows, ABOUT, seed=0).any()
    rows[name][row] = value
    assert np.flatnonzero(replay_episode(Sums(), rows, ABOUT, seed=0)).tolist() == wrong
