"""Datasets as columns: D4RL's files and tables, and what they cannot hold."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from minari_files import buffer
from minari_files import write as write_minari
from recordings import LIVED, same_rows
from reverie.agent.recording import stacked
from reverie.core.errors import ConfigError, DataError
from reverie.data import columnar
from reverie.data.readers import minari as minari_reader
from reverie.data.readers.detect import open_reader
from reverie.datasets import write


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
def test_columns_without_numbers_are_refused(tmp_path, to):
    """Alone, or beside others."""
    none = spaces.Box(-1, 1, (0,), np.float32)
    for name, space in {"a": none, "b": spaces.Dict({"at": spaces.Box(-1, 1, (2,), np.float32), "no": none})}.items():
        source = write_minari(tmp_path / name, [buffer(LIVED[0], stacked(space, [space.sample()] * 4, "obs"))], space)
        with pytest.raises(ConfigError, match=r"can only store .*, not obs.*\(shape \[0\], float32\) of this dataset"):
            write(open_reader(str(source)), str(tmp_path / "out"), to)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("to", ["d4rl", "parquet"])
def test_columns_keep_their_type(tmp_path, monkeypatch, to):
    """What is written first decides it: integers are not to become of later fractions."""
    monkeypatch.setattr(columnar, "BUFFERED", 1)
    monkeypatch.setattr(minari_reader, "PART_BYTES", 1)
    space = spaces.Box(0, 99, (2,), np.int64)
    parts = [buffer(LIVED[0], LIVED[0].observations.astype(np.int64)), buffer(LIVED[1], LIVED[1].observations + 0.5)]
    source = write_minari(tmp_path / "d", parts, space)
    with pytest.raises(DataError, match=r"'obs' is int64 in the first episodes, but float.* in later ones"):
        write(open_reader(str(source)), str(tmp_path / "out"), to)
    source = write_minari(tmp_path / "e", parts[::-1], space)
    write(open_reader(str(source)), str(tmp_path / "out"), to)
    same_rows(source, tmp_path / "out")


def test_tables_have_one_name_for_two_columns(tmp_path):
    at = spaces.Box(-9, 9, (2,), np.float32)
    space = spaces.Dict({"arm": spaces.Dict({"at": at}), "arm.at": at})
    obs = {"arm": {"at": np.zeros((4, 2), np.float32)}, "arm.at": np.ones((4, 2), np.float32)}
    source = write_minari(tmp_path / "d", [buffer(LIVED[0], obs)], space)
    both = r"tables would call both obs/arm/at and obs/arm\.at 'observation\.arm\.at'"
    with pytest.raises(ConfigError, match=both):
        write(open_reader(str(source)), str(tmp_path / "p"), "parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["d"]
