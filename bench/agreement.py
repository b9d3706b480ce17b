#!/usr/bin/env python3
"""Do reverie's algorithms compute the same numbers as the code of other libraries?

    python bench/agreement.py [--peers d3rlpy ...] [--algorithms td3 sac ...] [--where FOLDER]

Both sides get the same first weights, the same batches of 48 transitions and the same random draws, in float32. What
is compared: the losses of six updates, the gradients of the first one, and all weights after the last one. The learners
themselves run, ours as in a run and the others by their own `update`, `train` or losses. First weights are larger than
usual and targets differ from their networks, so that bounds and clips matter. Estimators run over episodes that end in
either way.

Ours writes its numbers to a temporary folder (`peers/agreement_reverie.py`); the script of each peer
(`peers/agreement_<peer>.py`) runs in its own environment and compares. What a peer had to be patched for stands beside
its result. The status is 1 where numbers differ and nobody knows why. Rows of what was not asked for stay as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from machine import write
from model_free_peers import SYSTEMS
from peers.installed import WHERE, installed
from words import grid

HERE = Path(__file__).parent
PEERS = ("sb3", "tianshou", "d3rlpy", "torchrl")
LEARNERS = {
    "ddpg": "DDPG",
    "td3": "TD3",
    "sac": "SAC",
    "discrete_sac": "discrete SAC",
    "dqn": "DQN",
    "double_dqn": "DQN, double",
    "dueling_dqn": "DQN, dueling",
    "prioritized_dqn": "DQN, prioritized",
    "qr_dqn": "QR-DQN",
    "double_qr_dqn": "QR-DQN, double",
    "double_c51": "C51, double",
    "rainbow": "Rainbow, without priorities",
    "double_iqn": "IQN, double",
    "bc": "BC",
    "stochastic_bc": "BC, stochastic",
    "discrete_bc": "BC, discrete",
    "td3_bc": "TD3+BC",
    "bcq": "BCQ",
    "crr": "CRR, exp and mean",
    "crr_binary_max": "CRR, binary and max",
    "iql": "IQL",
    "cql": "CQL, sampled targets",
    "cql_mode": "CQL, targets of the mode",
    "cql_soft": "CQL, soft targets",
    "cql_best": "CQL, best of several",
    "cql_lagrange": "CQL, learned multiplier",
    "cal_ql": "Cal-QL",
    "discrete_bcq": "discrete BCQ",
    "discrete_cql": "discrete CQL, quantiles",
    "discrete_cql_huber": "discrete CQL, Huber",
    "discrete_crr": "discrete CRR",
    "fqe": "FQE",
}
ESTIMATORS = {"gae": "GAE", "td_lambda": "TD(lambda)", "vtrace": "V-trace", "n_step": "n-step returns"}
ALGORITHMS = LEARNERS | ESTIMATORS
"""What each is called on the page."""

RELATIVE, ABSOLUTE = 2e-5, 2e-6
"""A quantity agrees within either: float32 keeps seven digits, and sums in another order lose one or two of them."""
LIMIT = 900
"""Seconds that one script may take."""

Row = dict[str, Any]


def agrees(difference: float, scale: float) -> bool:
    """Whether a quantity with numbers up to ``scale`` is the same on both sides; NaN is not."""
    return difference <= max(RELATIVE * scale, ABSOLUTE)


def row_of(peer: str, answer: Mapping[str, Any]) -> Row:
    """All that was compared of an algorithm in one row."""
    head = {"algorithm": answer["algorithm"], "peer": peer}
    if "failed" in answer:
        return head | {"note": f"failed: {answer['failed']}", "agrees": False}
    quantities = answer["quantities"]
    apart = [q["what"] for q in quantities if not agrees(q["difference"], q["scale"])]
    known = bool(apart and answer["known"])
    found = {
        "compared": len(quantities),
        "difference": max(q["difference"] for q in quantities),
        "scale": max(q["scale"] for q in quantities),
        "note": f"differs: {answer['known']}" if known else answer["note"],
        "agrees": not apart,
    }
    return head | found | ({"apart": apart, "known": known} if apart else {})


def unexplained(rows: Sequence[Row]) -> list[str]:
    """A line for each row that differs without a known reason."""
    return [
        f"{row['algorithm']}, {row['peer']}: {', '.join(row.get('apart', [])[:5]) or row['note']}"
        for row in rows
        if not row["agrees"] and not row.get("known")
    ]


def merged(old: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """The rows of ``new``, and of ``old`` those of other pairs, in the order of the page."""
    both = {(row["algorithm"], row["peer"]): row for row in (*old, *new) if row["algorithm"] in ALGORITHMS}
    order = list(ALGORITHMS)
    return sorted(both.values(), key=lambda row: (order.index(row["algorithm"]), PEERS.index(row["peer"])))


def run(python: Path, name: str, *words: str) -> str:
    """What a script of `peers/` says.

    Raises:
        RuntimeError: it failed; with the end of what it said.
    """
    env = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "RL_LOGGING_LEVEL": "ERROR"}
    command = [str(python), "-W", "ignore", str(HERE / "peers" / f"agreement_{name}.py"), *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=LIMIT)
    if done.returncode:
        raise RuntimeError(f"agreement_{name}.py ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def compared(pythons: Mapping[str, Path], algorithms: Sequence[str]) -> tuple[list[Row], dict[str, str]]:
    """The rows of all peers, and the versions of what was compared."""
    rows, versions = [], {}
    with tempfile.TemporaryDirectory() as folder:
        run(Path(sys.executable), "reverie", folder, *algorithms)
        for peer, python in pythons.items():
            said = json.loads(run(python, peer, folder, *algorithms).splitlines()[-1])
            rows += [row_of(peer, answer) for answer in said["answers"]]
            versions |= said["versions"]
    return rows, versions


def agreement_table(result: Mapping[str, Any]) -> list[str]:
    """One row an algorithm, one column a peer; below, what must be said of pairs."""
    rows = result["rows"]
    cells = {(row["algorithm"], row["peer"]): cell(row) for row in rows}
    numbers = {name: sum(row.get("compared", 0) for row in rows if row["algorithm"] == name) for name in ALGORITHMS}
    shown = [name for name in ALGORITHMS if any(row["algorithm"] == name for row in rows)]
    lines = [[ALGORITHMS[name], str(numbers[name]), *(cells.get((name, p), "-") for p in PEERS)] for name in shown]
    said: dict[tuple[str, str], list[str]] = {}
    for row in sorted((row for row in rows if row["note"]), key=lambda row: PEERS.index(row["peer"])):
        said.setdefault((row["peer"], row["note"]), []).append(ALGORITHMS[row["algorithm"]])
    notes = [f"- {title(peer)}, {'; '.join(names)}: {note}" for (peer, note), names in said.items()]
    return [*grid(["algorithm", "compared", *map(title, PEERS)], lines), *([""] if notes else []), *notes]


def agreement_summary(result: Mapping[str, Any]) -> list[str]:
    """Three sentences, and one row a peer: which algorithms compute the same numbers."""
    rows = result["rows"]
    names: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        kind = "same" if not row["note"] else "patched" if row["agrees"] else "differs"
        names.setdefault((row["peer"], kind), []).append(ALGORITHMS[row["algorithm"]])
    differing = [
        f"{name} in {title(peer)}" for (peer, kind), found in names.items() if kind == "differs" for name in found
    ]
    kinds = ("same", "patched", "differs")
    lines = [[title(peer), *("; ".join(names.get((peer, kind), ["-"])) for kind in kinds[:2])] for peer in PEERS]
    return [
        f"`python bench/agreement.py` makes the same six updates in reverie and in {len(PEERS)} other libraries, and "
        f"compares {sum(row.get('compared', 0) for row in rows):,} losses, gradients and weights.",
        f"{sum(row['agrees'] for row in rows)} of {len(rows)} pairs of algorithm and library agree: to 2e-6, or to "
        "2e-5 of the largest number.",
        f"The exception is {'; '.join(differing)}; some pairs agree after a patch that removes a difference "
        "([numbers and patches](../bench/README.md#agreement)).",
        "",
        *grid(["library", "the same", "the same after a patch"], lines),
    ]


def cell(row: Row) -> str:
    """The largest difference, and the largest of the numbers compared; in bold where they are not the same."""
    if "difference" not in row:
        return "failed"
    text = f"{row['difference']:.0e}".replace("0e+00", "0") + f" of {row['scale']:.2g}"
    return text if row["agrees"] else f"**{text}**"


def title(peer: str) -> str:
    """A peer with its version."""
    return SYSTEMS[peer].title


def main() -> int:
    """Install, compare, write and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=PEERS)
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS), choices=list(ALGORITHMS), metavar="NAME")
    parser.add_argument("--where", type=Path, default=WHERE, help="folder of the environments")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    pythons = installed({SYSTEMS[peer].environment: SYSTEMS[peer].packages for peer in args.peers}, args.where)
    fresh, versions = compared(pythons, args.algorithms)
    before = json.loads(args.out.read_text()) if args.out.exists() else {"machine": {}, "rows": []}
    rows = merged(before["rows"], fresh)
    write(args.out, machine(before["machine"].get("versions", {}) | versions), rows)
    print("\n".join(agreement_table({"rows": rows})))
    for line in unexplained(fresh):
        print(f"differs: {line}", file=sys.stderr)
    return bool(unexplained(fresh)) or len(pythons) < len(args.peers)


def machine(versions: Mapping[str, str]) -> dict[str, Any]:
    """Where, and with what; no rates, as nothing was timed."""
    import torch

    from reverie.core.hardware import describe_machine
    from reverie.core.version import version

    kept = {
        key: value
        for key, value in describe_machine(torch.device("cpu")).items()
        if key not in ("load", "threads", "gpu")
    }
    return kept | {"reverie": version(), "versions": dict(sorted(versions.items()))}


if __name__ == "__main__":
    sys.exit(main())
