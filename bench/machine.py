"""What all timings share: the machine they ran on, children that start fresh, and files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from results import save

from reverie.core.hardware import describe_machine, matrix_rates
from reverie.core.version import version

STARTED = "REVERIE_BENCH_STARTED"
"""Environment variable by which a child knows when it was started: seconds since 1970."""


def child(
    script: Path, *words: str, under: Sequence[str] = (), setting: Mapping[str, str] | None = None,
    python: Path | str = sys.executable,
) -> Any:  # fmt: skip
    """What ``script`` prints as its last line, as JSON, from a fresh process: peaks and first calls are its own.

    It runs under the command ``under`` in this ``python``, with further environment variables ``setting``.

    Raises:
        RuntimeError: it failed; shows what it said.
    """
    command = [*under, str(python), str(script), *words]
    environment = {**os.environ, STARTED: repr(time.time()), **(setting or {})}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def seconds_since_start() -> float:
    """Since the parent started this process; since now, if there is no such parent."""
    return time.time() - float(os.environ.get(STARTED, time.time()))


def machine(threads: int | None = None) -> dict[str, Any]:
    """The machine, and what its matrix products reach now, with so many threads or as many as PyTorch takes."""
    if threads is not None:
        torch.set_num_threads(threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return {**describe_machine(device), "reverie": version(), "matrix_gflops": matrix_gflops(device)}


def matrix_gflops(device: torch.device) -> dict[str, float]:
    """Giga-operations a second of the fastest matrix product by precision."""
    return {name: rate / 1e9 for name, rate in matrix_rates(device).items()}


def tidy(value: Any) -> Any:
    """``value`` with four digits in each number that is not whole."""
    if isinstance(value, dict):
        return {key: tidy(inner) for key, inner in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def write(path: Path, machine: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """The result of a script."""
    save(path, tidy({"machine": machine}) | {"rows": [tidy(row) for row in rows]})
