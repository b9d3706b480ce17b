#!/usr/bin/env python3
"""How many updates goal-conditioned agents make in a second, in OGBench's JAX code and in ours.

    python bench/goal_rates.py --clones FOLDER --threads 1 [--where FOLDER]

FOLDER is a clone of seohongpark/ogbench (1d41409). The work, the rounds and the environments are those of
`model_free_peers.py`: 17 observations, 6 actions, two layers of 256, batches of 256, Adam, float32, the CPU. Goals are
sampled in each update.
"""

from __future__ import annotations

import sys
from pathlib import Path

from model_free_peers import OURS, System, compare

TASKS = ("gcivl", "hiql")
SYSTEMS = {
    OURS: System("reverie", TASKS, script="reverie", note="observations are normalized in each update, its default"),
    "ogbench": System(
        "OGBench, JAX", TASKS, "ogbench",
        ("jax==0.10.2", "flax==0.12.8", "optax==0.2.8", "distrax==0.1.9", "ml_collections==1.1.0", "numpy==2.4.6"),
        "ogbench", cloned=True,
    ),
}  # fmt: skip


def main() -> int:
    """Install, measure, write and show."""
    return compare(__doc__, TASKS, SYSTEMS, Path(__file__).with_suffix(".json"))


if __name__ == "__main__":
    sys.exit(main())
