"""The runs in a folder: where they are, and what the log and the checkpoints of each say."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reverie.core import wall_clock
from reverie.core.documents import read_json
from reverie.core.errors import ReverieError, RunError
from reverie.core.lock import is_in_use
from reverie.log.jsonl import FINAL, metric_series, read_metrics, split_evaluations
from reverie.run.checkpoint import Checkpoints, step_from_name
from reverie.run.folder import RunFolder, read_saved_config
from reverie.viewer.comparison import METRICS, GroupKey, group_key, thin_series

MAX_FOLDER_DEPTH, LIVE_SECONDS, MAX_LINES = 3, 90, 10_000
"""Maximum folder depth of the search for runs; seconds without logs after which a run counts as ended; most runs whose
lines are kept."""
LIVE_PAGE = re.compile(r"http://127\.0\.0\.1:\d{1,5}/[\w-]{22}/live\.html", re.ASCII)
"""Address of a page, with its token: the file of a stranger names no other."""


def find_runs(folder: Path) -> dict[str, Path]:
    """Return the runs in ``folder`` by their paths below it, "." for the folder itself; RunError if there are none."""
    if RunFolder(folder).config.is_file():
        return {".": folder}
    runs: dict[str, Path] = {}
    for depth in range(1, MAX_FOLDER_DEPTH + 1):
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
    metrics = RunFolder(run).metrics
    return is_in_use(run) and metrics.is_file() and wall_clock.time() - metrics.stat().st_mtime < LIVE_SECONDS


def find_live_pages(folder: Path) -> dict[str, str]:
    """Return the addresses of the pages of processes that train the runs in ``folder``, by the names of the runs.

    A page is left out if no process of this host has the lock of the run. RunError if there is none.
    """
    pages: dict[str, str] = {}
    for name, run in find_runs(folder).items():
        with contextlib.suppress(RunError):  # none, damaged, or of another user
            url = str(read_json(RunFolder(run).live).get("url"))
            if LIVE_PAGE.fullmatch(url) and is_in_use(run, on_this_host=True):
                pages[name] = url
    if not pages:
        raise RunError(f"no process with a page trains in {folder}. Start one with reverie train ... --human page.")
    return pages


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
    """Return a line for each run, for a table of runs; for broken runs the error.

    The ``group`` of a run is the name of the first run with the same settings.
    """
    lines: list[dict[str, Any]] = []
    groups: dict[GroupKey, str] = {}
    for name, path in runs.items():
        try:
            folder = RunFolder(path)
            files = (folder.config, folder.metrics, folder.checkpoints)
            stats = [p.stat() for p in files if p.exists()]
            key, line = _describe_run(path, tuple((stat.st_mtime_ns, stat.st_size) for stat in stats))
            changed = max(int(stat.st_mtime) for stat in (path.stat(), *stats[:2]))
            lines.append({
                "name": name, **line, "group": groups.setdefault(key, name), "live": _is_live(path), "changed": changed
            })  # fmt: skip
        except (ReverieError, OSError) as error:
            lines.append({"name": name, "error": str(error)})
    return lines


@functools.lru_cache(MAX_LINES)
def _describe_run(run: Path, _stamps: tuple[tuple[int, int], ...]) -> tuple[GroupKey, dict[str, Any]]:
    """Return the settings and the scores of a run; it is read again when its files have changed."""
    saved, rows = read_saved_config(run), read_metrics(RunFolder(run).metrics, (*METRICS, FINAL))
    line = {"algorithm": saved.algorithm, "env": saved.env, "seed": saved.experiment.get("seed")}
    steps = [row["step"] for row in rows[-1:]] + [*map(step_from_name, Checkpoints(RunFolder(run).checkpoints).paths())]
    scores = {"curves": curves(rows), "finals": _final_scores(rows), "step": max(steps, default=0)}
    return group_key(saved), line | scores
