#!/usr/bin/env python3
"""Draw the README's dream strips, docs/images/strip_rooms.svg and docs/images/strip_pendulum.svg.

The first dream is also a page, docs/images/rooms.html, which the site shows on its first page.

``make demo`` trains the first run. The second takes 10 minutes of one CPU core, from images: ``reverie train
dreamer_v3 --env Pendulum-v1 --env.pixels only --env.resize 32 32 --size nano --steps 9660 --replay-ratio 0.15
--run runs/pendulum``.
Then: ``python docs/tools/strips.py runs/demo runs/pendulum``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import reverie
from reverie.viewer.export import export_episode
from reverie.viewer.session import Session

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"


def main() -> None:
    """Draw the strip of an episode of each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", type=Path)
    parser.add_argument("pendulum", type=Path)
    args = parser.parse_args()
    for run, name, context, seed in ((args.rooms, "rooms", 1, 7), (args.pendulum, "pendulum", 5, 0)):
        strip = IMAGES / f"strip_{name}.svg"
        options = {"context": context, "horizon": 40, "episodes": 1, "deterministic": name == "rooms", "seed": seed}
        print(strip, reverie.dream(reverie.load(run), strip=strip, **options).strip.sentence)
    session = Session(reverie.load(args.rooms), seed=7)
    while not session.timeline.real[-1].values["last"]:
        session.step()
    session.set_context(1)
    (IMAGES / "rooms.html").write_bytes(export_episode(session, "html", "Four rooms, and a dream of them")[1])
    session.close()


if __name__ == "__main__":
    main()
