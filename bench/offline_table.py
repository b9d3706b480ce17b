"""Scores on recorded data, ours alone and beside those of other libraries, for `table.py`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from offline_work import FIRST, recording
from words import grid

Row = Mapping[str, Any]
Datasets = Mapping[str, Mapping[str, Row]]
"""A recording of ``offline_datasets.json``: what each dataset of an environment holds, by level."""

ALIKE = {"cql": "cql_learned"}
"""Algorithms, and ours with the settings that others have by default."""

TITLES = {"reverie": "reverie", "tianshou": "Tianshou 2.0.1", "d3rlpy": "d3rlpy 2.8.1"}
"""What systems are called."""


SPREAD = 20
"""Points between the lowest and the highest seed from which a score is in italics."""


def offline_table(rows: Sequence[Row], datasets: Datasets) -> list[str]:
    """Three sentences, and the table of the environment with the most datasets."""
    tables, best = offline_tables(rows, datasets)
    head, *body = tables[MAIN]
    return [
        "All algorithms train with the same networks, batches, learning rates and 20,000 updates, with three seeds. A "
        f"score of 0 is the return of random actions, 100 that of the expert's dataset; italics mark seeds that differ "
        f"by more than {SPREAD} points, bold the best, a star a later recording of the data.",
        f"Some offline algorithm beats `bc` on {sum(name != 'bc' for name in best)} of {len(best)} datasets.",
        "No algorithm is best everywhere, and ordinary learners (`td3`, `qr_dqn`) fail on data with few actions.",
        "",
        head.replace("|  |", f"| {MAIN} |", 1),
        *body,
    ]


MAIN = "HalfCheetah-v5"
"""The environment on the page of results; the others are on the page of benchmarks."""


def offline_rest_table(rows: Sequence[Row], datasets: Datasets) -> list[str]:
    """A table for each other environment."""
    tables, _ = offline_tables(rows, datasets)
    return [line for env, table in tables.items() if env != MAIN for line in (f"**{env}**", "", *table, "")][:-1]


def offline_tables(rows: Sequence[Row], datasets: Datasets) -> tuple[dict[str, list[str]], list[str]]:
    """A table by environment: one row an algorithm, one column a dataset; and the best offline algorithm of each."""
    tables: dict[str, list[str]] = {}
    best: list[str] = []
    for env in dict.fromkeys(row["env"] for row in rows):
        found = [row for row in rows if row["env"] == env]
        present = {row["level"] for row in found}
        levels = [level for level in datasets.get(env, {}) if level in present]
        levels += sorted(present - set(levels))
        cells: dict[str, list[str]] = {}
        for level in levels:
            there = {name: alike([r for r in found if (r["algorithm"], r["level"]) == (name, level)])
                     for name in dict.fromkeys(row["algorithm"] for row in found)}  # fmt: skip
            scores = {name: normalized([r["score"] for r in rows], env, datasets) for name, rows in there.items()}
            for name, cell in marked(scores).items():
                cells.setdefault(name, []).append(cell + again(there[name]))
            offline = {name: statistics.mean(found) for name, found in scores.items() if found and name not in ONLINE}
            best.append(max(offline, key=offline.__getitem__))
        data = [one(normalized([datasets[env][level]["return"]], env, datasets)) for level in levels if env in datasets]
        body = [["the data", *data]] if data else []
        body += [[f"`{name}`", *cells[name]] for name in cells]
        tables[env] = grid(["", *levels], body)
    return tables, best


ONLINE = ("td3", "qr_dqn")
"""Learners that do not stay near the data."""


def offline_peers_table(rows: Sequence[Row], ours: Sequence[Row], datasets: Datasets) -> list[str]:
    """Two sentences; one row an algorithm on a dataset, one column a system, the best in bold; all of as many updates.

    What others learn by default, and ours learns when told so, has a row of its own beside ours as it is.
    """
    told = {(row["env"], row["level"], row["algorithm"], row["updates"]) for row in ours}
    alikes = ({**row, "algorithm": ALIKE[row["algorithm"]]} for row in rows if row["algorithm"] in ALIKE)
    added = [row for row in alikes if (row["env"], row["level"], row["algorithm"], row["updates"]) in told]
    rows = sorted([*rows, *added], key=lambda row: (row["env"], row["level"], row["algorithm"]))
    keys = dict.fromkeys((row["env"], row["level"], row["algorithm"], row["updates"]) for row in rows)
    systems = ["reverie", *dict.fromkeys(row["system"] for row in rows)]
    every = [*rows, *({**row, "system": "reverie"} for row in ours)]
    body, near = [], 0
    for env, level, algorithm, updates in keys:
        there = alike([r for r in every if (r["env"], r["level"], r["algorithm"], r["updates"])
                       == (env, level, algorithm, updates)])  # fmt: skip
        scores = {system: [r["score"] for r in there if r["system"] == system] for system in systems}
        cells = marked({system: normalized(found, env, datasets) for system, found in scores.items()})
        means = {system: statistics.mean(found) for system, found in scores.items() if found}
        near += means["reverie"] >= max(means.values()) - NEAR
        body.append([f"{env.split('-')[0]}, {level}", f"`{algorithm}`{again(there)}", *(cells[s] for s in systems)])
    return [
        "Other libraries trained on the same files, with normalized observations and otherwise their defaults.",
        f"reverie scores highest, or within {NEAR} points of the highest, in {near} of {len(body)} rows.",
        "d3rlpy's CQL scores higher than `cql` on HalfCheetah because it learns its weight; on Pendulum's medium "
        "dataset, a learned weight (`cql_learned`) gave a policy worse than random actions.",
        "",
        *grid(["data", "algorithm", *(TITLES.get(s, s) for s in systems)], body),
    ]


NEAR = 5
"""Points by which scores may differ and count as equal."""


def alike(rows: Sequence[Row]) -> list[Row]:
    """Those of one recording of the datasets: of the one that has the most systems, and then the most rows."""

    def worth(number: int) -> tuple[int, int, int]:
        found = [row for row in rows if recording(row) == number]
        return len({row.get("system") for row in found}), len(found), -number

    best = max({recording(row) for row in rows}, key=worth, default=FIRST)
    return [row for row in rows if recording(row) == best]


def again(rows: Sequence[Row]) -> str:
    """The mark of what was learned from another recording than the first."""
    return " \\*" if any(recording(row) != FIRST for row in rows) else ""


def estimates_table(rows: Sequence[Row]) -> list[str]:
    """One row a policy: its discounted return as estimated from data, and as played."""
    body = [
        [row["env"], row["level"], f"`{row['algorithm']}`",
         f"{row['estimate']['value']:,.1f} ({row['estimate']['low']:,.1f} to {row['estimate']['high']:,.1f})",
         f"{row['played']:,.1f} ± {row['standard_error']:,.1f}"] for row in rows
    ]  # fmt: skip
    return grid(["environment", "data", "algorithm", "estimated", "played"], body)


def normalized(scores: Iterable[float], env: str, datasets: Datasets) -> list[float]:
    """0 of random actions, 100 of the expert's mean return; as they are where these are not known."""
    known = datasets.get(env, {})
    if not {"random", "expert"} <= known.keys():
        return list(scores)
    random, expert = (known[level]["return"] for level in ("random", "expert"))
    return [100 * (score - random) / (expert - random) for score in scores]


def one(scores: Sequence[float]) -> str:
    """Their mean, in italics if they differ much; a dash of none."""
    if not scores:
        return "-"
    text = f"{statistics.mean(scores):.1f}"
    return f"*{text}*" if max(scores) - min(scores) > SPREAD else text


def marked(scores: Mapping[str, Sequence[float]]) -> dict[str, str]:
    """Each as a cell, the one with the highest mean in bold."""
    means = {name: statistics.mean(found) for name, found in scores.items() if found}
    best = max(means.values(), default=None)
    return {name: f"**{one(found)}**" if means.get(name, best is None) == best else one(found)
            for name, found in scores.items()}  # fmt: skip
