"""How OpenMP's threads wait for each other: settled before PyTorch is imported, so nothing heavy is imported here."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

SPIN, POLICY = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"
"""Environment variables that libgomp reads once, when it is loaded."""

TURNS = 1000
"""About as long as it takes to wake a sleeping thread."""


def spin_briefly(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let threads that wait look for :data:`TURNS` turns and then sleep, unless the user has said how they wait.

    By default they look 300,000 times. If another process has the core of the thread that they wait for, they keep it
    from running elsewhere, and so does that process if its threads wait in the same way: both come to a standstill.
    What is computed does not change. It has no effect once PyTorch is loaded, nor on other runtimes than libgomp.
    """
    if SPIN not in environment and POLICY not in environment:
        environment[SPIN] = str(TURNS)
