#!/usr/bin/env python3
"""Make the pictures of the product: the viewer, the terminal, and the strips of dreams.

    python docs/tools/product_pictures.py            # whatever shows an earlier state of the product
    python docs/tools/product_pictures.py look.png   # this one

``docs/images/product.json`` has a hash of the code that drew each picture. A test compares it with today's code.
A run that a picture needs is trained in build/runs: the rooms take a minute of one CPU core, the pendulum ten.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import console_picture
import strips

import reverie
from reverie.viewer.runs import find_live_pages

ROOT = Path(__file__).resolve().parents[2]
SOURCE, IMAGES = ROOT / "src" / "reverie", ROOT / "docs" / "images"
HASHES = IMAGES / "product.json"
RUNS = ROOT / "build" / "runs"
PENDULUM = {"env": "Pendulum-v1", "size": "nano", "steps": 9_660, "replay_ratio": 0.15, "env.pixels": "only",
            "env.resize": (32, 32)}  # fmt: skip
TRAINED: dict[str, dict[str, Any]] = {"rooms": {"preset": "demo", "seed": 1}, "pendulum": PENDULUM, "": {}}
"""Settings of the runs: that of ``make demo``, and one from images."""
SEED = 670371964
"""Of the episode in the viewer: the agent walks through three of the rooms."""
WIDTH, HEIGHT = 1280, 1046


def draw_viewer(run: Path) -> None:
    """Take a picture of the viewer in each theme: an episode, its dream, and a lane that a future has begun."""
    from playwright.sync_api import sync_playwright

    server = reverie.view(run)
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=find_chromium())
        for name, scheme in (("look.png", "light"), ("look_dark.png", "dark")):
            page = browser.new_page(
                viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme, reduced_motion="reduce"
            )
            page.goto(f"{server.url}?seed={SEED}&seen=1&row=4")
            page.locator("#run[aria-busy=false]").wait_for()  # the whole episode has been played
            page.locator("#sentence", has_text="It saw 1 frame.").wait_for()
            page.locator("#row", has_text="row 4 of").wait_for()
            length = page.locator("#row").inner_text().rpartition("of")[2]  # differs between processors
            page.keyboard.press("b")
            page.locator("#each").click()
            page.locator(".future", has_text=re.compile("^left")).click()
            page.locator(".lane").nth(1).wait_for()
            page.keyboard.press("ArrowUp")  # to the lane of the episode
            page.locator("#row", has_text=f"of{length}").wait_for()
            page.locator("#scrub").fill("7")
            page.locator("#scrub").blur()
            page.locator("#row", has_text="row 7 of").wait_for()
            page.wait_for_timeout(1000)  # the pictures of the lanes
            page.screenshot(path=IMAGES / name)
            page.close()
        browser.close()
    server.close()


def draw_live(_: Path) -> None:
    """Take a picture of the page of a run in each theme, while a person acts in the two rooms."""
    from playwright.sync_api import sync_playwright

    settings = ["--preset", "hil", "--human", "page", "--steps", "100_000"]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "reverie", "train", "sac", "--env", "helped:Rooms-v0", "--run", str(run)]
        process = subprocess.Popen([*command, *settings], cwd=ROOT / "examples", stdout=subprocess.DEVNULL)
        try:
            while not (run / "live.json").exists() and process.poll() is None:
                time.sleep(0.5)
            browser = started.chromium.launch(executable_path=find_chromium())
            for name, scheme in (("live.png", "light"), ("live_dark.png", "dark")):
                page = browser.new_page(
                    viewport={"width": 900, "height": 760}, color_scheme=scheme, reduced_motion="reduce"
                )
                page.goto(next(iter(find_live_pages(run).values())))
                page.locator("#stage canvas").wait_for()
                page.keyboard.press("Space")
                page.locator("#status", has_text="You act").wait_for()
                page.keyboard.down("ArrowRight")
                page.keyboard.down("ArrowUp")
                page.wait_for_timeout(3000)  # some rows of the person in the ribbon
                page.screenshot(path=IMAGES / name)
                page.close()
            browser.close()
        finally:
            process.terminate()
            process.wait()


def find_chromium() -> str | None:
    """Return the browser that is installed; None: Playwright's."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def draw_console(_: Path) -> None:
    """Take a picture of a run in a terminal."""
    console_picture.draw(["dqn", "--env", "CartPole-v1", "--run", "runs/first"], 10_000)


class Picture(NamedTuple):
    """A picture of the product."""

    draw: Callable[[Path], object]
    """Called with the folder of a run."""
    run: str
    """In ``TRAINED``."""
    drawn_by: str
    """The files that draw it, below src/reverie."""


PAGE = (
    "app.js chart.js controls.js futures.js index.html lanes.js panels.js strip.js strip_canvas.js style.css "
    "timeline.js"
)
STEP = (
    "agent/program.py envs/pages/rooms.js viewer/page.py viewer/publish.py viewer/walk.py viewer/static/program.js "
    "viewer/static/step.* viewer/static/walk.*"
)
STRIP = "agent/dream_strip.py log/strip.py log/strip_figure.py"
LIVE = "dom.js hands.js link.js live.* style.css"
PICTURES = {
    "look.png": Picture(draw_viewer, "rooms", " ".join(f"viewer/static/{file}" for file in PAGE.split())),
    "live.png": Picture(draw_live, "", " ".join(f"viewer/static/{file}" for file in LIVE.split())),
    "step.html": Picture(strips.write_page, "rooms", STEP),
    "strip_rooms.svg": Picture(strips.draw_rooms, "rooms", STRIP),
    "strip_pendulum.svg": Picture(strips.draw_pendulum, "pendulum", STRIP),
    "console.svg": Picture(draw_console, "", "log/console.py"),
}


def wanted() -> dict[str, str]:
    """Return the hash of the code that draws each picture, without comments and docstrings."""
    return {name: digest(picture.drawn_by.split()) for name, picture in PICTURES.items()}


def digest(patterns: list[str]) -> str:
    """Return the hash of what files say that match patterns."""
    files = sorted({file for pattern in patterns for file in SOURCE.glob(pattern)})
    assert files, patterns
    left_out = re.compile(r'""".*?"""|(?m:^\s*(#|//)[^\n]*$)|\s', re.DOTALL)
    code = (left_out.sub("", file.read_text("utf-8")) for file in files)
    return hashlib.sha256("\n".join(code).encode()).hexdigest()[:16]


def trained(name: str) -> Path:
    """Return the folder of a run, trained here if it is not there yet."""
    if not (RUNS / name / "eval.json").exists():
        reverie.train("dreamer_v3", run=RUNS / name, **TRAINED[name])
    return RUNS / name


def main() -> None:
    """Make the pictures that are named, or those that are older than the code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PICTURES)}")
    hashes = json.loads(HASHES.read_text()) if HASHES.exists() else {}
    old = [name for name, value in wanted().items() if hashes.get(name) != value]
    for name in parser.parse_args().names or old:
        PICTURES[name].draw(trained(PICTURES[name].run) if PICTURES[name].run else RUNS)
        hashes[name] = wanted()[name]
        HASHES.write_text(json.dumps(hashes, indent=1, sort_keys=True) + "\n")
        print(IMAGES / name)


if __name__ == "__main__":
    main()
