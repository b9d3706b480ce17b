"""What the page shows of run folders: which there are, their checkpoints and learning curves."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from reverie.core.errors import ReverieError, RunError
from reverie.log.metrics import FINAL, read_metrics, series_of
from reverie.run.checkpoint import Checkpoints, number_of
from reverie.run.folder import RunFolder, read_saved

DEPTH, POINTS, LIVE = 3, 400, 90
"""How deep runs are looked for; most points of a curve; seconds after which a silent run counts as ended."""
SHORT = ("episode/score", "eval/score", "estimate/return")
"""Metrics of the table of runs."""


def runs_in(folder: Path) -> dict[str, Path]:
    """Return the runs in ``folder`` by their names, which are paths below it; "." is the folder itself.

    Raises:
        RunError: there are none.
    """
    if RunFolder(folder).config.is_file():
        return {".": folder}
    found: dict[str, Path] = {}
    for depth in range(1, DEPTH + 1):
        for config in sorted(folder.glob("*/" * depth + "config.yaml")):
            found[config.parent.relative_to(folder).as_posix()] = config.parent
    if not found:
        read_saved(folder)  # says what is wrong with a single run
        raise RunError(f"there is no run in {folder}.")
    return found


def curve(rows: list[dict[str, Any]], name: str) -> list[list[float]]:
    """Return the steps and values of a metric while training, averaged to at most ``POINTS`` points."""
    steps, values = series_of([row for row in rows if not row.get(FINAL)], name)
    if len(steps) > POINTS:
        parts = np.array_split(np.arange(len(steps)), POINTS)
        steps, values = (np.array([x[part].mean() for part in parts]) for x in (steps, values))
    return [steps.astype(int).tolist(), values.tolist()]


def curves(run: Path, names: tuple[str, ...] | None = None) -> dict[str, list[list[float]]]:
    """Return the curves of all metrics of a run, or of some, by name."""
    rows = read_metrics(RunFolder(run).metrics, names and (*names, FINAL))
    known = {name for row in rows for name in row} - {"step", FINAL}
    return {name: found for name in sorted(known) if len((found := curve(rows, name))[0])}


def is_live(run: Path) -> bool:
    """Return whether something was measured a moment ago."""
    metrics = RunFolder(run).metrics
    return metrics.is_file() and time.time() - metrics.stat().st_mtime < LIVE


def state(run: Path) -> dict[str, Any]:
    """Return the checkpoints and curves of a run; RunError if it is gone."""
    read_saved(run)
    checkpoints = Checkpoints(RunFolder(run).checkpoints)
    best = checkpoints.best()
    listed = [{"name": path.name, "step": number_of(path)} for path in checkpoints.all()]
    found = {"checkpoints": listed, "best": best.name if best else None, "live": is_live(run)}
    return found | {"curves": curves(run)}


def table(runs: dict[str, Path]) -> list[dict[str, Any]]:
    """Return a line for each run, for a table of runs; of broken ones, what is wrong."""
    lines: list[dict[str, Any]] = []
    for name, path in runs.items():
        line: dict[str, Any] = {"name": name}
        try:
            saved = read_saved(path)
            line |= {"algorithm": saved.algorithm, "env": saved.env, "seed": saved.experiment.get("seed")}
            line |= {"curves": curves(path, SHORT), "live": is_live(path)}
            line["changed"] = max(
                (int(p.stat().st_mtime) for p in (path, RunFolder(path).metrics) if p.exists()), default=0
            )
            ends = [steps[-1] for steps, _ in line["curves"].values()]
            line["step"] = max([*ends, *map(number_of, Checkpoints(RunFolder(path).checkpoints).all())], default=0)
        except (ReverieError, OSError) as error:
            line["error"] = str(error)
        lines.append(line)
    return lines
