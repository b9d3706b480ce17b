"""Draw the strips of dreams, docs/images/strip_rooms.svg and docs/images/strip_pendulum.svg, and a dream to play with.

The last is docs/images/rooms.html, which the site shows on its first page. `product_pictures.py` calls this.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import reverie
from reverie.viewer.export import export_episode
from reverie.viewer.session import Session

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
    """Write a page that plays a dream of the four rooms."""
    session = Session(reverie.load(run), seed=7)
    while not session.timeline.real[-1].values["last"]:
        session.step()
    session.set_context(1)
    (IMAGES / "rooms.html").write_bytes(export_episode(session, "html", "Four rooms, and a dream of them")[1])
    session.close()
