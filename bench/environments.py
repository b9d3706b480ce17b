#!/usr/bin/env python3
"""Train on one environment of every suite for a few hundred updates through the command line: does each work?

    python bench/environments.py [--only pong] [--out bench/environments.json]

Not a measure of learning: the networks are tiny and the runs short. What is recorded is that training, evaluation and
the dream ran to their end, how many updates were made, and what the losses did.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from results import save

SMALL = (
    "--size nano --algo.batch-size 8 --algo.batch-length 16 --learning-starts 256 --env.vectorization sync --seed 1 "
    "--algo.optim.lr 6e-4 --algo.optim.warmup 100 --schedule.eval-every 0 --schedule.log-every 1s "
    "--replay.capacity 100000 --eval-episodes 4 --eval-envs 4 --envs 4 --steps 1600 --replay-ratio 0.25"
)

RUNS = {
    "cartpole": "--env CartPole-v1",
    "pendulum": "--env Pendulum-v1",
    "acrobot": "--env Acrobot-v1",
    "pong": "--env ALE/Pong-v5 --preset atari100k",
    "minatar": "--env MinAtar/Breakout-v1",
    "minigrid_empty": "--env MiniGrid-Empty-5x5-v0",
    "minigrid_doorkey": "--env MiniGrid-DoorKey-5x5-v0",
    "dmc_vector": "--env dm_control/cartpole-balance-v0",
    "dmc_pixels": "--env dm_control/cartpole-balance-v0 --preset dmc_vision",
    "crafter": "--env CrafterReward-v1",
}


def reverie(*words: str) -> str:
    """Run the command line; its output, or an error that shows it."""
    done = subprocess.run([sys.executable, "-m", "reverie", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"reverie {' '.join(words)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def measure(name: str, folder: Path) -> dict[str, object]:
    """Train, dream, and read what was logged."""
    run, words = folder / name, ["train", "dreamer_v3", *RUNS[name].split(), *SMALL.split()]
    started = time.monotonic()
    reverie(*words, "--run", str(run))
    seconds = time.monotonic() - started
    reverie("dream", str(run), "--context", "4", "--horizon", "16", "--episodes", "2")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    learned = [row for row in rows if "opt/loss" in row]
    losses = {k: [row[k] for row in (learned[0], learned[-1])] for k in learned[-1] if k.startswith("loss/")}
    if not all(math.isfinite(v) for pair in losses.values() for v in pair):
        raise RuntimeError(f"{name}: a loss is not finite: {losses}")
    return {
        "command": "reverie " + " ".join(words),
        "updates": int(learned[-1]["counters/updates"]),
        "env_steps": int(learned[-1]["counters/env_steps"]),
        "seconds": round(seconds, 1),
        "loss_first_and_last": {k: [float(f"{v:.4g}") for v in pair] for k, pair in losses.items()},
    }


def main() -> int:
    """Run all and write the table as it grows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(RUNS), choices=list(RUNS))
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    table: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in args.only:
            table[name] = measure(name, Path(folder))
            save(args.out, table)
            print(name, json.dumps(table[name]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
