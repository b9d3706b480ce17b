"""Stores whose process is killed, whose disk is full, whose files are damaged."""

import builtins
import errno
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from reverie.core.errors import RunError
from reverie.store import files
from reverie.store.retry import Patience
from reverie.store.store import Store
from store_rows import COLUMNS, STREAMS, assert_rows, contents, row, small_chunks, stacked


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    small_chunks(monkeypatch)


def quiet(text):
    pass


class Killed(BaseException):
    """What follows has never happened."""


class Deadly:
    """Counts what changes the disk; at the ``fatal``-th and from then on, nothing happens any more.

    A write is fatal twice, as half of it may have been done.
    """

    def __init__(self, monkeypatch, fatal):
        self.calls, self.fatal = 0, fatal
        shim = SimpleNamespace(strerror=os.strerror, fsencode=os.fsencode, replace=self.guarded(os.replace))
        monkeypatch.setattr(files, "kernels", lambda: None)  # compiled calls are killed in benchmarks/reliability.py
        monkeypatch.setattr(files, "os", shim)
        monkeypatch.setattr(files, "sync", self.guarded(lambda path: None))
        monkeypatch.setattr(files, "opened", self.open(files.opened))
        monkeypatch.setattr(Path, "unlink", self.guarded(Path.unlink))
        monkeypatch.setattr(Path, "mkdir", self.guarded(Path.mkdir))

    def count(self):
        self.calls += 1
        if self.calls >= self.fatal:
            raise Killed

    def guarded(self, function):
        def call(*args, **options):
            self.count()
            return function(*args, **options)

        return call

    def open(self, function):
        def call(path):
            self.count()
            file = function(path)
            write = file.write

            def half(data):
                try:
                    self.count()
                except Killed:
                    write(data[: len(data) // 2])
                    file.flush()
                    raise
                return write(data)

            return builtins.type("File", (), {"__enter__": lambda s: s, "__exit__": lambda s, *a: file.close(),
                                              "write": staticmethod(half)})()  # fmt: skip

        return call


FEW = {name: COLUMNS[name] for name in ("obs/image", "reward")}


def few(rows):
    return {name: value[:1] for name, value in rows.items() if name in FEW}


class Life:
    """A run that lives through everything that a store can do, and what it may rely on."""

    def __init__(self, folder):
        self.folder = folder
        self.safe = 0  # rows of segment 0 that a checkpoint may count on
        self.lives = []  # which life row t of segment 0 is of

    def store(self):
        return Store(self.folder, say=quiet, keep="replay")

    def add(self, store, n, life):
        for _ in range(n):
            self.lives = [*self.lives[: store.count], life]
            store.add(few(row(store.count, life=life)))
        assert store.flush(20)
        self.safe = store.count

    def live(self):
        store = self.store()
        store.begin(FEW, 1)
        self.add(store, 5, 0)
        self.add(store, 8, 0)
        store.close(20)
        store = self.store()
        self.safe = 10
        store.resume("0", 10, FEW, 1)
        self.add(store, 7, 1)
        store.drop(9)
        self.add(store, 2, 1)
        store.begin(FEW, 1)
        store.extend(few(stacked(range(3), life=2)))
        store.flush(20)

    def go_on(self):
        """After the kill: resume at what was safe, and go on."""
        store = self.store()
        if not store.segments:
            assert self.safe == 0
            store.begin(FEW, 1)
        else:
            assert store.resume("0", self.safe, FEW, 1) == self.safe
        self.add(store, 10, 9)
        assert store.close(20)

    def check(self):
        store = self.store()
        (segment,) = store.segments
        assert segment.rows == self.safe
        found = 0
        for chunk in store.read("0"):
            assert not chunk.damaged
            for number in range(chunk.start, chunk.stop):
                found += 1
                for name, expected in few(row(number, life=self.lives[number])).items():
                    np.testing.assert_array_equal(chunk.rows[name][:, number - chunk.start], expected)
        assert found == segment.rows - segment.first
        assert not list((self.folder / "0").rglob("*.part"))


def calls_of_a_life(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        deadly = Deadly(patch, 10**9)
        Life(tmp_path / "whole").live()
        return deadly.calls


@pytest.mark.parametrize("part", range(4))
def test_killed_at_any_write(tmp_path, part):
    """Every write, rename, fsync, mkdir and delete of a run's whole life is the last one once."""
    total = calls_of_a_life(tmp_path)
    assert total > 200
    for fatal in range(1 + part, total + 1, 4):
        life = Life(tmp_path / str(fatal))
        with pytest.MonkeyPatch.context() as patch:
            Deadly(patch, fatal)
            with pytest.raises((Killed, RunError)) as error:
                life.live()
            assert isinstance(error.value, Killed) or isinstance(error.value.__cause__, Killed)
        life.go_on()
        life.check()
        shutil.rmtree(life.folder)


SCRIPT = """
import sys
sys.path[:0] = [{tests!r}]
from store_rows import COLUMNS, STREAMS, row
from reverie.store import zarr
from reverie.store.store import Store
zarr.CHUNK_BYTES = 8 * 48
store = Store(sys.argv[1], say=print)
start = store.resume("0", store.segments[0].rows, COLUMNS, STREAMS) if store.segments else 0
if not store.segments:
    store.begin(COLUMNS, STREAMS)
print("ready", flush=True)
while True:
    store.add(row(store.count))
    if store.count % 5 == 0:
        store.flush(None)
        print(store.committed, flush=True)
"""


def test_kill_9(tmp_path):
    """A process that says how many rows are stored is killed while it writes; they are."""
    script = SCRIPT.format(tests=str(Path(__file__).parent.parent))
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", script, tmp_path / "replay"], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "ready\n"
        process.stdout.readline()
        time.sleep(0.15)
        process.kill()
        said = process.stdout.read().split()
        process.wait()
        store = Store(tmp_path / "replay", say=quiet)
        rows = store.segments[0].rows
        assert rows >= int(said[-1] if said else 0)
        found, damaged = contents(store, "0")
        assert not damaged
        assert_rows(found, stacked(range(rows)))


# ---------------------------------------------------------------- damage


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A store with two segments and rows set aside."""
    with pytest.MonkeyPatch.context() as patch:
        small_chunks(patch)
        folder = tmp_path_factory.mktemp("filled") / "replay"
        store = Store(folder, say=quiet)
        store.begin(FEW, 1)
        store.extend(few(stacked(range(30))))
        store.resume("0", 20, FEW, 1)
        store.begin(FEW, 1)
        store.extend(few(stacked(range(13), life=1)))
        store.close(10)
        return folder


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize("harm", [flip, cut, empty, Path.unlink])
def test_any_one_file_may_be_damaged(filled, tmp_path, harm, monkeypatch):
    """It is named, its rows are left out, all others are read, and the run goes on."""
    monkeypatch.setattr(files, "sync", lambda path: None)
    names = sorted(path.relative_to(filled).as_posix() for path in filled.rglob("*") if path.is_file())
    folder = tmp_path / "replay"
    shutil.copytree(filled, folder)
    for name in names:
        harm(folder / name)
        said = []
        store = Store(folder, say=said.append)
        found = check_all_but(store, name)
        assert store.resume("1", 13, FEW, 1) == 13
        store.add(few(row(13, life=1)))
        assert store.close(10)
        for damage in check_all_but(Store(folder, say=said.append), name):
            assert damage.file == name
        if "c." not in name:
            assert not found
            assert name in said[0]
        elif name.startswith("1/") and name.split("c.")[1][2] == "1":
            assert name in said[0]  # the file that rows are added to
        shutil.rmtree(folder)
        shutil.copytree(filled, folder)


def check_all_but(store, name):
    """Read everything: what is not as it was is reported, with the name of the file."""
    segments = {segment.name: segment for segment in (*store.segments, *store.aside)}
    found = []
    for segment, life in (("0", 0), ("1", 1), ("aside/0", 0)):
        for chunk in store.read(segments[segment]):
            for stream in chunk.streams:
                for start, stop in chunk.intact(stream):
                    expected = stacked(
                        range(start + segments[segment].offset, stop + segments[segment].offset), life=life
                    )
                    for column, rows in chunk.rows.items():
                        part = rows[stream, start - chunk.start : stop - chunk.start]
                        np.testing.assert_array_equal(part, expected[column][stream])
            found += chunk.damaged
    assert all(damage.file == name for damage in found)
    assert bool(found) == ("/c." in name)
    return found


def test_the_manifest_and_its_copy_both_damaged(filled, tmp_path):
    shutil.copytree(filled, tmp_path / "replay")
    flip(tmp_path / "replay/manifest.json")
    (tmp_path / "replay/manifest-backup.json").unlink()
    with pytest.raises(
        RunError, match=r"no usable manifest: manifest.json is damaged .* manifest-backup.json is missing"
    ):
        Store(tmp_path / "replay", say=quiet)


def test_rows_of_a_damaged_chunk_that_is_written_on_stay_out(filled, tmp_path):
    """New rows replace the file; the old ones are remembered as damaged, and the damaged file is kept."""
    folder = tmp_path / "replay"
    shutil.copytree(filled, folder)
    harmed = "1/reward/c.0.1"
    flip(folder / harmed)
    bytes_of_it = (folder / harmed).read_bytes()
    for _ in range(2):
        store = Store(folder, say=quiet)
        store.resume("1", store.segments[-1].rows, FEW, 1)
        store.add(few(row(store.count, life=1)))
        assert store.close(10)
    (chunk,) = Store(folder, say=quiet).read("1", 8, 16)
    assert chunk.intact(0) == [(13, 15)]
    assert [damage.file for damage in chunk.damaged] == [harmed]
    assert (folder / "damaged" / harmed).read_bytes() == bytes_of_it


# ---------------------------------------------------------------- a full disk


class FullDisk:
    """No byte fits while ``full``."""

    def __init__(self, monkeypatch):
        self.full = False
        written = files.write

        def write(contents):
            if self.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(next(iter(contents))))
            written(contents)

        monkeypatch.setattr(files, "write", write)
        monkeypatch.setattr(Patience, "first_delay", 0.01)
        monkeypatch.setattr(Patience, "longest_delay", 0.02)


def test_a_full_disk_is_a_pause(tmp_path, monkeypatch):
    disk, said = FullDisk(monkeypatch), []
    store = Store(tmp_path, say=said.append)
    store.begin(COLUMNS, STREAMS)
    store.extend(stacked(range(10)))
    assert store.flush(10)
    disk.full = True
    store.extend(stacked(range(10, 40)))
    assert not store.flush(0.2)
    assert store.committed == 10
    assert_rows(store.pending(), stacked(range(10, 40)))
    assert_rows(contents(Store(tmp_path, say=quiet), "0")[0], stacked(range(10)))
    disk.full = False
    assert store.flush(10)
    assert store.close(10)
    assert_rows(contents(Store(tmp_path, say=quiet), "0")[0], stacked(range(40)))
    assert len(said) == 2
    assert "(No space left on device): the run continues" in said[0]
    assert "no rows were lost" in said[1]


def test_who_does_not_wait_is_told_at_once(tmp_path, monkeypatch):
    disk, said = FullDisk(monkeypatch), []
    store = Store(tmp_path, say=said.append, waits=False)
    store.begin(COLUMNS, STREAMS)
    disk.full = True
    store.extend(stacked(range(10)))
    with pytest.raises(RunError, match=r"cannot be used: No space left on device .*Free space there"):
        store.flush()
    assert not said


def test_a_row_that_raises_is_not_added(tmp_path, monkeypatch):
    disk = FullDisk(monkeypatch)
    store = Store(tmp_path, say=quiet, waits=False)
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


def test_memory_is_bounded(tmp_path, monkeypatch):
    """``add`` waits once so much is held back, and goes on when the disk does."""
    disk, said = FullDisk(monkeypatch), []
    store = Store(tmp_path, say=said.append, buffer_bytes=1)
    store.begin(COLUMNS, STREAMS)
    disk.full = True
    store.extend(stacked(range(16)))  # two blocks of 8 rows: the least that is needed
    done = threading.Event()

    def one_more():
        store.add(row(16))
        done.set()

    threading.Thread(target=one_more, daemon=True).start()
    assert not done.wait(1.5)
    assert any("The run pauses" in text for text in said)
    disk.full = False
    assert done.wait(10)
    assert store.close(10)
    assert any("the run continues" in text for text in said)
    assert_rows(contents(Store(tmp_path, say=quiet), "0")[0], stacked(range(17)))


def test_a_run_that_is_to_stop_does_not_wait(tmp_path, monkeypatch):
    disk, said = FullDisk(monkeypatch), []
    store = Store(tmp_path, say=said.append, buffer_bytes=1)
    store.begin(COLUMNS, STREAMS)
    disk.full = True
    store.stopping = lambda: True
    store.extend(stacked(range(30)))
    assert_rows(store.pending(), stacked(range(30)))
    assert not store.close(0.1)
    assert "closed before 30 rows of each stream" in said[-1]


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    def refused(contents):
        path = next(iter(contents))
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(files, "write", refused)
    with pytest.raises(RunError, match=r"cannot be used: Permission denied \(.*\)\. Choose a writable folder"):
        Store(tmp_path, say=quiet).begin(COLUMNS, STREAMS)
