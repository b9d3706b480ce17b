#!/usr/bin/env python3
"""Does a tree search in a Dreamer's latents act better than its actor, early and late in its training?

    python bench/latent_search.py [rooms cartpole]

An agent is trained with a preset; the checkpoints of two points of its training then play the same episodes with the
actor alone (0 simulations) and with searches. The results replace those of the same task in latent_search.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from machine import machine
from results import save

import reverie
from reverie.core.statistics import interval, mean
from reverie.run.checkpoint import step_from_name

OUT = Path(__file__).with_suffix(".json")
SIMULATIONS = (0, 4, 16, 50)


class Task(NamedTuple):
    """A preset of DreamerV3, the env steps of two checkpoints, their interval, and the episodes that each plays."""

    preset: str
    steps: tuple[int, int]
    save_every: int
    episodes: int


TASKS = {"rooms": Task("demo", (2000, 5000), 1000, 200), "cartpole": Task("cartpole", (1200, 1600), 400, 40)}


def measure(name: str) -> list[dict[str, Any]]:
    """Train, and return a row for each checkpoint and number of simulations."""
    preset, steps, save_every, episodes = TASKS[name]
    settings = {"steps": steps[-1], "stop_score": None, "keep_checkpoints": 100, "tensorboard": False, "seed": 0}
    settings |= {"schedule.eval_every": 0, "schedule.save_every": save_every, "eval_envs": episodes, "eval_episodes": 0}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        reverie.train("dreamer_v3", preset=preset, run=run, **settings)
        saved = sorted((run / "checkpoints").glob("step-*"))
        for path in (next(path for path in saved if step_from_name(path) >= step) for step in steps):
            agent = reverie.load(run, checkpoint=path.name)
            for simulations in SIMULATIONS:
                scores = agent.evaluate(episodes, seed=1, simulations=simulations or None).scores
                low, high = interval(mean, scores)
                row = {"task": name, "env_steps": agent.step, "simulations": simulations, "episodes": episodes}
                rows.append(row | {"score": float(mean(scores)), "low": float(low), "high": float(high)})
                print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    """Measure and add the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=[*TASKS], choices=TASKS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    earlier = json.loads(OUT.read_text(encoding="utf-8"))["rows"] if OUT.exists() else []
    for name in args.tasks:
        earlier = [row for row in earlier if row["task"] != name] + measure(name)
        save(OUT, {"machine": machine(1), "rows": earlier})


if __name__ == "__main__":
    main()
