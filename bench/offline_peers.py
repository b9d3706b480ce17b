#!/usr/bin/env python3
"""What other libraries make of the datasets of `offline_datasets.py`: beside what `offline.py` makes of them.

    python bench/offline_peers.py [--env Pendulum-v1] [--levels mixed] [--systems d3rlpy] [cql iql ...] [--jobs 2]

The same files, which each worker (`peers/offline_*.py`) reads itself, and the same work (`offline_work.py`): updates,
batches, hidden layers, learning rates, discount. Observations are normalized for everybody, since ours are, and actions
scaled to [-1, 1]; time limits are truncations. What else an algorithm needs, each library has from its own defaults.
Episodes are played here, in one environment for all, with the policy's best actions. Each library has a virtual
environment of its own under `--where`, made once, the one of `model_free_peers.py`. Rows are written as they come, and
replace those of the same run; with `--missing` only those are made that are not there yet. Ours are in `offline.json`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from machine import machine
from model_free_peers import SYSTEMS
from offline_datasets import FOLDER, dataset_path, levels
from offline_work import EPISODES, FIRST, FIRST_SEED, UPDATES, WORK, collect, key_of, recording, rows_in
from peers.installed import WHERE, installed
from peers.offline_pipe import receive, send

HERE = Path(__file__).parent

ALGORITHMS = {
    "tianshou": ("bc", "td3_bc", "bcq", "cql", "discrete_bcq", "discrete_cql", "discrete_crr"),
    "d3rlpy": ("bc", "td3_bc", "bcq", "cql", "iql", "crr", "discrete_bcq", "discrete_cql"),
}
"""What each has of ours."""
VECTORS = tuple(env for env, work in WORK.items() if not work.image)
KEY = ("env", "level", "algorithm", "system", "seed")

Run = tuple[str, str, str, str, int]
"""Environment, level, algorithm, system, seed."""


def fits(algorithm: str, env: str) -> bool:
    """Whether its kind of actions is that of the environment."""
    return algorithm == "bc" or algorithm.startswith("discrete_") == WORK[env].discrete


def words(run: Run, args: argparse.Namespace) -> list[str]:
    """The command line of the worker."""
    env, level, algorithm, _, seed = run
    work = WORK[env]
    said = [algorithm, "--data", dataset_path(args.folder, env, level), "--updates", args.updates, "--seed", seed]
    said += ["--units", *work.units, "--lr", work.lr, "--batch", work.batch, "--discount", work.discount]
    return [str(word) for word in said]


def trained_and_judged(python: Path, run: Run, args: argparse.Namespace) -> dict[str, Any]:
    """One run, in a fresh process.

    Raises:
        RuntimeError: it failed; with the end of what it said.
    """
    env, system = run[0], run[3]
    quiet = {"RL_LOGGING_LEVEL": "ERROR", "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    command = [str(python), str(HERE / "peers" / f"offline_{system}.py"), *words(run, args)]
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as said:
        with subprocess.Popen(
            command, env=os.environ | quiet | {"CUDA_VISIBLE_DEVICES": ""}, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=said,
        ) as worker:  # fmt: skip
            score = judged(worker, env, args.episodes) if worker.stdout and worker.stdout.readline() else None
        if score is None or worker.returncode:
            said.seek(0)
            raise RuntimeError(f"{system} {' '.join(command[2:])} failed: {said.read()[-2000:]}")
    seconds = round(time.monotonic() - started, 1)
    return {**dict(zip(KEY, run, strict=True)), "updates": args.updates, "score": round(score, 2), "seconds": seconds}


def judged(worker: subprocess.Popen[bytes], env: str, episodes: int) -> float | None:
    """The mean return of so many episodes, played side by side; None if the worker does not answer any more."""
    assert worker.stdin
    assert worker.stdout
    envs = [gymnasium.make(env) for _ in range(episodes)]
    obs = {i: each.reset(seed=FIRST_SEED + i)[0] for i, each in enumerate(envs)}
    returns = np.zeros(episodes)
    while obs:
        send(worker.stdin, np.stack(list(obs.values())))
        actions = receive(worker.stdout)
        if actions is None:
            return None
        for i, action in zip(list(obs), actions, strict=True):
            obs[i], reward, terminated, truncated, _ = envs[i].step(action)
            returns[i] += float(reward)
            if terminated or truncated:
                del obs[i]
    worker.stdin.close()
    for each in envs:
        each.close()
    return float(returns.mean())


def wanted(args: argparse.Namespace, rows: list[dict[str, Any]]) -> Iterator[Run]:
    """All runs that are asked for, those of one seed after those of another."""
    asked = args.updates, args.recording
    there = {key_of(row, KEY)[:-1] for row in rows if (row["updates"], recording(row)) == asked}
    for seed in range(args.first, args.first + args.seeds):
        for env in args.env:
            for level in args.levels or levels(env):
                for system in args.systems:
                    for algorithm in ALGORITHMS[system]:
                        run = (env, level, algorithm, system, seed)
                        fitting = fits(algorithm, env) and (not args.names or algorithm in args.names)
                        if fitting and level in levels(env) and not (args.missing and run in there):
                            yield run


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="algorithms; all that fit unless given")
    parser.add_argument("--env", nargs="+", default=list(VECTORS), choices=VECTORS)
    parser.add_argument("--levels", nargs="+", help="which datasets; all unless given")
    parser.add_argument("--systems", nargs="+", default=list(ALGORITHMS), choices=list(ALGORITHMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--updates", type=int, default=UPDATES)
    parser.add_argument("--episodes", type=int, default=EPISODES)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--missing", action="store_true", help="only what is not in the table yet")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the datasets are")
    parser.add_argument("--recording", type=int, default=FIRST, help="which recording of them those are")
    parser.add_argument("--where", type=Path, default=WHERE, help="folder of the virtual environments")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    return parser.parse_args()


def main() -> int:
    """Install, train, judge, and write rows."""
    args = options()
    pythons = installed({SYSTEMS[name].environment: SYSTEMS[name].packages for name in args.systems}, args.where)
    args.systems = [name for name in args.systems if SYSTEMS[name].environment in pythons]
    with ThreadPoolExecutor(args.jobs) as pool:
        runs = wanted(args, rows_in(args.out))
        jobs = [pool.submit(trained_and_judged, pythons[SYSTEMS[run[3]].environment], run, args) for run in runs]
        return 1 if collect(jobs, args.out, machine(1), args.recording, KEY) else 0


if __name__ == "__main__":
    sys.exit(main())
