#!/usr/bin/env python3
"""Do the presets learn as Tianshou's published curves do, in a million env steps of MuJoCo?

    OMP_NUM_THREADS=1 nice -n 19 python bench/published.py [--tasks Hopper ...] [--algorithms sac ...] [--seeds 3]
    python bench/published.py --check

A queue for the background: one process and one thread, from a clone of its own, since a run must not change its code.
Ctrl-C and SIGTERM save the run; the same command continues it, and loses at most 25,000 env steps after a kill. Each
run that ends adds a row and leaves only its logs in `--runs`. A row is stale if a setting that influences learning
differs from its preset; it is made again, and `--check` names the stale and missing rows.

Runs have the presets of `reverie.train(algorithm, env)`, with ten deterministic episodes every 50,000 env steps as in
Tianshou's examples/mujoco/benchmark (Gym's v3, v2 of Reacher and InvertedDoublePendulum). Points of `curve` are env
steps, and mean and standard deviation of the ten returns; `seconds` are of processor time, with evaluations.

Gymnasium's v4 is the nearest version that MuJoCo's bindings run. By Gymnasium's version histories, v4 changes the
bindings and removes contact forces from Ant's observations and the contact cost from Humanoid's reward. v5 (`--version
5`) changes more, except in HalfCheetah and Swimmer:
- Hopper, Walker2d, Ant, Humanoid and InvertedDoublePendulum pay the healthy reward only in healthy states.
- Both feet of Walker2d have the friction 1.9; the right one had 0.9.
- Ant observes contact forces (105 numbers, not 27), and they cost; so they do in Humanoid.
- Reacher's distance is measured after the physics step, not before.
- Humanoid (348, not 376), InvertedDoublePendulum (9, not 11) and Reacher (10, not 11) omit observations that are 0.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from results import save

import reverie
from reverie.api import make_request
from reverie.core.config import flatten
from reverie.core.hardware import describe_machine
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.settings import resolve
from reverie.log.jsonl import read_metrics, split_evaluations
from reverie.run.folder import LEARNING_SETTINGS

FIRST = ("Hopper", "HalfCheetah", "Walker2d")
TASKS = (*FIRST, "Ant", "InvertedDoublePendulum", "Swimmer", "Reacher", "Humanoid")
ALGORITHMS = ("sac", "td3", "ppo", "ddpg", "a2c")
GROUPS = (
    [(task, name) for task in FIRST for name in ("sac", "td3")] + [(task, "ppo") for task in TASKS],
    [(task, name) for task in TASKS if task not in FIRST for name in ("sac", "td3")],
    [(task, name) for name in ("ddpg", "a2c") for task in TASKS],
)
"""Each is trained with all seeds before the next."""
STEPS, EVALUATIONS, EPISODES = 1_000_000, 20, 10
SECONDS = "process/seconds"


class Job(NamedTuple):
    """A run, which becomes a row."""

    env: str
    algorithm: str
    seed: int


def job_of_row(row: Mapping[str, Any]) -> Job:
    """Return the job that made a row."""
    return Job(row["env"], row["algorithm"], row["seed"])


class ProcessTime(reverie.Callback):
    """Logs the processor time of a run at each evaluation, also over interruptions."""

    def __init__(self) -> None:
        self.offset = -time.process_time()

    def on_evaluation(self, run: reverie.TrainingRun, values: Mapping[str, Any]) -> None:
        run.log({SECONDS: self.offset + time.process_time()})
        print(run.folder.name, run.env_steps, f"{values['eval/score']:.1f}", flush=True)

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.offset + time.process_time()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.offset = state["seconds"] - time.process_time()


def make_overrides(steps: int) -> dict[str, Any]:
    """Return the settings that are not the preset's."""
    return {
        "steps": steps, "device": "cpu", "threads": 1, "eval_episodes": EPISODES, "keep_checkpoints": 1,
        "console": False, "tensorboard": False, "schedule.eval_every": steps // EVALUATIONS,
        "schedule.save_every": steps // EVALUATIONS // 2, "schedule.log_every": steps // EVALUATIONS // 2,
    }  # fmt: skip


def resolve_settings(job: Job, steps: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of a run that influence learning, but for task and seed, and their default values."""
    config = resolve(make_request(job.algorithm, job.env, None, None, None, make_overrides(steps)))
    tables = [flatten(table.to_dict()) for table in (config, ExperimentConfig(algo=type(config.algo)()))]
    names = [name for name in tables[0] if name.startswith((*LEARNING_SETTINGS, "steps")) and name != "env.id"]
    resolved, defaults = (json.loads(json.dumps({name: table.get(name) for name in names})) for table in tables)
    return resolved, defaults


def read_table(path: Path) -> dict[str, Any]:
    """Return the results until now: rows, and the settings that they name."""
    table: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"settings": {}, "rows": []}
    return table


def find_pending(table: Mapping[str, Any], jobs: list[Job], steps: int) -> Iterator[tuple[Job, str]]:
    """Yield the jobs that have no row, or a stale one, and why; a setting that a row does not know had its default."""
    rows = {job_of_row(row): row for row in table["rows"]}
    for job in jobs:
        resolved, defaults = resolve_settings(job, steps)
        if job not in rows:
            yield job, "missing"
            continue
        before = defaults | table["settings"][rows[job]["settings"]]
        if changes := [f"{name}: {before[name]} -> {new}" for name, new in resolved.items() if before[name] != new]:
            yield job, f"stale: {'; '.join(changes)}"


def train(job: Job, steps: int, run: Path) -> dict[str, Any]:
    """Train, or continue the run, and return what its logs say; SystemExit if a signal ended it."""
    result = reverie.train(
        job.algorithm, env=job.env, seed=job.seed, run=run, callbacks=[ProcessTime()], **make_overrides(steps)
    )
    if result.reason != "finished":
        sys.exit(f"{run} was interrupted at env step {result.env_steps}")
    entries = read_metrics(run / "metrics.jsonl")
    seconds = [entry[SECONDS] for entry in entries if SECONDS in entry]
    points = [(row["step"], row["eval/score"], row["eval/score_std"]) for row in split_evaluations(entries)[0]]
    curve = [[step, round(mean, 2), round(std, 2)] for step, mean, std in points]
    return {"steps": result.env_steps, "seconds": round(seconds[-1]), "curve": curve}


def add_row(path: Path, job: Job, row: dict[str, Any], settings: dict[str, Any]) -> None:
    """Write a row, instead of an earlier row of the same job."""
    table, name = read_table(path), hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    rows = [{**job._asdict(), "settings": name, **row}, *(old for old in table["rows"] if job_of_row(old) != job)]
    known, used = table["settings"] | {name: settings}, sorted({row["settings"] for row in rows})
    table = {"machine": describe_machine(torch.device("cpu")), "settings": {name: known[name] for name in used}}
    save(path, table | {"rows": sorted(rows, key=job_of_row)})


def main() -> int:
    """Train, and write each row as it comes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="*", default=[*TASKS], choices=TASKS)
    parser.add_argument("--algorithms", nargs="*", default=[*ALGORITHMS], choices=ALGORITHMS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--version", type=int, default=4, choices=(4, 5), help="version of the environments")
    parser.add_argument("--steps", type=int, default=STEPS, help="env steps of a run, to try the script")
    parser.add_argument("--runs", type=Path, default=Path("build/published"), help="where runs stay, by commit")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--check", action="store_true", help="only name stale and missing rows")
    args = parser.parse_args()
    jobs = [
        Job(f"{task}-v{args.version}", name, seed) for group in GROUPS for seed in range(args.seeds)
        for task, name in group if task in args.tasks and name in args.algorithms
    ]  # fmt: skip
    pending = [*find_pending(read_table(args.out), jobs, args.steps)]
    if args.check:
        for job, why in pending:
            print(*job, why)
        return int(bool(pending))
    head = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    commit = subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()
    facts = {"commit": commit} | {name: version(name) for name in ("gymnasium", "mujoco")}
    for job, _ in pending:
        run = args.runs / commit[:12] / f"{job.env}-{job.algorithm}-{job.seed}"
        try:
            add_row(args.out, job, facts | train(job, args.steps, run), resolve_settings(job, args.steps)[0])
        except Exception:  # the others go on
            traceback.print_exc()
            continue
        for folder in filter(Path.is_dir, run.iterdir()):
            shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
