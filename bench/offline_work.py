"""What offline learners are given to do, ours and those of others alike."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from results import save


class Work(NamedTuple):
    """The same networks, batches, learning rates and evaluations for everybody on one environment."""

    units: tuple[int, ...]
    """Hidden layers with ReLU of every network; of the encoder's output for images."""
    lr: float
    """Learning rate of every Adam."""
    batch: int
    discrete: bool
    image: bool = False
    """10 x 10 planes: one convolution of 16 filters of 3 x 3 before the layers (MinAtar's own network)."""
    discount: float = 0.99


UPDATES, EPISODES, FIRST_SEED = 20_000, 100, 10_000
"""Gradient updates; episodes of the evaluation after them, with the policy's most likely actions; the seed with which
the first of them is reset, the others with the next ones."""

WORK = {
    "Pendulum-v1": Work((64, 64), 1e-3, 256, discrete=False),
    "HalfCheetah-v5": Work((256, 256), 3e-4, 256, discrete=False),
    "CartPole-v1": Work((64, 64), 1e-3, 256, discrete=True),
    "MinAtar/Breakout-v1": Work((128,), 2.5e-4, 128, discrete=True, image=True),
}
CONTINUOUS = ("bc", "td3", "td3_bc", "bcq", "cql", "iql", "crr")
DISCRETE = ("bc", "qr_dqn", "discrete_bcq", "discrete_cql", "discrete_crr")
"""TD3 and QR-DQN were made for what is lived: here they show what it takes to learn from what is recorded."""

VARIANTS = {"cql_mode": "cql", "cql_learned": "cql"}
"""Only made when named: an algorithm with other settings than its own (`SPECIAL`)."""

RATES = {
    "bc": ("lr",), "td3": ("actor_lr", "critic_lr"), "td3_bc": ("actor_lr", "critic_lr"), "bcq": ("lr",),
    "cql": ("actor_lr", "critic_lr"), "iql": ("actor_lr", "critic_lr", "value_lr"), "crr": ("actor_lr", "critic_lr"),
    "qr_dqn": ("lr",), "discrete_bcq": ("lr",), "discrete_cql": ("lr",), "discrete_crr": ("actor_lr", "critic_lr"),
}  # fmt: skip
"""What each calls its learning rates."""

SPECIAL = {
    "bcq": {"algo.vae.units": "2x"},
    "qr_dqn": {"algo.num_quantiles": "64"},
    "cql_mode": {"algo.backup": "mode"},
    "cql_learned": {"algo.backup": "mode", "algo.conservative_weight": "lagrange(10, 0.0001, 5)"},
    "discrete_cql": {"algo.num_quantiles": "64"},
    "discrete_crr": {"algo.conservative-weight": "10"},
}
"""What only one of them has; `2x`: layers twice as wide. Values are pressed down as much as in Tianshou;
`cql_learned` is CQL with all defaults of d3rlpy's."""


FIRST = 1
"""Datasets are the same for the same seed and machine. Another machine's are another recording: policies that learned
otherwise, in other episodes. Rows without a number are of the first."""


def recording(row: Mapping[str, Any]) -> int:
    """Which recording of the datasets a row is of."""
    return int(row.get("recording", FIRST))


def key_of(row: Mapping[str, Any], names: Sequence[str]) -> tuple[Any, ...]:
    """What tells rows from each other."""
    return (*(row[name] for name in names), recording(row))


def merged(rows: list[dict[str, Any]], row: dict[str, Any], names: Sequence[str]) -> list[dict[str, Any]]:
    """`rows` with `row` in the place of the one that it repeats."""
    others = [each for each in rows if key_of(each, names) != key_of(row, names)]
    return sorted([*others, row], key=lambda each: key_of(each, names))


def rows_in(path: Path) -> list[dict[str, Any]]:
    """The results that are there already."""
    return json.loads(path.read_text())["rows"] if path.exists() else []


def collect(
    jobs: Iterable[Future[dict[str, Any]]], out: Path, here: Mapping[str, Any], number: int, names: Sequence[str]
) -> int:
    """Write each result to `out` as it comes; `number`: which recording they are of. The number of failed jobs."""
    failed = 0
    for done in as_completed(jobs):
        try:
            row = {**done.result(), **({"recording": number} if number != FIRST else {})}
        except RuntimeError as error:
            failed += 1
            print(error, flush=True)
            continue
        table = {"machine": here, "rows": merged(rows_in(out), row, names)}  # others may write as well
        save(out, table)
        print(json.dumps(row), flush=True)
    return failed


def algorithms(env: str, names: Sequence[str] = ()) -> list[str]:
    """Those that fit, or those of ``names`` that do."""
    every = DISCRETE if WORK[env].discrete else CONTINUOUS
    return [name for name in names or every if VARIANTS.get(name, name) in every]


def flags(algorithm: str, env: str) -> list[str]:
    """The work in words of our command line."""
    work = WORK[env]
    units = [str(u) for u in work.units]
    words = ["--algo.networks.units", *units, "--algo.batch-size", str(work.batch)]
    for name in RATES[VARIANTS.get(algorithm, algorithm)]:
        words += [f"--algo.{name.replace('_', '-')}", str(work.lr)]
    for key, value in SPECIAL.get(algorithm, {}).items():
        words += [f"--{key}", *([str(2 * u) for u in work.units] if value == "2x" else [value])]
    return words + (["--algo.networks.encoder", "minatar"] if work.image else [])
