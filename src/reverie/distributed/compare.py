"""Comparison of settings by the scores of their seeds."""

from __future__ import annotations

import glob
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reverie.core.errors import ConfigError, RunError, count_noun, did_you_mean, short_repr
from reverie.core.files import disk_errors_as_run_error, write_atomic
from reverie.core.logger import logger
from reverie.core.statistics import MIN_RUNS, IntervalEstimate, Series
from reverie.log.aggregate import (
    ComparedSetting,
    Comparison,
    Curve,
    MeasurementSettings,
    SeedSummary,
    improvements,
    normalize_scores,
    seeds_curve_data,
    summarize_seed,
)
from reverie.log.jsonl import metric_series, read_metrics
from reverie.log.tables import format_csv, format_latex
from reverie.run.config import parse_period
from reverie.run.folder import (
    RunFolder,
    SavedConfig,
    is_final_result_of_step,
    list_sweep,
    read_final_result,
    read_saved_config,
    read_yaml,
    settings_changes,
)
from reverie.run.provenance import warn_of_differences

MEASURED_BY = ("schedule", "experience", "eval_episodes", "stop_score", "patience", "callbacks", "steps", "updates",
               "data", "seed")  # fmt: skip
"""Settings that determine how a run is measured and compared."""
AXES = {"steps": "step", "seconds": "time/seconds", "updates": "counters/updates", "person": "human/seconds"}
"""Axes of learning curves, and the numbers in the log that are drawn along them."""
FIGURE_SUFFIXES = (".png", ".svg", ".pdf")
NORMAL_95, NORMAL_80 = 1.96, 0.8416
"""Quantiles of the normal distribution: of intervals of 95 %, and of 4 of 5 repetitions."""
IQM_SPREAD = 1.195**0.5
"""Standard deviation of the IQM of normal scores, a mean trimmed by a quarter at both ends, over that of their mean."""
MAX_SEEDS = 64
"""More seeds than these are not named."""


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


def compare(
    *runs: Path | str, at: int | None = None, figure: Path | str | None = None,
    labels: Mapping[str, str] | None = None, colors: Mapping[str, str] | None = None,
    normalize: Path | str | Mapping[str, Sequence[float]] | None = None, profile: Path | str | None = None,
    csv: Path | str | None = None, latex: Path | str | None = None, axis: str = "steps",
) -> Comparison:  # fmt: skip
    """Compare settings by the scores of their seeds, which can be trained by separate jobs.

    The score of a seed is the mean return of its final evaluation, or else its estimated return. Runs without a score
    are skipped; if no run of a setting has one, the last common points of their learning curves are compared. The log
    lists these cases, and settings in which the runs differ apart from the seed. Of runs with equal settings and seed,
    the first counts.

    Args:
        *runs: for each setting a folder that holds the runs of its seeds, or a single run, or a pattern such as
            ``"runs/sac-*"``: matching runs are seeds of one setting, and each matching folder of runs is a separate
            setting. The folder of a sweep holds all of its settings.
        at: compare the scores after so many steps: of a longer run its last evaluation up to this step.
        figure: plot the learning curves, with intervals, to this file; its suffix is .png, .svg or .pdf.
        labels: names for people, by the name of a setting: its folder, pattern, or name in a sweep. Settings in several
            environments with the same label are one line of a table.
        colors: colors of the figures by label, as Matplotlib knows them: ``{"SAC": "#1f62b4"}``.
        normalize: the scores of each environment that become 0 and 1, such as those of a random and of a reference
            policy: ``{"Pendulum-v1": [-1200, -150]}``, or a YAML file. Then scores are also aggregated over all
            environments.
        profile: plot performance profiles of the normalized scores to this file.
        csv: write the scores to this file, with a row for each label and environment.
        latex: write the IQMs with their intervals to this file, as a table for LaTeX.
        axis: axis of the figure: ``"steps"``, ``"seconds"``, ``"updates"``, or ``"person"``, the seconds for which a
            person acted.

    Raises:
        ReverieError: there is no run at one of these paths, or none with a score; or a label, a color or a reference
            score fits none of them.
    """
    files = {name: Path(file) for name, file in {"figure": figure, "profile": profile}.items() if file is not None}
    for name, path in files.items():
        if path.suffix not in FIGURE_SUFFIXES:
            raise ConfigError(f"{name} = {path}: expected a file name ending in {', '.join(FIGURE_SUFFIXES)}.")
    if axis not in AXES:
        raise ConfigError(f"axis = {axis}: expected {', '.join(AXES)}.")
    groups = [group for location in runs for group in find_run_groups(os.fspath(location))]
    labels = _check_labels(labels or {}, groups)
    contenders = [
        replace(read_compared_setting(group.name, {path: read_saved_config(path) for path in group.runs}, at),
                label=labels.get(group.name) or labels.get(group.label) or group.label)
        for group in groups
    ]  # fmt: skip
    _check_titles(contenders, labels, colors or {})
    warn_of_differences([RunFolder(path) for group in groups for path in group.runs], logger.warning)
    references = _read_references(normalize, contenders)
    normalized = normalize_scores(contenders, references, logger.warning) if references else []
    if "profile" in files and not normalized:
        raise ConfigError("profile: a performance profile needs normalized scores. Pass normalize.")
    picture = None
    if files:
        from reverie.log.plot import choose_colors, plot_comparison, plot_profiles  # matplotlib takes long to import

        every_color = choose_colors(contenders) | dict(colors or {})
        with disk_errors_as_run_error(next(iter(files.values()))):
            drawn = contenders if axis == "steps" else _move_to_axis(contenders, axis)
            picture = plot_comparison(files["figure"], drawn, every_color) if "figure" in files else None
            if "profile" in files:
                plot_profiles(files["profile"], normalized, every_color)
    chances = improvements([*contenders, *normalized])
    comparison = Comparison(
        settings=contenders, probability_of_improvement=chances, figure=picture, normalized=normalized
    )
    for table, format_table in ((csv, format_csv), (latex, format_latex)):
        if table is not None:
            with disk_errors_as_run_error(Path(table)):
                write_atomic(Path(table), format_table(comparison))
    return comparison


def _move_to_axis(settings: Sequence[ComparedSetting], axis: str) -> list[ComparedSetting]:
    """Return ``settings`` with their curves along ``axis``; ConfigError if none has any.

    Marks at the end stay on the axis of a person's seconds alone.
    """
    moved, is_logged = [], False
    for setting in settings:
        logs = [read_metrics(RunFolder(path).metrics, (AXES[axis],)) for path in setting.runs]
        is_logged |= any(AXES[axis] in row for log in logs for row in log)
        points = [along_axis(series, log, axis) for series, log in zip(setting.curve.points, logs, strict=True)]
        measured = MeasurementSettings(unit=axis, evaluates=False, period=None, early=False)
        changes: dict[str, Any] = {"unit": axis, "is_final": False}
        if axis == "person":
            ends = (along_axis((np.array([setting.steps]), np.zeros(1)), log, axis)[0] for log in logs)
            changes = {"unit": "seconds of a person", "steps": max((int(end[-1]) for end in ends), default=0)}
        curve = replace(seeds_curve_data(points, measured), source=setting.curve.source)
        moved.append(replace(setting, curve=curve, **changes))
    if not is_logged or not any(len(steps) for setting in moved for steps, _ in setting.curve.points):
        raise ConfigError(f"axis = {axis}: no run has logged {AXES[axis]} next to a score. Use another axis.")
    return moved


def along_axis(series: Series, log: Sequence[Mapping[str, Any]], axis: str) -> Series:
    """Return a series of steps and values along another of :data:`AXES`; empty if the log does not have it.

    A run without a person has 0 of a person's seconds. While nobody helps, the newest value replaces the others.
    """
    if axis == "steps":
        return series
    steps, numbers = metric_series(log, AXES[axis])
    if not len(steps) and axis != "person":
        return steps, numbers
    x = np.interp(series[0], [0, *steps], [0, *numbers])
    rows = np.diff(x, append=np.inf) > 0 if axis == "person" else slice(None)
    return x[rows], series[1][rows]


def _check_labels(labels: Mapping[str, str], groups: Sequence[RunGroup]) -> dict[str, str]:
    """Return ``labels`` as texts; ConfigError if one names no group."""
    names = [*dict.fromkeys(group.label or group.name for group in groups)]
    for name in labels:
        if name.rstrip("/") not in (*names, *(group.name for group in groups)):
            near = did_you_mean(name, names)
            raise ConfigError(f"labels: '{name}' names no setting.{near} Settings: {', '.join(names)}.")
    return {name.rstrip("/"): str(label) for name, label in labels.items()}


def _check_titles(settings: Sequence[ComparedSetting], labels: Mapping[str, str], colors: Mapping[str, str]) -> None:
    """Raise ConfigError if settings in one environment share a label, or if a color is none, or of no label."""
    names: dict[tuple[str, str], str] = {}
    for setting in settings if labels else ():
        if (twin := names.setdefault((setting.title, setting.comparison_key), setting.name)) != setting.name:
            raise ConfigError(
                f"labels: '{setting.title}' is the label of {twin} and of {setting.name}, both in "
                f"{setting.comparison_key}. Give each its own label."
            )
    titles = [*dict.fromkeys(setting.title for setting in settings)]
    for title, color in colors.items():
        if title not in titles:
            near = did_you_mean(title, titles)
            raise ConfigError(f"colors: there is no label '{title}'.{near} Labels: {', '.join(titles)}.")
        from matplotlib.colors import is_color_like

        if not is_color_like(color):
            raise ConfigError(f"colors: {title} = {color!r}: expected a color such as '#1f62b4' or 'tab:orange'.")


def _read_references(
    source: Path | str | Mapping[str, Sequence[float]] | None, settings: Sequence[ComparedSetting]
) -> dict[str, tuple[float, float]]:
    """Return the scores that become 0 and 1 in the environments of ``settings``; {} if ``source`` is None."""
    if source is None:
        return {}
    values = dict(source) if isinstance(source, Mapping) else read_yaml(Path(source))
    references = {}
    for env in dict.fromkeys(setting.comparison_key for setting in settings):
        try:
            low, high = map(float, values[env])
        except (LookupError, TypeError, ValueError):
            low = high = math.nan
        if not (math.isfinite(low) and math.isfinite(high) and low != high):
            source_name = "normalize" if isinstance(source, Mapping) else source
            raise ConfigError(
                f"{source_name}: {env} = {short_repr(values.get(env))}: expected [LOW, HIGH], the two different scores "
                "that become 0 and 1."
            )
        references[env] = (low, high)
    return references


class RunGroup(NamedTuple):
    """The runs of one setting in one environment."""

    name: str
    """Their folder, or the run, or the pattern that matches them."""
    runs: list[Path]
    label: str = ""
    """Name of the setting in a sweep."""


def find_run_groups(location: str) -> list[RunGroup]:
    """Return the runs at a path or pattern, by setting; cells of a sweep without runs are left out."""
    path = Path(os.path.expanduser(location))
    groups: dict[str, RunGroup] = {}
    for folder in [path] if path.exists() else map(Path, sorted(glob.glob(str(path)))):
        if RunFolder(folder).config.is_file():
            groups.setdefault(str(path), RunGroup(str(path), [])).runs.append(folder)
            continue
        cells = {cell: label for (label, _), cell in list_sweep(folder).items()} or {folder: ""}
        for cell, label in cells.items():
            if inside := [config.parent for config in sorted(cell.glob("*/config.yaml"))]:
                groups[str(cell)] = RunGroup(str(cell), inside, label)
    if not groups and any(path.glob("*/*/config.yaml")):
        raise RunError(
            f"there are no runs in {location} itself, but in its subfolders. To compare these, pass {path}/*/"
        )
    return [*groups.values()] or [RunGroup(location, [path])]  # reading it raises the error


def read_compared_setting(
    name: str, saved: Mapping[Path, SavedConfig], at: int | None, warn: Callable[[str], object] = logger.warning
) -> ComparedSetting:
    """Read the runs of one setting, whose settings are ``saved``; RunError if none has a score up to step ``at``.

    ``warn`` is called with a sentence for runs that are left out, and for scores before the end of training.
    """
    settings = {path: {"algorithm": config.algorithm, **config.experiment} for path, config in saved.items()}
    first, env = next(iter(settings.values())), next(iter(saved.values())).env
    how = measurement_settings(first)
    _warn_if_settings_differ(name, [*settings.values()], warn)
    results, final = {}, {}
    for path, folder in zip(saved, map(RunFolder, saved), strict=True):
        results[path] = summarize_seed(folder.metrics, read_final_result(folder.evaluation) or {}, how)
        if is_final_result_of_step(folder.evaluation, results[path].steps) or is_final_result_of_step(
            folder.estimate, results[path].steps
        ):
            final[path] = results[path]
    length = first["updates" if how.unit == "updates" else "steps"]
    if at is not None and at < (length or max(result.steps for result in results.values())):
        final = {}  # evaluated later
    if not (compared := final or {path: result for path, result in results.items() if len(result.points[0])}):
        raise RunError(f"{name} contains no scores: there were no evaluations, and no training episode has ended.")
    of_length = f"of {length:,} {how.unit}"
    if excluded := [f"{path.name} at {result.steps:,}" for path, result in results.items() if path not in compared]:
        warn(f"{name}: skipped without a final evaluation: {', '.join(excluded)} {of_length}")
    seeds = _drop_copies({path: settings[path] for path in compared})
    if len(seeds) < len(compared):
        counts = f"{len(compared)} runs, {count_noun(len(seeds), 'seed')}"
        warn(f"{name}: {counts}: of runs with equal settings and seed the first counts")
    curve = seeds_curve_data([results[path].points for path in seeds], how)
    if final:
        setting = _final_scores(name, [final[path] for path in seeds], env, first, curve, how)
        setting = replace(setting, runs=tuple(seeds))
        return setting if len(seeds) > 1 else replace(setting, episode_scores=_read_episode_scores(RunFolder(seeds[0])))
    known = len(curve.steps) if at is None else int(np.searchsorted(curve.steps, at, "right"))
    if not known:
        raise RunError(f"{name} contains no scores of all seeds up to {at:,} {how.unit}.")
    measure, step = "evaluations during training" if how.evaluates else "training episodes", int(curve.steps[known - 1])
    reason = "no final evaluation: " if at is None else ""
    warn(f"{name}: {reason}compared by {measure}, at {step:,} {of_length}")
    return ComparedSetting(
        name,
        first["algorithm"],
        env,
        curve.scores[:, known - 1],
        curve,
        how.unit,
        step,
        is_final=False,
        runs=tuple(seeds),
    )


def _final_scores(
    name: str, seeds: Sequence[SeedSummary], env: str, settings: Mapping[str, Any], curve: Curve,
    how: MeasurementSettings,
) -> ComparedSetting:  # fmt: skip
    """Return the scores of the seeds at the end of training; estimated returns if none was evaluated."""
    scores = [seed.score for seed in seeds if seed.score is not None]
    estimates = [seed.estimate for seed in seeds if seed.estimate is not None]
    if not scores:
        env = f"{settings['data'].get('path') or env}: returns estimated by FQE, discount {seeds[0].discount:g}"
    steps = max(seed.steps for seed in seeds)
    return ComparedSetting(
        name, settings["algorithm"], env, np.array(scores or estimates), curve, how.unit, steps, is_final=bool(scores)
    )


def _read_episode_scores(folder: RunFolder) -> tuple[float, ...]:
    """Return the scores of the episodes at the end of training, if all are known numbers."""
    scores = (read_final_result(folder.evaluation) or {}).get("scores")
    is_known = isinstance(scores, list) and all(isinstance(score, int | float) for score in scores)
    return tuple(scores or ()) if is_known else ()


def _drop_copies(settings: Mapping[Path, Mapping[str, Any]]) -> list[Path]:
    """Return the runs of a mapping to their settings, without those whose settings and seed an earlier run has."""
    first: dict[str, Path] = {}
    for path, values in settings.items():
        first.setdefault(repr({key: value for key, value in values.items() if key != "threads"}), path)
    return [*first.values()]


def _warn_if_settings_differ(name: str, settings: Sequence[Mapping[str, Any]], warn: Callable[[str], object]) -> None:
    """Warn if the runs of one setting differ in more than the seed."""
    plain = [{key: value for key, value in run.items() if key not in ("seed", "threads")} for run in settings]
    changes = list(dict.fromkeys(line for run in plain[1:] for line in settings_changes(plain[0], run)))
    if changes:
        more_text = f"; and {len(changes) - 5} more" if len(changes) > 5 else ""
        warn(f"{name}: its runs differ in more than the seed: {'; '.join(changes[:5])}{more_text}")


# ---------------------------------------------------------------- further seeds


def describe_further_seeds(scores: Mapping[str, tuple[Sequence[float], IntervalEstimate]]) -> str:
    """Say which further seeds would show the best of several settings; "" if their intervals show it, or it is alone.

    ``scores``: of the seeds of each setting, and their IQM with its interval.
    """
    if missing := {label: MIN_RUNS - len(seeds) for label, (seeds, _) in scores.items() if len(seeds) < MIN_RUNS}:
        return " ".join(
            f"{count_noun(count, 'more seed')} of {label} give{'s' * (count == 1)} an interval."
            for label, count in missing.items()
        )
    (best, (seeds, top)), *rivals = sorted(scores.items(), key=lambda item: -item[1][1].value)
    unclear = [(label, rival, iqm) for label, (rival, iqm) in rivals if not iqm.high < top.low]
    if not unclear or not (gap := top.value - unclear[0][2].value):
        return ""
    label, rival, _ = unclear[0]
    spreads = float(np.std(seeds, ddof=1)), float(np.std(rival, ddof=1))
    size = f"{gap:,.0f}" if gap >= 100 else f"{gap:.3g}"
    whole, half = (_count_text(seeds_to_separate(difference, *spreads)) for difference in (gap, gap / 2))
    return (
        f"If the difference of {best} and {label} really is {size}, {whole} seeds each would separate the "
        f"intervals in 4 of 5 repetitions; if it is half of that, {half}."
    )


def seeds_to_separate(difference: float, *spreads: float) -> int:
    """Return from how many seeds each on the intervals of two IQMs are apart in 4 of 5 repetitions.

    Scores are normal, with two standard deviations ``spreads``. The IQMs then have standard deviations c s / sqrt(n),
    and their ``difference`` has to exceed the sum of both half intervals with probability 0.8.
    """
    width = NORMAL_95 * sum(spreads) + NORMAL_80 * math.hypot(*spreads)
    return max(MIN_RUNS, math.ceil((IQM_SPREAD * width / difference) ** 2))


def _count_text(seeds: int) -> str:
    return f"about {seeds}" if seeds <= MAX_SEEDS else f"more than {MAX_SEEDS}"
