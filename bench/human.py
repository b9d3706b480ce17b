#!/usr/bin/env python3
"""Does a person who takes over help SAC with a reward of success alone? A script helps in two rooms.

    python bench/human.py [--systems alone uniform half penalty] [--seeds 0 1 2]

The environment and the script are those of examples/helped.py: it takes over for up to 32 steps after 8 steps without
progress. ``uniform``: batches of all rows; ``half``: half of each batch begins with its actions; ``penalty``: a reward
of -1 where it takes over, and nothing else (RLIF). Every 500 env steps, 20 episodes without it give the success rate. A
run ends when the rate reaches 0.9 and 20 additional episodes confirm it, or after 10,000 env steps (``steps`` is null).
``helped``: the script's steps. Each run is a separate process; rows replace those of the same seed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from machine import child
from results import save

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

SYSTEMS: dict[str, dict[str, Any]] = {
    "alone": {}, "uniform": {"human.fraction": 0.0}, "half": {},
    "penalty": {"human.intervention_reward": -1.0, "human.reward": "only"},
}  # fmt: skip


def run(system: str, seed: int) -> dict[str, Any]:
    """Train once, in this process."""
    from helped import Helper, learn

    row = learn(None if system == "alone" else Helper(seed), seed, **SYSTEMS[system])
    return {"system": system, "seed": seed, **row, "cpu_seconds": round(sum(os.times()[:2]), 1)}


def main() -> None:
    """Run all, each in a process of its own, and write the rows as they come."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", default=[*SYSTEMS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(run(arguments.systems[0], arguments.seeds[0])))
        return
    path = Path(__file__).with_suffix(".json")
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    for seed in arguments.seeds:
        for system in arguments.systems:
            row = child(Path(__file__), "--one", "--systems", system, "--seeds", str(seed))
            print(row, flush=True)
            others = [x for x in rows if (x["system"], x["seed"]) != (system, seed)]
            rows = sorted([*others, row], key=lambda x: (list(SYSTEMS).index(x["system"]), x["seed"]))
            save(path, {"rows": rows})


if __name__ == "__main__":
    main()
