#!/usr/bin/env python3
"""The demonstration behind ``make demo``: DreamerV3 learns CartPole-v1 from nothing, and shows what it has learned.

Trains until an evaluation says that the task is solved (or the preset's steps are over), plays 20 further episodes
that it was not selected on, films one, lets the world model dream, and names the files.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

import reverie
from reverie.agent.dreaming import dream
from reverie.agent.evaluation import evaluate_run
from reverie.commands.args import as_given
from reverie.core.errors import ReverieError

SOLVED = 475.0
"""CartPole-v1's own threshold: the mean return over whole episodes, of at most 500."""
EPISODES = 20
CONTEXT, HORIZON = 8, 32
"""Rows of an episode that the model is shown, and steps that it then imagines."""


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


def demonstrate(run: Path, seed: int) -> int:
    """The demonstration in a new run folder."""
    print("DreamerV3 learns CartPole-v1 from scratch: about one to four minutes on two CPU cores.\n")
    started = time.monotonic()
    result = reverie.train("dreamer_v3", env="CartPole-v1", preset="cartpole", seed=seed, run=run)
    minutes = (time.monotonic() - started) / 60
    if result.reason == "interrupted":
        print(f"interrupted; to continue: {program('reverie')} train --resume {run}")
        return 130
    agent = reverie.load(run)
    judged = evaluate_run(agent, EPISODES, video=True)  # episodes that no evaluation during training has played
    dreamt = dream(agent, context=CONTEXT, horizon=HORIZON)
    score = sum(judged.evaluation.scores) / EPISODES
    verdict = "solved" if score >= SOLVED else "not solved"
    print(f"\n{verdict}: mean return {score:.1f} over {EPISODES} episodes (solved from {SOLVED:g}, maximum 500),")
    print(f"learned in {minutes:.1f} minutes from {result.env_steps:,} steps with {result.updates:,} updates.\n")
    files = {
        "learning curve": result.files["curve"],
        "video of the agent": judged.files.get("video"),
        "video of its dream": dreamt.files.get("video"),
        "plot of its dream": dreamt.files["traces"],
        "errors of the dream": dreamt.files["errors"],
        "evaluation": judged.files["evaluation"],
        "checkpoint": result.files["checkpoint"],
    }
    for what, path in as_given({what: path for what, path in files.items() if path is not None}, run).items():
        print(f"  {what:<21}{path}")
    trained = getattr(agent.config.algo, "horizon", HORIZON)
    print(
        f"\nThe dream: the model sees {CONTEXT} rows and imagines {HORIZON} more. During training it imagines only "
        f"{trained} steps.\nAfter minutes of training, a model this small follows the swing of cart and pole, but "
        "their positions are\noff from the start and drift. This is enough for the policy."
    )
    print("\nLook further:")
    for command in (f"info {run}", f"dream {run} --horizon 48", f"eval {run} --mode sample --video"):
        print(f"  {program('reverie')} {command}")
    print(f"  {program('tensorboard')} --logdir {run}")
    return 0 if score >= SOLVED else 1


if __name__ == "__main__":
    sys.exit(main())
