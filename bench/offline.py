#!/usr/bin/env python3
"""What offline learning makes of the datasets of `offline_datasets.py`: every algorithm on every one that it fits.

    python bench/offline.py [--env Pendulum-v1] [--levels mixed expert] [cql iql ...] [--seeds 3] [--jobs 2]

The same work for all (`offline_work.py`): so many gradient updates on data alone, then a policy is judged by its return
in the environment (`offline_judge.py`). Each run is a process of its own on one core. Rows are written as they come,
and replace those of the same algorithm, environment, level and seed; with `--missing` only those are made that are not
there yet.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from machine import machine
from offline_datasets import FOLDER, dataset_path, levels
from offline_work import (
    EPISODES,
    FIRST,
    UPDATES,
    VARIANTS,
    WORK,
    algorithms,
    collect,
    flags,
    key_of,
    recording,
    rows_in,
)

HERE = Path(__file__).parent
KEY = ("env", "level", "algorithm", "seed")


def said(*words: object) -> str:
    """What a Python process prints.

    Raises:
        RuntimeError: it failed; with what it said.
    """
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:])} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def run_seed(env: str, level: str, algorithm: str, seed: int, folder: Path, updates: int) -> dict[str, Any]:
    """One run, in a fresh process and folder.

    Raises:
        RuntimeError: it failed; with what it said.
    """
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        data = ("--data", dataset_path(folder, env, level), "--env", env, "--eval-episodes", 1)
        words = (*data, "--updates", updates, "--seed", seed, "--run", run, "--threads", 1, *flags(algorithm, env))
        quiet = ("--no-console", "--no-tensorboard", "--schedule.eval-every", 0)
        started = time.monotonic()
        said("-m", "reverie", "train", VARIANTS.get(algorithm, algorithm), *words, *quiet)
        seconds = time.monotonic() - started
        score = float(said(HERE / "offline_judge.py", run, "--episodes", EPISODES))
    return {"env": env, "level": level, "algorithm": algorithm, "seed": seed, "updates": updates,
            "score": round(score, 2), "seconds": round(seconds, 1)}  # fmt: skip


def wanted(args: argparse.Namespace, rows: list[dict[str, Any]]) -> Iterator[tuple[str, str, str, int]]:
    """All runs that are asked for, those of one seed after those of another."""
    asked = args.updates, args.recording
    there = {key_of(row, KEY)[:-1] for row in rows if (row["updates"], recording(row)) == asked}
    for seed in range(args.first, args.first + args.seeds):
        for env in args.env:
            for level in levels(env):
                for algorithm in algorithms(env, args.names):
                    key = (env, level, algorithm, seed)
                    if (not args.levels or level in args.levels) and not (args.missing and key in there):
                        yield key


def main() -> int:
    """Train, judge, and write rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="algorithms; all that fit unless given")
    parser.add_argument("--env", nargs="+", default=list(WORK), choices=WORK)
    parser.add_argument("--levels", nargs="+", help="which datasets; all unless given")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--updates", type=int, default=UPDATES)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--missing", action="store_true", help="only what is not in the table yet")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the datasets are")
    parser.add_argument("--recording", type=int, default=FIRST, help="which recording of them those are")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    with ThreadPoolExecutor(args.jobs) as pool:
        runs = wanted(args, rows_in(args.out))
        jobs = [pool.submit(run_seed, *key, args.folder, args.updates) for key in runs]
        return 1 if collect(jobs, args.out, machine(), args.recording, KEY) else 0


if __name__ == "__main__":
    sys.exit(main())
