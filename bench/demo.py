#!/usr/bin/env python3
"""Ten seeds of the demonstration: is its task solved in at most two minutes, and are its dreams right?

    python bench/demo.py [--seeds 10] [--jobs 1] [--out bench/demo.json]

Each seed trains in a process of its own by the same preset as ``make demo``, until an evaluation solves the task. The
judging episodes have seeds that training never saw. They are dreamt after 1 row and after 5: ``first_row`` counts the
dreams whose first row is right, ``whole`` those whose imagined rows are, in every cell, the agent's direction and the
end.
``random_dreams`` counts the same for episodes of random actions. Rows are written as they come: an interrupted table
goes on where it was. The limit counts ``cpu_seconds``, the processor time of the one thread, which is what ``seconds``
are on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from results import save

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
from demo import ENV, EPISODES, KEYS, PRESET, SEED, SOLVED, Dream, dream_all, mean_return, play  # noqa: E402

import reverie  # noqa: E402
from reverie.agent.recording import record_agent  # noqa: E402
from reverie.core.types import Batch  # noqa: E402
from reverie.datasets.options import RecordConfig  # noqa: E402
from reverie.log.jsonl import read_metrics, split_evaluations  # noqa: E402

LIMIT = 120.0
CONTEXTS = (1, 5)


def play_random(agent: reverie.Agent) -> list[Batch]:
    """Play ``EPISODES`` new episodes with random actions."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "random"
        record_agent(agent, str(path), RecordConfig(episodes=EPISODES, epsilon=1.0, seed=SEED), "auto")
        with agent.open_dataset(path) as dataset:
            return list(dataset.beginnings(1000))


def judge_dreams(agent: reverie.Agent, episodes: list[Batch]) -> dict[str, dict[str, int]]:
    """Return by context the number of dreams, and of those whose first row and whose imagined rows are right."""
    counts = {}
    for context in CONTEXTS:
        dreams = dream_all(agent, episodes, context)
        first, whole = (sum(map(is_right, dreams)) for is_right in (is_first_row_right, is_dream_right))
        counts[str(context)] = {"dreams": len(dreams), "first_row": first, "whole": whole}
    return counts


def is_first_row_right(dream: Dream) -> bool:
    """Return whether the model reconstructs each class of the first row."""
    row = {key: x[0, 0].flatten().numpy() for key, x in dream.episode.obs.items()}
    return all((dream.predictions[key][0].argmax(-1) == row[key]).all() for key in KEYS)


def is_dream_right(dream: Dream) -> bool:
    """Return whether no imagined row parts from the episode, nor the end."""
    return dream.strip.parting is None


def train_seed(seed: int, run: Path) -> dict[str, object]:
    """Train one seed as ``make demo`` does, and judge it; in the child."""
    started, cpu = time.monotonic(), time.process_time()
    result = reverie.train("dreamer_v3", preset=PRESET, env=ENV, seed=seed, run=run, console=False)
    seconds, cpu_seconds = time.monotonic() - started, time.process_time() - cpu
    agent = reverie.load(run)
    episodes = play(agent)
    curve = split_evaluations(read_metrics(run / "metrics.jsonl", ("eval/score",)))[0]
    return {
        "seed": seed,
        "mean": round(mean_return(episodes), 3),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "env_steps": result.env_steps,
        "updates": result.updates,
        "dreams": judge_dreams(agent, episodes),
        "random_dreams": judge_dreams(agent, play_random(agent)),
        "curve": [[row["step"], round(row["eval/score"], 3)] for row in curve],
    }


def run_seed(seed: int) -> dict[str, float]:
    """One seed, in a fresh process and folder."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--seed", str(seed), "--run", str(Path(folder) / "run")]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"seed {seed} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def write(path: Path, table: dict[str, Any]) -> None:
    """Write the table, with what its rows amount to."""
    rows = table["rows"]
    rows.sort(key=lambda row: row["seed"])
    for row in rows:
        row["solved"] = row["mean"] >= SOLVED and row["cpu_seconds"] <= LIMIT
    table["solved"] = f"{sum(row['solved'] for row in rows)} of {len(rows)}"
    save(path, table)


def main() -> int:
    """Run the seeds that the table lacks, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1, help="seeds at a time")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.seed is not None:
        print(json.dumps(train_seed(args.seed, args.run)))
        return 0
    import torch

    rows = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
    table = {
        "task": f"preset {PRESET}: mean of {EPISODES} episodes >= {SOLVED:g} within {LIMIT:g} s of processor time",
        "command": "python bench/demo.py",
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "jobs": args.jobs, "torch": torch.__version__, "python": platform.python_version(), "rows": rows,
    }  # fmt: skip
    missing = sorted(set(range(1, args.seeds + 1)) - {row["seed"] for row in rows})
    with ThreadPoolExecutor(args.jobs) as pool:
        for done in as_completed([pool.submit(run_seed, seed) for seed in missing]):
            rows.append(done.result())
            print(json.dumps({name: value for name, value in rows[-1].items() if name != "curve"}), flush=True)
            write(args.out, table)
    write(args.out, table)
    print(table["solved"], "solved;", args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
