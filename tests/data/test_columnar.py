"""Datasets as columns: D4RL's files and tables, and what they cannot hold."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gymnasium import spaces

from d4rl_files import columns
from d4rl_files import write as write_hdf5
from minari_files import buffer
from minari_files import write as write_minari
from recordings import LIVED, same_rows
from reverie.core.errors import ConfigError, DataError
from reverie.datasets import minari as minari_reader
from reverie.datasets import writers
from reverie.datasets.convert import write
from reverie.datasets.detect import open_reader
from reverie.datasets.recorded_env import env_of


def test_several_observations_and_pictures_as_columns(tmp_path):
    rng = np.random.default_rng(0)
    both = {"arm": {"at": rng.normal(size=(4, 2)).astype("f4"), "on": rng.normal(size=4).astype("f4")}}
    space = spaces.Dict({"arm": spaces.Dict({
        "at": spaces.Box(-9, 9, (2,), np.float32), "on": spaces.Box(-9, 9, (), np.float32)})})  # fmt: skip
    source = write_minari(tmp_path / "d", [buffer(LIVED[0], both)], space)
    write(open_reader(str(source)), str(tmp_path / "p"), "parquet")
    same_rows(source, tmp_path / "p")  # the tables say which column is what
    with pytest.raises(
        ConfigError, match=r"one array of observations.*, not obs/arm/at .*, obs/arm/on .* of .*--to minari"
    ):
        write(open_reader(str(source)), str(tmp_path / "a.hdf5"), "d4rl")
    pictures = rng.integers(0, 256, (4, 8, 9, 3), dtype=np.uint8)
    source = write_minari(tmp_path / "i", [buffer(LIVED[0], pictures)], spaces.Box(0, 255, (8, 9, 3), np.uint8))
    write(open_reader(str(source)), str(tmp_path / "b.hdf5"), "d4rl")
    same_rows(source, tmp_path / "b.hdf5")
    with pytest.raises(ConfigError, match="numbers and vectors, not obs"):
        write(open_reader(str(source)), str(tmp_path / "q"), "parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.hdf5", "d", "i", "p"]


@pytest.mark.parametrize("to", ["d4rl", "parquet"])
def test_columns_keep_their_type(tmp_path, monkeypatch, to):
    """What is written first decides it: integers are not to become of later fractions."""
    monkeypatch.setattr(writers, "BUFFERED", 1)
    monkeypatch.setattr(minari_reader, "PART_BYTES", 1)
    space = spaces.Box(0, 99, (2,), np.int64)
    parts = [buffer(LIVED[0], LIVED[0].observations.astype(np.int64)), buffer(LIVED[1], LIVED[1].observations + 0.5)]
    source = write_minari(tmp_path / "d", parts, space)
    with pytest.raises(DataError, match=r"'obs' is int64 in the first episodes, but float.* in later ones"):
        write(open_reader(str(source)), str(tmp_path / "out"), to)
    source = write_minari(tmp_path / "e", parts[::-1], space)
    write(open_reader(str(source)), str(tmp_path / "out"), to)
    same_rows(source, tmp_path / "out")


ENV = {"id": "Pendulum-v1", "kwargs": {"g": 9.0}, "time_limit": 50}


def a_run(folder, env):
    """A run's own rows, with settings that name the environment."""
    with open_reader(str(write_hdf5(folder.with_suffix(".hdf5"), columns()))) as reader:
        write(reader, str(folder), "store")
    (folder / "about.json").unlink()
    (folder / "config.yaml").write_text(json.dumps({"algorithm": "sac", "experiment": {"env": env}}))
    return folder


@pytest.mark.parametrize("to", ["minari", "d4rl", "store"])
def test_a_copy_names_the_environment_with_its_arguments_and_time_limit(tmp_path, to):
    source = a_run(tmp_path / "run", ENV)
    for number, to_ in enumerate((to, "d4rl")):  # and the copy of the copy
        with open_reader(str(source)) as reader:
            write(reader, str(source := tmp_path / str(number)), to_)
            assert not reader.remarks()
        with open_reader(str(source)) as reader:
            named = env_of(reader.about())
        assert {name: getattr(named, name) for name in ENV} == ENV
