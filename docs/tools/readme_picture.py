#!/usr/bin/env python3
"""The README's film: a dream beside the truth, from a run of the demo. Its pictures: docs/tools/figures.py.

    make demo
    python docs/tools/readme_picture.py --run runs/demo

Writes docs/images/dream.gif.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

from PIL import Image

import reverie
from reverie.agent.dream_figures import render_sides
from reverie.agent.dream_report import open_played_episodes, predict_open_loop
from reverie.log.video import dream_video

ROOT = Path(__file__).resolve().parents[2]
MILLISECONDS, HOLD = 350, 1200
"""How long a frame of the GIF is shown, and the last one of an episode."""


def dream_gif(run: Path, out: Path, episodes: int, context: int, seed: int) -> None:
    """Film the first ``episodes`` of more than ``context`` rows that the policy plays, one after the other."""
    agent = reverie.load(run)
    frames: list[Image.Image] = []
    times: list[int] = []
    with open_played_episodes(agent, 200, "eval", seed) as (found, _):
        long = (episode for episode in found if episode.shape[1] > context + 5)
        for episode in itertools.islice(long, episodes):
            real = {key: x.numpy() for key, x in episode.obs.items()}
            truth, dream = render_sides(agent, real, predict_open_loop(agent, episode, context))
            pictures = dream_video(truth, dream, context, side_by_side=True)
            frames += [Image.fromarray(x).quantize(64, dither=Image.Dither.NONE) for x in pictures]
            times += [MILLISECONDS] * (len(pictures) - 1) + [HOLD]
    out.parent.mkdir(parents=True, exist_ok=True)
    frames[0].save(out, save_all=True, append_images=frames[1:], duration=times, loop=0, optimize=True)
    print(out, f"{out.stat().st_size / 1e6:.2f} MB, {len(frames)} frames")


def main() -> None:
    """Write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="run folder of the demo")
    parser.add_argument("--episodes", type=int, default=4)
    parser.add_argument("--context", type=int, default=2)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--images", type=Path, default=ROOT / "docs/images")
    args = parser.parse_args()
    dream_gif(args.run, args.images / "dream.gif", args.episodes, args.context, args.seed)


if __name__ == "__main__":
    main()
