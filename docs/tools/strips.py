"""Draw the strips of dreams, docs/images/strip_rooms.svg and docs/images/strip_pendulum.svg, and a dream to walk in.

The last is docs/images/step.html, to which the README links, and which the site shows on its first screen.
`product_pictures.py` calls this.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import reverie

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"


def draw_rooms(run: Path) -> None:
    """Draw a dream of the four rooms."""
    _draw_strip(run, "rooms", context=1, deterministic=True, seed=7)


def draw_pendulum(run: Path) -> None:
    """Draw a dream of a pendulum, from images."""
    _draw_strip(run, "pendulum", context=5, deterministic=False, seed=0)


def _draw_strip(run: Path, name: str, **options: Any) -> None:
    report = reverie.dream(reverie.load(run), strip=IMAGES / f"strip_{name}.svg", horizon=40, episodes=1, **options)
    print(report.strip.sentence if report.strip else "")


def write_page(run: Path) -> None:
    """Write a page in which one walks in the four rooms and in the dream of them, with weights in half a megabyte."""
    reverie.export(run, IMAGES / "step.html", world=True, numbers="int8")
