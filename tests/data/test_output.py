"""What is written appears at its path when it is complete, by one process, under a fitting name."""

from __future__ import annotations

import numpy as np
import pytest

from d4rl_files import columns
from d4rl_files import write as write_hdf5
from recordings import FORMATS
from reverie.core.errors import ConfigError, DataError, RunError
from reverie.datasets.convert import write
from reverie.datasets.detect import open_reader

minari = pytest.importorskip("minari")


def test_what_exists_stays_and_what_fails_leaves_nothing(d4rl, tmp_path):
    (tmp_path / "out").mkdir()
    for to in FORMATS:
        with pytest.raises(RunError, match="out exists: choose another name"):
            write(open_reader(str(d4rl)), str(tmp_path / "out"), to)
    values = columns()
    values["observations"][9] = np.nan
    broken = write_hdf5(tmp_path / "b.hdf5", values)
    for to in ("pydreamer", "store"):  # those of learners; Minari takes what was recorded
        with pytest.raises(DataError, match="row 12"):
            write(open_reader(str(broken)), str(tmp_path / to), to)
    for to in ("minari", "d4rl", "parquet", "store"):
        with pytest.raises(RunError, match="no episodes"):
            write(open_reader(str(d4rl)), str(tmp_path / "none"), to, lambda episodes: iter(()))
    with pytest.raises(ConfigError, match="in the format Minari, but --to is store"):
        write(open_reader(str(d4rl)), "minari:ab/b-v0", "store")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.hdf5", "b.hdf5", "out"]


@pytest.mark.parametrize(
    ("name", "to", "said"),
    [
        ("b.hdf5", "minari", "HDF5"),
        ("b.H5", "parquet", "HDF5"),
        ("b.npz", "d4rl", "npz"),
        ("b.parquet", "store", "Parquet"),
        ("b.arrow", "parquet", "Arrow"),
    ],
)
def test_names_of_another_format_are_refused(d4rl, tmp_path, name, to, said):
    with pytest.raises(ConfigError, match=rf"{name} is the name of a dataset in the format {said}, but --to is {to}"):
        write(open_reader(str(d4rl)), str(tmp_path / name), to)
    assert [path.name for path in tmp_path.iterdir()] == ["a.hdf5"]
