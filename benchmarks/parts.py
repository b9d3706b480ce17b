#!/usr/bin/env python3
"""Where the time of one update goes, with the time that its multiplications alone would take beside each part.

    python benchmarks/parts.py [--settings V I] [--threads 2] [--repeat 7] [--out benchmarks/parts.json]

Settings are those of update.py, in float32. Gradients are cut between the parts, so that each is timed forward and
backward apart; medians. Operations are counted as in `reverie.bench.count_flops`, part by part. The floor of a part is
its operations at the rate of the machine's fastest matrix product, measured in the same process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from machine import child, machine, matrix_gflops, write
from torch import Tensor
from update import SETTINGS, batch, build, config

from reverie.algos.dreamer_v3 import DreamerV3
from reverie.algos.imagination import imagine
from reverie.algos.world_model import Posterior
from reverie.bench import flop_counter
from reverie.core.machine import keep_freed_memory
from reverie.core.types import Batch
from reverie.noise import noise_batch

PARTS = ("embed", "observe", "world", "imagine", "actor_critic", "replay_critic", "optimiser")
WAYS = ("forward", "backward")
WHOLE = "update"
"""The row of the update as it is, in one piece."""

T = TypeVar("T")


class Meter:
    """How much of something each part of an update takes, forward and backward, over several updates."""

    def __init__(self, read: Callable[[], float]) -> None:
        """``read`` says how much has been used up to now."""
        self.read = read
        self.used: dict[tuple[str, str], list[float]] = defaultdict(list)

    def __call__(self, part: str, way: str, call: Callable[[], T]) -> T:
        """What ``call`` returns, after its use was noted."""
        before = self.read()
        value = call()
        self.used[part, way].append(self.read() - before)
        return value

    def median(self, part: str, way: str) -> float:
        """Of all updates; 0 for what no update has."""
        return statistics.median(self.used.get((part, way), [0.0]))


def leaf(x: Tensor) -> Tensor:
    """The same numbers, where a gradient ends."""
    return x.detach().requires_grad_()


def update_in_parts(agent: DreamerV3, data: Batch, meter: Meter) -> None:
    """What ``agent.update(data)`` does, each part under the meter."""
    for p in agent.optim.params:
        p.grad = None
    context, rows = agent.split_context(data)
    world, before = agent.world, torch.cat([context.action[:, None], rows.action[:, :-1]], 1)  # [B, T, A]
    embed = meter("embed", "forward", lambda: world.embed(rows.obs))  # [B, T, E]
    seen = leaf(embed)
    latent, probs = meter("observe", "forward", lambda: world.rssm.observe(context.latent, seen, before, rows.is_first))
    post = Posterior(seen, latent.map(leaf), leaf(probs))
    learn_from(agent, rows, post, meter)
    ends = [post.latent.deter.grad, post.latent.stoch.grad, post.stats.grad]
    meter("observe", "backward", lambda: torch.autograd.backward([latent.deter, latent.stoch, probs], ends))
    meter("embed", "backward", lambda: embed.backward(seen.grad))
    meter("optimiser", "forward", lambda: optimise(agent))


def learn_from(agent: DreamerV3, rows: Batch, post: Posterior, meter: Meter) -> None:
    """All losses, and their gradients back to the posterior."""
    terms, _ = meter("world", "forward", lambda: agent.world_losses(rows, post))
    start = post.latent.map(lambda x: x.detach().flatten(0, 1))  # [B * T, ...]
    dream = meter("imagine", "forward", lambda: imagine(agent.world.rssm, agent.actor, start, agent.cfg.horizon))
    dreamt, returns, _ = meter("actor_critic", "forward", lambda: agent.dream_losses(dream))
    feature, bootstrap = leaf(post.latent.feature), returns[0].view(rows.shape)
    replayed = meter("replay_critic", "forward", lambda: agent.replay_critic_loss(rows, feature, bootstrap))
    meter("actor_critic", "backward", lambda: agent.total(dreamt).backward())
    meter("replay_critic", "backward", lambda: agent.total({"replay_critic": replayed}).backward())
    post.latent.feature.backward(feature.grad)
    meter("world", "backward", lambda: agent.total(terms).backward())


def optimise(agent: DreamerV3) -> None:
    """A step along the gradients that are there, and one of the slow critic."""
    agent.optim.apply([p.grad for p in agent.optim.params if p.grad is not None])
    agent.slow_critic.update()


def milliseconds(agent: DreamerV3, data: Batch, repeat: int, warm_up: int = 2) -> Meter:
    """Of each part, and of whole updates between them."""
    meter = Meter(lambda: 1e3 * time.perf_counter())
    for done in range(warm_up + repeat):
        if done == warm_up:
            meter.used.clear()
        update_in_parts(agent, data, meter)
        meter(WHOLE, "forward", lambda: agent.update(data))
    return meter


def operations(name: str) -> Meter:
    """Giga-operations of each part, counted on tensors without memory."""
    _, obs, action, _ = SETTINGS[name]
    with torch.device("meta"), flop_counter() as counter:
        agent = config(name).build(obs, action, "meta")
        meter = Meter(lambda: counter.get_total_flops() / 1e9)
        update_in_parts(agent, noise_batch(agent, obs, action).to(agent.device), meter)
    return meter


def measure(name: str, repeat: int) -> list[dict[str, Any]]:
    """One row for each part, in the order of an update, and one for the whole."""
    agent = build(name)
    spent, work = milliseconds(agent, batch(name, agent), repeat), operations(name)
    rate = matrix_gflops(torch.device("cpu"))["float32"]
    return [row(part, spent, work, rate) for part in (*PARTS, WHOLE)]


def row(part: str, spent: Meter, work: Meter, rate: float) -> dict[str, Any]:
    """What is known of a part, or of the whole, whose operations are those of all parts."""
    of = PARTS if part == WHOLE else (part,)
    gflop = {way: sum(work.median(one, way) for one in of) for way in WAYS}
    out: dict[str, Any] = {f"{way}_ms": spent.median(part, way) for way in WAYS}
    out |= {f"{way}_gflop": gflop[way] for way in WAYS}
    return {"part": part, **out, "floor_ms": 1e3 * sum(gflop.values()) / rate, "matrix_gflops": rate}


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="*", default=["V", "I"], choices=list(SETTINGS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--child", action="store_true", help="measure the one setting here and print it")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.child:
        keep_freed_memory()
        print(json.dumps(measure(args.settings[0], args.repeat)))
        return 0
    rows = []
    for name in args.settings:
        words = ["--threads", str(args.threads), "--repeat", str(args.repeat)]
        for measured in child(Path(__file__), "--child", "--settings", name, *words):
            rows.append({"setting": name, **measured})
            print(json.dumps(rows[-1]), flush=True)
    write(args.out, machine(args.threads), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
