#!/usr/bin/env python3
"""How long it takes from typing `reverie train ...` to the end of the first update, and what with.

    python benchmarks/start.py [--cases start_cartpole start_12m] [--kernels cold warm off] [--times 3]
    python benchmarks/start.py --commands --times 21        what commands cost that do not need PyTorch

The command itself, in a process of its own. `cold`: kernels are compiled first; `warm`: they were before; `off`:
everything in PyTorch. `--times` runs of each, of which the medians count. `--commands` measures processor time and
writes `start_commands.json`.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reverie.cli import main as reverie

CASES = {
    "start_cartpole": ["--env", "CartPole-v1"],
    "start_cpu": ["--env", "reverie/Grid-v0", "--env.kwargs", "{size: 64}", "--preset", "cpu"],
    "start_12m": ["--env", "reverie/Grid-v0", "--env.kwargs", "{size: 64}", "--size", "12m"],
}
"""What `reverie train dreamer_v3` is told."""

COMMANDS = {
    "python": ["-c", "pass"],
    "import reverie": ["-c", "import reverie"],
    "reverie --help": ["-m", "reverie", "--help"],
}
"""What Python is told; the first is its own part of the others."""

KERNELS = ("cold", "warm", "off")
PARTS = ("imports", "compile", "build", "collect", "update")


class Marks:
    """When each part was over, in seconds since the process was started."""

    def __init__(self) -> None:
        self.started = float(os.environ["REVERIE_BENCH_STARTED"])
        self.seconds: dict[str, float] = {}

    def mark(self, part: str) -> None:
        """``part`` is over."""
        self.seconds[part] = time.time() - self.started - sum(self.seconds.values())

    def around(
        self, owner: Any, name: str, before: str, after: str, then: Callable[[Marks], None] | None = None
    ) -> None:
        """The first call of ``owner.name`` ends the parts ``before`` and ``after``; ``then`` comes after it."""
        call = getattr(owner, name)

        @functools.wraps(call)
        def marked(*args: Any, **kwargs: Any) -> Any:
            self.mark(before)
            result = call(*args, **kwargs)
            self.mark(after)
            if then is not None:
                then(self)
            return result

        setattr(owner, name, marked)


def child(case: str) -> None:
    """Run the command until its first update is over; print the parts and end the process."""
    marks = Marks()
    import reverie.cli.train as command  # with torch and all that a run needs
    from reverie import api as training
    from reverie.algos.base import Algorithm
    from reverie.kernels import compiler

    compile_first(command, marks, compiler.load_kernels)
    marks.around(training, "build", "compile", "build")
    marks.around(Algorithm, "update", "collect", "update", leave)
    with tempfile.TemporaryDirectory() as folder:
        reverie(["train", "dreamer_v3", *CASES[case], "--run", str(Path(folder) / "run")])


def leave(marks: Marks) -> None:
    """End the process where it stands."""
    print(json.dumps(marks.seconds), flush=True)
    os._exit(0)


def compile_first(command: Any, marks: Marks, kernels: Callable[[], Any]) -> None:
    """Let the command ask for kernels before all else, so that their time is a part by itself."""
    train = command.train_config

    def timed(*args: Any, **kwargs: Any) -> Any:
        marks.mark("imports")
        kernels()
        return train(*args, **kwargs)

    command.train_config = timed


def measure(case: str, kernels: str, times: int) -> dict[str, float]:
    """Seconds of each part, medians, and of the whole."""
    from machine import child as run

    runs = []
    with tempfile.TemporaryDirectory() as cache:
        for i in range(times + (kernels == "warm")):
            os.environ["XDG_CACHE_HOME"] = str(Path(cache) / str(0 if kernels == "warm" else i))
            os.environ["REVERIE_KERNELS"] = "off" if kernels == "off" else ""
            runs.append(run(Path(__file__), "--child", "--cases", case))
    runs = runs[kernels == "warm" :]  # the first one has compiled
    parts = {part: statistics.median(run[part] for run in runs) for part in PARTS}
    return {**parts, "first_update_s": statistics.median(sum(run.values()) for run in runs)}


def processor_seconds(words: list[str], times: int) -> float:
    """Processor time of a whole process, its median; with bytecode, as after an installation."""
    spent = []
    for _ in range(times + 1):
        subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)  # of all children so far
        spent.append(used.ru_utime + used.ru_stime)
    return statistics.median(after - before for before, after in itertools.pairwise(spent))


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--kernels", nargs="*", default=list(KERNELS), choices=KERNELS)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--commands", action="store_true", help="measure these alone")
    parser.add_argument("--child", action="store_true", help="run the one case here and print its parts")
    args = parser.parse_args()
    if args.child:
        child(args.cases[0])
        return 1
    from machine import machine, write

    if args.commands:
        rows = [{"case": name, "processor_s": processor_seconds(words, args.times)} for name, words in COMMANDS.items()]
        write(args.out.with_name("start_commands.json"), machine(), rows)
        return 0
    rows = []
    for case in args.cases:
        for kernels in args.kernels:
            rows.append({"case": case, "kernels": kernels, **measure(case, kernels, args.times)})
            print(json.dumps(rows[-1]), flush=True)
    write(args.out, machine(), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
