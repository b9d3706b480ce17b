"""Rows that are laid out anew take the memory of the replay that they fill, and little more."""

import tracemalloc

import numpy as np
import pytest

import reverie.kernels.table  # its memory is not that of rows
import reverie.replay.durable
from reverie.core.columns import columns_of
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Window
from reverie.replay.config import ReplayConfig
from reverie.replay.durable import DurableReplay
from reverie.store import zarr
from reverie.store.store import Store

OBS = {"image": ObsPart(kind="image", shape=(24, 24, 3), dtype="uint8")}
ACTION = ActionSpec(parts={"action": ActionPart(kind="categorical", classes=(4,))})
COLUMNS = columns_of(OBS, ACTION, {})
ROWS, STREAMS, OTHERS = 1500, 4, 3
LOST = 64
"""Rows of a file."""


def replay_of(streams):
    window = Window(batch=2, length=4, crosses_episodes=True)
    return ReplayConfig(capacity=ROWS * STREAMS).build(
        obs_spec=OBS, action_spec=ACTION, extra_spec={}, num_envs=streams, window=window, seed=0
    )


def durable(replay, store, run):
    return DurableReplay(replay, ReplayConfig(store=store, buffer="600kB"), run, stop=lambda: False)


def lived():
    """Rows ``[N, n, ...]`` whose reward is their number; episodes of 50 rows."""
    number = np.arange(STREAMS * ROWS).reshape(STREAMS, ROWS)
    rows = {name: np.zeros((STREAMS, ROWS, *column.shape), column.dtype) for name, column in COLUMNS.items()}
    rows["reward"], rows["is_first"] = number.astype(np.float32), number % 50 == 0
    rows["obs/image"][...] = (number % 256)[..., None, None, None]
    return rows


@pytest.mark.parametrize(("damaged", "stored"), [(False, True), (True, False)])
def test_another_number_of_streams(tmp_path, monkeypatch, damaged, stored):
    monkeypatch.setattr(zarr, "CHUNK_BYTES", LOST * 24 * 24 * 3)
    monkeypatch.setattr(reverie.replay.durable, "BLOCK_BYTES", 300_000)

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
    tracemalloc.start()
    try:
        second.load_state_dict(state)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 0.9 * replay.nbytes  # the replay itself had its memory before; what a damaged file leaves is garbage
    rows = replay.storage.read(0, replay.count)
    expected = np.arange(STREAMS * ROWS)
    if damaged:  # the episodes that began in that file
        expected = np.delete(expected, np.arange(2 * ROWS, 2 * ROWS + 100))
    expected = expected[len(expected) % OTHERS :]
    np.testing.assert_array_equal(rows["reward"].ravel(), expected)
    np.testing.assert_array_equal(rows["obs/image"][..., 0, 0, 0].ravel(), expected % 256)
    if stored:
        assert second.store.close(60)
        again = Store(place)
        chunks = list(again.read(again.segments[1]))
        assert again.segments[1].imported == replay.count
        np.testing.assert_array_equal(np.concatenate([c.rows["reward"] for c in chunks], 1), rows["reward"])
