"""The logs of runs as a table of pandas."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from reverie.core.errors import ConfigError, RunError
from reverie.distributed.compare import find_run_groups
from reverie.log.jsonl import read_metrics
from reverie.run.folder import RunFolder, read_saved_config


def logs(*runs: Path | str, episodes: bool = False) -> Any:
    """Return the log entries of runs as a ``pandas.DataFrame``: a row for each entry of each run.

    Its columns are ``setting`` (as :func:`compare` names it; in a sweep its name there), ``run``, ``algorithm``,
    ``env``, ``seed``, ``step``, and a column for each metric, NaN where an entry has no such metric.

    Args:
        *runs: as for :func:`compare`.
        episodes: return a row for each finished training episode instead, from ``episodes.jsonl``.

    Raises:
        ReverieError: there is no run at one of these paths, no run has an entry, or pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise ConfigError("The package pandas is not installed. Install it: pip install pandas.") from error
    frames = []
    for group in (group for location in runs for group in find_run_groups(os.fspath(location))):
        for path in group.runs:
            saved, folder = read_saved_config(path), RunFolder(path)
            rows = read_metrics(folder.episodes if episodes else folder.metrics)
            origin: dict[str, Any] = {
                "setting": group.label or group.name,
                "run": str(path),
                "algorithm": saved.algorithm,
            }
            origin |= {"env": saved.env, "seed": saved.experiment.get("seed")}
            frames += [pandas.DataFrame([{**origin, **row} for row in rows])] if rows else []
    if not frames:
        raise RunError(f"{', '.join(map(str, runs)) or 'no folder'}: no run has an entry in its log.")
    return pandas.concat(frames, ignore_index=True)
