"""Whatever happens to a store, a run that goes on from a checkpoint has exactly the rows that it had.

Runs add rows, make checkpoints, are killed at any write and go on from any checkpoint; they are copied, and both go on;
files are damaged. Beside each store is the plain list of the rows that every checkpoint stands for.
"""

import os
import tempfile
import time
import uuid
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from reverie.core.errors import RunError
from reverie.core.kernel_dispatch import use_only_kernels
from reverie.store import local_objects, remote_objects, zarr
from reverie.store.local_objects import LocalObjects
from reverie.store.segment import META
from reverie.store.store import ReplayStore
from store_rows import COLUMNS, row, stacked

FEW = {name: COLUMNS[name] for name in ("obs/image", "action", "reward", "is_first", "is_last")}


def few(rows):
    return {name: value[:1] for name, value in rows.items() if name in FEW}


def lived(number, life, ended):
    """Return row ``number`` of a life, made the last of its episode if it was ``ended``."""
    rows = few(row(number, life=life))
    return rows | {"is_last": np.ones(1, bool), "action": np.zeros((1, 3), np.float32)} if ended else rows


class Killed(BaseException):
    """What follows has never happened."""


class Deadly:
    """Lets so many changes of files happen, and half of the next one; None: all."""

    left = None


def guarded(function, half=None):
    def call(*args, **kwargs):
        if Deadly.left is not None:
            Deadly.left -= 1
            if Deadly.left < 0:
                if half is not None and Deadly.left == -1:
                    half(*args, **kwargs)
                raise Killed
        return function(*args, **kwargs)

    return call


def opened_half(path):
    path.write_bytes(b"half")


def new_run(name, saved=None):
    """A run: rows that it has lived, as (life, whether it was ended), and the checkpoint to go on from.

    A checkpoint is the name of the segment, how many rows were stored, those that were not, and all rows.
    """
    return SimpleNamespace(name=name, store=None, segment="", rows=[], saved=saved)


class Stores(RuleBasedStateMachine):
    """Runs that share one store."""

    def __init__(self):
        super().__init__()
        self.lives, self.runs, self.dropped = 0, [], 0
        self.patches = pytest.MonkeyPatch()
        self.patches.setattr(zarr, "CHUNK_BYTES", 4 * 48)
        self.patches.setattr(local_objects, "os", SimpleNamespace(**{**vars(os), "replace": guarded(os.replace)}))
        self.patches.setattr(local_objects, "open_empty", guarded(local_objects.open_empty, opened_half))
        for owner, name in ((local_objects, "fsync_path"), (LocalObjects, "delete"), (remote_objects.RemoteObjects,
        "stage"),
                            (remote_objects.RemoteObjects, "delete")):  # fmt: skip
            self.patches.setattr(owner, name, guarded(getattr(owner, name)))
        self.patches.setattr(remote_objects.RemoteObjects, "keeps", lambda *_: True)  # memory is the URL of this test
        self.without_kernels = use_only_kernels()
        self.without_kernels.__enter__()

    def teardown(self):
        Deadly.left = None
        for run in self.runs:
            if run.store is not None:
                run.store.close(0)
        self.without_kernels.__exit__(None, None, None)
        self.patches.undo()

    @initialize(remote=st.booleans(), keep=st.sampled_from(["all", "replay"]))
    def first(self, remote, keep):
        self.folder = tempfile.TemporaryDirectory()
        self.place = f"memory://{uuid.uuid4().hex}/replay" if remote else self.folder.name
        self.keep = keep
        self.runs.append(new_run("run0"))

    def opened(self, run=""):
        return ReplayStore(self.place, run=run, keep=self.keep)

    @rule(i=st.integers(0, 3), n=st.integers(1, 9), kill=st.none() | st.integers(0, 30), drop=st.integers(1, 12),
          cut=st.booleans())  # fmt: skip
    def live(self, i, n, kill, drop, cut):
        """Go on for a while, first after a failure if ``cut``; make a checkpoint, or be killed at some write."""
        run = self.runs[i % len(self.runs)]
        Deadly.left, before = kill, 0
        try:
            if run.store is None:
                self.go_on(run)
            if cut and run.rows:
                run.store.end_episode(0)
                run.rows[-1] = (run.rows[-1][0], True)
            self.add(run, n)
            if self.keep == "replay":
                before = min([len(run.rows), *[len(saved[3]) for saved in self.saved()]]) - drop
                run.store.drop(before)
                self.dropped = max(self.dropped, before)
            if not run.store.flush(20):
                raise Killed
            while run.store.writer.dropped < before:  # or the check below would read files that it deletes
                if run.store.writer.failure is not None:
                    raise Killed
                time.sleep(0.001)
        except BaseException as error:
            if not isinstance(error, Killed) and not isinstance(error.__cause__, Killed):
                raise
            self.kill(run)
            return
        finally:
            Deadly.left = None
        self.save(run)

    def add(self, run, n):
        self.lives += 1
        for _ in range(n):
            run.store.add(few(row(len(run.rows), life=self.lives)))
            run.rows.append((self.lives, False))

    def saved(self):
        return [run.saved for run in self.runs if run.saved is not None]

    def kill(self, run):
        if run.store is not None and run.store.writer is not None:
            run.store.writer.retrier.stop.set()
            with run.store.writer.changed:
                run.store.writer.changed.notify_all()
            run.store.writer.thread.join(10)
            run.store.writer = None
        run.store = None

    def save(self, run):
        run.saved = (run.segment, run.store.writer.committed, run.store.pending(), list(run.rows))

    @rule(i=st.integers(0, 3), n=st.integers(1, 5))
    def save_unflushed(self, i, n):
        """A checkpoint whose newest rows are not stored yet."""
        run = self.runs[i % len(self.runs)]
        if run.store is None:
            return
        try:
            self.add(run, n)
        except RunError as error:  # it was killed at a write while another run was to be
            if not isinstance(error.__cause__, Killed):
                raise
            return self.kill(run)
        self.save(run)

    @precondition(lambda self: len(self.runs) < 3)
    @rule(i=st.integers(0, 3))
    def copy(self, i):
        """A copy of a run: its checkpoint, in the store that both share."""
        self.runs.append(new_run(f"run{len(self.runs)}", self.runs[i % len(self.runs)].saved))

    def go_on(self, run):
        store = self.opened(run.name)
        if run.saved is None:
            run.rows = []
            run.segment = store.begin(FEW, 1)
        else:
            segment, stored, tail, rows = run.saved
            run.rows = list(rows)
            run.segment = store.begin(FEW, 1, first=stored, parent=(segment, stored))
            if tail["reward"].shape[1]:
                store.extend(tail)
        run.store = store

    @invariant()
    def every_checkpoint_has_its_rows(self):
        if not self.runs:
            return
        store = self.opened()
        for segment in store.segments:  # also those of processes that were killed
            assert not any(chunk.damaged for chunk in store.read(segment, columns=["reward", "is_last"]))
        for segment, stored, tail, rows in self.saved():
            found = {}
            for part in store.ancestor_parts(segment, stored):
                for chunk in store.read(part.segment, part.start, part.stop):
                    for k in range(chunk.start, chunk.stop):
                        assert k not in found
                        found[k] = {name: values[:, k - chunk.start] for name, values in chunk.rows.items()}
            for k in range(tail["reward"].shape[1]):
                found[stored + k] = {name: values[:, k] for name, values in tail.items()}
            # Of rows that were dropped, some may be left in a segment that another run has too.
            assert set(range(self.dropped, len(rows))) <= found.keys() <= set(range(len(rows)))
            for k, values in found.items():
                for name, expected in lived(k, *rows[k]).items():
                    np.testing.assert_array_equal(values[name], expected)

    @rule(which=st.integers(0, 1000), harm=st.sampled_from(["flip", "cut", "empty", "gone"]))
    def damage(self, which, harm):
        """Of any one file: what is read is right, and all else is told. It is then as it was."""
        store = self.opened()
        names = sorted(store.objects.sizes())
        if not names or any(run.store is not None for run in self.runs):
            return
        name = names[which % len(names)]
        right = {(s.name, chunk.start): chunk.rows for s in store.segments for chunk in store.read(s)}
        whole = store.objects.get(name)
        half = len(whole) // 2
        flipped = bytes(byte ^ (i == half) for i, byte in enumerate(whole))
        if harm == "gone":
            store.objects.delete([name])
        else:
            store.objects.put(name, {"flip": flipped, "cut": whole[:half], "empty": b""}[harm])
        again = ReplayStore(self.place)
        counted = {s.name: s.rows for s in store.segments if s.rows > s.first}
        left = {s.name: s.rows for s in again.segments if s.rows > s.first}
        if name.endswith(META):
            assert all(left.get(each, 0) >= rows for each, rows in counted.items())
        for segment in again.segments:
            for chunk in again.read(segment):
                assert {d.file for d in chunk.damaged} <= {name}
                if chunk.damaged or (segment.name, chunk.start) not in right:  # written, and not counted before
                    continue
                for column, known in right[segment.name, chunk.start].items():
                    n = min(known.shape[1], chunk.rows[column].shape[1])
                    np.testing.assert_array_equal(chunk.rows[column][:, :n], known[:, :n])
        store.objects.put(name, whole)


TestStores = Stores.TestCase
TestStores.settings = settings(max_examples=12, stateful_step_count=16, deadline=None)


def test_histories_have_each_row_once(tmp_path):
    """A run that was killed and went on, a copy of it, and another run: superseded rows are in none."""

    def live(run, first, stop, life, parent=None):
        store = ReplayStore(tmp_path, run=run)
        name = store.begin(COLUMNS, 2, first=first, parent=parent)
        store.extend(stacked(range(first, stop), life=life))
        assert store.close(20)
        return name

    a = live("one", 0, 20, 0)
    b = live("one", 15, 25, 1, (a, 15))
    copy = live("copy", 18, 22, 2, (b, 18))
    c = live("one", 22, 30, 3, (b, 22))
    d = live("other", 0, 5, 4)
    histories = ReplayStore(tmp_path).histories()
    found = [[(part.segment.name, part.start, part.stop) for part in history] for history in histories]
    assert sorted(found) == sorted([[(a, 0, 15), (b, 15, 22), (c, 22, 30)], [(copy, 18, 22)], [(d, 0, 5)]])
    assert ReplayStore(tmp_path).num_rows() == 2 * (30 + 4 + 5)
