#!/usr/bin/env python3
"""Where the time of the whole loop goes: how much is not the update?

    python bench/loop.py [--cases cartpole_1 image_nano] [--out bench/loop.json]

Real runs, with their logs, in a process each. Counting begins after a few updates, when the replay is warm. Time in
one part that another one calls belongs to the inner part only, so the parts add up. On a GPU every part is waited for,
which takes away what they overlap.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from machine import child, machine, write

from reverie.core.hardware import synchronize
from reverie.core.specs import EXTRAS
from reverie.core.types import Batch
from reverie.experiment.build import Experiment, build
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.settings import Request, merge_layers
from reverie.log.meter import DeviceMeter
from reverie.log.sinks import LogOutputs
from reverie.run import loop as loop
from reverie.run.checkpoint import export_checkpoint
from reverie.run.metrics_log import FiniteCheck, MetricsLog
from reverie.store.store import ReplayStore

WARM_UP = 4
"""Updates before counting begins."""

QUIET = {"eval_episodes": 0, "schedule.eval_every": 0, "schedule.save_every": 0, "schedule.report_every": 0}
GRID = {"env.kwargs": {"size": 64}, "env.num": 4, "env.vectorization": "async", "replay.capacity": 10_000}
EARLY = {"learning_starts": 1000, "random_steps": 1000}
MANY = {"env.num": 64, "replay_ratio": 1 / 64, "learning_starts": 1000}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "cartpole_1": ({"env": "CartPole-v1"}, {"env.num": 1}, 80),
    "cartpole_4": ({"env": "CartPole-v1"}, {"env.num": 4}, 80),
    "image_nano": ({"env": "reverie/Grid-v0", "preset": "cpu"}, GRID, 24),
    "image_12m": ({"env": "reverie/Grid-v0"}, {**GRID, "learning_starts": 64}, 6),
    "cheetah_td3": ({"algorithm": "td3", "env": "HalfCheetah-v5"}, EARLY, 4000),
    "pendulum_td3": ({"algorithm": "td3", "env": "Pendulum-v1"}, EARLY, 4000),
    "cartpole_64_serial": ({"algorithm": "dqn", "env": "CartPole-v1"}, MANY, 400),
    "cartpole_64_process": ({"algorithm": "dqn", "env": "CartPole-v1"}, MANY | {"env.vectorization": "async"}, 400),
    "pong_envpool_16": (
        {"algorithm": "dqn", "env": "envpool/Pong-v5"},
        MANY | {"env.num": 16, "env.vectorization": "native", "replay_ratio": 1 / 16, "replay.capacity": 20_000},
        200,
    ),
    "cartpole_64_native": ({"algorithm": "dqn", "env": "CartPole-v1"}, MANY | {"env.vectorization": "native"}, 400),
}
"""What `train` is told, further settings, and how many updates are counted."""


class Stopwatch:
    """Seconds spent in watched functions, those of the functions that they call not included."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.inner = [0.0]  # for each watched call that is running: seconds in watched calls below it
        self.started = time.perf_counter()

    def watch(self, owner: object, method: str, part: str, after: Callable[[], None] = lambda: None) -> None:
        """Count ``owner.method`` as ``part``, with ``after`` it; nothing if there is no such method."""
        call = getattr(owner, method, None)
        if call is None:
            return

        @functools.wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            self.inner.append(0.0)
            try:
                value = call(*args, **kwargs)
                after()
                return value
            finally:
                spent = time.perf_counter() - started
                self.seconds[part] += spent - self.inner.pop()
                self.inner[-1] += spent

        setattr(owner, method, timed)

    def restart(self) -> None:
        """Forget everything up to now."""
        self.seconds.clear()
        self.inner = [0.0] * len(self.inner)
        self.started = time.perf_counter()

    def total(self) -> float:
        """Seconds since the last restart."""
        return time.perf_counter() - self.started


def watch_all(watch: Stopwatch, experiment: Experiment, meter: DeviceMeter) -> None:
    """Everything that the loop calls."""
    wait = functools.partial(synchronize, experiment.algo.device)
    collector, replay = experiment.collector, experiment.replay
    for owner, part, methods in [
        (collector, "collect", ("collect", "pop_episodes")),
        (collector.policy, "act", ("act", "extras")),
        (collector.env, "env", ("step", "send", "receive")),
        (collector.sink, "store", ("add",)),
        (replay, "sample", ("sample",)),
        (Batch, "to_device", ("to",)),
        (experiment.algo, "update", ("update",)),
        (replay, "feedback", ("feedback",)),
        (meter, "meter", ("add", "flush")),
        (FiniteCheck, "meter", ("add",)),
        (MetricsLog, "log", ("log", "write", "episodes")),
    ]:
        for method in methods:
            watch.watch(owner, method, part, wait)


def count_updates(watch: Stopwatch, experiment: Experiment, updates: int) -> Counter[str]:
    """Let counting begin after the first few updates, and end the run ``updates`` later. What is returned fills up."""
    clock, feedback, begun = experiment.clock, experiment.replay.feedback, Counter[str]()

    def counted(*args: Any) -> None:
        feedback(*args)
        if clock.updates + 1 == WARM_UP:  # the loop counts this update after feedback
            watch.restart()
            begun.update(env_steps=clock.env_steps, updates=WARM_UP)
        clock.stop = clock.updates + 1 >= WARM_UP + updates

    experiment.replay.feedback = counted  # type: ignore[method-assign]  # a benchmark may
    return begun


def measure(case: str) -> dict[str, Any]:
    """Milliseconds of each part for an update, and the share of all that is not the update."""
    layers, changes, updates = CASES[case]
    config: ExperimentConfig = merge_layers(Request(**{"algorithm": "dreamer_v3", **layers})).merge(
        {**changes, **QUIET}
    )
    experiment, meter, watch = build(config), DeviceMeter(), Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        outputs = LogOutputs(path=Path(folder), title=case, settings=config.to_dict(), export=export_checkpoint)
        sinks = list(outputs._iter_sinks(experiment.clock, None))
        store = ReplayStore(Path(folder) / "replay")
        kept = {k: column for k, column in experiment.replay.storage.specs.items() if not k.startswith(EXTRAS)}
        store.begin(kept, config.env.num)
        experiment.replay.attach(store)
        watch_all(watch, experiment, meter)
        begun = count_updates(watch, experiment, updates)
        clock, collector = experiment.clock, experiment.collector
        loop.train_loop(experiment.algo, experiment.replay, clock, meter, sinks=sinks, collector=collector,
                   schedule=config.schedule)  # fmt: skip
        total = watch.total()
        store.close()
        for sink in sinks:
            sink.close()
    experiment.close()
    made, steps = clock.updates - begun["updates"], clock.env_steps - begun["env_steps"]
    parts = {part: 1e3 * seconds / made for part, seconds in sorted(watch.seconds.items())}
    whole = 1e3 * total / made
    return {
        "envs": config.env.num, "vectorization": config.env.vectorization, "threads": torch.get_num_threads(),
        "updates": made, "env_steps_an_update": steps / made,
        "ms_an_update": whole, "parts": {**parts, "other": whole - sum(parts.values())},
        "share_beside_update": 1 - parts["update"] / whole,
    }  # fmt: skip


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--child", action="store_true", help="measure the one case here and print it")
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(args.cases[0])))
        return 0
    rows = []
    for case in args.cases:
        rows.append({"case": case, **child(Path(__file__), "--child", "--cases", case)})
        print(json.dumps(rows[-1]), flush=True)
    write(args.out, machine(), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
