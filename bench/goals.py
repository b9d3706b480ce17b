#!/usr/bin/env python3
"""How often do goal-conditioned agents reach their goals after learning from recordings without rewards?

    pip install -e ".[ogbench]"
    python bench/goals.py mazes [--data pointmaze-medium-navigate-v0] [--systems hiql] [--updates 50000]
    python bench/goals.py rooms [--seeds 1] [--updates 1000]

``mazes``: OGBench's data, made here without a download; 50 episodes of each of five tasks after the last update. What
differs from the published column, which is the mean of eight seeds: batches of 256 instead of 1,024, two layers of 256
instead of three of 512, fewer updates, normalized observations. ``rooms``: LeWM on 800 recorded episodes of two rooms.
50 pairs of recorded pictures, 25 steps apart, within 50 steps, as in LeWorldModel's protocol; the same pairs with
random actions; and 25 goals in the other room, within 100 steps. Plans have the 30 iterations of the authors.

A run that was interrupted goes on from its newest checkpoint. ``cpu_seconds`` is the processor time of its training and
evaluation, if it was not interrupted. Rows are written as they come, and replace those of the same seed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from results import save

import reverie
from reverie.core.hardware import describe_machine
from reverie.datasets.ogbench_generation import make_dataset
from reverie.datasets.two_rooms import STATES, make_two_rooms
from reverie.envs.two_rooms import RADIUS, WALL, TwoRooms, find_dot

SCRATCH = Path(__file__).parents[1] / "build/goals"
SYSTEMS = ("gcbc", "gcivl", "hiql", "gciql", "crl", "qrl")
PUBLISHED = {
    "pointmaze-medium-navigate-v0": (9, 63, 79, 53, 29, 82), "pointmaze-large-navigate-v0": (29, 45, 58, 34, 39, 86),
    "pointmaze-medium-stitch-v0": (23, 70, 74, 21, 0, 80), "cube-single-play-v0": (6, 53, 15, 68, 19, 5),
}  # fmt: skip
"""Success in % by data and system, in the order of SYSTEMS: Park et al. 2025, arXiv 2410.20092, table 2."""
ALPHA = {
    "pointmaze": {"gciql": 0.003, "crl": 0.03, "qrl": 0.0003}, "cube": {"gciql": 1.0, "crl": 3.0, "qrl": 0.3},
}  # fmt: skip
"""Weights of imitation that the authors chose: hyperparameters.sh of their code."""
STITCHED = {"actor_goals.episode": 0.5, "actor_goals.random": 0.5}


def train(name: str, algorithm: str, **settings: Any) -> tuple[Path, float]:
    """Train, or go on; return the run folder and the processor time of this process."""
    started, run = time.process_time(), SCRATCH / name
    reverie.train(algorithm, run=run, threads=1, console=False, tensorboard=False, **settings)
    return run, round(time.process_time() - started, 1)


def measure_maze(data: str, system: str, seed: int, updates: int) -> dict[str, Any]:
    """Success of one seed by task, in %."""
    file = SCRATCH / f"{data}.npz"
    if not file.exists():
        make_dataset(data, SCRATCH)
    algo: dict[str, Any] = {"batch_size": 256, "networks.units": (256, 256)}
    if alpha := ALPHA[data.partition("-")[0]].get(system):
        algo["alpha"] = alpha
    if "-stitch-" in data and system != "gcbc":
        algo |= STITCHED
    if system in ("crl", "qrl"):
        algo["representation_width"] = 256
    env = data.replace("-navigate", "").replace("-stitch", "").replace("-play", "")
    run, seconds = train(
        f"{data}-{system}-{updates}-{seed}", system, data=str(file), env=env, seed=seed, updates=updates,
        heldout_fraction=0.0, eval_episodes=250, schedule={"eval_every": 0},
        **{f"algo.{name}": value for name, value in algo.items()},
    )  # fmt: skip
    result = json.loads((run / "eval.json").read_text())
    tasks = {key.rpartition("/")[2]: round(100 * value) for key, value in result.items() if "success_rate/task" in key}
    return {"data": data, "system": system, "seed": seed, "updates": updates, "cpu_seconds": seconds,
            "success": round(100 * result["success_rate"]), **tasks,
            "published": PUBLISHED[data][SYSTEMS.index(system)]}  # fmt: skip


def measure_rooms(latent: int, seed: int, updates: int) -> dict[str, Any]:
    """Success of LeWM and of random actions, in %."""
    file = SCRATCH / "two_rooms.npz"
    if not file.exists():
        make_two_rooms(SCRATCH)
    run, seconds = train(
        f"rooms-{latent}-{updates}-{seed}", "lewm", data=str(file), env="none", seed=seed, updates=updates,
        **{"algo.latent": latent, "algo.planner.iterations": 30},
    )  # fmt: skip
    agent, pictures = reverie.load(run), np.load(file)["observations"]
    rng = np.random.default_rng(5)
    starts = rng.integers(len(pictures) // STATES, size=50) * STATES + rng.integers(STATES - 26, size=50)
    pairs = [(pictures[i], pictures[i + 25]) for i in starts]
    others = []
    while len(others) < 25:
        start, goal = pictures[rng.integers(len(pictures), size=2)]
        if (find_dot(start)[0] - WALL) * (find_dot(goal)[0] - WALL) < 0:
            others.append((start, goal))
    torch.manual_seed(seed)
    rates = {
        f"{name}{suffix}": round(100 * np.mean([play(policy, *pair, budget, rng) for pair in goals]))
        for name, policy in (("lewm", agent), ("random", None))
        for suffix, goals, budget in (("", pairs, 50), ("_other_room", others, 100))
    }
    return {"data": "two_rooms", "system": f"lewm, latent {latent}", "seed": seed, "updates": updates,
            "cpu_seconds": seconds, **rates}  # fmt: skip


def play(policy: Any, start: np.ndarray, goal: np.ndarray, budget: int, rng: np.random.Generator) -> bool:
    """Return whether a picture is reached; those that are near at the start count."""
    env, state = TwoRooms(), None
    obs, _ = env.reset(options={"image": start, "goal": goal})
    if np.linalg.norm(env.position - env.target) < RADIUS:
        return True
    for _ in range(budget):
        if policy is None:
            action = rng.uniform(-1, 1, 2)
        else:
            action, state = policy.act(obs["image"], state, goal=goal)
        obs, _, reached, _, _ = env.step(action)
        if reached:
            return True
    return False


def main() -> int:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["mazes", "rooms"])
    parser.add_argument("--data", nargs="*", default=["pointmaze-medium-navigate-v0"], choices=PUBLISHED)
    parser.add_argument("--systems", nargs="*", default=SYSTEMS, choices=SYSTEMS)
    parser.add_argument("--latent", type=int, nargs="*", default=[32], help="widths of LeWM's latents")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1])
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    SCRATCH.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        cases = [(data, system) for data in args.data for system in args.systems]
        made = (
            (measure_rooms(latent, seed, args.updates) for latent in args.latent)
            if args.what == "rooms"
            else (measure_maze(*case, seed, args.updates) for case in cases)
        )
        for row in made:
            rows = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
            rows = [old for old in rows if any(old[key] != row[key] for key in ("data", "system", "seed", "updates"))]
            rows = sorted([*rows, row], key=lambda r: (r["data"], r["system"], r["updates"], r["seed"]))
            save(args.out, {"machine": describe_machine(torch.device("cpu")), "rows": rows})
            print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
