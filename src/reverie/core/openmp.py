"""Spinning of OpenMP threads. It is set before PyTorch is imported, so this module has no heavy imports."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

SPIN_ENV_VAR, WAIT_ENV_VAR = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"
"""Environment variables that libgomp reads once, when it is loaded."""

SPIN_ITERATIONS = 1000
"""Iterations of the spin loop that take about as long as waking a sleeping thread."""


def limit_openmp_spinning(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let waiting threads spin :data:`SPIN_ITERATIONS` times and then sleep, unless the user has set how they wait.

    The default is 300,000, with which two spinning processes slow each other down drastically. It has no effect once
    PyTorch is loaded, nor with OpenMP runtimes other than libgomp.
    """
    if SPIN_ENV_VAR not in environment and WAIT_ENV_VAR not in environment:
        environment[SPIN_ENV_VAR] = str(SPIN_ITERATIONS)
