#!/usr/bin/env python3
"""Ten seeds of the demonstration: is its task solved in at most four minutes of training on two CPU cores?

    python benchmarks/demo.py [--seeds 10] [--jobs 2] [--out benchmarks/demo.json]

Each seed trains in a process of its own by the same preset as ``make demo``, which uses one thread; two at a time
therefore have a core each. ``stopped`` says when an evaluation reached ``stop_score``; then the demonstration goes on
for a while, for the dream. The judging episodes have seeds that training never saw. Rows are written as they come: an
interrupted table goes on where it was. Where other programs compete for the cores, ``seconds`` says nothing, and
``cpu_seconds`` more about what the same takes alone.
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

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
from demo import EPISODES, PRESET, SOLVED, learn  # noqa: E402

import reverie  # noqa: E402
from reverie.agent.evaluation import evaluate_run  # noqa: E402
from reverie.log.sinks import evaluations_in, read_metrics  # noqa: E402

LIMIT = 240.0


def train_seed(seed: int, run: Path) -> dict[str, object]:
    """Train one seed as ``make demo`` does, and judge it; in the child."""
    started, cpu, ends = time.monotonic(), time.process_time(), []
    for result in learn(run, seed, console=False):
        ends.append((result, time.monotonic() - started, time.process_time() - cpu))
    (first, until_solved, _), (last, seconds, cpu_seconds) = ends[0], ends[-1]
    scores = evaluate_run(reverie.load(run), EPISODES).evaluation.scores
    curve = evaluations_in(read_metrics(run / "metrics.jsonl", ("eval/score",)))[0]
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
        "task": f"preset {PRESET}: mean of {EPISODES} episodes >= {SOLVED:g} after at most {LIMIT:g} s of training",
        "command": "python benchmarks/demo.py",
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "jobs": args.jobs, "torch": torch.__version__, "python": platform.python_version(), "rows": rows,
    }  # fmt: skip
    missing = sorted(set(range(1, args.seeds + 1)) - {row["seed"] for row in rows})
    with ThreadPoolExecutor(args.jobs) as pool:
        for done in as_completed([pool.submit(run_seed, seed) for seed in missing]):
            row = done.result()
            row["solved"] = row["mean"] >= SOLVED
            row["in_time"] = row["seconds"] <= LIMIT
            rows.append(row)
            rows.sort(key=lambda r: r["seed"])
            print(
                json.dumps({name: value for name, value in row.items() if name not in ("curve", "stopped")}), flush=True
            )
            table["solved"] = f"{sum(r['solved'] for r in rows)} of {len(rows)}"
            table["solved_in_time"] = f"{sum(r['solved'] and r['in_time'] for r in rows)} of {len(rows)}"
            args.out.write_text(json.dumps(table, indent=2) + "\n")
    print(table.get("solved"), "solved;", args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
