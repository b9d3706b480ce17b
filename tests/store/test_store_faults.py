"""Stores whose process is killed, whose disk is full, whose files are damaged."""

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from reverie.core.errors import RunError
from reverie.core.specs import ColumnSpec
from reverie.store import local_objects
from reverie.store.retry import Retrier
from reverie.store.store import ReplayStore, iter_store_episodes
from store_rows import COLUMNS, STREAMS, assert_rows, contents, row, small_chunks, stacked

pytestmark = pytest.mark.usefixtures("warm")


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    small_chunks(monkeypatch)


def first_of(place):
    store = ReplayStore(place)
    return store, store.segments[0]


SCRIPT = """
import sys
sys.path[:0] = [{tests!r}]
from store_rows import COLUMNS, STREAMS, row
from reverie.store import zarr
from reverie.store.store import ReplayStore, iter_store_episodes
zarr.CHUNK_BYTES = 8 * 48
store = ReplayStore(sys.argv[1])
last = store.segments[-1] if store.segments else None
store.begin(COLUMNS, STREAMS, first=last.rows if last else 0, parent=(last.name, last.rows) if last else None)
print("ready", flush=True)
while True:
    if store.writer.count % 7 == 0:
        store.end_episode(0)
    store.add(row(store.writer.count))
    if store.writer.count % 5 == 0:
        store.flush(None)
        print(store.writer.committed, flush=True)
"""


def test_kill_9(tmp_path):
    """A process that says how many rows are stored is killed while it writes; they are, as they became later."""
    script = SCRIPT.format(tests=str(Path(__file__).parents[1] / "support"))
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", script, tmp_path / "replay"], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "ready\n"
        process.stdout.readline()
        time.sleep(0.15)
        process.kill()
        said = process.stdout.read().split()
        process.wait()
        store = ReplayStore(tmp_path / "replay")
        rows = store.segments[-1].rows
        assert rows >= int(said[-1] if said else 0)
        for segment, start, stop in store.ancestor_parts(store.segments[-1].name):
            found, damaged = contents(store, segment, start, stop)
            assert not damaged
            expected, ended = stacked(range(start, stop)), np.arange(start, stop) % 7 == 6
            expected["is_last"][0, ended], expected["action"][0, ended] = True, 0
            assert_rows(found, expected)


def test_what_would_fill_the_memory_is_not_read(tmp_path, said):
    """A sparse file of a terabyte, and a sound description of rows or chunks of a terabyte."""
    store = ReplayStore(tmp_path)
    name = store.begin(COLUMNS, STREAMS)
    store.extend(stacked(range(20)))
    store.close(10)
    chunk = next((tmp_path / name / "reward").glob("c.*"))
    os.truncate(chunk, 10**12)
    with pytest.raises(RunError, match=r"has 1,000,000,000,000 bytes: expected at most [\d,]{5}\."):
        contents(ReplayStore(tmp_path), name)
    for large in ({"chunk": 10**12}, {"columns": {"reward": ColumnSpec((10**12,), "float32")}}):
        segment = replace(store.segments[0], **large)
        for path in (tmp_path / name).rglob("zarr.json"):
            path.write_text(json.dumps({"attributes": segment.sealed()}))
        assert ReplayStore(tmp_path).segments == []
        assert "a chunk has more than 1,000,000,000 bytes" in said.pop()


@pytest.mark.parametrize("change", [{"rows": 10**12}, {"streams": 10**9}, {"chunk": 0}, {"first": -1}])
def test_missing_rows_end_the_reading(change, tmp_path, said):
    store = ReplayStore(tmp_path)
    name = store.begin(COLUMNS, STREAMS)
    store.extend(stacked(range(20)))
    store.close(10)
    for path in (tmp_path / name).rglob("zarr.json"):
        path.write_text(json.dumps({"attributes": replace(store.segments[0], **change).sealed()}))
    if {"chunk", "first"} & {*change}:
        assert ReplayStore(tmp_path).segments == []
        assert "its numbers of rows contradict each other" in said.pop()
        return
    with pytest.raises(RunError, match="10,000 chunks are missing"):
        list(iter_store_episodes(ReplayStore(tmp_path)))


def test_a_segment_without_any_sound_description_is_left_out(tmp_path, said):
    """Those of its columns stand in for that of its group; both are told."""
    store = ReplayStore(tmp_path)
    name = store.begin(COLUMNS, STREAMS)
    store.extend(stacked(range(20)))
    store.close(10)
    (tmp_path / name / "zarr.json").write_bytes(b"[" * 100_000)
    assert_rows(contents(ReplayStore(tmp_path), name)[0], stacked(range(20)))
    assert "zarr.json is damaged" in said[0]
    for path in (tmp_path / name).rglob("zarr.json"):
        path.write_bytes(b"{}")
    assert ReplayStore(tmp_path).segments == []
    assert "its rows are skipped" in said[1]
    store = ReplayStore(tmp_path)
    assert store.begin(COLUMNS, STREAMS).startswith("1-")
    store.close(10)


# ---------------------------------------------------------------- a full disk


@pytest.fixture
def disk(monkeypatch):
    """A disk on which no byte fits while it is ``full``."""
    state, written = SimpleNamespace(full=False), local_objects.write_files

    def write(contents):
        if state.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(next(iter(contents))))
        written(contents)

    monkeypatch.setattr(local_objects, "write_files", write)
    monkeypatch.setattr(Retrier, "first_delay", 0.01)
    monkeypatch.setattr(Retrier, "longest_delay", 0.02)
    return state


def test_a_full_disk_is_a_pause(tmp_path, disk, said):
    store = ReplayStore(tmp_path)
    store.begin(COLUMNS, STREAMS)
    store.extend(stacked(range(10)))
    assert store.flush(10)
    disk.full = True
    store.extend(stacked(range(10, 40)))
    assert not store.flush(0.2)
    assert_rows(store.pending(), stacked(range(9, 40)))
    assert_rows(contents(*first_of(tmp_path))[0], stacked(range(9)))
    disk.full = False
    assert store.flush(10)
    assert store.close(10)
    assert_rows(contents(*first_of(tmp_path))[0], stacked(range(40)))
    assert len(said) == 2
    assert "(No space left on device): the run continues" in said[0]
    assert "no rows were lost" in said[1]


def test_writing_is_retried_for_hours(monkeypatch):
    monkeypatch.setattr(Retrier, "longest_delay", 0.0)
    tries = iter(range(1100))

    def write():
        if next(tries) < 1099:
            raise OSError

    Retrier("there", (OSError,), lambda: "").run(write)
    assert not list(tries)


def test_a_row_that_raises_is_not_added(tmp_path, disk):
    store = ReplayStore(tmp_path, waits=False)
    store.begin(COLUMNS, STREAMS)
    disk.full = True
    chunk = store.segments[0].chunk
    store.extend(stacked(range(chunk - 1)))
    with pytest.raises(RunError):
        store.flush()
    store.add(row(chunk - 1))
    for _ in range(2):
        with pytest.raises(RunError, match="cannot be used"):
            store.add(row(chunk))
    assert_rows(store.pending(), stacked(range(chunk)))


def test_memory_is_bounded(tmp_path, disk, said):
    """``add`` waits once so much is held back, and goes on when the disk does; not in a run that is to stop."""
    done = threading.Event()
    store = ReplayStore(tmp_path, buffer_bytes=1)
    store.begin(COLUMNS, STREAMS)
    disk.full = True
    store.extend(stacked(range(16)))  # two blocks of 8 rows: the least that is needed

    def one_more():
        store.add(row(16))
        done.set()

    threading.Thread(target=one_more, daemon=True).start()
    assert not done.wait(1.5)
    assert any("The run pauses" in text for text in said)
    disk.full = False
    assert done.wait(10)
    assert store.flush(10)
    assert any("the run continues" in text for text in said)
    assert_rows(contents(*first_of(tmp_path))[0], stacked(range(16)))
    disk.full = True
    store.stopping = lambda: True
    store.extend(stacked(range(17, 47)))
    assert_rows(store.pending(), stacked(range(16, 47)))
    assert not store.close(0.1)
    assert "closed before 31 rows of each stream" in said[-1]


# ---------------------------------------------------------------- a file in the place of a folder


def test_a_file_in_the_place_of_the_store_is_an_error(tmp_path):
    """No waiting mends it: the run ends, and the rows that were not stored go into its checkpoint."""
    store = ReplayStore(tmp_path / "replay")
    store.begin(COLUMNS, STREAMS)
    shutil.rmtree(tmp_path / "replay")
    (tmp_path / "replay").write_bytes(b"")
    store.extend(stacked(range(20)))
    with pytest.raises(RunError, match="cannot be used"):
        store.flush(20)
    assert_rows(store.pending(), stacked(range(20)))
