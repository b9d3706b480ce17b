"""Rules of recorded data: what breaks one is found, and the good episodes go elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from d4rl_files import columns
from d4rl_files import write as write_hdf5
from minari_files import buffer
from minari_files import write as write_minari
from recordings import FORMATS, LIVED, Lived, expected, same_rows
from reverie.core.errors import ConfigError
from reverie.datasets.convert import good, write
from reverie.datasets.detect import open_reader
from reverie.datasets.reader import About
from reverie.datasets.validate import Rules, validate


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


@pytest.mark.parametrize("unused", [np.nan, 1e35, 7.0])
def test_the_action_of_the_last_row_is_not_used(unused):
    box = spaces.Box(-1, 1, (1,), np.float32)
    rows = {name: np.array(values) for name, values in expected(LIVED[:1]).items()}
    rows |= {"obs": np.full((4, 1), 0.5, np.float32), "action": np.zeros((4, 1), np.float32)}
    rows["action"][-1] = unused
    assert not any(wrong.any() for _, wrong in Rules(About(observation=box, action=box))(rows))
    rows["action"][0] = unused
    assert any(wrong.any() for _, wrong in Rules(About(observation=box, action=box))(rows))


@pytest.mark.parametrize("space", [spaces.Discrete(4), spaces.Box(0, 4, (2,), np.int64), spaces.MultiDiscrete([3, 3])])
def test_class_numbers_may_stay_0(space):
    about = About(observation=space, action=spaces.Discrete(3))
    zeros = np.zeros((15, *space.shape), space.dtype)
    flags = {name: np.zeros(15, bool) for name in ("is_first", "is_last", "is_terminal")}
    flags["is_first"][0] = flags["is_last"][-1] = True
    rows = {"obs": zeros, "action": np.zeros(15, np.int64), "reward": np.zeros(15, np.float32), **flags}
    assert not any(wrong.any() for _, wrong in Rules(about)(rows))


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


def test_what_is_sound_is_said_to_be_and_what_was_assumed_as_well(tmp_path):
    found = report(tmp_path, lambda values: None, [*LIVED, Lived(7, 2, "open")])
    assert found.sound
    assert (found.episodes, found.rows) == (6, 22)
    assert any("an episode has no end" in remark for remark in found.remarks)
    assert any("replayed in an environment: the data do not name one" in remark for remark in found.remarks)


def test_a_negative_number_of_episodes_cannot_be_replayed(d4rl):
    with pytest.raises(ConfigError, match="replay = -1: expected at least 0"):
        validate(open_reader(str(d4rl)), -1)


@pytest.mark.parametrize("to", FORMATS)
def test_the_good_episodes_go_elsewhere(tmp_path, to):
    path = tmp_path / "a.hdf5"
    found = report(tmp_path, lambda values: values["rewards"].__setitem__([3, 12], np.nan))
    assert found.bad == [1, 4]
    before = path.read_bytes()
    write(open_reader(str(path)), str(tmp_path / "good"), to, good(found))
    same_rows(write_hdf5(tmp_path / "b.hdf5", columns([LIVED[0], LIVED[2], LIVED[3]])), tmp_path / "good")
    assert path.read_bytes() == before
