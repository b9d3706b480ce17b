"""Rows in mapped files: the same rows, on a disk that may be full, and nothing left behind."""

from collections import namedtuple

import pytest

from reference_replay import ACTION, EXTRA, OBS, Lived
from reverie.core.errors import ConfigError
from reverie.core.types import Window
from reverie.replay import storage
from reverie.replay.build import build_replay
from reverie.replay.config import ReplayConfig
from reverie.replay.storage import MappedStorage

WINDOW = Window(batch=4, length=3, context=1, crosses_episodes=True)


def build(folder, capacity=40):
    return build_replay(
        ReplayConfig(capacity=capacity, storage="mmap"),
        obs_spec=OBS,
        action_spec=ACTION,
        extra_spec=EXTRA,
        num_envs=2,
        window=WINDOW,
        seed=0,
        scratch=folder,
    )


def test_it_is_a_replay_like_any_other_and_leaves_no_files(tmp_path):
    folder = tmp_path / "run" / "scratch"
    replay = build(folder)
    assert isinstance(replay.storage, MappedStorage)
    assert not folder.exists()
    life = Lived(2, 20, WINDOW, config=ReplayConfig())
    life.replay = replay
    for t in range(30):
        life.add([t % 7 == 0, t % 5 == 0])
    assert list(folder.iterdir()) == []
    for number in range(6):
        batch = life.replay.sample()
        life.check(batch)
        life.feedback(batch.index, 2, number)
    assert replay.storage.read(10, 30)["extras/stoch"].tolist() == [
        [row["stoch"] for row in rows[10:]] for rows in life.rows
    ]


def test_a_disk_that_is_too_small_is_refused(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda folder: usage(10**12, 0, 10**9))
    with pytest.raises(ConfigError, match=r"100000000 rows need 4.0 GB on the disk of .*, but only 1.0 GB "):
        build(tmp_path / "missing", 100_000_000)
    assert list(tmp_path.iterdir()) == []
