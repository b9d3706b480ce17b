"""A replay with its store: rows that are laid out anew take little memory; episodes that are cut off have an end."""

import contextlib
import tempfile
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reverie.replay.persistent
from reverie.core.columns import row_columns
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Step, Window
from reverie.replay.build import build_replay
from reverie.replay.config import ReplayConfig
from reverie.replay.persistent import PersistentReplay
from reverie.store import zarr
from reverie.store.store import ReplayStore

OBS = {"image": ObsPart(kind="image", shape=(24, 24, 3), dtype="uint8")}
ACTION = ActionSpec(parts={"action": ActionPart(kind="categorical", classes=(4,))})
COLUMNS = row_columns(OBS, ACTION, {})
ROWS, STREAMS, OTHERS = 1500, 4, 3
LOST = 64
"""Rows of a file."""


def replay_of(streams):
    window = Window(batch=2, length=4, crosses_episodes=True)
    return build_replay(
        ReplayConfig(capacity=ROWS * STREAMS),
        obs_spec=OBS,
        action_spec=ACTION,
        extra_spec={},
        num_envs=streams,
        window=window,
        seed=0,
    )


def durable(replay, store, run):
    return PersistentReplay(replay, ReplayConfig(store_path=store, write_buffer="600kB"), run, stop=lambda: False)


def lived():
    """Rows ``[N, n, ...]`` whose reward is their number; episodes of 50 rows."""
    number = np.arange(STREAMS * ROWS).reshape(STREAMS, ROWS)
    rows = {name: np.zeros((STREAMS, ROWS, *column.shape), column.dtype) for name, column in COLUMNS.items()}
    rows["reward"], rows["is_first"] = number.astype(np.float32), number % 50 == 0
    rows["obs/image"][...] = (number % 256)[..., None, None, None]
    return rows


@contextlib.contextmanager
def rows_in_memory(monkeypatch):
    """Yield the bytes of all rows that are in memory whenever some more are read from a store or given to one."""
    alive, sizes = [], []

    def count(rows):
        alive.extend(weakref.ref(x) for x in rows.values())
        sizes.append(sum(x.nbytes for ref in alive if (x := ref()) is not None))

    def intact(*args, original=ReplayStore.intact):
        for first, rows in original(*args):
            count(rows)
            yield first, rows

    def extend(store, rows, original=ReplayStore.extend):
        count(rows)
        original(store, rows)

    with monkeypatch.context() as patch:
        patch.setattr(ReplayStore, "intact", intact)
        patch.setattr(ReplayStore, "extend", extend)
        yield sizes


@pytest.mark.parametrize(("damaged", "stored"), [(False, True), (True, False)])
def test_another_number_of_streams(tmp_path, monkeypatch, damaged, stored):
    monkeypatch.setattr(zarr, "CHUNK_BYTES", LOST * 24 * 24 * 3)
    monkeypatch.setattr(reverie.replay.persistent, "BLOCK_BYTES", 300_000)

    place = str(tmp_path / "rows")
    first = durable(replay_of(STREAMS), place, tmp_path)
    former = first.store
    first.begin()
    first.replay.extend(lived())
    former.extend(lived())
    state = dict(first.state_dict())
    assert former.close(60)
    del first
    if damaged:
        (tmp_path / "rows" / former.segments[0].name / "obs" / "image" / "c.2.0.0.0.0").write_bytes(b"nonsense")

    replay = replay_of(OTHERS)
    second = durable(replay, place if stored else "none", tmp_path)
    with rows_in_memory(monkeypatch) as sizes:
        second.load_state_dict(state)
    assert 0 < max(sizes) < 0.1 * replay.nbytes
    rows = replay.storage.read(0, replay.count)
    expected = np.arange(STREAMS * ROWS)
    if damaged:  # the episodes that began in that file
        expected = np.delete(expected, np.arange(2 * ROWS, 2 * ROWS + 100))
    expected = expected[len(expected) % OTHERS :]
    np.testing.assert_array_equal(rows["reward"].ravel(), expected)
    np.testing.assert_array_equal(rows["obs/image"][..., 0, 0, 0].ravel(), expected % 256)
    if stored:
        assert second.store.close(60)
        again = ReplayStore(place)
        chunks = list(again.read(again.segments[1]))
        assert again.segments[1].imported == replay.count
        np.testing.assert_array_equal(np.concatenate([c.rows["reward"] for c in chunks], 1), rows["reward"])


EVENTS = st.lists(
    st.tuples(*2 * [st.sampled_from(["step", "step", "step", "end", "failure"])]), min_size=1, max_size=40
)


def turn(ended, events):
    """One row of each stream after rows that had ``ended``, its action, and the ``ended`` of its rows."""
    first = [before or event == "failure" for before, event in zip(ended, events, strict=True)]
    last = [event == "end" for event in events]
    images, no = torch.zeros(len(events), 24, 24, 3, dtype=torch.uint8), torch.zeros(len(events), dtype=torch.bool)
    flags = {"is_first": torch.tensor(first), "is_last": torch.tensor(last), "is_terminal": no}
    action = torch.eye(4)[[1] * len(events)] * ~flags["is_last"][:, None]
    return Step(obs={"image": images}, reward=no.float(), **flags), action, last


def check_episodes(rows):
    """Of ``[N, n, ...]``: an episode ends before each that begins, without an action, and only there."""
    first, last = rows["is_first"], rows["is_last"]
    np.testing.assert_array_equal(last[:, :-1], first[:, 1:])
    np.testing.assert_array_equal(rows["action"].any(2), ~last)
    assert not rows["is_terminal"].any()


@settings(max_examples=25, deadline=None)
@given(sittings=st.lists(st.tuples(EVENTS, EVENTS, st.booleans()), min_size=1, max_size=3))
def test_failures_and_new_episodes_of_a_resumed_run_end_the_episode_before(sittings):
    """Each sitting: rows before its checkpoint, rows after it, and whether environments then begin new episodes.

    At its end it is killed. A last one, with another number of streams, has the rows laid out anew.
    """
    state, saved = None, [True, True]
    sittings = [(*sitting, 2) for sitting in sittings] + [(*sittings[0][:2], False, 3)]
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(zarr, "CHUNK_BYTES", 8 * 24 * 24 * 3)
        for before, after, resumes, streams in sittings:
            mine = durable(replay_of(streams), f"{folder}/rows", Path(folder))
            if state is None:
                mine.begin()
            else:
                mine.load_state_dict(state)
            ended = saved if resumes else [True] * streams
            for number, events in enumerate([*before, *after]):
                step, action, ended = turn(ended, (*events, "step")[:streams])
                mine.replay.add(step, action, {})
                if number == len(before) - 1:
                    state, saved = dict(mine.state_dict()), ended
            rows = mine.replay.storage.read(0, mine.replay.count)
            check_episodes(rows)
            mine.store.close(60)
            parts = mine.store.ancestor_parts(mine.store.segment_name)
            chunks = [chunk.rows for part in parts for chunk in mine.store.read(*part)]
            for name in COLUMNS:
                np.testing.assert_array_equal(np.concatenate([chunk[name] for chunk in chunks], 1), rows[name])
