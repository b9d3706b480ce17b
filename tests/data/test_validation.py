"""Rules of recorded data: what breaks one is found, and the good episodes go elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from d4rl_files import columns
from d4rl_files import write as write_hdf5
from minari_files import buffer
from minari_files import write as write_minari
from recordings import FORMATS, LIVED, Lived, same_rows
from reverie.datasets.convert import good, write
from reverie.datasets.detect import open_reader
from reverie.datasets.validate import validate


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
