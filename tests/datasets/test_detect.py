"""Finding the format; several files as one."""

import h5py
import numpy as np
import pytest
from gymnasium import spaces

from d4rl_files import columns, write
from formats import tianshou, transitions_of
from recordings import LIVED
from reverie.core.errors import ConfigError, DataError
from reverie.core.space_json import text_of
from reverie.datasets.detect import open_reader
from reverie.datasets.reader import ReadOptions


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.hdf5", b"<html>404 not found</html>", r"a\.hdf5 \(26 bytes\) cannot be read: its format is not known"),
        ("a.txt", b"1, 2, 3, 4, 5, 6, 7", r"its format is not known.*Expected a Minari .* CSV tables"),
        ("a.npz", b"PK\x03\x04" + bytes(50), r"a\.npz is damaged or incomplete"),
    ],
)
def test_files_of_no_known_format(tmp_path, name, content, said):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=said):
        open_reader(str(path)).about()


def test_options_without_effect_are_refused(d4rl):
    with pytest.raises(ConfigError, match=r"data\.time_limit = 3 has no effect on .*\(D4RL HDF5\)"):
        open_reader(str(d4rl), ReadOptions(time_limit=3))


def test_what_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "none"))
    write(tmp_path / "halfcheetah-medium.hdf5", columns())
    (tmp_path / "empty").mkdir()
    for path, said in [
        (tmp_path / "halfcheetah-expert.hdf5", r"Did you mean 'halfcheetah-medium\.hdf5'.*reverie data download"),
        (tmp_path / "zzz", r"contains: empty, halfcheetah-medium\.hdf5"),
        (tmp_path / "*.npz", "no dataset at"),
        (tmp_path / "empty", "contains no dataset, only nothing"),
        ("minari:door-v0", "There are none yet"),
    ]:
        with pytest.raises(DataError, match=said):
            open_reader(str(path))


def test_several_files_that_do_not_belong_together(tmp_path):
    write(tmp_path / "a.hdf5", columns())
    other = columns() | {name: np.zeros((14, 5), np.float32) for name in ("observations", "next_observations")}
    write(tmp_path / "b.hdf5", other)
    with pytest.raises(DataError, match=r"b\.hdf5 has observations .*5.*not parts of one dataset"):
        open_reader(str(tmp_path)).about()
    tianshou(tmp_path / "c.hdf5", [(14, transitions_of(LIVED), 13, 14)])
    with pytest.raises(DataError, match="contains several formats"):
        open_reader(str(tmp_path))


@pytest.mark.parametrize(("one", "two"), [((0, 3), (0, 5)), ((-1.0, 1.0), (-2.0, 2.0))])
def test_actions_that_files_declare_must_be_the_same(tmp_path, one, two):
    for name, (low, high) in {"a": one, "b": one, "c": two}.items():
        values = columns() | ({"actions": np.arange(14) % 3} if isinstance(high, int) else {})
        with h5py.File(write(tmp_path / f"{name}.hdf5", values), "a") as file:
            space = spaces.Discrete(high) if isinstance(high, int) else spaces.Box(low, high, (1,), np.float32)
            file.attrs["action_space"] = text_of(space)
    with pytest.raises(DataError, match=r"c\.hdf5 has actions .*, but others have .*: these are not parts of"):
        open_reader(str(tmp_path)).about()
    write(tmp_path / "c.hdf5", values)  # declares none
    assert open_reader(str(tmp_path)).about().measured
