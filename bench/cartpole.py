#!/usr/bin/env python3
"""Ten seeds of DreamerV3: is CartPole-v1 solved in at most six minutes of training on two CPU cores?

    python bench/cartpole.py [--seeds 10] [--jobs 2] [--out bench/cartpole.json]

Each seed trains in a process of its own by the preset ``cartpole``, which uses one thread; two at a time therefore
have a core each. The judging episodes have seeds that training never saw. Rows are written as they come, so
that an interrupted run loses none.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from results import save

SOLVED, EPISODES, LIMIT = 475.0, 20, 360.0

CHILD = """
import json, sys, time
import reverie
from reverie.agent.evaluating import evaluate_run

seed, run = int(sys.argv[1]), sys.argv[2]
started = time.monotonic()
result = reverie.train("dreamer_v3", env="CartPole-v1", preset="cartpole", seed=seed, run=run, console=False)
seconds = time.monotonic() - started
scores = evaluate_run(reverie.load(run)).evaluation.scores
print("RESULT " + json.dumps({
    "seed": seed, "mean": sum(scores) / len(scores), "worst": min(scores), "seconds": round(seconds, 1),
    "env_steps": result.env_steps, "updates": result.updates,
}))
"""


def run_seed(seed: int) -> dict[str, float]:
    """One seed, in a fresh process and folder."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", CHILD, str(seed), str(Path(folder) / "run")]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    line = next(line for line in out.splitlines() if line.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT "))


def main() -> int:
    """Run the seeds and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="seeds at a time")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    import torch

    machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    table = {
        "task": f"CartPole-v1: mean of {EPISODES} episodes >= {SOLVED:g} after at most {LIMIT:g} s of training",
        "command": "python bench/cartpole.py",
        "machine": machine,
        "jobs": args.jobs, "torch": torch.__version__, "python": platform.python_version(), "rows": [],
    }  # fmt: skip
    with ThreadPoolExecutor(args.jobs) as pool:
        seeds = range(args.first, args.first + args.seeds)
        for done in as_completed([pool.submit(run_seed, seed) for seed in seeds]):
            row = done.result()
            row["solved"] = row["mean"] >= SOLVED and row["seconds"] <= LIMIT
            table["rows"] = sorted([*table["rows"], row], key=lambda r: r["seed"])
            table["solved"] = f"{sum(r['solved'] for r in table['rows'])} of {len(table['rows'])}"
            save(args.out, table)
            print(json.dumps(row), flush=True)
    print(table["solved"], "solved;", args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
