#!/usr/bin/env python3
"""How fast does the page dream, and how much work is it until the first picture?

    python bench/viewer.py [--repeat 3]

DreamerV3 of size 1m that sees CartPole as 64x64 pictures; it has not learned, which changes no time. Measured is
processor time of the server's process with one thread, pictures as PNG included: a busy machine hardly changes it. A
browser's own work is not in it. The first picture is counted from the start of the command ``reverie view RUN``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from results import save

import reverie

ROWS = 240
AT_ONCE = 12
"""Rows that a playing page asks for at once."""
MODEL: dict[str, Any] = {
    "env": "CartPole-v1", "size": "1m", "steps": 40, "replay_ratio": 0, "random_steps": 20, "eval_episodes": 0,
    "tensorboard": False, "console": False, "env_options": {"pixels": "only", "resize": (64, 64), "num": 1},
}  # fmt: skip


def first_picture(run: Path) -> float:
    """Processor seconds of the command until a page has the first picture of both sides."""
    from websockets.sync.client import connect

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "reverie", "view", str(run), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    link = server.stdout.readline().strip()
    origin = re.match(r"http://[^/]*", link)
    assert origin is not None
    with connect(link.replace("http", "ws") + "ws", origin=origin[0], max_size=None) as socket:
        for request in ({"do": "hello"}, {"do": "begin", "run": "."}):
            socket.send(json.dumps(request))
            answer = socket.recv(timeout=120)
    assert answer.count(b"\x89PNG") == 2
    server.kill()
    server.wait()
    server.stdout.close()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def rates(run: Path) -> dict[str, float]:
    """Rows per processor second: of the dream alone, and of the environment with the dream beside it."""
    import torch

    from reverie.viewer.server import Page, Viewer

    torch.set_num_threads(1)
    page = Page(Viewer(run))
    page.answer('{"do": "begin", "run": "."}')
    page.answer('{"do": "dream", "at": 0, "steps": 2}')

    def dream() -> int:
        page.answer(json.dumps({"do": "dream", "at": len(page.open()) - 1, "steps": AT_ONCE}))
        return AT_ONCE

    def step() -> int:
        if page.open().timeline.real[-1].values["last"]:
            page.answer('{"do": "start"}')
        page.answer('{"do": "step"}')
        return 1

    found = {"dream": per_second(dream)}
    page.answer('{"do": "start", "seed": 0}')
    found["both"] = per_second(step)
    page.close()
    return found


def per_second(call: Callable[[], int]) -> float:
    """Rows per processor second."""
    started, rows = time.process_time(), 0
    while rows < ROWS:
        rows += call()
    return rows / (time.process_time() - started)


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        reverie.train("dreamer_v3", run=run, **MODEL)
        samples = [{"first_picture": first_picture(run), **rates(run)} for _ in range(args.repeat)]
    median = {name: statistics.median(one[name] for one in samples) for name in samples[0]}
    row = {
        "first_picture_seconds": round(median["first_picture"], 2),
        "dreamt_rows_per_second": round(median["dream"]),
        "rows_of_both_sides_per_second": round(median["both"]),
    }
    print(json.dumps(row), flush=True)
    import torch

    machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    table = {
        "task": "reverie view: DreamerV3 of size 1m with 64x64 pictures, processor time, one thread",
        "command": "python bench/viewer.py", "machine": machine, "torch": torch.__version__,
        "python": platform.python_version(), "rows": [row],
    }  # fmt: skip
    save(Path(__file__).with_suffix(".json"), table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
