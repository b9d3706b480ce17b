"""Step numbers and times that files store beside the steps: a remark says if they are not in the order of steps."""

import datetime
import re

import h5py
import numpy as np
import pytest
import zarr

from reverie.datasets.format_detection import open_reader
from reverie.datasets.reader import ReadOptions

pa = pytest.importorskip("pyarrow")

ROLES = {"obs": "o", "action": "a", "terminal": "d"}
NUMBERS = np.arange(8)
ORDERED, SHUFFLED = NUMBERS % 4, np.array([0, 2, 1, 3] * 2)


def d4rl(path, **times):
    arrays = {"observations": np.zeros((8, 2)), "actions": np.zeros((8, 1)), "terminals": NUMBERS % 4 == 3}
    with h5py.File(path / "d.hdf5", "w") as file:
        for name, values in (arrays | {"timeouts": np.zeros(8)} | times).items():
            file[name] = values
    return path / "d.hdf5"


def robomimic(path, **times):
    with h5py.File(path / "d.hdf5", "w") as file:
        for k in range(2):
            demo = file.create_group(f"data/demo_{k}")
            demo["obs/x"], demo["actions"], demo["dones"] = np.zeros((4, 2)), np.zeros((4, 1)), [0, 0, 0, 1]
            for name, values in times.items():
                demo[name] = values[4 * k : 4 * k + 4]
    return path / "d.hdf5"


def act(path, **times):
    for k in range(2):
        with h5py.File(path / f"episode_{k}.hdf5", "w") as file:
            file["observations/qpos"], file["action"] = np.zeros((4, 2)), np.zeros((4, 1))
            for name, values in times.items():
                file[name] = values[4 * k : 4 * k + 4, None]
    return path


def diffusion_policy(path, **times):
    group = zarr.open_group(path / "d.zarr", mode="w", zarr_format=2)
    for name, values in {"state": np.ones((8, 2)), "action": np.ones((8, 1)), **times}.items():
        group.create_array(f"data/{name}", data=np.asarray(values))
    group.create_array("meta/episode_ends", data=np.array([4, 8]))
    return path / "d.zarr"


@pytest.mark.parametrize("write", [d4rl, robomimic, act, diffusion_policy])
@pytest.mark.parametrize("name", ["step", "timestamp"])
def test_arrays_that_are_not_in_order_are_named(tmp_path, write, name):
    for values, is_named in ((ORDERED, False), (SHUFFLED, True)):
        folder = tmp_path / str(is_named)
        folder.mkdir()
        with open_reader(str(write(folder, **{name: values}))) as reader:
            list(reader.parts())
            assert any(f"'{name}' does not grow" in line for line in reader.remarks()) == is_named


@pytest.mark.parametrize(
    "name",
    [
        "t",
        "Frame",
        "step_idx",
        "global_step",
        "index",
        "__index_level_0__",
        "",
        "created_at",
        "charttime",
        "open_time",
        "trade_date",
        "time_ms",
        "Time (s)",
        "stay_hour",
        "seq",
        "t_seconds",
        "stamp_sec",
        "round",
    ],
)
@pytest.mark.parametrize("dtype", [np.uint32, np.float32])
def test_columns_that_are_not_in_order_are_named(name, dtype):
    table = {"o": np.zeros(8), "a": NUMBERS % 2, "d": NUMBERS % 4 == 3, name: SHUFFLED.astype(dtype)}
    reader = open_reader(pa.table(table), ReadOptions(columns=ROLES))
    reader.info()
    assert any(f"'{name}' does not grow" in line for line in reader.remarks())


@pytest.mark.parametrize(
    "to_time",
    [
        lambda k: datetime.date(2024, 1, 1 + k), lambda k: datetime.time(k), lambda k: datetime.timedelta(k),
        lambda k: f"2024-01-01T00:00:0{k}Z", lambda k: datetime.datetime(2024, 1, 1, k, tzinfo=datetime.UTC),
        lambda k: f"3{k % 2}/{k // 2 + 1:02}/2026 08:00", lambda k: f"03/3{k % 2}/202{k // 2}", lambda k: str(9 + k),
        lambda k: f"20170911 19470{k}", lambda k: f"{8 + k}:00 PM", lambda k: f"2026/03/30 08:00:0{k}.5",
        lambda k: f"Mar {8 + k}, 2026", lambda k: None if k == 3 else datetime.datetime(2024, 1, 1, k),
    ],
)  # fmt: skip
def test_times_of_all_types_are_compared(to_time):
    times = pa.array([to_time(int(k)) for k in SHUFFLED])
    table = pa.table({"o": np.zeros(8), "a": NUMBERS % 2, "d": NUMBERS % 4 == 3, "time": times})
    reader = open_reader(table, ReadOptions(columns=ROLES))
    reader.info()
    assert any("'time' does not grow" in line for line in reader.remarks())


def test_what_is_no_time_and_what_may_be_in_order():
    """Flags, constants, counts, texts and a date whose month may come first."""
    table = {"o": np.zeros(8), "a": NUMBERS % 2, "d": NUMBERS % 4 == 3, "t": NUMBERS % 2, "steps": np.full(8, 4)}
    table |= {"returns": SHUFFLED, "update": SHUFFLED, "weekday": SHUFFLED, "event_time": ["noon"] * 8}
    table |= {"date": [f"{day:02}/{month:02}/2026" for month, day in [(1, 2), (1, 3), (2, 1), (2, 2)] * 2]}
    reader = open_reader(pa.table(table), ReadOptions(columns=ROLES))
    reader.info()
    lines = [line for line in reader.remarks() if re.search("does not grow|skips|as one:", line)]
    assert [line.partition(":")[0] for line in lines] == [
        "'event_time' seems to be the time of each step, but 'noon' is not read as one"
    ]
