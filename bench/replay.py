#!/usr/bin/env python3
"""How fast the replay takes rows and deals out windows, beside a plain copy of as many bytes in memory.

    python bench/replay.py [--kinds rows transitions draws] [--repeat 5] [--scratch FOLDER] [--out FILE]

`rows`: 64x64x3 images from 8 environments, windows of 16 x 65 from 100,000 rows, with and without the latents of a
DreamerV3 (2048 + 32 x 16 float32) stored, in memory and in mapped files. Each figure is the median of several rounds;
each round is followed by copies of the same bytes: of the rows of one step into a ring as large as the replay, of a
batch from a random place of such a ring into memory of its own. `copy_ratio` is the rate of those copies over ours.
`transitions`: batches of windows of two rows of 17 + 6 numbers, as TD learners sample them, from a million rows of one
environment, and rows added. Beside them the least that a replay in NumPy could do: five arrays, indexed with random
numbers and assigned to. `draws`: windows that each sampler draws per second from a million rows, priorities given back
included. Every setting runs in a process of its own, the Python side of it on one thread as in a run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import child, machine, write

from reverie.core.hardware import keep_freed_memory
from reverie.core.specs import ActionPart, ActionSpec, ColumnSpec, ObsPart
from reverie.core.types import Step, Update, Window
from reverie.replay.buffer import ReplayBuffer
from reverie.replay.build import build_replay
from reverie.replay.config import ReplayConfig

ENVS, ROWS, SECONDS = 8, 100_000, 0.5
IMAGE = {"image": ObsPart(kind="image", shape=(64, 64, 3), dtype="uint8")}
SMALL = {"vector": ObsPart(kind="vector", shape=(1,), dtype="float32")}
ACTION = ActionSpec(parts={"action": ActionPart(kind="categorical", classes=(6,))})
LATENTS = {"deter": ColumnSpec(shape=(2048,), dtype="float32"), "stoch": ColumnSpec(shape=(32, 16), dtype="float32")}
SAMPLERS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "recency": {"fractions.uniform": 0, "fractions.recency": 1},
    "ends": {"fractions.uniform": 0, "fractions.episode_ends": 1},
    "priority": {"fractions.uniform": 0, "fractions.priority": 1},
    "mixture": {"fractions.priority": 1, "fractions.recency": 1, "fractions.episode_ends": 1},
    "sequence": {"sequential": True},
}
KINDS = {
    "rows": [(storage, latents) for storage in ("ram", "mmap") for latents in ("images", "latents")],
    "transitions": [(sampler, batch) for sampler in ("uniform", "priority") for batch in ("32", "256")],
    "draws": [(sampler, batch) for sampler in SAMPLERS for batch in ("16", "256")],
}
MUJOCO = {"observation": ObsPart(kind="vector", shape=(17,), dtype="float32")}
FORCES = ActionSpec(parts={"action": ActionPart(kind="continuous", size=6)})


def build(config: ReplayConfig, obs: dict[str, ObsPart], extras: dict[str, ColumnSpec], batch: int) -> ReplayBuffer:
    window = Window(batch=batch, length=64, context=1, crosses_episodes=True)
    return build_replay(
        config, obs_spec=obs, action_spec=ACTION, extra_spec=extras, num_envs=ENVS, window=window, seed=0
    )


def one_step(
    obs: dict[str, ObsPart], extras: dict[str, ColumnSpec], action: ActionSpec = ACTION, envs: int = ENVS
) -> tuple[Step, torch.Tensor, dict[str, Any]]:
    """What one step of all environments gives to a replay."""
    flag = torch.zeros(envs, dtype=torch.bool)
    seen = {key: noise((envs, *part.shape), part.dtype) for key, part in obs.items()}
    step = Step(obs=seen, reward=torch.randn(envs), is_first=flag, is_last=flag, is_terminal=flag)
    stored = {key: noise((envs, *part.shape), part.dtype) for key, part in extras.items()}
    return step, torch.rand(envs, action.width), stored


def noise(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    return torch.randint(0, 256, shape).to(getattr(torch, dtype))


def rate(call: Callable[[], Any], seconds: float = SECONDS) -> float:
    """Calls a second."""
    calls, begin = 0, time.perf_counter()
    while (now := time.perf_counter()) < begin + seconds:
        call()
        calls += 1
    return calls / (now - begin)


class Copies:
    """Plain copies in and out of a ring that is as large as a replay."""

    def __init__(self, total: int, row: int) -> None:
        """Of ``total`` bytes, in rows of ``row``."""
        self.ring = torch.zeros(total // (ENVS * row), ENVS * row, dtype=torch.uint8).numpy()
        self.step = np.ones(ENVS * row, np.uint8)
        self.batch = 16 * 65 * row
        self.slot, self.rng = 0, np.random.default_rng(0)

    def add(self) -> None:
        """Rows of one step."""
        self.ring[self.slot] = self.step
        self.slot = (self.slot + 1) % len(self.ring)

    def sample(self) -> torch.Tensor:
        """A batch from anywhere."""
        flat = self.ring.reshape(-1)
        start = int(self.rng.integers(len(flat) - self.batch))
        out = torch.empty(self.batch, dtype=torch.uint8)
        out.numpy()[:] = flat[start : start + self.batch]
        return out


def measure_rows(storage: str, latents: bool, repeat: int) -> dict[str, Any]:
    """Rows added and batches sampled per second."""
    extras = LATENTS if latents else {}
    replay = build(ReplayConfig(capacity=ROWS, storage=storage, online_queue=False), IMAGE, extras, batch=16)
    step = one_step(IMAGE, extras)
    for _ in range(ROWS // ENVS):
        replay.add(*step)
    row = replay.nbytes // ROWS
    copies = Copies(replay.nbytes, row)
    keep_freed_memory()
    rates: dict[str, list[float]] = {"add": [], "copied": [], "sample": [], "sample_copied": []}
    for _ in range(repeat):
        rates["add"].append(rate(lambda: replay.add(*step)))
        rates["copied"].append(rate(copies.add))
        rates["sample"].append(rate(replay.sample))
        rates["sample_copied"].append(rate(copies.sample))
    median = {name: statistics.median(values) for name, values in rates.items()}
    return {
        "storage": storage,
        "latents": latents,
        "row_bytes": row,
        "rows_added_per_s": ENVS * median["add"],
        "add_copy_ratio": median["copied"] / median["add"],
        "batches_per_s": median["sample"],
        "sample_copy_ratio": median["sample_copied"] / median["sample"],
        "sample_gb_per_s": median["sample"] * 16 * 65 * row / 1e9,
    }


class Arrays:
    """A replay of transitions as five arrays, as most have it."""

    def __init__(self, rows: int, batch: int) -> None:
        """Of ``rows`` transitions, sampled ``batch`` at a time."""
        self.columns = [np.ones((rows, n), np.float32) for n in (17, 17, 6, 1, 1)]
        self.row = [column[0].copy() for column in self.columns]
        self.batch, self.slot, self.rng = batch, 0, np.random.default_rng(0)

    def add(self) -> None:
        """One transition."""
        for column, value in zip(self.columns, self.row, strict=True):
            column[self.slot] = value
        self.slot = (self.slot + 1) % len(self.columns[0])

    def sample(self) -> list[torch.Tensor]:
        """A batch."""
        chosen = self.rng.integers(len(self.columns[0]), size=self.batch)
        return [torch.from_numpy(column[chosen]) for column in self.columns]


def measure_transitions(sampler: str, batch: int, repeat: int) -> dict[str, Any]:
    """Microseconds of a batch of transitions, of giving its priorities back, and of adding one."""
    million = 1_000_000
    config = ReplayConfig(capacity=million).merge(SAMPLERS[sampler])
    replay = build_replay(
        config,
        obs_spec=MUJOCO,
        action_spec=FORCES,
        extra_spec={},
        num_envs=1,
        window=Window(batch=batch, length=2),
        seed=0,
    )
    flags = {name: np.zeros((1, million), bool) for name in ("is_first", "is_last", "is_terminal")}
    flags["is_first"][:, ::1000] = True
    shapes = {"obs/observation": (17,), "action": (6,), "reward": ()}
    replay.extend({**flags, **{name: np.ones((1, million, *shape), np.float32) for name, shape in shapes.items()}})
    step, arrays = one_step(MUJOCO, {}, FORCES, 1), Arrays(million, batch)
    index, update = replay.sample().index, Update(metrics={}, priority=torch.rand(batch))
    keep_freed_memory()
    calls = {
        "sample": replay.sample,
        "feedback": lambda: replay.feedback(index, update),
        "add": lambda: replay.add(*step),
        "arrays_sample": arrays.sample,
        "arrays_add": arrays.add,
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeat):
        for name, call in calls.items():
            times[name].append(1e6 / rate(call))
    median = {f"{name}_us": statistics.median(values) for name, values in times.items()}
    return {"sampler": sampler, "batch": batch, **median}


def measure_draws(sampler: str, batch: int, repeat: int) -> dict[str, Any]:
    """Windows chosen per second, and rows that are taken note of meanwhile."""
    config = ReplayConfig(capacity=1_000_000, online_queue=False).merge(SAMPLERS[sampler])
    replay = build(config, SMALL, {}, batch)
    rows = 1_000_000 // ENVS
    flags = {name: np.zeros((ENVS, rows), bool) for name in ("is_first", "is_last", "is_terminal")}
    flags["is_first"][:, ::500] = True
    numbers = {"reward": np.zeros((ENVS, rows), np.float32), "action": np.zeros((ENVS, rows, 6), np.float32)}
    replay.extend({**flags, **numbers, "obs/vector": np.zeros((ENVS, rows, 1), np.float32)})
    step = one_step(SMALL, {})
    update = Update(metrics={}, priority=torch.rand(batch))
    draws, adds = [], []
    for _ in range(repeat):
        draws.append(batch * rate(lambda: draw(replay, update)))
        adds.append(ENVS * rate(lambda: replay.add(*step)))
    return {
        "sampler": sampler,
        "batch": batch,
        "windows_per_s": statistics.median(draws),
        "rows_added_per_s": statistics.median(adds),
    }


def draw(replay: ReplayBuffer, update: Update) -> None:
    """Choose a batch and give priorities back, without copying any rows."""
    handles, _ = replay.batch_sampler.draw()
    replay.feedback(handles if isinstance(handles, torch.Tensor) else torch.from_numpy(handles), update)


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--scratch", type=Path, help="where mapped files go; the folder of temporary files by default")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--child", nargs="*", help="measure this one setting here and print it")
    args = parser.parse_args()
    if args.child:
        torch.set_num_threads(1)
        kind, first, second = args.child
        if kind == "rows":
            print(json.dumps(measure_rows(first, second == "latents", args.repeat)))
        else:
            measure = measure_draws if kind == "draws" else measure_transitions
            print(json.dumps(measure(first, int(second), args.repeat)))
        return 0
    setting = {"TMPDIR": str(args.scratch)} if args.scratch else {}
    rows = []
    for kind in args.kinds:
        for pair in KINDS[kind]:
            words = ["--repeat", str(args.repeat), "--child", kind, *pair]
            rows.append({"kind": kind, **child(Path(__file__), *words, setting=setting)})
            print(json.dumps(rows[-1]), flush=True)
    write(args.out, machine(), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
