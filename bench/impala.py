#!/usr/bin/env python3
"""Env steps that IMPALA makes in a second of processor time, of all processes, beside RLlib.

    python bench/impala.py [--steps 60000] [--systems reverie rllib] [--out bench/impala.json]

Both have two actors with four environments each, one thread in the learner, MinAtar's network, and the same rollouts
and batches. Counting begins after a tenth of the steps. RLlib gets an environment of its own under `--where`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from machine import child, machine, write
from peers.acting import family_seconds
from peers.installed import WHERE, installed

import reverie

SETTINGS = {"env": "MinAtar/Breakout-v1", "actors": 2, "envs": 4, "rollout": 20, "batch_size": 8, "lr": 1e-3, "seed": 0}
RLLIB = ("ray[rllib]==2.60.0", "gymnasium[mujoco]==1.2.2", "mujoco==4.0.0", "numpy==2.4.6", "pillow==12.1.0",
         "minatar==1.0.15", "ale-py==0.12.1", "opencv-python-headless==5.0.0.93")  # fmt: skip


class Rates:
    """Notes times and steps at each log entry after a tenth of the run."""

    def __init__(self, steps: int) -> None:
        self.least, self.points = steps / 10, list[tuple[float, float, int]]()
        self.score = np.nan

    def write(self, values: Mapping[str, Any], step: int) -> None:
        """Note them."""
        self.score = float(values.get("episode/score", self.score))
        point = (time.perf_counter(), family_seconds(), step)
        if step >= self.least and (not self.points or point[1] >= self.points[-1][1]):  # the actors still live
            self.points.append(point)

    def close(self) -> None:
        """Do nothing."""


def measure(s: dict[str, Any]) -> dict[str, float]:
    """Train, and return the rates between the first and the last log entry, and the return of the last episodes."""
    rates = Rates(s["steps"])
    with tempfile.TemporaryDirectory() as folder:
        reverie.train(
            "impala", env=s["env"], preset="impala_minatar", run=Path(folder) / "run", steps=s["steps"],
            actors=s["actors"], envs=s["envs"], seed=s["seed"], eval_episodes=0, console=False, tensorboard=False,
            sinks=[rates],
            **{"algo.lr": s["lr"], "algo.rollout": s["rollout"], "algo.batch_size": s["batch_size"],
               "schedule.log_every": s["steps"] // 20, "replay.store_path": "none"},
        )  # fmt: skip
    wall, processor, steps = (new - old for new, old in zip(rates.points[-1], rates.points[0], strict=True))
    return {"env_steps_per_second": steps / wall, "env_steps_per_processor_second": steps / processor,
            "return": rates.score}  # fmt: skip


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--systems", nargs="*", default=["reverie", "rllib"], choices=["reverie", "rllib"])
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--where", type=Path, default=WHERE, help="folder of the environments of peers")
    parser.add_argument("--child", help="measure with these settings here and print it")
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(json.loads(args.child))))
        return 0
    settings = json.dumps(SETTINGS | {"steps": args.steps})
    rows = []
    for system in args.systems:
        if system == "reverie":
            numbers = child(Path(__file__), "--child", settings)
        else:
            python = installed({"rllib": RLLIB}, args.where)["rllib"]
            numbers = child(Path(__file__).with_name("peers") / "impala_rllib.py", settings, python=python)
        rows.append({"system": system, **SETTINGS, "steps": args.steps, **numbers, "load": os.getloadavg()[0]})
        print(json.dumps(rows[-1]), flush=True)
    write(args.out, machine(), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
