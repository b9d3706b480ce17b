"""What default settings learned, online and from logs, for `table.py`: three sentences and the tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from words import digits, grid, spread

Row = Mapping[str, Any]
Scores = Mapping[tuple[str, str, str], Sequence[Row]]
"""The rows of all seeds by algorithm, task and library."""
TITLES = {
    "Thermostat": "chamber in kelvin and pascals", "Robot": "robot among obstacles", "Battery": "battery and prices",
    "SwingUp": "swing-up", "Inventory": "inventory", "Crane": "crane", "Admission": "admission to a queue",
    "SparseRobot": "robot, sparse reward", "Cue": "memory of a cue", "Scheduling": "scheduling, masked",
    "Allocation": "allocation, multi-discrete",
}  # fmt: skip
SHORT = {task: title.split(",")[0].split(" ")[0] for task, title in TITLES.items()}
CONTINUOUS, DISCRETE = tuple(TITLES)[:6], tuple(TITLES)[6:]
PEERS = {"ppo": "PPO", "sac": "SAC", "td3": "TD3", "dqn": "DQN"}
"""Algorithms with several seeds, and their names in Stable-Baselines3."""


def by_library(rows: Iterable[Row]) -> Scores:
    """Group rows by algorithm, task and library."""
    seeds: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        seeds.setdefault((row["algorithm"], row["task"], row["library"]), []).append(row)
    return seeds


def mean(rows: Sequence[Row], key: str = "score") -> float:
    """Return the mean over seeds."""
    return float(np.mean([row[key] for row in rows]))


def cell(rows: Sequence[Row] | None) -> str:
    """Return the mean score, and the lowest and the highest of several seeds."""
    return spread([row["score"] for row in rows]) if rows else "-"


def defaults_table(result: Mapping[str, Any]) -> list[str]:
    """Three sentences; one row a task, one column an algorithm, beside that of Stable-Baselines3."""
    seeds = by_library(row for row in result["rows"] if "updates" not in row)
    ends = {row["task"]: [digits(row[name]) for name in ("random", "heuristic")] for row in result["tasks"]}
    lines = sentences(seeds)
    for tasks, names in ((CONTINUOUS, ("ppo", "sac", "td3")), (DISCRETE, ("ppo", "dqn"))):
        head = ["task", "random", "heuristic"]
        for name in names:
            head += [f"`{name}`", f"{PEERS[name]} of SB3"]
        body = [
            [TITLES[task], *ends[task]]
            + [text for name in names for text in (cell(seeds.get((name, task, "reverie"))), sb3(seeds, name, task))]
            for task in tasks
        ]
        lines += ["", *grid(head, body)]
    return lines


def sb3(seeds: Scores, name: str, task: str) -> str:
    """Return the mean of the other library."""
    rows = seeds.get((name, task, "sb3"))
    return digits(mean(rows)) if rows else "-"


def sentences(seeds: Scores) -> list[str]:
    """Say what ran, the answer and the exceptions, with counts from the results."""
    wins, losses, share = {}, {}, {}
    for name in PEERS:
        pairs = {task: [seeds[name, task, library] for library in ("reverie", "sb3")]
                 for task in TITLES if (name, task, "sb3") in seeds}  # fmt: skip
        higher = [task for task, (ours, theirs) in pairs.items() if mean(ours) > mean(theirs)]
        wins[name] = f"{len(higher)} of {len(pairs)}"
        losses[name] = ", ".join(SHORT[task] for task in pairs if task not in higher)
        share[name] = np.mean([mean(ours, "cpu_seconds") / mean(theirs, "cpu_seconds")
                               for ours, theirs in pairs.values()])  # fmt: skip
    rest = "; ".join(f"`{name}`: {losses[name]}" for name in PEERS if losses[name])
    others = ", ".join(f"`{name}` in {wins[name]} ({share[name]:.0%})" for name in ("sac", "td3", "dqn"))
    return [
        f"We trained in {len(TITLES)} environments that no preset knows, with `reverie train ALGO --env X --steps N` "
        "and nothing else: `ppo` for 50,000 env steps, `dqn` for 10,000, `sac` and `td3` for 5,000.",
        f"`ppo` scored higher than Stable-Baselines3's defaults in {wins['ppo']} environments, with "
        f"{share['ppo']:.0%} of its CPU time; {others}.",
        f"Not higher were {rest}; and the defaults were chosen in these environments (but the crane), so **yours is "
        "the real test**.",
    ]


def others_table(result: Mapping[str, Any]) -> list[str]:
    """One row a task, one column an algorithm with one seed."""
    seeds = by_library(row for row in result["rows"] if "updates" not in row)
    names = sorted({name for name, _, _ in seeds if name not in PEERS})
    body = [[TITLES[task], *(cell(seeds.get((name, task, "reverie"))) for name in names)] for task in TITLES]
    return grid(["task", *(f"`{name}`" for name in names)], [row for row in body if set(row[1:]) != {"-"}])


def logs_table(result: Mapping[str, Any]) -> list[str]:
    """Three sentences; one row an algorithm, one column a log, beside that of d3rlpy."""
    seeds = by_library(row for row in result["rows"] if "updates" in row)
    means = {row["task"]: row["mean"] for row in result["logs"]}
    tasks = [task for task in means if task in CONTINUOUS]
    names = ["bc", *sorted({name for name, task, _ in seeds if task in tasks} - {"bc"})]
    better, worse = [], []
    for name in names[1:]:
        for task in tasks:
            above = mean(seeds[name, task, "reverie"]) >= mean(seeds["bc", task, "reverie"])
            (better if above else worse).append(f"`{name}` on the {SHORT[task]}")
    admission = sorted({digits(mean(rows)) for (_, task, library), rows in seeds.items()
                        if (task, library) == ("Admission", "reverie")})  # fmt: skip
    head, body = ["algorithm"], [["the log", *(text for task in tasks for text in (digits(means[task]), ""))]]
    for task in tasks:
        head += [SHORT[task], "d3rlpy"]
    for name in names:
        pairs = [(seeds.get((name, task, "reverie")), seeds.get((name, task, "d3rlpy"))) for task in tasks]
        body.append([f"`{name}`", *(text for ours, theirs in pairs
                                    for text in (cell(ours), digits(mean(theirs)) if theirs else "-"))])  # fmt: skip
    return [
        "Each learner made 2,000 updates (a tenth of the default without a GPU) on a log of 40 episodes, in which "
        "three of ten actions are random and the others a heuristic's with noise; d3rlpy 2.8.1 ran with its defaults "
        "and one seed.",
        f"{len(better)} of {len(better) + len(worse)} results are at least those of `bc`, and on the admission log all "
        f"learners score {' or '.join(admission)}, as the heuristic does.",
        f"Below `bc` are {', '.join(worse)}: CQL's actor does not imitate, so it can leave the data in few updates.",
        "",
        *grid(head, body),
    ]
