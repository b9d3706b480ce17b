#!/usr/bin/env python3
"""How long do decisions take in a control loop with a clock, by an agent and by its exported policy?

    sudo python bench/control.py [--rate 50] [--seconds 20] [--chunks 1 8]

Behavior cloning that was trained for two updates on random observations: a vector of 24, or a vector and an image of 84
x 84 pixels; actions of 7 numbers. A loop waits for the next tick of the clock, then asks for an action. The exported
policy runs in ONNX Runtime. Latencies are those of one call in one thread, in milliseconds; ``late_ms`` is the longest
time between a tick and the start of its call. Each policy has a process of its own,
with the usual scheduler of Linux and then with real-time priority (SCHED_FIFO), which needs the rights of root.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import words
from machine import child, machine, write

STEPS, ACTIONS = 200, 7
Row = dict[str, Any]
SHAPES = {"vector": {"state": (24,)}, "image": {"state": (24,), "camera": (84, 84, 3)}}


def observation(setting: str, rng: np.random.Generator, steps: int) -> dict[str, np.ndarray]:
    """Random observations ``[steps, ...]`` by key."""
    return {
        key: rng.integers(256, size=(steps, *shape)).astype(np.uint8)
        if len(shape) == 3
        else rng.normal(size=(steps, *shape)).astype(np.float32)
        for key, shape in SHAPES[setting].items()
    }


def train(setting: str, chunk: int, folder: Path) -> Any:
    """Return an agent."""
    import h5py

    import reverie

    rng = np.random.default_rng(0)
    with h5py.File(folder / "demos.hdf5", "w") as file:
        for key, values in observation(setting, rng, STEPS).items():
            file[f"data/demo_0/obs/{key}"] = values
        file["data/demo_0/actions"] = rng.uniform(-1, 1, (STEPS, ACTIONS)).astype(np.float32)
        file["data/demo_0/rewards"] = np.zeros(STEPS)
        file["data/demo_0/dones"] = np.arange(STEPS) == STEPS - 1
    algo = {"chunk_size": chunk, "batch_length": chunk + 1, "batch_size": 8}
    reverie.train("bc", data={"path": str(folder / "demos.hdf5"), "estimate_updates": 0}, env="none", algo=algo,
                  updates=2, run=folder / "run", threads=1, console=False, tensorboard=False)  # fmt: skip
    return reverie.load(folder / "run")


def agent_call(agent: Any) -> Callable[[dict[str, np.ndarray]], None]:
    """Return a function that lets the agent act."""
    states = [None]

    def call(obs: dict[str, np.ndarray]) -> None:
        states[0] = agent.act(obs, states[0])[1]

    return call


def onnx_call(agent: Any, file: Path) -> Callable[[dict[str, np.ndarray]], None]:
    """Return a function that runs the exported policy, by the code of ``examples/play_onnx.py``."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    from play_onnx import Policy

    agent.export(file, steps=20)
    policy = Policy(str(file))

    def call(obs: dict[str, np.ndarray]) -> None:
        policy(**{f"obs/{key}": value for key, value in obs.items()}, is_first=False, reward=0.0)

    return call


def run_loop(call: Callable[[Any], None], observations: list[Any], rate: float, seconds: float, realtime: bool) -> Row:
    """Call it at each tick; return what it took, in milliseconds."""
    for obs in observations[:20]:
        call(obs)
    took, late = [], []
    os.sched_setscheduler(0, os.SCHED_FIFO if realtime else os.SCHED_OTHER, os.sched_param(50 * realtime))
    begin = time.perf_counter()
    for number in range(int(rate * seconds)):
        due = begin + number / rate
        time.sleep(max(0.0, due - time.perf_counter()))
        start = time.perf_counter()
        call(observations[number % STEPS])
        took.append(1e3 * (time.perf_counter() - start))
        late.append(1e3 * (start - due))
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return {"median_ms": float(np.median(took)), "longest_ms": max(took), "late_ms": max(late), "calls": len(took)}


def measure(setting: str, chunk: int, rate: float, seconds: float) -> list[dict[str, Any]]:
    """One row for the agent and one for its exported policy; in the child."""
    import torch

    torch.set_num_threads(1)
    observations = observation(setting, np.random.default_rng(1), STEPS)
    steps = [{key: values[n] for key, values in observations.items()} for n in range(STEPS)]
    with tempfile.TemporaryDirectory() as folder:
        agent = train(setting, chunk, Path(folder))
        calls = {"agent": agent_call(agent), "onnx": onnx_call(agent, Path(folder) / "policy.onnx")}
        return [
            {"setting": setting, "chunk": chunk, "system": system, "realtime": realtime, "rate": rate}
            | run_loop(call, steps, rate, seconds, realtime)
            for system, call in calls.items()
            for realtime in (False, True)
        ]


CONTROL = {"vector": "vector", "image": "vector and image", "agent": "`agent.act`", "onnx": "ONNX Runtime"}
"""What settings and systems are called on the page."""


def control_table(result: Mapping[str, Any]) -> list[str]:
    """One row a policy with an image and system: its median and longest decision, with either priority."""
    cells: dict[tuple[str, ...], list[str]] = {}
    for r in result["rows"]:
        if "image" not in CONTROL[r["setting"]]:
            continue
        key = str(r["chunk"]), CONTROL[r["system"]]
        cells.setdefault(key, []).extend(words.time(r[name], 1e-3) for name in ("median_ms", "longest_ms"))
    head = [f"{name}, {when}" for when in ("usual priority", "real-time priority") for name in ("median", "longest")]
    return words.grid(["chunk", "policy", *head], [[*key, *row] for key, row in cells.items()])


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="*", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--chunks", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--rate", type=float, default=50.0, help="ticks per second")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a loop")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(args.settings[0], args.chunks[0], args.rate, args.seconds)))
        return 0
    rows, options = [], ["--child", "--rate", str(args.rate), "--seconds", str(args.seconds)]
    for setting, chunk in [(setting, chunk) for setting in args.settings for chunk in args.chunks]:
        for row in child(Path(__file__), *options, "--settings", setting, "--chunks", str(chunk)):
            rows.append(row)
            print(json.dumps(row), flush=True)
    write(args.out, machine(1), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
