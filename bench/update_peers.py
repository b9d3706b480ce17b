#!/usr/bin/env python3
"""How long an update and a decision take in the libraries that people use today, side by side with ours.

    python bench/update_peers.py [--systems sheeprl rllib torchrl ...] [--settings V I] [--where FOLDER]

Each system gets a virtual environment of its own under `--where`, made once. Each measurement is a process of its own
(`peers/update_*.py`); ours runs before and after every other one, and a ratio compares neighbors only, so that a
machine that drifts does not show. Settings as in `update.py`: batch 16x64, H = 15, float32, on the CPU. DreamerV1 and
V2 have settings of their own, with the papers' sizes and batch 16x50; their rows are in `dreamers_peers.json`:

    python bench/update_peers.py --settings V1-vector V1-image V2-vector V2-image --systems sheeprl pydreamer \
        --clones pydreamer=FOLDER --threads 1 --out bench/dreamers_peers.json

TD-MPC2 and BMPC, at their authors' five million parameters, are the settings T and B, in `planning_peers.json`.
BMPC makes new plans for 20 windows of each tenth batch. Here every update does so for two, in both systems:

    python bench/update_peers.py --settings T B --systems tdmpc2 bmpc --clones tdmpc2=FOLDER bmpc=FOLDER \
        --threads 1 --out bench/planning_peers.json

Besides the wall clock's, the processor's time of an update is stored, which other work on the machine lengthens less.

The authors' code and r2dreamer are in no package index: clone them and say where, `--clones dreamerv3=FOLDER
r2dreamer=FOLDER`; without that they are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import machine, write
from peers.installed import WHERE, installed

HERE = Path(__file__).parent
LIMIT = 1200
"""Seconds that one measurement may take, with waiting for the machine."""
NUMBERS = (
    *("parameters", "first_update_s", "update_s", "update_cpu_s"),
    *("act_1_ms", "act_1_cpu_ms", "act_8_ms", "act_8_cpu_ms", "act_64_ms", "act_64_cpu_ms", "peak_gb"),
)
RATIOS = {
    "ratio": "update_s", "ratio_cpu": "update_cpu_s",
    "act_1_ratio_cpu": "act_1_cpu_ms", "act_8_ratio_cpu": "act_8_cpu_ms", "act_64_ratio_cpu": "act_64_cpu_ms",
}  # fmt: skip
"""What is compared with ours, and what it is the ratio of."""
OLD = "architecture of 2023: a dense GRU narrowed to {} to be of the same size, small strided convolutions"

EARLIER = ("V1-vector", "V1-image", "V2-vector", "V2-image")
"""Settings of DreamerV1 and V2."""
APART = {"T": "tdmpc2", "B": "bmpc", "R2-vector": "r2dreamer", "R2-image": "r2dreamer"}
"""Settings of other algorithms, by their names."""

Row = dict[str, Any]
Numbers = dict[str, float]
"""What `peers/measure.py` measured of one learner."""


@dataclass(frozen=True)
class System:
    """A library to compare with."""

    packages: tuple[str, ...]
    """What to install; the first is what the rows are called, unless it is a repository."""
    variants: dict[str, str]
    """What of it is measured, and what must be said of each."""
    repository: str = ""
    """Where it is cloned from, if it is in no package index."""


TDMPC2 = ("tensordict==0.8.3", "numpy==2.4.6", "pyyaml==6.0.3")
"""What TD-MPC2 and its fork need."""
SYSTEMS = {
    "sheeprl": System(
        ("sheeprl==0.8.4", "lightning==2.6.6", "gymnasium==1.4.0", "numpy==2.4.6"),
        {
            "dreamer_v3_5": "the same architecture, losses and optimizer",
            "dreamer_v3": OLD,
            "dreamer_v2": "the same architecture; gradients go through the imagination in vain",
            "dreamer_v1": "the same architecture",
        },
    ),
    "rllib": System(
        ("ray[rllib]==2.60.0", "gymnasium==1.2.2", "numpy==2.4.6", "pillow==12.1.0"),
        {"dreamerv3": OLD + ", three layers in every head"},
    ),
    "torchrl": System(
        ("torchrl==0.14.1", "tensordict==0.14.3", "numpy==2.4.6"),
        {"dreamer_v3": "the same architecture for vectors; for images strided convolutions without pooling"},
    ),
    "dreamerv3": System(
        (
            *("jax==0.4.33", "jaxlib==0.4.33", "chex==0.1.87", "optax==0.2.3", "ninjax==3.5.1", "elements==3.19.1"),
            *("portal==3.5.0", "granular==0.20.3", "scope==0.4.4", "einops==0.8.1", "jaxtyping==0.2.34"),
            *("numpy==1.26.4", "scipy==1.14.1", "ruamel.yaml==0.18.6", "google-resumable-media==2.7.2"),
        ),
        {"dreamer_v3": "the authors' code, with the JAX that it pins"},
        "https://github.com/danijar/dreamerv3",
    ),
    "r2dreamer": System(
        ("torchrl==0.14.1", "tensordict==0.14.3", "numpy==2.4.6", "omegaconf==2.3.0", "tensorboard==2.20.0"),
        {
            "eager": "the same architecture, losses and optimizer; the replay left out",
            "compiled": "the same with its `torch.compile`; the replay left out",
            "r2dreamer": "the same architecture, losses and optimizer; the replay left out",
        },
        "https://github.com/NM512/r2dreamer",
    ),
    "tdmpc2": System(
        TDMPC2,
        {"tdmpc2": "the same architecture, losses and optimizers; acts for one environment at a time; no replay"},
        "https://github.com/nicklashansen/tdmpc2",
    ),
    "bmpc": System(
        TDMPC2,
        {"bmpc": "the same architecture, losses and optimizers; acts for one environment at a time; no replay"},
        "https://github.com/wertyuilife2/bmpc",
    ),
    "pydreamer": System(
        ("numpy==2.4.6", "pyyaml==6.0.3"),
        {"dreamer_v2": "the same architecture, the encoder of vectors two layers shorter; no replay"},
        "https://github.com/jurgisp/pydreamer",
    ),
}
SLOW_START = 60.0
"""Seconds: what takes longer to its first update is measured in one round only."""


def measured(python: Path, script: str, variant: str, setting: str, args: argparse.Namespace) -> Numbers:
    """The numbers of one learner in a fresh process.

    Raises:
        RuntimeError: it failed; with the last line that it said.
        TimeoutExpired: it took more than `LIMIT`.
    """
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RL_WARNINGS": "False", "PYTHONWARNINGS": "ignore"}
    env = os.environ | quiet | {"OMP_NUM_THREADS": str(args.threads), "CUDA_VISIBLE_DEVICES": ""}
    env |= {"PYTHONPATH": str(args.clones[script].resolve())} if script in args.clones else {}
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        words = [setting, out.name, "--variant", variant, "--threads", args.threads, "--seconds", args.seconds]
        command = [*args.under, python, HERE / "peers" / f"update_{script}.py", *words]
        done = subprocess.run(
            [str(w) for w in command], env=env, capture_output=True, text=True, check=False, timeout=LIMIT
        )
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1])
        return json.loads(Path(out.name).read_text())


class Alternation:
    """One setting: the others in turn, ours between them."""

    def __init__(self, setting: str, args: argparse.Namespace):
        self.setting, self.args = setting, args
        self.ours: list[Numbers] = []
        self.theirs: dict[tuple[str, str], list[Numbers]] = {}
        self.ratios: dict[tuple[str, str], list[Numbers]] = {}
        self.failed: dict[tuple[str, str], str] = {}

    def run(self, pythons: dict[str, Path]) -> None:
        """All rounds. What failed once is not tried again."""
        pairs = [(name, variant) for name in pythons for variant in chosen(name, self.args.variants, self.setting)]
        self._ours()
        for _ in range(self.args.rounds):
            for name, variant in pairs:
                if (name, variant) not in self.failed and not self._slow(name, variant):
                    self._pair(pythons[name], name, variant)

    def _slow(self, name: str, variant: str) -> bool:
        """Whether it was measured, and took too long to start to be measured again."""
        return any(run["first_update_s"] > SLOW_START for run in self.theirs.get((name, variant), []))

    def _ours(self) -> None:
        """One measurement of reverie."""
        self.ours.append(measured(Path(sys.executable), "reverie", version(self.setting), self.setting, self.args))
        print(f"{self.setting} reverie: {self.ours[-1]['update_s']:.3f} s", flush=True)

    def _pair(self, python: Path, name: str, variant: str) -> None:
        """One of theirs, then one of ours."""
        try:
            numbers = measured(python, name, variant, self.setting, self.args)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            self.failed[name, variant] = str(error)
            print(f"{self.setting} {name} {variant}: failed: {error}", flush=True)
            return
        print(f"{self.setting} {name} {variant}: {numbers['update_s']:.3f} s", flush=True)
        self._ours()
        known = {ratio: key for ratio, key in RATIOS.items() if key in numbers}  # 64 environments: planning alone
        self.theirs.setdefault((name, variant), []).append(numbers)
        ratios = {
            ratio: numbers[key] / statistics.mean(run[key] for run in self.ours[-2:]) for ratio, key in known.items()
        }
        self.ratios.setdefault((name, variant), []).append(ratios)

    def rows(self) -> list[Row]:
        """Medians over the rounds; of a system that failed, why."""
        ones = {ratio: 1.0 for ratio, key in RATIOS.items() if key in self.ours[0]}
        out = [{"system": "reverie", "setting": self.setting, **medians(self.ours), **ones, "note": ""}]
        for key, runs in self.theirs.items():
            found = self.ratios[key]
            ratios = {name: statistics.median(one[name] for one in found) for name in RATIOS if name in found[0]}
            out.append({**self._head(*key), **medians(runs), **ratios, "note": self._note(*key)})
        return out + [{**self._head(*key), "note": f"failed: {why}"} for key, why in self.failed.items()]

    def _head(self, name: str, variant: str) -> dict[str, object]:
        """Which row this is."""
        title = SYSTEMS[name].packages[0].replace("==", " ")
        if name in self.args.clones:
            title = f"{name} {commit(self.args.clones[name])}"
        several = f", {variant}" if len(SYSTEMS[name].variants) > 1 else ""
        return {"system": title + several, "setting": self.setting}

    def _note(self, name: str, variant: str) -> str:
        """What must be said of it."""
        return SYSTEMS[name].variants[variant].format("288 (V) and 1024 (I)")


def medians(runs: list[Numbers]) -> Numbers:
    """Of every number."""
    return {key: statistics.median(run[key] for run in runs) for key in NUMBERS if key in runs[0]}


def version(setting: str) -> str:
    """Which world model a setting is of."""
    if setting in APART:
        return APART[setting]
    return f"dreamer_v{setting[1]}" if setting in EARLIER else "dreamer_v3"


def chosen(name: str, variants: list[str], setting: str) -> list[str]:
    """The variants of a system to measure in a setting: those asked for, or all if it has none of these."""
    apart = ("dreamer_v1", "dreamer_v2", *APART.values())
    own = setting in (*EARLIER, *APART)
    fit = [v for v in SYSTEMS[name].variants if (v == version(setting) if own else v not in apart)]
    return [v for v in fit if v in variants] or fit


def commit(clone: Path) -> str:
    """Which version is checked out there."""
    command = ["git", "-C", str(clone), "rev-parse", "--short=7", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def clone(word: str) -> tuple[str, Path]:
    """``NAME=FOLDER`` as a pair.

    Raises:
        ArgumentTypeError: it is not, or there is no such system or folder.
    """
    name, _, folder = word.partition("=")
    cloned = [key for key, system in SYSTEMS.items() if system.repository]
    if name not in cloned or not folder or not Path(folder, ".git").exists():
        names = ", ".join(f"{key}=FOLDER ({SYSTEMS[key].repository})" for key in cloned)
        raise argparse.ArgumentTypeError(f"{word!r}: expected a clone's folder, as {names}")
    return name, Path(folder)


def available(args: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    """The packages of every system asked for; says which are left out because nobody said where their clone is."""
    missing = [name for name in args.systems if SYSTEMS[name].repository and name not in args.clones]
    for name in missing:
        print(f"{name}: left out, as --clones {name}=FOLDER says no clone of {SYSTEMS[name].repository}", flush=True)
    return {name: SYSTEMS[name].packages for name in args.systems if name not in missing}


def beside_earlier(path: Path, rows: list[Row], asked: int) -> tuple[dict[str, object] | None, list[Row]]:
    """The machine of the file at ``path`` and its rows with these among them, if only some systems were asked for.

    Each new row says how long our update took then, as the machine's speed has another day's. Settings that the file
    has not yet keep our rows of them.
    """
    if asked == len(SYSTEMS) or not path.exists():
        return None, rows
    earlier = json.loads(path.read_text())
    ours = {row["setting"]: row["update_s"] for row in rows if row["system"] == "reverie"}
    known = {row["setting"] for row in earlier["rows"]}
    new = [row for row in rows if row["system"] != "reverie" or row["setting"] not in known]
    for row in new if known.intersection(ours) else ():
        apart = f"measured apart from the others, beside {ours[row['setting']]:.3g} s of ours for {row['setting']}"
        row["note"] = f"{row['note']}; {apart}"
    names = {(row["setting"], row["system"]) for row in new}
    return earlier["machine"], [r for r in earlier["rows"] if (r["setting"], r["system"]) not in names] + new


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="*", default=list(SYSTEMS), choices=list(SYSTEMS))
    parser.add_argument("--settings", nargs="*", default=["V", "I"], choices=["V", "I", *EARLIER, *APART])
    parser.add_argument("--where", type=Path, default=WHERE, help="folder of the environments")
    parser.add_argument("--clones", nargs="*", type=clone, default=[], metavar="NAME=FOLDER")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--variants", nargs="*", default=[], help="of these alone, of systems that have several")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0, help="of updates in each process, and at least three")
    parser.add_argument("--under", nargs="*", default=[], help="a command to run each measurement under, as taskset")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    args.clones = dict(args.clones)
    return args


def main() -> int:
    """Install, measure and write."""
    args = options()
    pythons = installed(available(args), args.where)
    rows: list[Row] = []
    for setting in args.settings:
        turns = Alternation(setting, args)
        turns.run(pythons)
        rows += turns.rows()
    before, rows = beside_earlier(args.out, rows, len(args.systems))
    write(args.out, before or machine(args.threads) | {"threads": args.threads}, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
