"""Step numbers and times that files store beside the steps: a remark says if they are not in the order of steps."""

import datetime
import re

import numpy as np
import pytest

from reverie.datasets.format_detection import open_reader
from reverie.datasets.reader import ReadOptions

pa = pytest.importorskip("pyarrow")

ROLES = {"obs": "o", "action": "a", "terminal": "d"}
NUMBERS = np.arange(8)
SHUFFLED = np.array([0, 2, 1, 3] * 2)


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
