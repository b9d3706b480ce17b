#!/usr/bin/env python3
"""Ten seeds of the demonstration: is its task solved in at most four minutes?

    python benchmarks/demo.py [--seeds 10] [--jobs 2] [--out benchmarks/demo.json]

Each seed trains in a process of its own by the same preset as ``make demo``, which uses one thread; two at a time
therefore have a core each. ``stopped`` says when an evaluation reached ``stop_score``; then the demonstration goes on
for a while, for the dream. The judging episodes have seeds that training never saw. Rows are written as they come: an
interrupted table goes on where it was. ``seconds`` count, so run it on an idle machine:
beside other programs they are much more than ``cpu_seconds``, the processor time of the one thread.
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
from demo import EPISODES, PRESET, SOLVED, learn  # noqa: E402

import reverie  # noqa: E402
from reverie.agent.evaluating import evaluate_run  # noqa: E402
from reverie.log.jsonl import read_metrics, split_evaluations  # noqa: E402

LIMIT = 240.0


def train_seed(seed: int, run: Path) -> dict[str, object]:
    """Train one seed as ``make demo`` does, and judge it; in the child."""
    started, cpu, ends = time.monotonic(), time.process_time(), []
    for result in learn(run, seed, console=False):
        ends.append((result, time.monotonic() - started, time.process_time() - cpu))
    (first, until_solved, _), (last, seconds, cpu_seconds) = ends[0], ends[-1]
    scores = evaluate_run(reverie.load(run), EPISODES).evaluation.scores
    curve = split_evaluations(read_metrics(run / "metrics.jsonl", ("eval/score",)))[0]
    return {
        "seed": seed,
        "mean": round(sum(scores) / len(scores), 3),
        "worst": round(min(scores), 3),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "env_steps": last.env_steps,
        "updates": last.updates,
        "stopped": {"seconds": round(until_solved, 1), "env_steps": first.env_steps, "updates": first.updates},
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
        row["solved"] = row["mean"] >= SOLVED and row["seconds"] <= LIMIT
    table["solved"] = f"{sum(row['solved'] for row in rows)} of {len(rows)}"
    save(path, table)


def main() -> int:
    """Run the seeds that the table lacks, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2, help="seeds at a time")
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
        "task": f"preset {PRESET}: mean of {EPISODES} episodes >= {SOLVED:g} within {LIMIT:g} s",
        "command": "python benchmarks/demo.py",
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
