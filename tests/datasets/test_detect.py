"""Finding the format; several datasets as one; objects in memory."""

from collections import deque

import h5py
import numpy as np
import pyarrow as pa
import pytest
import torch
from gymnasium import spaces
from pyarrow import feather
from torch.utils.data import TensorDataset

from d4rl_files import columns, write
from formats import tianshou, transitions_of
from minari_files import buffer
from minari_files import write as write_minari
from recordings import LIVED, check, copied, expected
from reverie.core.errors import ConfigError, DataError
from reverie.core.space_json import space_to_json
from reverie.datasets.dataset import RecordedEpisodes
from reverie.datasets.format_detection import open_reader
from reverie.datasets.reader import ReadOptions
from reverie.datasets.validate import validate
from reverie.envs.limits import is_rounded


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.hdf5", b"<html>404 not found</html>", r"a\.hdf5 \(26 bytes\) cannot be read: its format is unknown"),
        (
            "a.txt",
            b"1, 2, 3, 4, 5, 6, 7",
            r"its format is unknown.*formats: folders: Minari, .*, TSV: tables",
        ),
        ("a.npz", b"PK\x03\x04" + bytes(50), r"a\.npz cannot be read: it seems damaged"),
    ],
)
def test_files_of_no_known_format(tmp_path, name, content, said):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=said):
        open_reader(str(path)).info()


def test_options_without_effect_are_refused(d4rl):
    with pytest.raises(ConfigError, match=r"data\.max_episode_steps = 3 has no effect on .*\(D4RL HDF5\)"):
        open_reader(str(d4rl), ReadOptions(max_episode_steps=3))


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
        open_reader(str(tmp_path)).info()
    tianshou(tmp_path / "c.hdf5", [(14, transitions_of(LIVED), 13, 14)])
    with pytest.raises(DataError, match="contains several formats"):
        open_reader(str(tmp_path))


@pytest.mark.parametrize(("one", "two"), [((0, 3), (0, 5)), ((-1.0, 1.0), (-2.0, 2.0))])
def test_actions_that_files_declare_must_be_the_same(tmp_path, one, two):
    for name, (low, high) in {"a": one, "b": one, "c": two}.items():
        values = columns() | ({"actions": np.arange(14) % 3} if isinstance(high, int) else {})
        with h5py.File(write(tmp_path / f"{name}.hdf5", values), "a") as file:
            space = spaces.Discrete(high) if isinstance(high, int) else spaces.Box(low, high, (1,), np.float32)
            file.attrs["action_space"] = space_to_json(space)
    with pytest.raises(DataError, match=r"c\.hdf5 has actions .*, but others have .*: these are not parts of"):
        open_reader(str(tmp_path)).info()
    write(tmp_path / "c.hdf5", values)  # declares none
    assert open_reader(str(tmp_path)).info().has_measured_bounds


# ---------------------------------------------------------------- objects in memory


FRAME = {"obs": ["number", "time"], "action": "action", "reward": "reward", "terminal": "terminal", "episode": "number"}


def frame(lived=LIVED):
    """Steps as columns of numbers and text, as data scientists have them."""
    values = columns(lived)
    number, time = values["observations"].T
    return {"number": number, "time": time, "action": values["actions"][:, 0], "reward": values["rewards"],
            "terminal": values["terminals"]}  # fmt: skip


def test_arrays_in_memory_and_in_a_file_are_what_a_d4rl_file_is(tmp_path):
    np.savez(tmp_path / "a.npz", **columns())
    lists = {name: values.tolist() for name, values in columns().items()}
    for data in (columns(), lists, tmp_path / "a.npz"):
        with open_reader(data) as reader:
            check(reader, expected(LIVED))
            assert not reader.remarks()
    with open_reader({"timeout" if name == "timeouts" else name: v for name, v in columns().items()}) as reader:
        assert "left out: timeout" in reader.remarks()
    with pytest.raises(DataError, match=r"object:dict: 'actions' contains <U1: expected an array of numbers"):
        open_reader(columns() | {"actions": ["a"] * 14})
    np.savez(tmp_path / "b.npz", **columns())
    assert open_reader(str(tmp_path / "*.npz")).rows() == 2 * len(expected(LIVED)["reward"])


@pytest.mark.parametrize(("values", "expected"), [
    (np.float64([5.4e7, 2**24 + 1, 1.7e9 + 0.25, 0.1, np.inf, np.nan, 1e300]), [1, 2, 6]),
    (np.int64([54_000_000, 2**60, 2**60 + 1, -(2**24) - 1]), [2, 3]),
])  # fmt: skip
def test_only_large_numbers_that_change_are_rounded(values, expected):
    assert np.flatnonzero(is_rounded(values)).tolist() == expected


@pytest.mark.parametrize(("dtype", "offset", "is_told"), [
    (np.int64, 2**40, True), (np.int32, -(2**30), True), (np.float64, 1.7e9, True),
    (np.int64, 2**24 - 30, False), (np.float64, 1.7e9 + 0.25, True), (np.float32, 2**40, False),
    (np.float64, 0.25, False),
])  # fmt: skip
def test_numbers_that_float32_does_not_hold_are_told(dtype, offset, is_told):
    """Time stamps and identifiers become their neighbors."""
    table = frame() | {"time": (np.float64(frame()["time"]) + offset).astype(dtype)}
    named = {"obs.number": "number", "obs.time": "time"}
    options = ReadOptions(columns={role: name for role, name in FRAME.items() if role != "obs"} | named)
    data = pytest.importorskip("pandas").DataFrame(table)
    recorded = RecordedEpisodes(open_reader(data, options))
    deque(recorded.parts(), 0)
    largest = f"{np.abs(np.float64(table['time'])).max():,.0f}"
    remark = f"observation 'time' has numbers up to {largest}, but learners see float32"
    for remarks in (recorded.remarks(), validate(open_reader(data, options)).remarks):
        assert [line.startswith(remark) for line in remarks if "float32" in line] == [True] * is_told


def test_an_npz_is_read_without_what_is_not_needed(tmp_path):
    """Objects would have to be unpickled; and what a file lacks is said of the format that it is nearest to."""
    np.savez(tmp_path / "a.npz", infos=np.array([{}] * 14, object), **columns())
    with open_reader(tmp_path / "a.npz") as reader:
        check(reader, expected(LIVED))
        assert reader.remarks() == ["left out: infos"]
    lacks = {name: values for name, values in columns().items() if name != "terminals"}
    for name, arrays, said in [
        ("b", lacks, "contains .*, but no terminals: expected observations, actions, terminals"),
        ("c", {"obs": np.zeros(3), "acts": np.zeros(3)}, r"contains acts, obs: expected .* \(PyDreamer npz\)"),
        (
            "e",
            dict.fromkeys(("obs", "next_obs", "action", "reward", "done", "index"), np.zeros(3)),
            "contains .*: expec",
        ),
        ("d", columns() | {"rewards": np.array([{}], object)}, "'rewards' contains Python objects, which are not unp"),
    ]:
        np.savez(tmp_path / f"{name}.npz", **arrays)
        with pytest.raises(DataError, match=rf"{name}\.npz:? {said}"):
            open_reader(tmp_path / f"{name}.npz")


@pytest.mark.parametrize("form", ["pandas", "pyarrow", "csv"])
def test_tables_in_memory_and_as_text(tmp_path, form):
    table, rows = pytest.importorskip("pyarrow").table(frame()), expected(LIVED, last_seen=False)
    data = table if form == "pyarrow" else pytest.importorskip("pandas").DataFrame(frame())
    if form == "csv":
        data.to_csv(tmp_path / "a.csv", index=False)
        data = tmp_path
    with open_reader(data, ReadOptions(columns=FRAME)) as reader:
        done = [round(float(a), 3) if form == "csv" else float(a) for (a,) in rows["action"]]  # text has no float32
        check(reader, rows | {"action": done})


def test_a_text_table_beside_other_data_is_none_of_them(tmp_path):
    write(tmp_path / "a.hdf5", columns())
    (tmp_path / "progress.csv").write_text("step,return\n1,2\n")
    assert open_reader(tmp_path).format == "D4RL HDF5"


def test_a_dataset_of_minaris_library(tmp_path):
    minari = pytest.importorskip("minari")
    data = minari.MinariDataset(write_minari(tmp_path / "d", [buffer(e) for e in LIVED]) / "data")
    check(open_reader(data), expected(LIVED))
    with pytest.raises(ConfigError, match=r"with 1 of the 5 episodes of .* only whole datasets are read"):
        open_reader(data.filter_episodes(lambda episode: episode.id == 2))


def test_several_datasets_of_any_format(tmp_path):
    one, two = columns(LIVED[:2]), write(tmp_path / "b.hdf5", columns(LIVED[2:]))
    with open_reader([one, str(two)]) as reader:
        check(reader, expected(LIVED))
        assert reader.format == "1 x arrays of D4RL's names, 1 x D4RL HDF5"
    with pytest.raises(DataError, match=r"object:dict has observations .*\(5,\).*others have .*\(2,\)"):
        open_reader([two, one | {name: np.zeros((4, 5)) for name in ("observations", "next_observations")}]).info()
    minari = write_minari(tmp_path / "minari", [buffer(e) for e in LIVED])
    copied(minari, tmp_path / "store", "store")
    with pytest.raises(DataError, match=r"store \(reverie store\) cannot be joined with the others"):
        open_reader([minari, tmp_path / "store"]).info()


@pytest.mark.parametrize("data", [3, None, {"observations": [1]}, np.zeros(3), [columns(), 3],
                                  TensorDataset(torch.zeros(2, 1))])  # fmt: skip
def test_what_is_no_data_is_refused(data):
    with pytest.raises(
        ConfigError, match=r"^data = .*: expected a path, .* the arrays observations, actions, term.* Stack"
    ):
        open_reader(data)


@pytest.mark.parametrize("name", ["log.jsonl", "log.sqlite", "log.csv.gz", "log.pkl"])
def test_files_that_another_library_converts(tmp_path, name):
    (tmp_path / name).write_bytes(b'[{"o": 1}]\n')
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(
            DataError,
            match=r"formats: folders: Minari.* Convert other files: .*to_parquet.*numpy\.savez.*observations, act",
        ):
            open_reader(str(path))


def test_a_folder_of_feather_files_is_a_table(tmp_path):
    table = pa.table({"o": [0.0, 1, 2], "a": [0, 1, 0], "r": [1.0] * 3})
    for number in range(2):
        feather.write_feather(table, tmp_path / f"{number}.feather")
    assert open_reader(str(tmp_path), ReadOptions(columns={"obs": "o", "action": "a", "reward": "r"})).rows() > 5
