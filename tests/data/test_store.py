import numpy as np
import pytest
import zarr

from reverie.core.errors import DataError, RunError
from reverie.store.store import Store
from store_rows import COLUMNS, STREAMS, assert_rows, contents, row, small_chunks, stacked


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    small_chunks(monkeypatch)


@pytest.fixture
def said():
    return []


@pytest.fixture
def store(tmp_path, said):
    store = Store(tmp_path / "replay", say=said.append)
    yield store
    store.close(5)


def fill(store, start, stop, life=0):
    for number in range(start, stop):
        store.add(row(number, life=life))


def test_rows_come_back(store, tmp_path, said):
    name = store.begin(COLUMNS, STREAMS)
    fill(store, 0, 20)
    assert store.flush(10)
    assert store.count == store.committed == 20
    again = Store(tmp_path / "replay", say=said.append)
    (segment,) = again.segments
    assert (segment.name, segment.streams, segment.rows, segment.kept, segment.parent) == (name, STREAMS, 20, 0, None)
    assert dict(segment.columns) == COLUMNS
    found, damaged = contents(again, again.segments[0])
    assert_rows(found, stacked(range(20)))
    assert not damaged
    assert not said


def test_a_row_counts_only_once_it_is_committed(store, tmp_path, said):
    store.begin(COLUMNS, STREAMS)
    fill(store, 0, 5)
    assert Store(tmp_path / "replay", say=said.append).segments[0].rows == 0
    assert_rows(store.pending(), stacked(range(5)))
    store.flush(10)
    assert Store(tmp_path / "replay", say=said.append).segments[0].rows == 5
    fill(store, 5, 7)
    assert_rows(store.pending(), stacked(range(5, 7)))


def test_zarr_opens_it(store, tmp_path):
    first = store.begin(COLUMNS, STREAMS)
    fill(store, 0, 20)
    store.flush(10)
    fill(store, 20, 22)  # not committed: not in the shapes
    group = zarr.open(tmp_path / "replay", mode="r")
    for name, expected in stacked(range(20)).items():
        array = group[f"{first}/{name}"]
        assert array.shape == expected.shape
        assert array.dtype == expected.dtype
        np.testing.assert_array_equal(array[:], expected)
    assert set(group[first].keys()) >= {"obs", "reward"}


def test_a_process_goes_on_in_a_segment_of_its_own(tmp_path, said):
    """From within a chunk, and before rows that were stored since: these stay, and are not part of it."""
    store = Store(tmp_path, say=said.append)
    first = store.begin(COLUMNS, STREAMS)
    fill(store, 0, 30)
    store.close(10)
    before = {path: path.read_bytes() for path in (tmp_path / first).rglob("c.*")}
    again = Store(tmp_path, say=said.append)
    second = again.begin(COLUMNS, STREAMS, first=11, parent=(first, 11))
    fill(again, 11, 18, life=1)
    assert again.close(10)
    assert [(part.segment.name, part.start, part.stop) for part in again.chain(second)] == [
        (first, 0, 11), (second, 11, 18)]  # fmt: skip
    assert_rows(contents(again, second)[0], stacked(range(11, 18), life=1))
    assert_rows(contents(again, first)[0], stacked(range(30)))
    assert before == {path: path.read_bytes() for path in (tmp_path / first).rglob("c.*")}
    assert again.rows() == 18 * STREAMS
    assert not said


def test_drop_deletes_whole_chunks_of_the_run(tmp_path, said):
    store = Store(tmp_path, say=said.append, keep="replay")
    first = store.begin(COLUMNS, STREAMS)
    fill(store, 0, 40)
    store.flush(10)
    store.drop(19)
    assert store.close(10)
    assert not (tmp_path / first / "reward/c.0.1").exists()
    assert (tmp_path / first / "reward/c.0.2").exists()
    again = Store(tmp_path, say=said.append, keep="replay")
    assert again.segments[0].kept == 16
    assert_rows(contents(again, first)[0], stacked(range(16, 40)))
    again.begin(COLUMNS, STREAMS, first=30, parent=(first, 30))
    fill(again, 30, 60)
    again.flush(10)
    again.drop(28)
    again.close(10)
    assert [(s.kept, s.rows) for s in Store(tmp_path, say=said.append).segments] == [(24, 40), (30, 60)]
    third = Store(tmp_path, say=said.append, keep="replay")
    name = third.begin(COLUMNS, STREAMS, first=60, parent=(third.segments[1].name, 60))
    third.drop(47)
    fill(third, 60, 61)
    third.flush(10)
    third.close(10)
    assert [(s.kept, s.rows) for s in Store(tmp_path, say=said.append).segments] == [(40, 40), (46, 60), (60, 61)]
    assert not list((tmp_path / first / "reward").glob("c.*"))
    assert [(start, stop) for _, start, stop in third.chain(name)] == [(30, 30), (46, 60), (60, 61)]


def test_wrong_rows_are_refused(store):
    store.begin(COLUMNS, STREAMS)
    with pytest.raises(DataError, match=r"missing \['action'\], unknown \['aktion'\]"):
        store.add({("aktion" if name == "action" else name): value for name, value in row(0).items()})
    with pytest.raises(DataError, match=r"reward has shape \(3,\): expected \(2,\)"):
        store.add({**row(0), "reward": np.zeros(3)})
    with pytest.raises(DataError, match="reward has shape"):
        store.extend({**stacked(range(4)), "reward": np.zeros((2, 3))})
    store.add(row(0))
    assert store.flush(10)


def test_what_is_no_store_is_left_alone(tmp_path, said):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(RunError, match=r"not empty and is not a replay store .*letter.txt"):
        Store(tmp_path, say=said.append).begin(COLUMNS, STREAMS)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_nothing_is_written_by_looking(tmp_path, said):
    store = Store(tmp_path / "nothing", say=said.append)
    assert store.segments == []
    store.claim()  # as a run does before its folder has a config.yaml
    assert store.close(1)
    assert not (tmp_path / "nothing").exists()
    with pytest.raises(RunError, match=r"call begin\(\)"):
        store.add(row(0))
    assert store.chain("7") == []
