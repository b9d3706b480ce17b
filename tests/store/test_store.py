"""A store in a local folder: what comes back, what counts, what is left alone, and its episodes."""

import struct
import time
import tracemalloc

import google_crc32c
import numpy as np
import pytest
import zarr
import zstandard

from reverie.core.errors import DataError, RunError
from reverie.store.store import ReplayStore, iter_store_episodes
from reverie.store.zarr import decode_chunk
from store_rows import COLUMNS, STREAMS, assert_rows, contents, row, small_chunks, stacked


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    small_chunks(monkeypatch)


@pytest.fixture
def opened(tmp_path, said):
    """Opens the store; nothing may be said of it."""
    stores = []

    def open_(**more):
        stores.append(ReplayStore(tmp_path / "replay", **more))
        return stores[-1]

    yield open_
    for store in stores:
        store.close(5)
    assert not said


def fill(store, start, stop, life=0):
    for number in range(start, stop):
        store.add(row(number, life=life))


def test_a_row_counts_and_is_read_once_it_is_committed(opened, tmp_path):
    store = opened()
    assert store.segments == store.ancestor_parts("7") == []
    store.check_writable()  # as a run does before its folder has a config.yaml
    assert not (tmp_path / "replay").exists()
    name = store.begin(COLUMNS, STREAMS)
    fill(store, 0, 20)
    assert_rows({name: rows[:, -4:] for name, rows in store.pending().items()}, stacked(range(16, 20)))
    assert store.flush(10)
    fill(store, 20, 22)
    assert_rows(store.pending(), stacked(range(19, 22)))  # the newest of a flush may still be changed
    (segment,) = opened().segments
    identity = (segment.name, segment.streams, segment.rows, segment.first_kept, segment.parent)
    assert identity == (name, STREAMS, 19, 0, None)
    assert dict(segment.columns) == COLUMNS
    found, damaged = contents(opened(), segment)
    assert_rows(found, stacked(range(19)))
    assert not damaged
    group = zarr.open(tmp_path / "replay", mode="r")
    assert set(group[name].keys()) >= {"obs", "reward"}
    for column, expected in stacked(range(19)).items():
        np.testing.assert_array_equal(group[f"{name}/{column}"][:], expected, strict=True)


def test_drop_deletes_whole_chunks_of_the_run(opened, tmp_path):
    def kept():
        return [(s.first_kept, s.rows) for s in opened().segments]

    def drop(store, before):
        store.drop(before)
        while store.writer.dropped < before:
            time.sleep(0.01)
        assert store.close(10)

    store = opened(keep="replay")
    first = store.begin(COLUMNS, STREAMS)
    fill(store, 0, 40)
    store.flush(10)
    drop(store, 19)
    files = tmp_path / "replay" / first / "reward"
    assert ((files / "c.0.1").exists(), (files / "c.0.2").exists()) == (False, True)
    again = opened(keep="replay")
    assert_rows(contents(again, first)[0], stacked(range(16, 40)))
    second = again.begin(COLUMNS, STREAMS, first=30, parent=(first, 30))
    fill(again, 30, 60)
    again.flush(10)
    drop(again, 28)
    assert kept() == [(24, 40), (30, 60)]
    third = opened(keep="replay")
    name = third.begin(COLUMNS, STREAMS, first=60, parent=(second, 60))
    fill(third, 60, 61)
    third.flush(10)
    drop(third, 47)
    assert kept() == [(40, 40), (46, 60), (60, 61)]
    assert not list(files.glob("c.*"))
    assert [(start, stop) for _, start, stop in third.ancestor_parts(name)] == [(30, 30), (46, 60), (60, 61)]


def test_what_is_wrong_is_refused(opened, tmp_path):
    store = opened()
    store.begin(COLUMNS, STREAMS)
    with pytest.raises(DataError, match=r"missing \['action'\], unknown \['aktion'\]"):
        store.add({("aktion" if name == "action" else name): value for name, value in row(0).items()})
    with pytest.raises(DataError, match=r"reward has shape \(3,\): expected \(2,\)"):
        store.add({**row(0), "reward": np.zeros(3)})
    with pytest.raises(DataError, match="reward has shape"):
        store.extend({**stacked(range(4)), "reward": np.zeros((2, 3))})
    store.add(row(0))
    assert store.flush(10)
    with pytest.raises(RunError, match=r"not empty and is not a replay store .*replay"):
        ReplayStore(tmp_path).begin(COLUMNS, STREAMS)
    assert [path.name for path in tmp_path.iterdir()] == ["replay"]


# ---------------------------------------------------------------- episodes


def lived(lengths, rng, *, open_end=0):
    """The rows of one stream: episodes of so many rows each, every second one terminal."""
    edges = np.cumsum([0, *lengths, open_end])
    number = np.arange(edges[-1])
    first, last = np.isin(number, edges[:-1]), np.isin(number, edges[1 : len(lengths) + 1] - 1)
    rows = {name: rng.integers(0, 2, (len(number), *c.shape)).astype(c.dtype) for name, c in COLUMNS.items()}
    rows["action"][last] = rows["reward"][first] = 0
    return rows | {"is_first": first, "is_last": last, "is_terminal": np.isin(number, edges[1::2] - 1) & last}


@pytest.fixture
def streams():
    """Two streams of 30 rows: three episodes and an open one; two episodes and an open one."""
    rng = np.random.default_rng(0)
    return [lived([5, 12, 9], rng, open_end=4), lived([20, 2], rng, open_end=8)]


@pytest.fixture
def store(opened, streams):
    store = opened()
    store.begin(COLUMNS, 2)
    store.extend({name: np.stack([stream[name] for stream in streams]) for name in COLUMNS})
    store.close(10)
    return store


def parts_of(store, **more):
    return [(e.stream, e.start, len(e), e.has_first_row, e.has_last_row) for e in iter_store_episodes(store, **more)]


def test_episodes(store, streams):
    assert parts_of(store) == [
        (0, 0, 5, True, True), (0, 5, 12, True, True), (0, 17, 9, True, True), (0, 26, 4, True, False),
        (1, 0, 20, True, True), (1, 20, 2, True, True), (1, 22, 8, True, False),
    ]  # fmt: skip
    for stream, rows in enumerate(streams):
        for name in COLUMNS:
            found = np.concatenate(
                [episode.rows[name] for episode in iter_store_episodes(store) if episode.stream == stream]
            )
            np.testing.assert_array_equal(found, rows[name])


def test_an_episode_goes_on_where_a_process_went_on_and_copies_are_left_out(opened, streams):
    """The first process was three rows into the second episode; the last one begins with copies of its rows."""
    store, rows = opened(), {name: value[None] for name, value in streams[0].items()}
    first = store.begin(COLUMNS, 1)
    store.extend({name: value[:, :13] for name, value in rows.items()})
    store.begin(COLUMNS, 1, first=9, parent=(first, 9))
    store.extend({name: value[:, 9:] for name, value in rows.items()})
    store.begin(COLUMNS, 1, imported=8)
    store.extend({name: value[:, :8] for name, value in rows.items()})
    store.extend({name: value[:, :5] for name, value in rows.items()})
    store.close(10)
    found = list(iter_store_episodes(store))
    assert [(e.start, len(e), e.has_first_row and e.has_last_row) for e in found] == [
        (0, 5, True), (5, 12, True), (17, 9, True), (26, 4, False), (8, 5, True),
    ]  # fmt: skip
    for name in COLUMNS:
        np.testing.assert_array_equal(np.concatenate([episode.rows[name] for episode in found[:4]]), rows[name][0])
    assert not store.find_damage()


def test_damaged_rows_are_left_out_and_named(store, tmp_path):
    assert not store.find_damage()
    folder = tmp_path / "replay" / (name := store.segments[0].name)
    path = folder / "action/c.0.1.0"  # rows 8 to 15 of stream 0
    path.write_bytes(path.read_bytes()[:-1])
    damage = []
    assert parts_of(store, on_damage=damage.append)[:5] == [
        (0, 0, 5, True, True), (0, 5, 3, True, False), (0, 16, 1, False, True), (0, 17, 9, True, True),
        (0, 26, 4, True, False),
    ]  # fmt: skip
    assert [(d.file, d.start, d.stop, d.stream) for d in damage] == [(f"{name}/action/c.0.1.0", 8, 16, 0)]
    (folder / "zarr.json").unlink()
    (folder / "reward/zarr.json").write_text("{}")
    (folder / "obs/image/c.1.2.0.0.0").write_bytes(b"")
    found = store.find_damage()
    assert found[0] == f"{name}/zarr.json is missing"
    assert "reward/zarr.json is damaged" in found[1]
    assert found[2].startswith(f"{name}/action/c.0.1.0 does not match its CRC32C checksum (rows 8 to 15")
    assert found[3:] == [f"{name}/obs/image/c.1.2.0.0.0 does not match its CRC32C checksum (rows 16 to 23 of stream 1)"]


def test_a_chunk_that_expands_beyond_its_column_is_damaged():
    content = zstandard.compress(bytes(10**8))
    tracemalloc.start()
    with pytest.raises(ValueError, match="does not have the size that its"):
        decode_chunk(content + struct.pack("<I", google_crc32c.value(content)), np.empty(4, np.uint8))
    assert tracemalloc.get_traced_memory()[1] < 10**6
    tracemalloc.stop()
