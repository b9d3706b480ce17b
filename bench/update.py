#!/usr/bin/env python3
"""How long one update takes: world model, actor and critic, optimizer included.

    python bench/update.py [--settings V I] [--precision float32 bfloat16] [--threads 2] [--repeat 9]

V is a vector of 24 with six continuous actions at size 1m, I a 64x64x3 image with six discrete actions at size 12m;
batch 16x64, H = 15. Medians. Each setting is a process of its own, in which the machine's matrix rate is measured as
well; other load on the machine shows, so compare within one run only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from machine import child, machine, matrix_gflops, seconds_since_start, write

from reverie.algos.dreamer_v3 import DreamerV3, DreamerV3Config, with_size
from reverie.core.hardware import choose_device, keep_freed_memory, peak_memory, synchronize
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Batch, Step
from reverie.experiment.bench import gflop, noise_batch, noise_step

VECTOR = {"state": ObsPart(kind="vector", shape=(24,), dtype="float32")}
IMAGE = {"image": ObsPart(kind="image", shape=(64, 64, 3), dtype="uint8")}
CONTINUOUS = ActionSpec(parts={"action": ActionPart(kind="continuous", size=6)})
DISCRETE = ActionSpec(parts={"action": ActionPart(kind="categorical", classes=(6,))})
SETTINGS = {
    "nano": ("nano", VECTOR, CONTINUOUS, {"batch_length": 32}),
    "V": ("1m", VECTOR, CONTINUOUS, {}),
    "I": ("12m", IMAGE, DISCRETE, {}),
}


def config(name: str, precision: str = "float32") -> DreamerV3Config:
    """The learner's settings."""
    size, _, _, changes = SETTINGS[name]
    return with_size(size, DreamerV3Config().merge({**changes, "precision": precision}))


def build(name: str, precision: str = "float32") -> DreamerV3:
    """The learner of a setting."""
    _, obs, action, _ = SETTINGS[name]
    return config(name, precision).build(obs, action, choose_device("auto"))


def batch(name: str, agent: DreamerV3) -> Batch:
    """Noise as a batch."""
    return noise_batch(agent, *SETTINGS[name][1:3]).to(agent.device)


def step(name: str, envs: int) -> Step:
    """Noise as what N environments show."""
    return noise_step(SETTINGS[name][1], envs)


def measure(name: str, repeat: int, precision: str = "float32") -> dict[str, Any]:
    """Medians of one setting; ``start_s`` is from the start of the process to the end of the first update."""
    started = time.perf_counter()
    agent = build(name, precision)
    data = batch(name, agent)

    def update() -> float:
        begun = time.perf_counter()
        agent.update(data)
        synchronize(agent.device)
        return time.perf_counter() - begun

    update()
    first = {"first_update_s": time.perf_counter() - started, "start_s": seconds_since_start()}
    seconds = statistics.median([update() for _ in range(repeat + 2)][2:])  # two more to warm up
    out = {"parameters": agent.optim.count, **first, "update_s": seconds, "peak_gb": peak_memory() / 1e9}
    return out | machine_share(name, precision, seconds)


def machine_share(name: str, precision: str, update_s: float) -> dict[str, Any]:
    """Operations of an update, and the share of the machine's matrix rate of this minute that it reaches."""
    _, obs, action, _ = SETTINGS[name]
    rates = matrix_gflops(torch.device(choose_device("auto")))
    work, rate = gflop(config(name, precision), obs, action), rates.get(precision)
    share = None if work is None or rate is None else work / update_s / rate
    return {"gflop": work, "matrix_gflops": rate, "share": share}


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="*", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--precision", nargs="*", default=["float32"], choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--child", action="store_true", help="measure the one setting here and print it")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.child:
        keep_freed_memory()
        print(json.dumps(measure(args.settings[0], args.repeat, args.precision[0])))
        return 0
    rows = []
    for name, precision in [(n, p) for p in args.precision for n in args.settings]:
        words = ["--threads", str(args.threads), "--repeat", str(args.repeat), "--precision", precision]
        measured = child(Path(__file__), "--child", "--settings", name, *words)
        rows.append({"setting": name, "precision": precision, **measured})
        print(json.dumps(rows[-1]), flush=True)
    write(args.out, machine(args.threads), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
