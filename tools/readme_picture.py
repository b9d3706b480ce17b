#!/usr/bin/env python3
"""The README's pictures: a dream beside the truth from a run of the demo, and the learning curves of its ten seeds.

    make demo
    python tools/readme_picture.py --run runs/demo

Writes docs/images/dream.gif from a run, and docs/images/demo.png from benchmarks/demo.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

import numpy as np
from demo import PRESET
from PIL import Image

import reverie
from reverie.agent.dream_figures import painted
from reverie.agent.dreaming import imagined, played
from reverie.log.aggregate import Measured, OfSeed, aggregate
from reverie.log.plot import seeds_curve
from reverie.log.video import dream_video
from reverie.presets.layers import PRESETS

ROOT = Path(__file__).resolve().parents[1]
MILLISECONDS, HOLD = 350, 1200
"""How long a frame of the GIF is shown, and the last one of an episode."""


def dream_gif(run: Path, out: Path, episodes: int, context: int, seed: int) -> None:
    """Film the first ``episodes`` of more than ``context`` rows that the policy plays, one after the other."""
    agent = reverie.load(run)
    frames: list[Image.Image] = []
    times: list[int] = []
    with played(agent, 200, "eval", seed) as (found, _):
        long = (episode for episode in found if episode.shape[1] > context + 5)
        for episode in itertools.islice(long, episodes):
            real = {key: x.numpy() for key, x in episode.obs.items()}
            truth, dream = painted(agent, real, imagined(agent, episode, context))
            pictures = dream_video(truth, dream, context, beside=True)
            frames += [Image.fromarray(x).quantize(64, dither=Image.Dither.NONE) for x in pictures]
            times += [MILLISECONDS] * (len(pictures) - 1) + [HOLD]
    out.parent.mkdir(parents=True, exist_ok=True)
    frames[0].save(out, save_all=True, append_images=frames[1:], duration=times, loop=0, optimize=True)
    print(out, f"{out.stat().st_size / 1e6:.2f} MB, {len(frames)} frames")


def curve(table: Path, out: Path) -> None:
    """Draw the evaluations of all seeds; a seed that has stopped keeps its last score."""
    config = PRESETS[PRESET]()
    rows = json.loads(table.read_text())["rows"]
    seeds = [np.array(row["curve"], float).T for row in rows]
    every = config.schedule.eval_every
    how = Measured("env steps", evaluates=True, period=every, early=True)
    runs = {
        number: OfSeed(int(steps[-1]), None, None, None, (steps // every * every, scores))
        for number, (steps, scores) in enumerate(seeds)
    }
    seeds_curve(out, aggregate(runs, how), title=f"make demo: {config.env.id}")
    print(out)


def main() -> None:
    """Write both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="run folder of the demo; without it, only the curve is drawn")
    parser.add_argument("--episodes", type=int, default=4)
    parser.add_argument("--context", type=int, default=2)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--images", type=Path, default=ROOT / "docs/images")
    args = parser.parse_args()
    if args.run:
        dream_gif(args.run, args.images / "dream.gif", args.episodes, args.context, args.seed)
    if (table := ROOT / "benchmarks/demo.json").exists():
        curve(table, args.images / "demo.png")


if __name__ == "__main__":
    main()
