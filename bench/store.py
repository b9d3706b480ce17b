#!/usr/bin/env python3
"""What the durable store costs: the collector's time, the thread's rate, and filling a replay again on going on.

    python bench/store.py [--gigabytes 1] [--rounds 9]

Rows of 64x64x3 images from 8 environments, of a game (ALE/Seaquest-v5, resized) and of noise.

collect   a turn of the collector that takes 1 ms (an environment and a policy that are nothing but work, and rows that
          are copied into new memory, where environments leave them), without and with the store, in turn; the median
          of the ratios.
write     megabytes of rows that the thread compresses and writes in a second, if nothing else is done.
resume    seconds to fill a replay with stored rows, beside those of reading a plain file of the same bytes, both into
          memory that is used for the first time, and from the cache of the system, which is the harder comparison.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ale_py
import gymnasium
import numpy as np
import torch
from machine import machine, write
from PIL import Image

from reverie.core.columns import row_columns
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Window
from reverie.replay.buffer import ReplayBuffer
from reverie.replay.build import build_replay
from reverie.replay.config import ReplayConfig
from reverie.store.store import ReplayStore

ENVS, TURN_MS, BLOCK = 8, 1.0, 512
OBS = {"image": ObsPart(kind="image", shape=(64, 64, 3), dtype="uint8")}
ACTION = ActionSpec(parts={"action": ActionPart(kind="categorical", classes=(6,))})
COLUMNS = row_columns(OBS, ACTION, {})
Rows = dict[str, np.ndarray]


def game(count: int) -> np.ndarray:
    """Frames of a game."""
    gymnasium.register_envs(ale_py)
    env = gymnasium.make("ALE/Seaquest-v5")
    env.reset(seed=0)
    frames = []
    for _ in range(count):
        frame, _, terminated, truncated, _ = env.step(env.action_space.sample())
        frames.append(np.asarray(Image.fromarray(frame).resize((64, 64))))
        if terminated or truncated:
            env.reset()
    return np.stack(frames)


def noise(count: int) -> np.ndarray:
    """What cannot be compressed."""
    return np.random.default_rng(0).integers(0, 256, (count, 64, 64, 3), dtype=np.uint8)


KINDS: dict[str, Callable[[int], np.ndarray]] = {"game": game, "noise": noise}


def rows_of(frames: np.ndarray) -> Rows:
    """``BLOCK`` rows of each environment, ``[N, n, ...]``."""
    n = BLOCK
    where = (np.arange(ENVS)[:, None] * 97 + np.arange(n)) % len(frames)
    none = np.zeros((ENVS, n), bool)
    action = np.eye(6, dtype=np.float32)[np.random.default_rng(0).integers(6, size=(ENVS, n))]
    flags = {"is_first": none, "is_last": none, "is_terminal": none}
    return {"obs/image": frames[where], "action": action, "reward": np.zeros((ENVS, n), np.float32), **flags}


def work(rounds: int) -> int:
    """Nothing but time."""
    total = 0
    for i in range(rounds):
        total += i * i
    return total


def rounds_of(seconds: float) -> int:
    """How much of ``work`` that is."""
    started = time.perf_counter()
    work(500_000)
    return int(500_000 * seconds / (time.perf_counter() - started))


def collect(rows: Rows, folder: Path, repeat: int) -> dict[str, Any]:
    """See the module."""
    store = ReplayStore(folder / "collect")
    store.begin(COLUMNS, ENVS)
    single = [
        {name: torch.from_numpy(np.ascontiguousarray(column[:, i])) for name, column in rows.items()}
        for i in range(BLOCK)
    ]
    rounds = rounds_of(TURN_MS / 1e3)

    def turns(stored: bool) -> float:
        started = time.perf_counter()
        for row in single:
            work(rounds)
            lived = {name: column.clone() for name, column in row.items()}  # environments give new memory
            if stored:
                store.add(lived)
        return (time.perf_counter() - started) / BLOCK

    turns(True)
    ratios, plain = [], []
    for _ in range(repeat):
        store.flush()
        before = turns(False)
        blocks = statistics.median(turns(True) for _ in range(3))  # the thread writes one while the next is lived
        store.flush()
        plain.append((before + turns(False)) / 2)
        ratios.append(blocks / plain[-1])
    store.close()
    return {"turn_ms": statistics.median(plain) * 1e3, "ratio": statistics.median(ratios)}


def writing(rows: Rows, folder: Path) -> dict[str, Any]:
    """See the module."""
    store = ReplayStore(folder / "write")
    store.begin(COLUMNS, ENVS)
    size, times = sum(column.nbytes for column in rows.values()), 8
    started = time.perf_counter()
    for _ in range(times):
        store.extend(rows)
    store.flush()
    seconds = time.perf_counter() - started
    store.close()
    stored = sum(file.stat().st_size for file in (folder / "write").rglob("*") if file.is_file())
    return {"mb_per_s": size * times / seconds / 1e6, "smaller": size * times / stored}


def resume(rows: Rows, folder: Path, gigabytes: float, repeat: int) -> dict[str, Any]:
    """See the module."""
    size = sum(column.nbytes for column in rows.values())
    blocks = max(1, round(gigabytes * 1e9 / size))
    store = ReplayStore(folder / "resume")
    name = store.begin(COLUMNS, ENVS)
    plain = folder / "plain"
    with plain.open("wb") as file:
        for _ in range(blocks):
            store.extend(rows)
            for column in rows.values():
                file.write(np.ascontiguousarray(column).data)
    store.close()

    def read_plain() -> float:
        started = time.perf_counter()
        plain.read_bytes()
        return time.perf_counter() - started

    def fill() -> float:
        config = ReplayConfig(capacity=blocks * BLOCK * ENVS)
        replay: ReplayBuffer = build_replay(
            config,
            obs_spec=OBS,
            action_spec=ACTION,
            extra_spec={},
            num_envs=ENVS,
            window=Window(batch=16, length=64),
            seed=0,
        )
        again = ReplayStore(folder / "resume")
        started = time.perf_counter()
        replay.restart_at(0)
        assert replay.add_chunks(again.read(name, room=replay.reserve))
        assert replay.count == blocks * BLOCK
        return time.perf_counter() - started

    read_plain()
    fill()
    pairs = [(read_plain(), fill()) for _ in range(repeat)]
    read, filled = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratio = statistics.median(b / a for a, b in pairs)
    return {"gb": blocks * size / 1e9, "read_s": read, "resume_s": filled, "ratio": ratio}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    for kind, frames in KINDS.items():
        rows = rows_of(frames(1024))
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            results += [{"rows": kind, "part": "collect", **collect(rows, folder, given.rounds)}]
            results += [{"rows": kind, "part": "write", **writing(rows, folder)}]
            results += [{"rows": kind, "part": "resume", **resume(rows, folder, given.gigabytes, 5)}]
        for result in results[-3:]:
            print(result)
    write(given.out, machine(), results)


if __name__ == "__main__":
    main()
