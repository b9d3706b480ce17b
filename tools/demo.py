#!/usr/bin/env python3
"""The demonstration behind ``make demo``: DreamerV3 learns to walk to a goal, and we watch its dream.

Trains until an evaluation says that the task is solved (or the preset's steps are over) and a little longer, plays 20
further episodes that it was not selected on, films one, lets the world model dream, and names the files.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import reverie
from reverie.agent.dream_report import dream
from reverie.agent.evaluating import evaluate_run
from reverie.cli.output import print_files
from reverie.core.errors import ReverieError, count_noun
from reverie.experiment.settings import PRESETS
from reverie.run.result import TrainResult

PRESET, SOLVED, EPISODES = "demo", 0.9, 20
"""The settings, and the mean return over so many episodes that counts as solved."""
ENV = PRESETS[PRESET]().env.id
LONGER = 6_000
"""Steps of training after that: the policy is good before the dream is."""


def fresh(path: Path) -> Path:
    """``path``, or with a number behind it if something is there already: an earlier demonstration is kept."""
    taken, number = path, 2
    while taken.exists():
        taken = path.with_name(f"{path.name}-{number}")
        number += 1
    return taken


def program(name: str) -> str:
    """How to call a program that came with this Python, from this folder."""
    here = Path(sys.executable).parent / name
    return name if shutil.which(name) or not here.exists() else os.path.relpath(here)


def main(argv: list[str] | None = None) -> int:
    """Train, evaluate, film, dream; 0 if the task was solved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("runs/demo"), help="run folder (default: runs/demo)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    try:
        return demonstrate(fresh(args.run), args.seed)
    except ReverieError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def learn(run: Path, seed: int, **options: Any) -> Iterator[TrainResult]:
    """Train until the task is solved, then a little longer; yield how each of the two ended."""
    result = reverie.train("dreamer_v3", preset=PRESET, env=ENV, seed=seed, run=run, **options)
    yield result
    if result.reason == "finished" and result.env_steps < PRESETS[PRESET]().steps:
        if result.stop_reason:
            print(
                f"\nThe policy solves the task after {count_noun(result.env_steps, 'step')}. The world model needs "
                f"longer: training\ncontinues for {count_noun(LONGER, 'step')}, without stop_score.\n"
            )
        options |= {"steps": result.env_steps + LONGER, "stop_score": None}
        yield reverie.train("dreamer_v3", preset=PRESET, env=ENV, seed=seed, run=run, **options)


def demonstrate(run: Path, seed: int) -> int:
    """The demonstration in a new run folder."""
    print(f"DreamerV3 learns {ENV} from scratch: a few minutes on two CPU cores.\n")
    started = time.monotonic()
    *_, result = learn(run, seed)
    minutes = (time.monotonic() - started) / 60
    if result.reason == "interrupted":
        print(f"interrupted; to continue: {program('reverie')} train --resume {run}")
        return 130
    agent = reverie.load(run)
    judged = evaluate_run(agent, EPISODES, video=True)  # episodes that no evaluation during training has played
    dreamt = dream(agent)
    score = sum(judged.evaluation.scores) / EPISODES
    verdict = "Solved" if score >= SOLVED else "Not solved"
    print(f"\n{verdict}: mean return {score:.2f} over {EPISODES} new episodes (solved from {SOLVED:g}, at most 1).")
    print(f"Learned in {minutes:.1f} minutes from {result.env_steps:,} steps with {result.updates:,} updates.\n")
    files = {
        "learning curve": result.files["curve"],
        "the agent at work": judged.files.get("video"),
        "truth / dream": dreamt.files.get("video"),
        "checkpoint": result.files["checkpoint"],
    }
    print_files({what: path for what, path in files.items() if path is not None}, run)
    imagined = len(dreamt.errors["reward"])
    print(
        f"\nIn the dream, the model sees the first {count_noun(dreamt.context, 'frame')}. Then it closes its eyes and "
        f"imagines the next {imagined}\nfrom the actions alone; below is the difference to what really happened."
    )
    print("\nTry next:")
    for command in (f"dream {run} --episodes 12", f"eval {run} --no-deterministic --video", f"info {run}"):
        print(f"  {program('reverie')} {command}")
    return 0 if score >= SOLVED else 1


if __name__ == "__main__":
    sys.exit(main())
