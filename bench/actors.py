#!/usr/bin/env python3
"""Do actors beside the learner make more of two cores than environments that step during its updates?

    python bench/actors.py [--cases cheetah] [--ways overlap actors_2] [--out bench/actors.json]

Each way has two environments and a learner with one thread. Ways take turns, so that a busy hour meets all of them; a
rate is the median of the rounds. Counting begins after some updates. Processor time is of all processes of a way. Rows
replace earlier ones of the same case and way in the file. Beside other libraries (`actors_peers.json`), which get
environments of their own under `--where`:

    python bench/actors.py --ways actors_2 torchrl_2 tianshou_2 rllib_2 --out bench/actors_peers.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from machine import child, machine, write
from peers.acting import CASES, LEAST, SECONDS, STARTS, WARM_UP, Sleeping, family_seconds
from peers.installed import WHERE, installed

from reverie.distributed.actor_collector import build_actor_collector
from reverie.experiment.build import build
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.settings import Request, merge_layers
from reverie.run.loop import train_loop

ROUNDS = 3
"""How often each way is measured."""

QUIET = {"eval_episodes": 0, "schedule.eval_every": 0, "schedule.save_every": 0, "schedule.report_every": 0,
         "schedule.log_every": "5s", "learning_starts": STARTS, "threads": 1, "replay_ratio": 1.0}  # fmt: skip
WAYS: dict[str, dict[str, Any]] = {
    "overlap": {"env.num": 2, "env.vectorization": "async"},
    "actors_1": {"env.num": 2, "actors": 1},
    "actors_2": {"env.num": 1, "actors": 2},
    "free_2": {"env.num": 1, "actors": 2, "ratio_tolerance": None},
}
"""Environments in workers that step during the updates; one actor and two, held to one update an env step; two actors
without a bound."""
PEERS: dict[str, tuple[str, ...]] = {
    "torchrl_2": (),
    "tianshou_2": ("tianshou==2.0.1", "gymnasium[mujoco]==1.4.0", "mujoco==4.0.0", "numpy==2.4.6"),
    "rllib_2": ("ray[rllib]==2.60.0", "gymnasium[mujoco]==1.2.2", "mujoco==4.0.0", "numpy==2.4.6"),
}
"""Two processes each and one update an env step: TorchRL's asynchronous collector, from this environment; Tianshou's
collector and RLlib's env runners, for which they wait. What their environments hold."""


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
    config: ExperimentConfig = merge_layers(Request(algorithm="sac", env=CASES[case])).merge(QUIET | WAYS[way])
    with tempfile.TemporaryDirectory() as folder:
        experiment = build(
            config, Sleeping if case == "sleeping" else None, run=Path(folder), actors=build_actor_collector
        )
        experiment.begin()
        clock, feedback, begun = experiment.clock, experiment.source.feedback, list[float]()

        def counted(*args: Any) -> None:
            feedback(*args)
            if clock.updates + 1 == WARM_UP:  # the loop counts this update after feedback
                begun[:] = [time.perf_counter(), clock.env_steps, clock.updates + 1, family_seconds()]
            long = begun and time.perf_counter() - begun[0] > SECONDS and clock.env_steps - begun[1] > LEAST
            if long and not clock.stop:
                begun.append(family_seconds() - begun[3])
                clock.stop = True

        experiment.source.feedback = counted  # type: ignore[method-assign]  # a benchmark may
        last = Last()
        train_loop(
            experiment.algo, experiment.source, clock, experiment.meter, collector=experiment.collector, sinks=[last]
        )
        spent = time.perf_counter() - begun[0]
        experiment.close()
    steps, updates = (clock.env_steps - begun[1]) / spent, (clock.updates - begun[2]) / spent
    return {"env_steps_per_second": steps, "updates_per_second": updates, "updates_behind": last.behind,
            "processor_ms_per_env_step": 1000 * begun[4] / (clock.env_steps - begun[1])}  # fmt: skip


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=[*WAYS, *PEERS])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--where", type=Path, default=WHERE, help="folder of the environments of peers")
    parser.add_argument("--child", action="store_true", help="measure the one case and way here and print it")
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(args.cases[0], args.ways[0])))
        return 0
    pythons = installed({way: PEERS[way] for way in args.ways if PEERS.get(way)}, args.where)
    ways = [way for way in args.ways if way in pythons or not PEERS.get(way)]
    about, rows = machine(), json.loads(args.out.read_text())["rows"] if args.out.exists() else []
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for case, _, way in itertools.product(args.cases, range(args.rounds), ways):
        own = (Path(__file__), "--child", "--cases", case, "--ways", way)
        peer = (Path(__file__).with_name("peers") / f"actors_{way.removesuffix('_2')}.py", case)
        try:
            numbers = child(*(own if way in WAYS else peer), python=pythons.get(way, sys.executable))
        except RuntimeError as error:
            print(case, way, error, file=sys.stderr, flush=True)
            continue
        each = found.setdefault((case, way), [])
        each.append({**numbers, "load": os.getloadavg()[0]})
        print(case, way, json.dumps(each[-1]), flush=True)
        middle = {name: statistics.median(one[name] for one in each) for name in each[0]}
        rows = [row for row in rows if (row["case"], row["way"]) != (case, way)]
        rows.append({"case": case, "way": way, "rounds": len(each), **middle})
        write(args.out, about, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
