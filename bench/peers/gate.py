"""Lets several processes warm up at once and measure one after the other (`bench/gpu.py` opens the gates).

Imported inside of other systems' environments, so it knows nothing but Python.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

GATE = "REVERIE_BENCH_GATE"
"""Environment variable: the path, without suffix, of the files `ready`, which a process writes, and `go`."""


def wait_for_turn() -> None:
    """Say that the warm-up is over, and wait until the device is free; without a gate, do nothing."""
    gate = os.environ.get(GATE)
    if gate is None:
        return
    Path(f"{gate}.ready").touch()
    while not Path(f"{gate}.go").exists():
        time.sleep(0.005)
