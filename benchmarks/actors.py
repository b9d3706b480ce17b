#!/usr/bin/env python3
"""Do actors beside the learner make more of two cores than environments that step during its updates?

    python benchmarks/actors.py [--cases cheetah] [--ways overlap actors_2] [--out benchmarks/actors.json]

Each way has two environments and a learner with one thread. Ways take turns, so that a busy hour meets all of them; a
rate is the median of the rounds. Counting begins after some updates. Processor time is of all processes of a way.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
from machine import child, family_seconds, machine, write

from reverie.build import build
from reverie.experiment import ExperimentConfig
from reverie.presets.layers import layered
from reverie.run.train import train
from reverie.scale.feed import feeding

WARM_UP, SECONDS, ROUNDS = 100, 8.0, 3
"""Updates before counting begins, seconds of counting, and how often each way is measured."""

QUIET = {"eval_episodes": 0, "schedule.eval_every": 0, "schedule.save_every": 0, "schedule.report_every": 0,
         "schedule.log_every": "5s", "learning_starts": 500, "threads": 1, "replay_ratio": 1.0}  # fmt: skip
CASES = {"cheetah": "HalfCheetah-v5", "sleeping": "Pendulum-v1"}
"""Environments; the second sleeps 5 ms a step."""
WAYS: dict[str, dict[str, Any]] = {
    "overlap": {"env.num": 2, "env.vector": "process"},
    "actors_1": {"env.num": 2, "actors": 1},
    "actors_2": {"env.num": 1, "actors": 2},
    "free_2": {"env.num": 1, "actors": 2, "ratio_slack": None},
    "torchrl_2": {},
}
"""Environments in workers that step during the updates; one actor and two, held to one update an env step; two actors
without a bound; and TorchRL's asynchronous collector with two processes, one update an env step."""
PEER = Path(__file__).with_name("peers") / "actors_torchrl.py"


class Sleeping(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that takes 5 ms a step without working, as a robot or a server does."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make(CASES["sleeping"]))

    def step(self, action: Any) -> Any:
        """Sleep, then step."""
        time.sleep(0.005)
        return self.env.step(action)


class Last:
    """A sink that remembers how many updates behind the policy was that acted."""

    behind = 0.0

    def write(self, values: Mapping[str, Any], step: int) -> None:
        """Remember."""
        self.behind = float(values.get("train/staleness", self.behind))

    def close(self) -> None:
        """Do nothing."""


def measure(case: str, way: str) -> dict[str, Any]:
    """Return env steps and updates a second, and how old the policy was that acted."""
    config: ExperimentConfig = layered("sac", env=CASES[case]).merge(QUIET | WAYS[way])
    with tempfile.TemporaryDirectory() as folder:
        experiment = build(config, Sleeping if case == "sleeping" else None, run=Path(folder), actors=feeding)
        experiment.begin()
        clock, feedback, begun = experiment.clock, experiment.source.feedback, list[float]()

        def counted(*args: Any) -> None:
            feedback(*args)
            if clock.updates + 1 == WARM_UP:  # the loop counts this update after feedback
                begun[:] = [time.perf_counter(), clock.env_steps, clock.updates + 1, family_seconds()]
            if begun and time.perf_counter() - begun[0] > SECONDS and not clock.stop:
                begun.append(family_seconds() - begun[3])
                clock.stop = True

        experiment.source.feedback = counted  # type: ignore[method-assign]  # a benchmark may
        last = Last()
        train(experiment.algo, experiment.source, clock, experiment.meter, collector=experiment.collector, sinks=[last])
        spent = time.perf_counter() - begun[0]
        experiment.close()
    steps, updates = (clock.env_steps - begun[1]) / spent, (clock.updates - begun[2]) / spent
    return {"env_steps_per_second": steps, "updates_per_second": updates, "updates_behind": last.behind,
            "processor_ms_per_env_step": 1000 * begun[4] / (clock.env_steps - begun[1])}  # fmt: skip


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--child", action="store_true", help="measure the one case and way here and print it")
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(args.cases[0], args.ways[0])))
        return 0
    rows = []
    for case in args.cases:
        found: dict[str, list[dict[str, Any]]] = {way: [] for way in args.ways}
        for _ in range(args.rounds):
            for way in args.ways:
                own = (Path(__file__), "--child", "--cases", case, "--ways", way)
                found[way].append(child(PEER, case) if way == "torchrl_2" else child(*own))
                print(case, way, json.dumps(found[way][-1]), flush=True)
        for way, each in found.items():
            middle = {name: statistics.median(one[name] for one in each) for name in each[0]}
            rows.append({"case": case, "way": way, **middle})
        write(args.out, machine(), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
