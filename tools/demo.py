#!/usr/bin/env python3
"""The demonstration behind ``make demo``: DreamerV3 learns to walk to a goal, and we watch its dreams.

Trains until an evaluation says that the task is solved, or the preset's steps are over. Then plays 20 episodes that
training has not seen, lets the world model dream each from its first row, films them side by side, makes a page in
which one steps into the dream, and names the files.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

import reverie
from reverie.agent.dream_figures import Arrays, open_renderer
from reverie.agent.dream_report import open_played_episodes
from reverie.agent.right_dreams import CONTEXT, dream_episodes
from reverie.cli.output import print_files
from reverie.core.errors import ReverieError, count_noun
from reverie.core.seeding import seeded_rng
from reverie.core.types import Batch
from reverie.experiment.settings import make_preset
from reverie.log.strip import Strip
from reverie.log.video import dream_video, write_video
from reverie.run.result import TrainResult

PRESET, SOLVED, EPISODES = "demo", 0.9, 20
"""The settings, and the mean return over so many episodes that counts as solved."""
ENV = make_preset(PRESET).env.id
SEED = 2**31
"""Seed of the episodes after training: no environment of training or evaluation has it."""
KEYS = ("agent", "grid")
"""What the model observes."""
FILMED, SIDE_BY_SIDE, PAUSE, FRAMES_PER_SECOND = 12, 3, 2, 4
COMPARED = 100
"""Steps in which the page's world model is compared with the agent's."""
MEASURED = Path(__file__).resolve().parents[1] / "bench" / "demo.json"


class Dream(NamedTuple):
    """An episode of T rows, what the world model predicts after it has observed the first one, and where both part."""

    episode: Batch  # [1, T]
    predictions: Arrays  # [T, ...]
    strip: Strip


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
    """Train, evaluate, dream, film; 0 if the task was solved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("runs/demo"), help="run folder (default: runs/demo)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    try:
        return demonstrate(fresh(args.run), args.seed)
    except ReverieError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def play(agent: reverie.Agent) -> list[Batch]:
    """Play ``EPISODES`` new episodes with the most likely actions."""
    with open_played_episodes(agent, 1000, "eval", SEED) as (episodes, _), seeded_rng(SEED):
        return list(itertools.islice(episodes, EPISODES))


def mean_return(episodes: Sequence[Batch]) -> float:
    """The mean sum of rewards."""
    return float(np.mean([episode.reward.sum() for episode in episodes]))


def dream_all(agent: reverie.Agent, episodes: Sequence[Batch], context: int = CONTEXT) -> list[Dream]:
    """Let the world model observe rows of each longer episode, and imagine the others from the actions alone."""
    whole = [episode for episode in episodes if episode.shape[1] > context]
    with seeded_rng(SEED):
        dreams = dream_episodes(agent, whole, context)
    return [Dream(episode, *dream) for episode, dream in zip(whole, dreams, strict=True)]


def describe(strips: Sequence[Strip]) -> str:
    """State in one sentence how many dreams are right, and where the first of the others goes wrong."""
    wrong = [strip for strip in strips if strip.parting is not None]
    if not wrong:
        return f"All {len(strips)} dreams are right in every cell of every step."
    row = wrong[0].parting or 0
    how = text if (text := wrong[0].texts[row]).startswith("the") else f"it is {text}"
    return f"{len(strips) - len(wrong)} of {len(strips)} dreams are right; in another, {how} at step {row}."


def film(agent: reverie.Agent, dreams: Sequence[Dream], path: Path) -> Path:
    """Film the episodes, each above its dream; an episode that has ended waits for those beside it."""
    parts = []
    with open_renderer(agent, KEYS) as paint:
        assert paint is not None
        for first in range(0, len(dreams), SIDE_BY_SIDE):
            group = dreams[first : first + SIDE_BY_SIDE]
            longest = max(x.episode.shape[1] for x in group) + PAUSE
            shown = [np.minimum(np.arange(longest), x.episode.shape[1] - 1) for x in group]
            real = [paint({key: x.episode.obs[key].numpy() for key in KEYS}) for x in group]
            dreamt = [paint({key: x.predictions[key][None] for key in KEYS}) for x in group]
            sides = [np.concatenate([x[:, at] for x, at in zip(side, shown, strict=True)]) for side in (real, dreamt)]
            parts.append(dream_video(*sides, CONTEXT))
    return write_video(path, np.concatenate(parts), FRAMES_PER_SECOND)


def demonstrate(run: Path, seed: int) -> int:
    """The demonstration in a new run folder."""
    seconds = [row["cpu_seconds"] for row in json.loads(MEASURED.read_text())["rows"]]
    print(f"DreamerV3 learns {ENV} in {min(seconds):.0f} to {max(seconds):.0f} seconds on one idle core.\n")
    started = time.monotonic()
    result = reverie.train("dreamer_v3", preset=PRESET, env=ENV, seed=seed, run=run)
    elapsed = time.monotonic() - started
    if result.reason == "interrupted":
        print(f"interrupted; to continue: {program('reverie')} train --resume {run}")
        return 130
    agent = reverie.load(run)
    episodes = play(agent)
    score, dreams = mean_return(episodes), dream_all(agent, episodes)
    print(
        f"\n{'Solved' if score >= SOLVED else 'Not solved'} after {elapsed:.0f} seconds, "
        f"{count_noun(result.env_steps, 'env step')} and {count_noun(result.updates, 'update')}:\n"
        f"mean return {score:.2f} over {EPISODES} new episodes (solved from {SOLVED:g}, at most 1).\n\n"
        "In a dream, the model sees the first frame of an episode. Then it closes its\n"
        f"eyes, and imagines the rest from the actions alone.\n{describe([dream.strip for dream in dreams])}\n"
    )
    page = reverie.export(agent, agent.run / "step.html", world=True, steps=COMPARED).file
    video = film(agent, dreams[:FILMED], agent.run / "videos" / "dreams.mp4")
    print_written(result, {"step into the dream": page, "episodes and dreams": video}, run)
    return 0 if score >= SOLVED else 1


def print_written(result: TrainResult, dreams: dict[str, Path], run: Path) -> None:
    """Name the files, and the next commands."""
    files = dreams | {name: result.files[name] for name in ("curve", "checkpoint")}
    print_files({name: path for name, path in files.items() if path is not None}, run)
    snapshots = len(list((run / "dream_snapshots").glob("step-*")))
    print(f"\nFilm of the training, one episode dreamt by {snapshots} snapshots: view, tab Training.")
    print("\nTry next:")
    for command in ("view", "report", "eval --no-deterministic --video", "info"):
        name, _, options = command.partition(" ")
        print(f"  {program('reverie')} {name} {run} {options}".rstrip())


if __name__ == "__main__":
    sys.exit(main())
