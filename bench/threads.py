#!/usr/bin/env python3
"""How much slower is an update beside a busy neighbor, on one thread and on two?

    python bench/threads.py [--settings V I nano] [--neighbors idle loop torch] [--out bench/threads.json]

`loop` is a process that keeps one core busy in Python, `torch` one that computes in PyTorch on two threads, which wait
for each other as ours do. Settings are those of update.py. Each measurement is a fresh process, since OpenMP reads its
settings once, and starts its neighbor itself. Medians; a way of waiting is a number of turns (`GOMP_SPINCOUNT`) that a
thread spins before it sleeps, and `default` leaves that to OpenMP.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from machine import child, machine, write
from update import SETTINGS, batch, build

from reverie.core.hardware import keep_freed_memory

TORCH = """
import torch
torch.set_num_threads(2)
small, large = torch.randn(16, 64), torch.randn(1024, 1024)
print("ready", flush=True)
while True:
    for _ in range(20):
        (small @ small.T).exp().sum()
    torch.nn.functional.silu(large @ large)
"""
NEIGHBORS = {"idle": "", "loop": "print('ready', flush=True)\nwhile True: pass", "torch": TORCH}
"""The programs that run beside an update."""

PATIENCE = 20.0
"""Further seconds that three updates may take."""

WAYS = {"1": (1, "default"), "2": (2, "default"), "2 short": (2, "1000"), "2 none": (2, "0")}
"""Threads, and how long they spin."""


@contextlib.contextmanager
def beside(neighbor: str) -> Iterator[None]:
    """While the neighbor is busy."""
    if not NEIGHBORS[neighbor]:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", NEIGHBORS[neighbor]], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.communicate()


def measure(name: str, neighbor: str, seconds: float) -> dict[str, Any]:
    """Seconds of an update, and those that processors worked on it, over three updates if they are not too slow."""
    agent = build(name)
    data = batch(name, agent)
    for _ in range(2):
        agent.update(data)
    wall, work = [], []
    with beside(neighbor):
        end = time.perf_counter() + seconds
        while not wall or time.perf_counter() < (end if len(wall) >= 3 else end + PATIENCE):
            started, worked = time.perf_counter(), time.process_time()
            agent.update(data)
            wall.append(time.perf_counter() - started)
            work.append(time.process_time() - worked)
    return {"update_s": statistics.median(wall), "worked_s": statistics.median(work), "slowest_s": max(wall)}


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="*", default=["V", "I", "nano"], choices=list(SETTINGS))
    parser.add_argument("--neighbors", nargs="*", default=list(NEIGHBORS), choices=list(NEIGHBORS))
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--seconds", type=float, default=3.0, help="of updates in each measurement")
    parser.add_argument("--under", nargs="*", default=[], help="a command to run each measurement under")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--child", action="store_true", help="measure the one case here and print it")
    return parser.parse_args()


def main() -> int:
    """Measure and write."""
    args = parsed()
    if args.child:
        torch.set_num_threads(WAYS[args.ways[0]][0])
        keep_freed_memory()
        print(json.dumps(measure(args.settings[0], args.neighbors[0], args.seconds)))
        return 0
    rows = []
    for name, way, neighbor in [(n, w, b) for n in args.settings for w in args.ways for b in args.neighbors]:
        threads, spin = WAYS[way]
        words = ["--settings", name, "--neighbors", neighbor, "--ways", way, "--seconds", str(args.seconds)]
        setting = {} if spin == "default" else {"GOMP_SPINCOUNT": spin}
        measured = child(Path(__file__), "--child", *words, under=args.under, setting=setting)
        rows.append({"setting": name, "threads": threads, "spin": spin, "neighbor": neighbor, **measured})
        print(json.dumps(rows[-1]), flush=True)
    write(args.out, machine(), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
