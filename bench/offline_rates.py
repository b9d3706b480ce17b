#!/usr/bin/env python3
"""How many updates agents make in a second that learn from recorded data, in other libraries and in ours.

    python bench/offline_rates.py [--tasks bc td3_bc cql ...] [--systems tianshou ...] [--where FOLDER]

The work, the rounds and the environments are those of `model_free_peers.py`: 17 observations, 6 actions (discrete: 4 to
choose from), two layers of 256 for every network, BCQ's model of actions as well, batches of 256, Adam, float32, the
CPU. CQL samples 10 actions of each kind, BCQ 10 for each next state; discrete CQL has 200 quantiles. FQL takes 10 steps
of Euler's method, and QC-FQL, the same with chunks of 5 actions, batches of 256 chunks. Critics of ReBRAC and FQL have
layer norm, and FQL has GELU. Decision Transformer has 3 layers of 128 units with one head, and batches of 64 sequences
of 20 rows.
"""

from __future__ import annotations

import sys
from pathlib import Path

from model_free_peers import OURS, System, compare
from model_free_peers import SYSTEMS as LIVED

TASKS = (
    "bc", "td3_bc", "rebrac", "bcq", "cql", "iql", "crr", "fql", "qc_fql", "decision_transformer", "discrete_bcq",
    "discrete_cql", "discrete_crr",
)  # fmt: skip


def offline(name: str, *tasks: str, note: str = "") -> System:
    """The same library, with its algorithms for recorded data."""
    lived = LIVED[name]
    return System(lived.title, tasks, lived.environment, lived.packages, lived.script, lived.variant, note)


SYSTEMS = {
    OURS: System("reverie", TASKS, script="reverie", note="observations are normalized in each update, its default"),
    "tianshou": offline(
        "tianshou", "bc", "td3_bc", "bcq", "cql", "discrete_bcq", "discrete_cql", "discrete_crr",
        note="CQL with a multiplier that is learned and calibrated, discrete CRR with the term of CQL, its defaults",
    ),
    "torchrl": offline(
        "torchrl", "bc", "td3_bc", "cql", "iql", "decision_transformer",
        note="Decision Transformer on GPT-2 of transformers",
    ),
    "d3rlpy": offline(
        "d3rlpy", "bc", "td3_bc", "rebrac", "bcq", "cql", "iql", "crr", "decision_transformer", "discrete_bcq",
        "discrete_cql",
        note="CQL with a multiplier that is learned, its default",
    ),
    "script": offline("script", "fql", "qc_fql", note="`bench/peers/rates_script_offline.py`"),
    "compiled": offline("compiled", "fql", "qc_fql", note="with torch.compile around each loss"),
}  # fmt: skip


def main() -> int:
    """Install, measure, write and show."""
    return compare(__doc__, TASKS, SYSTEMS, Path(__file__).with_suffix(".json"))


if __name__ == "__main__":
    sys.exit(main())
