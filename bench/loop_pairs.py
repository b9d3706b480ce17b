#!/usr/bin/env python3
"""What does the loop cost beside environments and arithmetic, in this checkout and in an older one?

    python bench/loop_pairs.py OLD [--cases td3 sac dqn ppo vector_1024 vector_8192] [--pairs 5]

OLD is the root of another checkout. Both run by turns at one thread, each run in a process of its own, by this Python
and with the same settings; medians of the process time of both, and of their ratios in one turn.

One environment (td3, sac, dqn, ppo): networks of 16 units and batches of 16 rows, so that hardly anything else is left;
all else is as by default, with logs and rows on disk. Microseconds an env step, without the step of the environment and
without the replayed operations of updates and of the policy: the loop, acting, counting, storing, sampling, launching
and logging. Counting begins after 2,000 env steps, when replays have begun. The first decile over steps of the loop's
thread depends least on what else the machine does; it has no steps with more than one update.

Vectors (vector_N): two million env steps of PPO on Gymnasium's vector CartPole, with rollouts of 32 rows, 4 epochs and
4 minibatches; process time of the whole command, start and end included.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import child, machine, write

WARM_UP, STEPS, VECTOR_STEPS = 2_000, 12_000, 2_000_000
QUIET = {"eval_episodes": 0, "threads": 1, "console": False, "algo.networks.units": (16, 16), "algo.batch_size": 16}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "td3": ("Pendulum-v1", {}), "sac": ("Pendulum-v1", {}), "dqn": ("CartPole-v1", {}), "ppo": ("CartPole-v1", {}),
    "vector_1024": ("CartPole-v1", {}), "vector_8192": ("CartPole-v1", {}),
}  # fmt: skip
"""The environment and further settings of each case."""


class Costs:
    """Process time of a run, and of the parts that are no cost of the loop."""

    def __init__(self) -> None:
        self.steps = 0
        self.apart = self.started = self.stopped = self.before = 0.0
        self.turns: list[float] = []

    def take_out(self, call: Any) -> Any:
        """Return ``call``, whose time is not counted."""

        @functools.wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                self.apart += time.thread_time() - start

        return timed

    def count(self, call: Any) -> Any:
        """Return the ``call`` that steps an environment, which is counted; the time between two steps is measured."""
        step = self.take_out(call)

        def counted(action: Any) -> Any:
            self.steps += 1
            now = time.thread_time() - self.apart
            if WARM_UP < self.steps <= WARM_UP + STEPS:
                self.turns.append(now - self.before)
            if self.steps in (WARM_UP, WARM_UP + STEPS):
                self.started, self.stopped = self.stopped, time.process_time() - self.apart
            self.before = now
            return step(action)

        return counted

    def make(self, env_id: str) -> Any:
        """Return a counted environment."""
        import gymnasium

        env = gymnasium.make(env_id)
        env.step = self.count(env.step)  # type: ignore[method-assign]  # a benchmark may
        return env


def measure_single(case: str) -> list[float]:
    """Return the microseconds an env step: the mean of all threads; the median and a decile of the loop's thread."""
    import reverie
    from reverie.kernels.tape import Tape

    env_id, settings = CASES[case]
    costs = Costs()
    Tape.replay = costs.take_out(Tape.replay)  # type: ignore[method-assign]  # a benchmark may
    with tempfile.TemporaryDirectory() as folder:
        reverie.train(
            case, functools.partial(costs.make, env_id), run=Path(folder, "run"), steps=WARM_UP + STEPS + 500,
            **{**QUIET, **settings, "env.num": 1},
        )  # fmt: skip
    decile = statistics.quantiles(costs.turns, n=10)[0]
    return [1e6 * (costs.stopped - costs.started) / STEPS, 1e6 * statistics.median(costs.turns), 1e6 * decile]


def measure_vector(case: str) -> list[float]:
    """Return the seconds of a whole command."""
    envs = int(case.removeprefix("vector_"))
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "env": CASES[case][0], "env.num": envs, "env.vectorization": "native", "steps": VECTOR_STEPS, "threads": 1,
            "algo.rollout": 32, "algo.epochs": 4, "algo.batch-size": 8 * envs, "run": Path(folder, "run"),
        }  # fmt: skip
        flags = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        subprocess.run([sys.executable, "-m", "reverie", "train", "ppo", *flags], check=True, capture_output=True)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return [usage.ru_utime + usage.ru_stime]


def measure(case: str) -> list[float]:
    """Return the cost of a case in this process."""
    return measure_vector(case) if case.startswith("vector") else measure_single(case)


def main() -> int:
    """Measure the pairs and write the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--child", action="store_true", help="measure the one case here and print it")
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(args.cases[0])))
        return 0
    roots = {"old": args.old.resolve(), "new": Path(__file__).resolve().parents[1]}
    commit = {name: subprocess.run(["git", "-C", str(root), "rev-parse", "--short", "HEAD"], check=True, text=True,
                                   capture_output=True).stdout.strip() for name, root in roots.items()}  # fmt: skip
    kept = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
    rows = {row["case"]: row for row in kept}
    for case in args.cases:
        costs: dict[str, list[list[float]]] = {name: [] for name in roots}
        for _ in range(args.pairs):
            for name, root in roots.items():
                setting = {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
                costs[name].append(child(Path(__file__), str(root), "--child", "--cases", case, setting=setting))
        is_vector = case.startswith("vector")
        rows[case] = {"case": case, "unit": "s" if is_vector else "us an env step", "commits": commit}
        rows[case] |= {"pairs": args.pairs}
        for i, part in enumerate(["process"] if is_vector else ["process", "median_step", "decile_step"]):
            old, new = ([values[i] for values in costs[name]] for name in roots)
            ratios = [b / a for a, b in zip(old, new, strict=True)]
            rows[case][part] = {
                "old": statistics.median(old), "new": statistics.median(new), "new_by_old": statistics.median(ratios),
                "least": min(ratios), "most": max(ratios),
            }  # fmt: skip
        print(json.dumps(rows[case]), flush=True)
        write(args.out, machine(1), [rows[name] for name in CASES if name in rows])
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
