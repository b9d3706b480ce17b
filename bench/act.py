#!/usr/bin/env python3
"""How long one decision takes: observations in, actions out, for 1, 8 and 16 environments.

    python bench/act.py [--settings V I] [--envs 1 8 16] [--precision float32] [--threads 2]

The settings are those of update.py. `explore` draws actions, `eval` takes the most likely ones. Medians; each setting
is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from machine import child, machine, write
from update import SETTINGS, build, step

from reverie.experiment.bench import act_seconds

MODES = ("explore", "eval")


def measure(name: str, precision: str, envs: list[int], seconds: float = 2.0) -> list[dict[str, Any]]:
    """One row for each mode and number of environments, in milliseconds."""
    agent = build(name, precision)
    return [
        {"mode": mode, "envs": n, "act_ms": 1e3 * act_seconds(agent, step(name, n), mode, seconds=seconds)}
        for mode in MODES
        for n in envs
    ]


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="*", default=["V", "I"], choices=list(SETTINGS))
    parser.add_argument("--envs", type=int, nargs="*", default=[1, 8, 16])
    parser.add_argument("--precision", nargs="*", default=["float32"], choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--child", action="store_true", help="measure the one setting here and print it")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.child:
        print(json.dumps(measure(args.settings[0], args.precision[0], args.envs)))
        return 0
    rows = []
    for name, precision in [(n, p) for p in args.precision for n in args.settings]:
        words = ["--threads", str(args.threads), "--envs", *map(str, args.envs), "--precision", precision]
        for measured in child(Path(__file__), "--child", "--settings", name, *words):
            rows.append({"setting": name, "precision": precision, **measured})
            print(json.dumps(rows[-1]), flush=True)
    write(args.out, machine(args.threads), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
