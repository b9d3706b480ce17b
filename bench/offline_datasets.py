#!/usr/bin/env python3
"""Datasets for offline learning, recorded by our own agents: random, medium, expert and mixtures.

    python bench/offline_datasets.py [Pendulum-v1 CartPole-v1 HalfCheetah-v5 MinAtar/Breakout-v1]
        [--folder datasets] [--runs runs/experts] [--seed 1] [--out FILE]

An agent trains as `model_free.py --keep` does it; a run that is there already is used, or goes on. `expert` is its best
checkpoint by evaluation; `medium` the earliest that made half of the way from `random`, where every action is drawn
from the space. Agents of continuous actions draw from their policies, those of discrete ones take a random action one
time in ten. `mixed` holds a third of the steps of each of the others, whole episodes. All of them are Minari datasets,
`<folder>/<environment>-<level>`, and are the same for the same seed and machine; those that exist are kept. What they
hold is written to the JSON: learning scores are normalized by the mean returns of `random` and `expert`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from model_free import TASKS, folder_of, run_seed
from results import save

from reverie.datasets.config import DatasetConfig
from reverie.datasets.dataset import open_recorded


class Recording(NamedTuple):
    """How an environment is played."""

    algorithm: str
    steps: int
    """Env steps of each dataset."""
    how: tuple[str, ...]
    """How medium and expert explore meanwhile."""
    mixtures: Mapping[str, tuple[str, ...]]
    """Datasets made of equal parts of others."""


PURE = ("random", "medium", "expert")
MIXED: Mapping[str, tuple[str, ...]] = {"mixed": PURE}
SAMPLED, EPSILON = ("--no-deterministic"), ("--epsilon", "0.1")
RECORDINGS = {
    "Pendulum-v1": Recording("sac", 50_000, SAMPLED, MIXED),
    "HalfCheetah-v5": Recording("sac", 100_000, SAMPLED, {**MIXED, "medium-expert": ("medium", "expert")}),
    "CartPole-v1": Recording("qr_dqn", 50_000, EPSILON, MIXED),
    "MinAtar/Breakout-v1": Recording("qr_dqn", 50_000, EPSILON, MIXED),
}
FOLDER = Path("datasets")


def levels(env: str) -> tuple[str, ...]:
    """The datasets of an environment."""
    return (*PURE, *RECORDINGS[env].mixtures)


def dataset_path(folder: Path, env: str, level: str) -> Path:
    """Where a dataset lies."""
    return folder / f"{env.replace('/', '_')}-{level}"


def reverie(*words: object) -> None:
    """A command of ours.

    Raises:
        RuntimeError: it failed; with what it said.
    """
    command = [sys.executable, "-m", "reverie", *map(str, words)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[2:])} ended with {done.returncode}: {done.stderr[-2000:]}")


def evaluations(run: Path) -> dict[Path, float]:
    """The score of each checkpoint of a run, in the order of its steps."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    scores = {line["step"]: line["eval/score"] for line in lines if "eval/score" in line}
    kept = {int(path.name.partition("-")[2]): path for path in sorted((run / "checkpoints").glob("step-*"))}
    return {kept[step]: score for step, score in scores.items() if step in kept}


def medium_and_expert(scores: dict[Path, float], random: float) -> tuple[Path, Path]:
    """The earliest checkpoint half-way from ``random`` to the best one, and that."""
    expert = max(scores, key=lambda path: scores[path])
    half = (random + scores[expert]) / 2
    return next(path for path, score in scores.items() if score >= half), expert


def about(path: Path) -> dict[str, Any]:
    """What a dataset holds."""
    recorded = open_recorded(DatasetConfig(path=str(path)))
    try:
        ends = returns = steps = terminals = 0.0
        for part in recorded.parts():
            steps += float((~part["is_last"]).sum())
            returns += float(part["reward"].sum())
            ends += float(part["is_last"].sum())
            terminals += float(part["is_terminal"].sum())
    finally:
        recorded.close()
    return {"steps": int(steps), "episodes": int(ends), "terminal": int(terminals), "return": round(returns / ends, 2)}


def record(env: str, args: argparse.Namespace) -> None:
    """Write the datasets of an environment that are not there yet."""
    recording, task = RECORDINGS[env], TASKS[env]
    path = {level: dataset_path(args.folder, env, level) for level in levels(env)}
    run = folder_of(args.runs, recording.algorithm, env, args.seed)
    if not (run / "eval.json").exists():
        print(f"{env}: training {recording.algorithm} in {run}", flush=True)
        run_seed(recording.algorithm, env, args.seed, task.steps, task.every, args.runs)
    steps = ("--steps", recording.steps)
    if not path["random"].exists():
        reverie("data", "record", run, path["random"], *steps, "--epsilon", 1, "--seed", 1)
    chosen = medium_and_expert(evaluations(run), about(path["random"])["return"])
    for number, (level, checkpoint) in enumerate(zip(("medium", "expert"), chosen, strict=True)):
        print(f"{env}: {level} is {checkpoint.name}", flush=True)
        if not path[level].exists():
            words = ("--checkpoint", checkpoint, *recording.how, "--seed", 2 + number)
            reverie("data", "record", run, path[level], *steps, *words)
    for mixture, parts in recording.mixtures.items():
        if path[mixture].exists():
            continue
        with tempfile.TemporaryDirectory(dir=args.folder) as scratch:
            for level in parts:
                share = ("--steps", recording.steps // len(parts), "--seed", args.seed)
                reverie("data", "subsample", path[level], Path(scratch) / level, *share)
            reverie("data", "convert", f"{scratch}/*", path[mixture])


def main() -> int:
    """Record, and write what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("envs", nargs="*", default=list(RECORDINGS), metavar="ENV", help=", ".join(RECORDINGS))
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--runs", type=Path, default=Path("runs/experts"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--recording", default="1", help="number of the machine's recording: agents differ on another")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    if unknown := sorted(set(args.envs) - set(RECORDINGS)):
        parser.error(f"{', '.join(unknown)}: expected some of {', '.join(RECORDINGS)}")
    args.folder.mkdir(parents=True, exist_ok=True)
    table = json.loads(args.out.read_text()) if args.out.exists() else {}
    found = table.setdefault(args.recording, {})
    for env in args.envs:
        record(env, args)
        found[env] = {level: about(dataset_path(args.folder, env, level)) for level in levels(env)}
        save(args.out, table)
        for level, held in found[env].items():
            print(f"{env} {level}: {json.dumps(held)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
