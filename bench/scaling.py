#!/usr/bin/env python3
"""What does scale cost, and where does a run with many actors and learners saturate?

    python bench/scaling.py [--out bench/scaling.json]

Each part is measured alone, in seconds of a processor, since the machine may be busy: a row for its actor and for its
learner, an update, weights, and an all-reduce between two processes. Then two nodes of Ray's run the whole; what Ray
adds to a block of rows comes from a run with one actor, and the model has to predict the processor time of the learner
in a run with two. Last it predicts more actors and learners than there are here. docs/tools/figures.py draws it.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import math
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import child, machine, tidy
from results import save

from reverie.core.types import FLAGS
from reverie.distributed.actor_collector import ActorCollector, build_actor_collector
from reverie.distributed.actor_connection import MAX_SPINS, RowBlock
from reverie.distributed.ray_learners import PLACEMENT_VAR
from reverie.envs.slot_vector_env import make_vector_env
from reverie.experiment.build import build
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.settings import Request, merge_layers
from reverie.run.collect import EnvCollector
from reverie.run.loop import train_loop

QUIET = {"eval_episodes": 0, "schedule.eval_every": 0, "schedule.save_every": 0, "schedule.report_every": 0,
         "schedule.log_every": 0, "learning_starts": 300, "random_steps": 0, "threads": 1, "actors": 1,
         "device": "cpu"}  # fmt: skip
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "cheetah": ("sac", "HalfCheetah-v5", {"replay_ratio": 1.0}),
}
"""Algorithm, environment, settings."""
ACTORS, LEARNERS, RATIOS, ENVS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512), (1, 8), (1.0, 1 / 16, 1 / 256), (1, 8)
STEP = 0.005
"""What is predicted: environments that take so many seconds a step, one after the other in an actor."""
PART = 0.05
"""Part of a learner's time that publishing weights, and telling actors how far they may go, may take each."""
NETWORK = 1.25e9
"""Bytes a second of the network that is assumed: 10 Gbit/s."""


def settings(case: str, **more: Any) -> ExperimentConfig:
    """The settings of a case."""
    name, env, own = CASES[case]
    config: ExperimentConfig = merge_layers(Request(algorithm=name, env=env)).merge(QUIET | own | more)
    return config


def cost(act: Callable[[], Any], seconds: float = 1.0, least: int = 3) -> float:
    """Processor seconds of a call: the median of single calls, after one."""
    act()
    spent: list[float] = []
    while len(spent) < least or sum(spent) < seconds:
        begun = time.process_time()
        act()
        spent.append(time.process_time() - begun)
    return statistics.median(spent)


class Rows:
    """A sink that keeps the rows of one environment."""

    def __init__(self) -> None:
        self.rows: list[dict[str, np.ndarray]] = []

    def add(self, step: Any, action: Any, extras: Any) -> None:
        """Keep a row."""
        row = {"action": action, "reward": step.reward, **{name: getattr(step, name) for name in FLAGS}}
        row |= {f"obs/{k}": x for k, x in step.obs.items()} | {f"extras/{k}": x for k, x in extras.items()}
        self.rows.append({name: x.numpy(force=True).copy() for name, x in row.items()})

    def blocks(self) -> list[RowBlock]:
        """The rows as blocks."""
        cuts = [self.rows[i : i + MAX_SPINS] for i in range(0, len(self.rows) - MAX_SPINS, MAX_SPINS)]
        return [RowBlock({k: np.stack([row[k] for row in cut], 1) for k in cut[0]}, 0, [], 0) for cut in cuts]


def parts(case: str) -> dict[str, float]:
    """Costs of one learner and one actor, each alone."""
    torch.set_num_threads(1)
    config = settings(case)
    with tempfile.TemporaryDirectory() as folder:
        made = build(config, run=Path(folder), actors=build_actor_collector)
        made.begin()
        env, sink = make_vector_env(config.env, seed=0), Rows()
        collector = EnvCollector(env, made.algo.policy, sink, seed=0)
        row = cost(collector.collect)
        while len(sink.rows) < 600:
            collector.collect()
        feed = made.collector
        assert isinstance(feed, ActorCollector)
        blocks = itertools.cycle(sink.blocks())

        def take() -> None:
            feed.add(0, next(blocks))

        taken = cost(take, 0.3, 40) / MAX_SPINS

        def update() -> None:
            batch = made.source.sample()
            made.source.feedback(batch.index, made.algo.update(batch))

        whole = cost(update, 2.0)
        weights = feed_weights(feed)
        count = sum(p.numel() for p in made.algo.parameters() if p.requires_grad)
        made.close()
    eighth = settings(case, **{"algo.batch_size": max(1, config.algo.batch_size // 8)})
    with tempfile.TemporaryDirectory() as folder:
        small = build(eighth, run=Path(folder), actors=build_actor_collector)
        small.begin()
        for block in sink.blocks():
            small.collector.add(0, block)  # type: ignore[union-attr]

        def part() -> None:
            batch = small.source.sample()
            small.source.feedback(batch.index, small.algo.update(batch))

        least = cost(part, 1.5)
        small.close()
    env.close()
    return {"row_bytes": sum(x.nbytes for x in sink.rows[0].values()), "row_of_actor": row, "row_of_learner": taken,
            "update": whole, "update_of_eighth": least, "parameters": count, **weights}  # fmt: skip


def feed_weights(feed: ActorCollector) -> dict[str, float]:
    """Bytes of the weights that actors get, and what it costs to pack them."""
    from reverie.distributed.actor_connection import acting_weights, serialize_weights

    weights = acting_weights(feed.algo, feed.obs_spec)
    return {
        "weight_bytes": len(serialize_weights(weights)),
        "publish": cost(functools.partial(serialize_weights, weights), 0.3),
    }


def reduced(rank: int, place: str) -> list[dict[str, float]]:
    """Processor seconds of all-reduces between two processes by their size."""
    from reverie.distributed.process_group import ProcessGroup

    torch.set_num_threads(1)
    group = ProcessGroup.join("cpu", torch.distributed.FileStore(place, 2), rank, 2)
    rows = []
    for size in (10_000, 100_000, 1_000_000, 10_000_000):
        x = torch.randn(size)
        spent = cost(lambda x=x: group.average([x]), 0.0, 15)  # type: ignore[misc]
        rows.append({"parameters": size, "seconds": spent})
    return rows


def all_reduce() -> dict[str, float]:
    """What an all-reduce costs: once, and a parameter."""
    from concurrent.futures import ThreadPoolExecutor

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        meet = str(Path(folder) / "meet")
        done = list(pool.map(lambda rank: child(Path(__file__), "--reduce", str(rank), meet), range(2)))
    sizes, seconds = (np.array([row[name] for row in done[0]]) for name in ("parameters", "seconds"))
    each, once = np.polyfit(sizes, seconds, 1, w=1 / seconds)
    return {"once": max(0.0, float(once)), "parameter": float(each)}


@contextlib.contextmanager
def two_nodes() -> Iterator[str]:
    """A head, and a node with other resources on which the actors are."""
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}  # read at the import
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    with tempfile.TemporaryDirectory(prefix="ray-") as place:
        os.environ["RAY_TMPDIR"] = place
        from ray.cluster_utils import Cluster

        cluster = Cluster()
        cluster.add_node(num_cpus=0, include_dashboard=False, object_store_memory=2 * 10**8)
        cluster.add_node(num_cpus=8, resources={"far": 8}, object_store_memory=2 * 10**8)
        try:
            yield cluster.address
        finally:
            cluster.shutdown()


def on_nodes(case: str, address: str, actors: int, updates: int) -> dict[str, float]:
    """A run with actors on the other node: processor seconds of this learner, its blocks, rows and updates."""
    import ray

    torch.set_num_threads(1)
    ray.init(address, namespace="bench", log_to_driver=False, logging_level="ERROR")
    name = secrets.token_hex(4)
    group = ray.util.placement_group([{"far": 1.0}] * actors, name=name, lifetime="detached")
    ray.get(group.ready())
    place = {"address": address, "namespace": "bench", "group": name, "first": 0, "each": {"CPU": 0, "far": 1.0}}
    os.environ[PLACEMENT_VAR] = json.dumps(place)
    ray.shutdown()
    config = settings(case, actors=actors)
    with tempfile.TemporaryDirectory() as folder:
        made = build(config, run=Path(folder), actors=build_actor_collector)
        made.begin()
        feed, clock, begun = made.collector, made.clock, list[float]()
        assert isinstance(feed, ActorCollector)
        blocks, add, collect, taking = [0], feed.add, feed.collect, [0.0]

        def counted(number: int, block: RowBlock) -> None:
            blocks[0] += 1
            add(number, block)

        def collected() -> int:
            before = time.process_time()
            taken = collect()
            taking[0] += time.process_time() - before
            if clock.updates >= 20 and not begun:
                begun[:] = [time.process_time(), clock.env_steps, clock.updates, blocks[0], taking[0]]
            clock.stop = clock.updates >= updates + 20
            return taken

        feed.add, feed.collect = counted, collected  # type: ignore[method-assign]
        train_loop(made.algo, made.source, clock, made.meter, collector=feed, schedule=made.schedule)
        now = [time.process_time(), clock.env_steps, clock.updates, blocks[0], taking[0]]
        made.close()
    spent = dict(zip(("learner", "rows", "updates", "blocks", "taking"), np.subtract(now, begun).tolist(), strict=True))
    return {"actors": actors, **spent}


def predicted(
    cost: dict[str, float], ring: dict[str, float], actors: int, learners: int, ratio: float, envs: int
) -> dict[str, Any]:
    """Env steps a second of a run, and what is full: a core for each actor and each learner, and full blocks."""
    part = cost["update_of_eighth"] + (cost["update"] - cost["update_of_eighth"]) * (1 / learners - 1 / 8) * 8 / 7
    wire = 0.0
    if learners > 1:
        wire = ring["once"] * math.log2(learners) + ring["parameter"] * cost["parameters"] * 2 * (1 - 1 / learners)
    row = (cost["row_of_learner"] + cost["block_by_ray"] / (MAX_SPINS * envs)) / learners
    limits = {
        "actors": actors / (cost["row_of_actor"] + STEP),
        "learners": (1 - 2 * PART) / (row + ratio * (part + wire)),
        "network": NETWORK * learners / cost["row_bytes"],
    }
    name = min(limits, key=limits.__getitem__)
    return {"learners": learners, "replay_ratio": ratio, "envs": envs, "actors": actors, "full": name,
            "env_steps_per_second": limits[name], "updates_per_second": ratio * limits[name],
            "actors_that_are_enough": limits["learners"] * (cost["row_of_actor"] + STEP)}  # fmt: skip


def main() -> int:
    """Measure, predict and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--again", action="store_true", help="predict from the costs that were measured before")
    parser.add_argument("--reduce", nargs=2, help="be one of two processes: its rank, and where they meet")
    parser.add_argument("--parts", help="measure the parts of this case here and print them")
    parser.add_argument("--run", nargs=4, help="run a case: its name, the cluster, actors, updates")
    args = parser.parse_args()
    if args.reduce or args.parts or args.run:
        if args.run:
            case, address, actors, updates = args.run
            found: Any = on_nodes(case, address, int(actors), int(updates))
        else:
            found = parts(args.parts) if args.parts else reduced(int(args.reduce[0]), args.reduce[1])
        print("\n" + json.dumps(found))
        return 0
    table = json.loads(args.out.read_text()) if args.again else measured(list(CASES))
    table["predicted"] = [
        {"case": case, **predicted(cost, table["all_reduce"], actors, learners, ratio, envs)}
        for case, cost in table["costs"].items()
        for learners in LEARNERS
        for ratio in RATIOS
        for envs in ENVS
        for actors in ACTORS
    ]
    save(args.out, tidy(table) | {name: [tidy(row) for row in table[name]] for name in ("runs", "predicted")})
    return 0


def measured(cases: list[str]) -> dict[str, Any]:
    """Costs, and the runs on two nodes."""
    me = Path(__file__)
    table: dict[str, Any] = {"machine": machine(1), "all_reduce": all_reduce(), "costs": {}, "runs": []}
    with two_nodes() as address:
        for case in cases:
            cost = table["costs"][case] = child(me, "--parts", case)
            updates = min(400, max(20, int(4 / cost["update"])))
            one, two = (child(me, "--run", case, address, str(n), str(updates)) for n in (1, 2))
            cost["block_by_ray"] = (one["taking"] - one["rows"] * cost["row_of_learner"]) / one["blocks"]
            for run in (one, two):
                rows = run["rows"] * cost["row_of_learner"] + run["blocks"] * cost["block_by_ray"]
                table["runs"].append({"case": case, **run, "predicted": rows + run["updates"] * cost["update"]})
                print(table["runs"][-1], flush=True)
    return table


if __name__ == "__main__":
    sys.exit(main())
