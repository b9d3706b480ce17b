"""The runs in a folder: where they are, and what the log and the checkpoints of each say."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reverie.core.errors import ReverieError, RunError
from reverie.core.lock import LOCK_FILE_NAME
from reverie.log.jsonl import FINAL, metric_series, read_metrics, split_evaluations
from reverie.run.checkpoint import Checkpoints, step_from_name
from reverie.run.folder import RunFolder, read_saved_config
from reverie.viewer.comparison import METRICS, thin_series

DEPTH, LIVE_SECONDS = 3, 90
"""Maximum folder depth of the search for runs; seconds without logs after which a run counts as ended."""


def find_runs(folder: Path) -> dict[str, Path]:
    """Return the runs in ``folder`` by their paths below it, "." for the folder itself; RunError if there are none."""
    if RunFolder(folder).config.is_file():
        return {".": folder}
    runs: dict[str, Path] = {}
    for depth in range(1, DEPTH + 1):
        for config in sorted(folder.glob("*/" * depth + "config.yaml")):
            runs[config.parent.relative_to(folder).as_posix()] = config.parent
    if not runs:
        read_saved_config(folder)  # raises the error of a single broken run
        raise RunError(f"there is no run in {folder}.")
    return runs


def curve(rows: list[dict[str, Any]], name: str) -> list[list[float]]:
    """Return the steps and values of a metric while training."""
    steps, values = thin_series(metric_series([row for row in rows if not row.get(FINAL)], name))
    return [steps.astype(int).tolist(), values.tolist()]


def curves(rows: list[dict[str, Any]]) -> dict[str, list[list[float]]]:
    """Return the curves (:func:`curve`) of all metrics in the log of a run by name."""
    metrics = {name for row in rows for name in row} - {"step", FINAL}
    return {name: points for name in sorted(metrics) if len((points := curve(rows, name))[0])}


def _is_live(run: Path) -> bool:
    """Return whether a process writes to the run, and it has logged something in the last ``LIVE_SECONDS``."""
    metrics = RunFolder(run).metrics  # a process that ends removes the lock, unless it is killed
    return (
        (run / LOCK_FILE_NAME).exists() and metrics.is_file() and time.time() - metrics.stat().st_mtime < LIVE_SECONDS
    )


def find_checkpoints(run: Path) -> dict[str, Path]:
    """Return the checkpoints of a run, and the snapshots for the film of its training, by name, oldest first."""
    folder = RunFolder(run)
    paths = [path for place in (folder.snapshots, folder.checkpoints) for path in Checkpoints(place).paths()]
    return {path.name: path for path in sorted(paths, key=step_from_name)}  # a checkpoint hides the same snapshot


def run_state(run: Path) -> dict[str, Any]:
    """Return the checkpoints and curves of a run; RunError if it is gone."""
    read_saved_config(run)
    best = Checkpoints(RunFolder(run).checkpoints).best()
    listed = [{"name": path.name, "step": step_from_name(path)} for path in find_checkpoints(run).values()]
    state = {"checkpoints": listed, "best": best.name if best else None, "live": _is_live(run)}
    rows = read_metrics(RunFolder(run).metrics)
    return state | {"curves": curves(rows), "finals": _final_scores(rows)}


def _final_scores(rows: Sequence[Mapping[str, float]]) -> list[list[float]]:
    """Return step and score of each evaluation at the end of training."""
    return [[row["step"], row["eval/score"]] for row in split_evaluations(rows)[1]]


def runs_table(runs: dict[str, Path]) -> list[dict[str, Any]]:
    """Return a line for each run, for a table of runs; for broken runs the error."""
    lines: list[dict[str, Any]] = []
    for name, path in runs.items():
        line: dict[str, Any] = {"name": name}
        try:
            saved = read_saved_config(path)
            line |= {"algorithm": saved.algorithm, "env": saved.env, "seed": saved.experiment.get("seed")}
            rows = read_metrics(RunFolder(path).metrics, (*METRICS, FINAL))
            line |= {"curves": curves(rows), "live": _is_live(path)}
            line["finals"] = _final_scores(rows)
            line["changed"] = max(
                (int(p.stat().st_mtime) for p in (path, RunFolder(path).metrics) if p.exists()), default=0
            )
            ends = [row["step"] for row in rows[-1:]]
            line["step"] = max(
                [*ends, *map(step_from_name, Checkpoints(RunFolder(path).checkpoints).paths())], default=0
            )
        except (ReverieError, OSError) as error:
            line["error"] = str(error)
        lines.append(line)
    return lines
