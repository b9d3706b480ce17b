#!/usr/bin/env python3
"""How long it takes from the command to the first env step and the first update, beside Stable-Baselines3.

    python bench/start.py [--algorithms sac ppo] [--times 5] [--where FOLDER]
    python bench/start.py --commands --times 21        what commands cost that do not need PyTorch

`reverie train ALGORITHM --env ENV`, and a script with `SAC("MlpPolicy", ENV).learn(...)`, each in a process of its own
with one thread, in turns. `cold`: the files that such a process reads are no longer in the file cache; `warm`: they
are. Kernels have been compiled, and Python's bytecode is kept. Medians of seconds, and of processor seconds, since the
process was started. Stable-Baselines3 has an environment of its own below `--where`, with the same version of PyTorch.
`--commands` measures processor time alone, and writes `start_commands.json`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ALGORITHMS = {"sac": "Pendulum-v1", "ppo": "CartPole-v1", "dqn": "CartPole-v1", "dreamer_v3": "CartPole-v1"}
"""What learns, and where."""
SB3 = ("stable-baselines3==2.9.2", "gymnasium==1.4.0", "numpy==2.4.6")
WITHOUT_SB3 = ("dreamer_v3",)

COMMANDS = {
    "python": ["-c", "pass"],
    "import reverie": ["-c", "import reverie"],
    "reverie --help": ["-m", "reverie", "--help"],
}
"""What Python is told; the first is its own part of the others."""

STARTED = "REVERIE_BENCH_STARTED"


class Marks:
    """When the first env step and the first update after it were over, since the process was started."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}

    def mark(self, event: str) -> None:
        """``event`` is over; the first update ends the process."""
        if event == "update" and "step_s" not in self.times:
            return
        self.times.setdefault(f"{event}_s", time.time() - float(os.environ[STARTED]))
        self.times.setdefault(f"{event}_processor_s", sum(os.times()[:4]))
        if event == "update":
            print(json.dumps(self.times | {"files": sorted(read_files())}), flush=True)
            os._exit(0)

    def after(self, owner: Any, name: str, event: str) -> None:
        """``event`` is over when ``owner.name`` returns."""
        call: Callable[..., Any] = getattr(owner, name)

        def marked(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            self.mark(event)
            return result

        setattr(owner, name, marked)


def read_files() -> set[str]:
    """Files of the modules and libraries of this process."""
    modules = [vars(module) for module in sys.modules.values()]
    cached = {str(module.get("__cached__") or module.get("__file__")) for module in modules}
    mapped = {line.split(maxsplit=5)[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines()}
    return {path for path in cached | mapped if path.startswith("/") and Path(path).is_file()}


def start_reverie(algorithm: str) -> None:
    """Run the command until its first update is over."""
    from reverie.algos.base import Algorithm
    from reverie.cli import main as reverie
    from reverie.run.collect import EnvCollector

    marks = Marks()
    marks.after(EnvCollector, "collect", "step")
    marks.after(Algorithm, "update", "update")
    with tempfile.TemporaryDirectory() as folder:
        reverie(["train", algorithm, "--env", ALGORITHMS[algorithm], "--run", f"{folder}/run"])


def start_sb3(algorithm: str) -> None:
    """Learn until the first step of an optimizer."""
    import stable_baselines3
    from torch.optim.optimizer import register_optimizer_step_post_hook

    marks = Marks()
    register_optimizer_step_post_hook(lambda *_: marks.mark("update"))
    learner = getattr(stable_baselines3, algorithm.upper())("MlpPolicy", ALGORITHMS[algorithm], device="cpu")
    learner.learn(1_000_000, lambda *_: marks.mark("step") is None)  # false would end it


def run(python: str, system: str, algorithm: str, files: Iterable[str]) -> dict[str, Any]:
    """Times of one start, without these files in the file cache."""
    for path in files:
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "", STARTED: repr(time.time())}
    command = [python, __file__, "--child", system, "--algorithms", algorithm]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    times: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return times


def measure(pythons: dict[str, str], algorithms: list[str], times: int) -> list[dict[str, Any]]:
    """A row of medians for each algorithm, system and state of the file cache."""
    cases = [(x, system) for x in algorithms for system in pythons if system == "reverie" or x not in WITHOUT_SB3]
    files = {case: run(pythons[case[1]], case[1], case[0], ())["files"] for case in cases}  # compiles what is missing
    runs: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for _, (algorithm, system), cache in itertools.product(range(times), cases, ("cold", "warm")):
        dropped = files[algorithm, system] if cache == "cold" else ()
        found = run(pythons[system], system, algorithm, dropped)
        del found["files"]
        runs.setdefault((algorithm, system, cache), []).append(found)
        print(algorithm, system, cache, found, flush=True)
    names = ("algorithm", "system", "cache")
    return [
        dict(zip(names, case, strict=True)) | {key: statistics.median(x[key] for x in several) for key in several[0]}
        for case, several in runs.items()
    ]


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
    parser.add_argument("--algorithms", nargs="*", default=list(ALGORITHMS), choices=list(ALGORITHMS))
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--where", type=Path, help="folder of the environment of Stable-Baselines3")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--commands", action="store_true", help="measure these alone")
    parser.add_argument("--child", choices=("reverie", "sb3"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        (start_reverie if args.child == "reverie" else start_sb3)(args.algorithms[0])
        return 1
    if args.commands:
        rows = [{"case": name, "processor_s": processor_seconds(words, args.times)} for name, words in COMMANDS.items()]
        args.out = args.out.with_name("start_commands.json")
    else:
        from peers.installed import WHERE, installed

        pythons = {"reverie": sys.executable}
        if sb3 := installed({"sb3_start": SB3}, args.where or WHERE):
            pythons["sb3"] = str(sb3["sb3_start"])
        rows = measure(pythons, args.algorithms, args.times)
    from machine import machine, write  # not before: this process would keep the files of PyTorch in the cache

    write(args.out, machine(), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
