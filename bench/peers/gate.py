"""Lets several processes warm up at once and measure one after the other (`bench/gpu.py` opens the gates).

Imported inside of other systems' environments, so it knows nothing but Python.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

GATE = "REVERIE_BENCH_GATE"
"""Environment variable: the path, without suffix, of the files `ready`, which a process writes, and `go`."""


def wait_for_turn() -> float:
    """Say that the warm-up is over, and wait until the device is free. Return the seconds that there are.

    Without a gate there is no limit.
    """
    gate = os.environ.get(GATE)
    if gate is None:
        return math.inf
    Path(f"{gate}.ready").touch()
    while not Path(f"{gate}.go").exists():
        time.sleep(0.005)
    return float(Path(f"{gate}.go").read_text(encoding="utf-8"))
