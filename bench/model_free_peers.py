#!/usr/bin/env python3
"""How many updates model-free agents make in a second, in the libraries that people use today and in ours.

    python bench/model_free_peers.py [--tasks td3 sac tqc loop ...] [--systems sb3 ...] [--where FOLDER]

The work is the same for all: 17 observations, 6 actions (DQN and QR-DQN: 4 to choose from; 200 quantiles), two layers
of 256, batches of 256 sampled from the replay of each library, which holds 100,000 transitions, Adam, float32, the CPU.
TQC, CrossQ, SimBa, REDQ, DroQ, SimbaV2 and XQC have the networks of their papers.
`loop` is TD3 on HalfCheetah-v5, one update after each step, in steps per second.

Each library gets a virtual environment of its own under `--where`, made once. Each measurement is a process of its own
(`peers/rates_*.py`), which prints one line of JSON. A round measures everybody in turn; the result is the median over
the rounds, and ratios compare what was measured in one round. With one thread, time is that of the process, so that
what else runs on the machine counts less, but for `loop`. Rows of tasks and systems that were not measured stay
as they are.

The authors' code of SimbaV2 and XQC is in no package index: clone DAVIAN-Robotics/SimbaV2 and danielpalenicek/xqc and
say where, `--clones SimbaV2 xqc`; without that it is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import machine, write
from peers.installed import WHERE, installed

HERE = Path(__file__).parent
TASKS = ("td3", "sac", "ddpg", "dqn", "qr_dqn", "tqc", "crossq", "simba", "redq", "droq", "simba_v2", "xqc", "loop")
LIMIT = 600
"""Seconds that one measurement may take."""
OURS = "reverie"


@dataclass(frozen=True)
class System:
    """Something to measure."""

    title: str
    """What its column is called."""
    tasks: Sequence[str]
    """What it can do."""
    environment: str = ""
    """The name of its virtual environment; empty: this one."""
    packages: Sequence[str] = ()
    """What stands in it."""
    script: str = ""
    """`peers/rates_<script>.py`."""
    variant: str = ""
    """Handed to the script."""
    note: str = ""
    """What must be said of it."""
    cloned: bool = False
    """Whether its code comes from `--clones`."""


CHEETAH = ("gymnasium[mujoco]==1.4.0", "mujoco==4.0.0", "numpy==2.4.6")
SYSTEMS = {
    OURS: System(
        "reverie", TASKS, script="reverie",
        note="loop: keeps every row for good, logs and writes checkpoints, its defaults; the others write nothing",
    ),
    "sb3": System(
        "Stable-Baselines3 2.9.2", (*TASKS[:7], "loop"), "sb3",
        ("stable-baselines3==2.9.2", "sb3-contrib==2.9.2", *CHEETAH), "sb3",
        note="QR-DQN, TQC and CrossQ from sb3-contrib; ten updates in each call; DQN clips gradients, its targets are "
             "not moved",
    ),
    "tianshou": System("Tianshou 2.0.1", (*TASKS[:5], "loop"), "tianshou", ("tianshou==2.0.1", *CHEETAH), "tianshou"),
    "torchrl": System(
        "TorchRL 0.14.1", TASKS[:4], "torchrl",
        ("torchrl==0.14.1", "tensordict==0.14.3", "transformers==5.24.0", "numpy==2.4.6"), "torchrl",
        note="batches are not sampled ahead in threads, as in its examples: that takes a third of its speed here",
    ),
    "d3rlpy": System("d3rlpy 2.8.1", TASKS[:5], "d3rlpy", ("d3rlpy==2.8.1", "numpy==2.4.6"), "d3rlpy"),
    "script": System(
        "plain script", (*TASKS[:4], "simba", "redq", "droq", "loop"), "script", CHEETAH, "script",
        note="in the style of CleanRL: `bench/peers/rates_script.py`",
    ),
    "compiled": System(
        "plain script, compiled", ("td3",), "script", CHEETAH, "script", "compiled",
        note="with torch.compile around the steps of actor and critics",
    ),
    "authors": System(
        "the authors' JAX", ("simba_v2", "xqc"), "authors",
        ("jax==0.4.30", "jaxlib==0.4.30", "flax==0.8.4", "optax==0.2.3", "chex==0.1.90", "scipy==1.13.1",
         "tensorflow-probability==0.24.0", "gymnasium==1.4.0", "omegaconf==2.3.0", "numpy==1.26.4"),
        "authors", cloned=True,
        note="DAVIAN-Robotics/SimbaV2 86899c2 and danielpalenicek/xqc 9a6832b, compiled by JAX 0.4.30; XQC with a "
             "single seed",
    ),
}  # fmt: skip

Numbers = dict[str, Any]
"""What `peers/rates.py` prints."""
MEDIANS = ("per_s", "first_s", "peak_gb", "others_cores")
"""Of these: how much other processes worked meanwhile, too, in cores. Where that is not 0, nothing can be trusted."""


def measured(python: Path, system: System, task: str, args: argparse.Namespace) -> Numbers:
    """The numbers of one system in a fresh process.

    Raises:
        RuntimeError: it failed; with the last line that it said.
        TimeoutExpired: it took more than `LIMIT`.
    """
    quiet = {"RL_LOGGING_LEVEL": "ERROR", "PYTHONWARNINGS": "ignore"}
    env = os.environ | quiet | {"OMP_NUM_THREADS": str(args.threads), "CUDA_VISIBLE_DEVICES": ""}
    env |= {"PYTHONPATH": os.pathsep.join(str(clone.resolve()) for clone in args.clones)} if system.cloned else {}
    words = [task, "--variant", system.variant, "--threads", args.threads]
    words += ["--seconds", args.seconds, "--steps", args.steps]
    command = [*args.under, python, HERE / "peers" / f"rates_{system.script}.py", *words]
    done = subprocess.run(
        [str(w) for w in command], env=env, capture_output=True, text=True, check=False, timeout=LIMIT
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1])
    numbers: Numbers = json.loads(done.stdout.splitlines()[-1])
    return numbers


class Rounds:
    """One task: everybody in turn, several times."""

    def __init__(self, task: str, args: argparse.Namespace, systems: Mapping[str, System]):
        self.task, self.args, self.systems = task, args, systems
        self.runs: dict[str, list[Numbers]] = {}
        self.failed: dict[str, str] = {}

    def run(self, pythons: dict[str, Path]) -> None:
        """All rounds. What failed once is not tried again."""
        for number in range(self.args.rounds):
            for name in self.args.systems:
                system = self.systems[name]
                python = pythons.get(system.environment) if system.environment else Path(sys.executable)
                if self.task in system.tasks and python is not None and name not in self.failed:
                    self._measure(name, python, number)

    def _measure(self, name: str, python: Path, number: int) -> None:
        try:
            numbers = measured(python, self.systems[name], self.task, self.args)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            self.failed[name] = str(error)
            print(f"{self.task} {name}: failed: {error}", flush=True)
            return
        self.runs.setdefault(name, []).append(numbers)
        disturbed = f", beside others on {numbers['others_cores']:.1f} cores" if numbers["others_cores"] > 0.1 else ""
        print(f"{self.task} {name}, round {number + 1}: {numbers['per_s']:.1f} /s{disturbed}", flush=True)

    def rows(self) -> list[Numbers]:
        """Medians over the rounds, with how many times as fast ours was in the same round; of a failure, why."""
        out = []
        for name, runs in self.runs.items():
            if name in self.failed:
                continue
            middle = {key: statistics.median(run[key] for run in runs) for key in MEDIANS}
            ours = self.runs.get(OURS, []) if OURS not in self.failed else []
            ratios = [mine["per_s"] / run["per_s"] for mine, run in zip(ours, runs, strict=False)]
            ratio = statistics.median(ratios) if ratios else None
            rounds = [round(run["per_s"], 1) for run in runs]
            out.append({**self._head(name), **middle, "ours_to_it": ratio, "rounds": rounds,
                        "versions": runs[0]["versions"]})  # fmt: skip
        failed = [{**self._head(name), "note": f"failed at {self.task}: {why}"} for name, why in self.failed.items()]
        return out + failed

    def _head(self, name: str) -> Numbers:
        system = self.systems[name]
        return {"task": self.task, "threads": self.args.threads, "key": name, "system": system.title,
                "note": system.note}  # fmt: skip


def merged(
    old: Sequence[Numbers], new: Sequence[Numbers], tasks: Sequence[str] = TASKS, names: Sequence[str] = tuple(SYSTEMS)
) -> list[Numbers]:
    """The rows of ``new``, and of ``old`` those that were not measured again, in the order of tasks and systems."""

    def kind(row: Numbers) -> tuple[int, int, int]:
        return tasks.index(row["task"]), row.get("threads", 2), names.index(row["key"])

    return [row for _, row in sorted({kind(row): row for row in (*old, *new)}.items())]


def options(said: str | None, tasks: Sequence[str], systems: Mapping[str, System], out: Path) -> argparse.Namespace:
    """The command line of a script that says this of itself."""
    parser = argparse.ArgumentParser(description=said, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="*", default=list(tasks), choices=tasks)
    parser.add_argument("--systems", nargs="*", default=list(systems), choices=list(systems))
    parser.add_argument("--where", type=Path, default=WHERE, help="folder of the environments")
    parser.add_argument("--clones", nargs="*", type=Path, default=[], help="of the authors' repositories")
    parser.add_argument("--threads", nargs="*", type=int, default=[2], help="numbers of threads, each measured")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of updates in each process")
    parser.add_argument("--steps", type=int, default=2000, help="of the loop, after its warm-up")
    parser.add_argument("--under", nargs="*", default=[], help="a command to run each measurement under, as taskset")
    parser.add_argument("--out", type=Path, default=out)
    return parser.parse_args()


def main() -> int:
    """Install, measure, write and print."""
    return compare(__doc__, TASKS, SYSTEMS, Path(__file__).with_suffix(".json"))


def compare(said: str | None, tasks: Sequence[str], systems: Mapping[str, System], out: Path) -> int:
    """What a script does that says this of itself."""
    args = options(said, tasks, systems, out)
    args.systems = [name for name in args.systems if args.clones or not systems[name].cloned]
    wanted = {systems[name].environment: systems[name].packages for name in args.systems if systems[name].packages}
    pythons = installed(wanted, args.where)
    rows: list[Numbers] = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
    most = max(*args.threads, *(row.get("threads", 2) for row in rows), 1)
    here = machine(most) | {"threads": most}
    for task in args.tasks:
        for threads in args.threads:
            turns = Rounds(task, argparse.Namespace(**vars(args) | {"threads": threads}), systems)
            turns.run(pythons)
            rows = merged(rows, turns.rows(), tasks, list(systems))
            write(args.out, here, rows)
    for row in rows:
        print(json.dumps(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
