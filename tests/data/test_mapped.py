"""Rows in mapped files: the same rows, on a disk that may be full, and nothing left behind."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from lived import ACTION, EXTRA, OBS, Lived

from reverie.core.errors import ConfigError
from reverie.core.types import Window
from reverie.replay import mapped
from reverie.replay.config import ReplayConfig
from reverie.replay.mapped import MappedStorage
from reverie.replay.replay import Replay

WINDOW = Window(batch=4, length=3, context=1, crosses_episodes=True)


def build(folder: Path, capacity: int = 20) -> Replay:
    return ReplayConfig(storage="mmap", capacity=2 * capacity).build(
        obs_spec=OBS, action_spec=ACTION, extra_spec=EXTRA, num_envs=2, window=WINDOW, seed=0, scratch=folder
    )


def filled(replay: Replay) -> Lived:
    life = Lived(2, 20, WINDOW, config=ReplayConfig())
    life.replay = replay
    for t in range(30):
        life.add([t % 7 == 0, t % 5 == 0])
    return life


def test_it_is_a_replay_like_any_other_and_leaves_no_files(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "scratch"
    replay = build(folder)
    assert isinstance(replay.storage, MappedStorage)
    assert not folder.exists()
    life = filled(replay)
    assert list(folder.iterdir()) == []
    in_memory = filled(ReplayConfig(capacity=40).build(
        obs_spec=OBS, action_spec=ACTION, extra_spec=EXTRA, num_envs=2, window=WINDOW, seed=0
    ))  # fmt: skip
    for number in range(6):
        batch, other = life.replay.sample(), in_memory.replay.sample()
        life.check(batch)
        assert torch.equal(batch.obs["pixels"], other.obs["pixels"])
        life.feedback(batch.index, 2, number)
        in_memory.feedback(batch.index, 2, number)
    rows, others = life.replay.read(10, 30), in_memory.replay.read(10, 30)
    assert all(np.array_equal(rows[name], others[name]) for name in rows)


def test_a_disk_that_is_too_small_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(mapped.shutil, "disk_usage", lambda folder: usage(10**12, 0, 10**9))
    with pytest.raises(ConfigError, match=r"100000000 rows need 4.0 GB on the disk of .*, but only 1.0 GB "):
        build(tmp_path / "missing", capacity=50_000_000)
    assert list(tmp_path.iterdir()) == []
