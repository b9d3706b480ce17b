#!/usr/bin/env python3
"""How much slower is an update beside busy neighbours, on one thread and on two?

    python benchmarks/threads.py [--neighbours 0 1 3] [--out benchmarks/threads.json]

A neighbour is a process that does nothing but loop. Each measurement is a fresh process, since OpenMP reads its
settings once. Pairs are measured in turns (one thread, two threads, one thread, ...); medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
WORKER = "import sys, update, torch; torch.set_num_threads(int(sys.argv[1])); a = update.build('nano'); " + (
    "b = update.batch('nano', a); print(update.median(lambda: a.update(b), 3))"
)


def seconds(threads: int) -> float:
    """Of one update of the nano setting."""
    command = [sys.executable, "-c", WORKER, str(threads)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True, cwd=HERE).stdout)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--neighbours", type=int, nargs="*", default=[0, 1, 3])
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    table: dict[str, object] = {"cores": os.cpu_count(), "rows": []}
    for count in args.neighbours:
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
        try:
            samples = [(seconds(1), seconds(2)) for _ in range(3)]
        finally:
            for process in busy:
                process.kill()
        one, two = (statistics.median(s[i] for s in samples) for i in (0, 1))
        row = {"neighbours": count, "one_thread_s": round(one, 4), "two_threads_s": round(two, 4)}
        table["rows"].append(row)
        print(json.dumps(row), flush=True)
        args.out.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
