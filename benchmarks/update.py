#!/usr/bin/env python3
"""How long one update takes: world model, actor and critic, optimiser included; and how long one decision.

    python benchmarks/update.py [--settings V I] [--threads 2] [--repeat 9] [--out benchmarks/update.json]

V is a vector of 24 with six continuous actions at size 1m, I a 64x64x3 image with six discrete actions at size 12m;
batch 16x64, H = 15, float32. Medians; other load on the machine shows, so compare within one run only.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from reverie.algos.dreamer_v3 import DreamerV3, DreamerV3Config, sized
from reverie.core.machine import keep_freed_memory
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Batch, Step

VECTOR = {"state": ObsPart(kind="vector", shape=(24,), dtype="float32")}
IMAGE = {"image": ObsPart(kind="image", shape=(64, 64, 3), dtype="uint8")}
CONTINUOUS = ActionSpec(parts={"action": ActionPart(kind="continuous", size=6)})
DISCRETE = ActionSpec(parts={"action": ActionPart(kind="categorical", classes=(6,))})
SETTINGS = {
    "nano": ("nano", VECTOR, CONTINUOUS, {"batch_length": 32}),
    "V": ("1m", VECTOR, CONTINUOUS, {}),
    "I": ("12m", IMAGE, DISCRETE, {}),
}


def build(name: str) -> DreamerV3:
    """The learner of a setting."""
    size, obs, action, changes = SETTINGS[name]
    return sized(size, DreamerV3Config().merge(changes)).build(obs, action)


def observations(name: str, *lead: int) -> dict[str, torch.Tensor]:
    """Noise of the right shape."""
    out = {}
    for key, part in SETTINGS[name][1].items():
        shape = (*lead, *part.shape)
        out[key] = torch.randint(0, 256, shape, dtype=torch.uint8) if part.kind == "image" else torch.randn(shape)
    return out


def batch(name: str, agent: DreamerV3) -> Batch:
    """Noise as a batch."""
    b, t = agent.window.batch, agent.window.rows
    flags = torch.zeros(b, t, dtype=torch.bool)
    r = agent.cfg.rssm
    extras = {"deter": torch.rand(b, t, r.deter), "stoch": torch.zeros(b, t, r.stoch, dtype=torch.uint8)}
    return Batch(
        obs=observations(name, b, t), action=torch.rand(b, t, SETTINGS[name][2].width), reward=torch.randn(b, t),
        is_first=flags, is_last=flags.clone(), is_terminal=flags.clone(), weight=torch.ones(b),
        index=torch.arange(b), extras=extras,
    )  # fmt: skip


def step(name: str, envs: int) -> Step:
    """Noise as what N environments show."""
    flags = torch.zeros(envs, dtype=torch.bool)
    return Step(
        obs=observations(name, envs), reward=torch.zeros(envs), is_first=flags, is_last=flags, is_terminal=flags
    )


def median(call: Callable[[], object], repeat: int) -> float:
    """Seconds of one call."""
    times = []
    for _ in range(repeat + 2):  # the first two warm up
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times[2:])


def measure(name: str, repeat: int) -> dict[str, float]:
    """Medians of one setting."""
    started = time.perf_counter()
    agent = build(name)
    data = batch(name, agent)
    agent.update(data)
    first = time.perf_counter() - started
    out = {"parameters": agent.optim.count, "first_update_s": first}
    out["update_s"] = median(lambda: agent.update(data), repeat)
    for envs in (1, 8):
        shown, state = step(name, envs), agent.policy.initial(envs)
        act = median(lambda shown=shown, state=state: agent.policy.act(shown, state, "explore"), 50 * repeat)
        out[f"act_{envs}_ms"] = act * 1e3
    return {k: float(f"{v:.4g}") for k, v in out.items()}


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="*", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    table = {"machine": machine, "torch": torch.__version__, "threads": args.threads, "settings": {}}
    for name in args.settings:
        table["settings"][name] = measure(name, args.repeat)
        print(name, json.dumps(table["settings"][name]), flush=True)
    args.out.write_text(json.dumps(table, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
