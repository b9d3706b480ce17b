"""Comparison of settings by the scores of their seeds."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reverie.core.errors import ConfigError, RunError
from reverie.core.files import disk_errors_as_run_error
from reverie.core.logger import logger
from reverie.log.aggregate import (
    ComparedSetting,
    Comparison,
    MeasurementSettings,
    improvements,
    seeds_curve_data,
    summarize_seed,
)
from reverie.run.folder import (
    RunFolder,
    is_final_result_of_step,
    read_final_result,
    read_saved_config,
    settings_changes,
)
from reverie.run.schedule import parse_period

MEASURED_BY = ("schedule", "experience", "eval_episodes", "stop_score", "patience", "callbacks", "steps", "updates",
               "data", "seed")  # fmt: skip
"""Settings that determine how a run is measured and compared."""


def measurement_settings(settings: Mapping[str, Any]) -> MeasurementSettings:
    """Return how runs with these settings, in plain values, are measured."""
    if missing := [name for name in MEASURED_BY if name not in settings]:
        raise RunError(f"the settings of {settings.get('algorithm', 'a run')} lack {', '.join(missing)}: restore them.")
    period, is_seconds = parse_period(settings["schedule"].get("eval_every", 0))
    return MeasurementSettings(
        unit="updates" if settings["experience"] == "offline" else "env steps",
        evaluates=period > 0 and settings["eval_episodes"] > 0,
        period=None if is_seconds else period,
        early=any(settings[name] not in (None, (), []) for name in ("stop_score", "patience", "callbacks")),
    )


def compare(*runs: Path | str, figure: Path | str | None = None) -> Comparison:
    """Compare settings by the scores of their seeds, which can be trained by separate jobs.

    The score of a seed is the mean return of its final evaluation, or else its estimated return. Runs without a score
    are skipped; if no run of a setting has one, the last common points of their learning curves are compared. The log
    lists these cases, and settings in which the runs differ apart from the seed.

    Args:
        *runs: for each setting a folder that holds the runs of its seeds, or a single run, or a pattern such as
            ``"runs/sac-*"``: matching runs are seeds of one setting, and each matching folder of runs is a separate
            setting.
        figure: plot the learning curves, with intervals, to this PNG file.

    Raises:
        ReverieError: there is no run at one of these paths, or none with a score.
    """
    png = None if figure is None else Path(figure)
    if png is not None and png.suffix != ".png":
        raise ConfigError(f"figure = {png}: expected a file name ending in .png.")
    groups = [group for location in runs for group in _find_run_groups(os.fspath(location)).items()]
    contenders = [_read_compared_setting(name, paths) for name, paths in groups]
    if png is not None:
        from reverie.log.plot import plot_comparison  # matplotlib takes a fifth of the time of all imports

        with disk_errors_as_run_error(png):
            png = plot_comparison(png, contenders)
    return Comparison(settings=contenders, probability_of_improvement=improvements(contenders), figure=png)


def _find_run_groups(location: str) -> dict[str, list[Path]]:
    """Return the runs at a path or pattern, by the names of their settings."""
    path = Path(os.path.expanduser(location))
    groups: dict[str, list[Path]] = {}
    for folder in [path] if path.exists() else map(Path, sorted(glob.glob(str(path)))):
        if RunFolder(folder).config.is_file():
            groups.setdefault(str(path), []).append(folder)
        elif inside := [config.parent for config in sorted(folder.glob("*/config.yaml"))]:
            groups[str(folder)] = inside
    if not groups and any(path.glob("*/*/config.yaml")):
        raise RunError(
            f"there are no runs in {location} itself, but in its subfolders. To compare these, pass {path}/*/"
        )
    return groups or {location: [path]}  # reading it raises the error


def _read_compared_setting(name: str, paths: Sequence[Path]) -> ComparedSetting:
    """Read the runs of one setting; RunError if none has a score."""
    saved = {path: read_saved_config(path) for path in paths}
    settings = [{"algorithm": config.algorithm, **config.experiment} for config in saved.values()]
    first, how = settings[0], measurement_settings(settings[0])
    _warn_if_settings_differ(name, settings)
    results, final = {}, {}
    for path, folder in zip(paths, map(RunFolder, paths), strict=True):
        results[path] = summarize_seed(folder.metrics, read_final_result(folder.evaluation) or {}, how)
        if is_final_result_of_step(folder.evaluation, results[path].steps) or is_final_result_of_step(
            folder.estimate, results[path].steps
        ):
            final[path] = results[path]
    nothing = RunError(f"{name} contains no scores: there were no evaluations, and no training episode has ended.")
    if not (compared := final or {path: result for path, result in results.items() if len(result.points[0])}):
        raise nothing
    of_length = f"of {first['updates' if how.unit == 'updates' else 'steps']:,} {how.unit}"
    if excluded := [f"{path.name} at {result.steps:,}" for path, result in results.items() if path not in compared]:
        logger.warning(f"{name}: skipped without a final evaluation: {', '.join(excluded)} {of_length}")
    curve, measured = (
        seeds_curve_data([result.points for result in compared.values()], how),
        next(iter(saved.values())).env,
    )
    scores = [result.score for result in final.values() if result.score is not None]
    if not scores and (estimated := [result for result in final.values() if result.estimate is not None]):
        scores = [result.estimate for result in estimated if result.estimate is not None]
        of = first["data"].get("path") or measured
        measured = f"{of}: returns estimated by FQE, discount {estimated[0].discount:g}"
    if not final and len(curve.steps):
        scores = curve.scores[:, -1].tolist()
        measure = "evaluations during training" if how.evaluates else "training episodes"
        logger.warning(f"{name}: no final evaluation: compared by {measure}, at {int(curve.steps[-1]):,} {of_length}")
    if not scores:
        raise nothing
    is_evaluated = any(result.score is not None for result in final.values())
    final_step = max(result.steps for result in final.values()) if is_evaluated else None
    return ComparedSetting(name, measured, np.array(scores), curve, how.unit, final_step)


def _warn_if_settings_differ(name: str, settings: Sequence[Mapping[str, Any]]) -> None:
    """Warn if the runs of one setting differ in more than the seed, or have equal seeds."""
    plain = [{key: value for key, value in run.items() if key not in ("seed", "threads")} for run in settings]
    changes = list(dict.fromkeys(line for run in plain[1:] for line in settings_changes(plain[0], run)))
    seeds = [run["seed"] for run in settings]
    if changes:
        more_text = f"; and {len(changes) - 5} more" if len(changes) > 5 else ""
        logger.warning(f"{name}: its runs differ in more than the seed: {'; '.join(changes[:5])}{more_text}")
    elif twice := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
        logger.warning(
            f"{name}: several runs have the same seed, {', '.join(map(str, twice))}: they count as duplicates"
        )
