#!/usr/bin/env python3
"""Compare the speed of two checkouts: updates of a learner, in turn, by process time at one thread.

    python tools/speed_pairs.py OLD NEW td3 sac dqn            8 pairs of each; prints the median of old / new
    python tools/speed_pairs.py OLD NEW dreamer_v3 --pairs 20
    python tools/speed_pairs.py . . td3 dqn --compile --pairs 3     OLD without kernels, by torch.compile

OLD and NEW are roots of checkouts, both run by this Python. A ratio above 1 says that NEW is faster. Process time
changes less than wall-clock time while other programs run. REVERIE_KERNELS=off compares the definitions.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from typing import Any

UPDATES = {"dreamer": 12, "plan2explore": 8, "r2dreamer": 12, "tdmpc2": 20}
"""Timed updates by the beginning of the algorithm's name; 200 of all others."""


def learner_and_batch(name: str, settings: dict[str, int] | None = None) -> tuple[Any, Any]:
    """Return a learner of vectors with its default settings, or some others, and a batch of random rows for it."""
    import torch

    from reverie.algos.table import algorithm_config
    from reverie.core.specs import ActionPart, ActionSpec, ObsPart
    from reverie.core.types import Batch

    config = algorithm_config(name)()
    choices = "continuous" not in config.action_kinds
    part = ActionPart(kind="categorical", classes=(6,)) if choices else ActionPart(kind="continuous", size=6)
    obs, action = {"state": ObsPart(kind="vector", shape=(17,), dtype="float32")}, ActionSpec(parts={"action": part})
    module = sys.modules[type(config).__module__]
    sized = getattr(module, "sized", None) or getattr(module, "with_size", None)
    config = sized("1m" if name in ("tdmpc2", "bmpc") else "nano") if sized else config
    changes = {name: value for name, value in (settings or {}).items() if name in type(config).__dataclass_fields__}
    learner = config.merge(changes).build(obs, action)
    generator = torch.Generator().manual_seed(0)
    window = learner.window
    b, t = (1, window.rollout + 1) if window.rollout else (window.batch, window.rows)
    no = torch.zeros(b, t, dtype=torch.bool)
    actions = torch.rand(b, t, 6, generator=generator) * 2 - 1
    sampling = getattr(learner, "goal_sampling", None)  # of goal-conditioned learners
    named = (*sampling.shares, *(("low", "high") if sampling.subgoal_steps else ())) if sampling else ()
    goals = {f"{goal}/state": torch.randn(b, t - 1, 17, generator=generator) for goal in named}
    batch = Batch(
        obs={"state": torch.randn(b, t, 17, generator=generator)},
        action=torch.nn.functional.one_hot(actions.argmax(-1), 6).float() if choices else actions,
        reward=torch.randn(b, t, generator=generator), is_first=no, is_last=no.clone(), is_terminal=no.clone(),
        weight=torch.ones(b), index=torch.zeros(b, dtype=torch.int64),
        extras={
            key: torch.zeros(b, t, *column.shape, dtype=getattr(torch, column.dtype))
            for key, column in learner.extra_spec.items()
        },
        **({"goals": goals} if goals else {}),
    )  # fmt: skip
    return learner, learner.prepare_rollout(batch) if hasattr(learner, "prepare_rollout") else batch


def measure(name: str, compiles: bool) -> float:
    """Return the process time of an update of ``name`` in seconds, in the checkout that PYTHONPATH names."""
    import torch

    torch.set_num_threads(1)
    learner, batch = learner_and_batch(name)
    if compiles:
        learner.train_step = torch.compile(learner.train_step)
    count = next((n for start, n in UPDATES.items() if name.startswith(start)), 200)
    for _ in range(6):
        learner.update(batch)
    start = time.process_time()
    for _ in range(count):
        learner.update(batch)
    return (time.process_time() - start) / count


def main() -> None:
    """Measure the pairs, and print a line for each algorithm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("algos", nargs="+")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--compile", action="store_true", help="OLD runs without kernels, by torch.compile")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(measure(args.algos[0], args.compile))
        return
    for name in args.algos:
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(args.pairs):
            for root, seconds, compiles in ((args.old, times[0], args.compile), (args.new, times[1], False)):
                env = os.environ | {"PYTHONPATH": os.path.join(os.path.abspath(root), "src"), "OMP_NUM_THREADS": "1"}
                env |= {"REVERIE_KERNELS": "off"} if compiles else {}
                command = [sys.executable, __file__, root, root, name, "--measure", *["--compile"] * compiles]
                seconds.append(float(subprocess.run(command, env=env, check=True, capture_output=True).stdout))
        ratios = [a / b for a, b in zip(*times, strict=True)]
        least = [min(seconds) * 1e3 for seconds in times]
        print(
            f"{name:<16} old / new: median {statistics.median(ratios):.3f} of {min(ratios):.3f} to {max(ratios):.3f}; "
            f"least {least[0]:.3f} and {least[1]:.3f} ms an update",
            flush=True,
        )


if __name__ == "__main__":
    main()
