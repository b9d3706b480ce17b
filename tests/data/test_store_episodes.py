"""Reading a store episode by episode, and as others read it."""

import numpy as np
import pytest

from reverie.store.episodes import episodes
from reverie.store.store import Store
from store_rows import COLUMNS, small_chunks


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    small_chunks(monkeypatch)


def quiet(text):
    pass


def lived(lengths, rng, *, open_end=0):
    """The rows of one stream: episodes of so many rows each, every second one terminal."""
    rows = {name: [] for name in COLUMNS}
    for index, length in enumerate([*lengths, open_end] if open_end else lengths):
        for t in range(length):
            last = t == length - 1 and index < len(lengths)
            action = np.zeros(3, "float32")
            action[rng.integers(3)] = not last
            values = {
                "obs/image": rng.integers(0, 256, (4, 4, 3), dtype=np.uint8),
                "obs/arm/angle": rng.normal(size=2).astype("float32"),
                "action": action,
                "reward": np.float32(rng.normal() if t else 0),
                "is_first": t == 0,
                "is_last": last,
                "is_terminal": last and index % 2 == 0,
            }
            for name, value in values.items():
                rows[name].append(value)
    return {name: np.stack(values).astype(COLUMNS[name].dtype) for name, values in rows.items()}


@pytest.fixture
def streams():
    """Two streams of 30 rows: three episodes and an open one; two episodes and an open one."""
    rng = np.random.default_rng(0)
    return [lived([5, 12, 9], rng, open_end=4), lived([20, 2], rng, open_end=8)]


@pytest.fixture
def store(tmp_path, streams):
    store = Store(tmp_path / "replay", say=quiet)
    store.begin(COLUMNS, 2)
    store.extend({name: np.stack([stream[name] for stream in streams]) for name in COLUMNS})
    store.close(10)
    return store


def test_episodes(store, streams):
    found = list(episodes(store))
    assert [(e.stream, e.start, len(e), e.complete) for e in found] == [
        (0, 0, 5, True), (0, 5, 12, True), (0, 17, 9, True), (0, 26, 4, False),
        (1, 0, 20, True), (1, 20, 2, True), (1, 22, 8, False),
    ]  # fmt: skip
    for stream, rows in enumerate(streams):
        mine = [episode for episode in found if episode.stream == stream]
        for name in COLUMNS:
            np.testing.assert_array_equal(np.concatenate([episode.rows[name] for episode in mine]), rows[name])


def test_an_episode_that_was_cut_and_rows_that_were_copied(tmp_path, streams):
    store = Store(tmp_path, say=quiet)
    store.begin(COLUMNS, 1)
    one = {name: value[None, :8] for name, value in streams[0].items()}  # 3 rows into the second episode
    store.extend(one)
    store.begin(COLUMNS, 1, imported=8)
    store.extend(one)
    store.extend({name: value[None, :5] for name, value in streams[0].items()})
    store.close(10)
    found = [(e.start, len(e), e.begun, e.ended) for e in episodes(store)]
    assert found == [(0, 5, True, True), (5, 3, True, False), (8, 5, True, True)]
    assert not store.damaged()


def test_an_episode_goes_on_where_a_process_went_on(tmp_path, streams):
    store = Store(tmp_path, say=quiet)
    rows = {name: value[None] for name, value in streams[0].items()}
    first = store.begin(COLUMNS, 1)
    store.extend({name: value[:, :13] for name, value in rows.items()})
    store.begin(COLUMNS, 1, first=9, parent=(first, 9))
    store.extend({name: value[:, 9:] for name, value in rows.items()})
    store.close(10)
    found = list(episodes(store))
    assert [(e.start, len(e), e.complete) for e in found] == [
        (0, 5, True),
        (5, 12, True),
        (17, 9, True),
        (26, 4, False),
    ]
    for name in COLUMNS:
        np.testing.assert_array_equal(np.concatenate([episode.rows[name] for episode in found]), rows[name][0])


def test_damaged_rows_are_left_out(store, tmp_path):
    name = store.segments[0].name
    path = tmp_path / "replay" / name / "action/c.0.1.0"  # rows 8 to 15 of stream 0
    path.write_bytes(path.read_bytes()[:-1])
    damage = []
    found = [(e.start, len(e), e.begun, e.ended) for e in episodes(store, on_damage=damage.append) if e.stream == 0]
    assert found == [(0, 5, True, True), (5, 3, True, False), (16, 1, False, True), (17, 9, True, True),
                     (26, 4, True, False)]  # fmt: skip
    assert [(d.file, d.start, d.stop, d.stream) for d in damage] == [(f"{name}/action/c.0.1.0", 8, 16, 0)]


def test_validate_names_damaged_files(store, tmp_path):
    assert not store.damaged()
    name = store.segments[0].name
    folder = tmp_path / "replay" / name
    (folder / "zarr.json").unlink()
    (folder / "reward/zarr.json").write_text("{}")
    (folder / "obs/image/c.1.2.0.0.0").write_bytes(b"")
    found = store.damaged()
    assert found[0] == f"{name}/zarr.json is missing"
    assert "reward/zarr.json is damaged" in found[1]
    assert found[2:] == [
        f"{name}/obs/image/c.1.2.0.0.0 has only 0 bytes (rows 16 to 23 of stream 1)",
    ]


VECTORS, IMAGES = np.ones((3, 2), np.float32), np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5, 1)
