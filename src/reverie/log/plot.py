"""Figures of runs and datasets, drawn without a display."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator
from numpy.typing import ArrayLike

from reverie.core.errors import count_noun
from reverie.core.statistics import (
    Interval,
    Series,
    estimate_interval,
    histogram,
    interval,
    iqm,
    performance_profile,
    running_mean,
)  # fmt: skip
from reverie.log.colors import BACKGROUND, BLUE, HUES, MUTED, ORANGE, TEXT, assign_hues
from reverie.log.jsonl import FINAL, metric_series, read_metrics, split_evaluations
from reverie.log.style import label_lines, new_panels, save_figure, set_ends, style_axes, styled

if TYPE_CHECKING:
    from reverie.log.aggregate import Aggregate, ComparedSetting

SCORE_METRICS = ("episode/score", "eval/score", "eval/score_iqm", "eval/score_iqm_low", "eval/score_iqm_high", FINAL)
SUCCESS_METRICS = ("episode/success_rate", "eval/success_rate")
"""Metrics that a learning curve shows: scores, and success in training and in evaluations, if it is known."""
MAX_TRACES = MAX_DIMENSIONS = 12
"""Maximum numbers of a dream, and dimensions of an action, in a figure."""
SIZE = (7.2, 4.0)
"""Width and height of a panel with learning curves, in inches."""
SOURCES = {"evaluation": "evaluations during training", "training": "training episodes, running mean"}
"""What the curves of several seeds show."""
PROFILE_POINTS = 200
"""Thresholds of a performance profile."""
Label = tuple[float, str, str]
"""Height of a line's end, its label, and its color."""


@styled
def plot_learning_curve(metrics: Path, png: Path, title: str = "", unit: str = "env steps") -> Path | None:
    """Draw the scores in ``metrics.jsonl`` over steps of ``unit``; return ``png``, or None if there is no score yet.

    Evaluations are drawn as interquartile means with 95 % intervals; the final evaluation has a separate mark. A second
    panel shows success rates, if there are any.
    """
    rows = read_metrics(metrics, (*SCORE_METRICS, *SUCCESS_METRICS))
    train, (on_the_way, final) = metric_series(rows, "episode/score"), map(_interval, split_evaluations(rows))
    if not any(len(series[0]) for series in (train, on_the_way, final)):
        return None
    fractions = [metric_series(rows, name) for name in SUCCESS_METRICS]
    has_fractions = any(len(steps) for steps, _ in fractions)
    figure, (axes, *more_axes) = new_panels(1 + has_fractions, 1, SIZE)
    style_axes(axes, unit, "return of an episode", title)
    labels: list[Label] = []
    if len(train[0]):
        smooth = running_mean(train[1])
        axes.plot(*train, color=BLUE, alpha=0.3, linewidth=1)
        axes.plot(train[0], smooth, _line_style(train), color=BLUE)
        labels.append((smooth[-1], "training episodes\nand running mean", BLUE))
    if len(on_the_way[0]):
        axes.plot(*on_the_way[:2], "o-", color=ORANGE, linewidth=1.5)
        has_interval = _band(axes, on_the_way, ORANGE)
        labels.append(
            (on_the_way[1][-1], "evaluation: IQM\nand 95 % interval" if has_interval else "evaluation", ORANGE)
        )
    for step, middle, low, high in zip(*final, strict=True):
        ends = np.nan_to_num([[abs(middle - low)], [abs(high - middle)]])
        axes.errorbar(step, middle, yerr=ends, fmt="D", color=TEXT, capsize=4, linewidth=1.5, zorder=5)
    if len(final[0]):
        labels.append((final[1][-1], "evaluation at the end", TEXT))
    axes.set_xlim(left=0)
    label_lines(axes, labels)
    for fraction_axes in more_axes:
        _draw_fractions(fraction_axes, fractions, unit)
    return save_figure(figure, png)


def _draw_fractions(axes: Axes, fractions: Sequence[Series], unit: str) -> None:
    """Draw the success rates of training episodes and of evaluations."""
    style_axes(axes, unit, "fraction of successful episodes")
    labels: list[Label] = []
    styles = (("training episodes", BLUE, ""), ("evaluation", ORANGE, "o-"))
    for (steps, rates), (text, color, style) in zip(fractions, styles, strict=True):
        if len(steps):
            axes.plot(steps, rates, style or _line_style((steps, rates)), color=color)
            labels.append((rates[-1], text, color))
    axes.set_xlim(left=0)
    set_ends(axes, 0, 1)
    label_lines(axes, labels)


@styled
def plot_seeds_curve(png: Path, aggregate: Aggregate, title: str = "") -> Path | None:
    """Draw the curves of several seeds, and their interquartile mean with its 95 % interval; None without any score."""
    curve, scores = aggregate.curve, [score for score in aggregate.scores if score is not None]
    if not len(curve.steps) and not scores:
        return None
    figure, (axes,) = new_panels(1, 1, SIZE)
    style_axes(axes, aggregate.unit, f"return: {SOURCES[curve.source]}", title)
    labels = draw_seeds(axes, curve.points, curve.interval(), ORANGE if curve.source == "evaluation" else BLUE)
    labels += mark_finals(axes, max(aggregate.steps), scores, TEXT)
    axes.set_xlim(left=0)
    label_lines(axes, labels)
    return save_figure(figure, png)


@styled
def plot_comparison(png: Path, settings: Sequence[ComparedSetting], colors: Mapping[str, str]) -> Path | None:
    """Draw the curves of several settings, a panel per environment and source of the scores; None without any curve.

    ``colors``: by label.
    """
    if not any(_has_curve(setting) for setting in settings):
        return None
    panels: dict[tuple[str, str, str], list[ComparedSetting]] = {}
    for setting in settings:
        source: str = setting.curve.source if _has_curve(setting) else "evaluation"
        panels.setdefault((setting.comparison_key, source, setting.unit), []).append(setting)
    figure, grid = new_panels(len(panels), 1, SIZE)
    for axes, ((key, source, unit), members) in zip(grid, panels.items(), strict=True):
        intervals = {setting.iqm().has_interval for setting in members if setting.is_final}
        marks = {True: "◆ IQM of evaluations at the end", False: "◇ evaluation at the end of a seed"}
        xlabel = "; ".join([unit, *(text for has_interval, text in marks.items() if has_interval in intervals)])
        style_axes(axes, xlabel, "return of an episode", f"{key}: {SOURCES[source]}")
        labels: list[Label] = []
        for setting in members:
            color = colors[setting.title]
            seeds = draw_seeds(axes, setting.curve.points, setting.curve.interval(), color)
            finals = mark_finals(axes, setting.steps, setting.scores, color) if setting.is_final else []
            text = seeds[0][1] if seeds else "evaluation at the end"
            labels += [(y, f"{setting.title}\n{text}", color) for y, _, _ in (seeds or finals)[:1]]
        axes.set_xlim(left=0)
        label_lines(axes, labels)
    return save_figure(figure, png)


def choose_colors(settings: Sequence[ComparedSetting]) -> dict[str, str]:
    """Return the color of each label: that of its algorithm, or another if it is taken."""
    names = {setting.title: setting.algorithm for setting in settings}
    return {name: HUES[hue] for name, hue in zip(names, assign_hues([*names.values()]), strict=True)}


@styled
def plot_profiles(png: Path, normalized: Sequence[ComparedSetting], colors: Mapping[str, str]) -> Path:
    """Draw performance profiles: the fraction of runs above each normalized score, with intervals; return ``png``."""
    values = np.concatenate([setting.scores.ravel() for setting in normalized])
    thresholds = np.linspace(values.min(), values.max(), PROFILE_POINTS)
    measure = functools.partial(performance_profile, thresholds=thresholds)
    figure, (axes,) = new_panels(1, 1, SIZE)
    style_axes(axes, "normalized score", "fraction of runs with a higher score", "performance profiles")
    for setting in normalized:
        axes.plot(thresholds, measure(setting.scores), color=colors[setting.title], label=setting.title)
        ends = interval(measure, setting.scores)
        _band(axes, (thresholds, measure(setting.scores), *ends), colors[setting.title])
    set_ends(axes, 0, 1)
    return _with_legend(figure, axes, min(3, len(normalized)), png)


def _has_curve(setting: ComparedSetting) -> bool:
    return any(len(steps) for steps, _ in setting.curve.points)


def draw_seeds(axes: Axes, points: Sequence[Series], middle: Interval, color: str) -> list[Label]:
    """Draw each seed, and the interquartile mean with its interval if there are enough seeds; return the label."""
    curves = [(steps, scores) for steps, scores in points if len(steps)]
    is_known = np.isfinite(middle[2])
    for series in curves:
        axes.plot(*series, _line_style(series), color=color, alpha=0.3 if is_known.any() else 0.8, linewidth=1)
    seeds = count_noun(len(curves), "seed")
    if is_known.any():
        axes.plot(*middle[:2], _line_style(middle), color=color)
        _band(axes, middle, color)
        return [(middle[1][-1], f"IQM of {seeds},\n95 % interval", color)]
    return [(float(np.mean([scores[-1] for _, scores in curves])), seeds, color)] if curves else []


def mark_finals(axes: Axes, steps: ArrayLike, scores: ArrayLike, color: str) -> list[Label]:
    """Mark evaluations at the end of training: each seed, or from enough seeds on the IQM; return the label."""
    if not np.size(scores):
        return []
    middle = estimate_interval(iqm, scores)
    if middle.has_interval:
        ends = np.abs([[middle.value - middle.low], [middle.high - middle.value]])
        axes.errorbar(np.max(steps), middle.value, yerr=ends, fmt="D", color=color, capsize=4, linewidth=1.5, zorder=5)
    else:
        at = np.broadcast_to(steps, np.shape(scores))
        axes.plot(at, scores, "D", color=color, markerfacecolor=BACKGROUND, zorder=5)
    return [(middle.value, "evaluation at the end", color)]


Trials = Sequence[tuple[float, Mapping[str, Any]]]


@styled
def plot_trials(png: Path, logs: Mapping[str, bool], finished: Trials, pruned: Trials, title: str = "") -> Path | None:
    """Draw the scores of the trials of a search over each setting, one panel per setting; None if there is no score.

    ``logs``: the settings, and whether their axis is logarithmic. A trial is ``(score, settings)``.
    """
    if not finished:
        return None
    figure, grid = new_panels(len(logs), min(3, len(logs)), (4.2, 3.4), title=title)
    for axes, (name, log) in zip(grid, logs.items(), strict=True):
        if words := not all(isinstance(settings[name], int | float) for _, settings in finished):
            axes.set(xlabel=name, ylabel="score")
        else:
            style_axes(axes, name, "score")
        for trials, color, mark, label in ((pruned, MUTED, "x", "pruned"), (finished, ORANGE, "o", "finished")):
            values = [str(settings[name]) if words else settings[name] for _, settings in trials]
            axes.plot(values, [score for score, _ in trials], mark, color=color, label=label)
        if log:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter("")  # its labels would run into each other
    return _with_legend(figure, grid[0], 2, png)


def _line_style(series: Sequence[np.ndarray]) -> str:
    """Return the format of a series: a line, or a dot if it is a single point, which a line would not show."""
    return "o" if len(series[0]) == 1 else "-"


@styled
def plot_dream_traces(
    png: Path, truth: np.ndarray, prediction: np.ndarray, context: int, names: Sequence[str],
    title: str = "", trained_horizon: int | None = None,
) -> Path:  # fmt: skip
    """Draw the truth and the prediction of each of D numbers, ``[T, D]`` in the same units; return ``png``.

    The ``context`` rows that the model observed are shaded. The end of ``trained_horizon`` is marked.
    """
    num_traces, steps = min(truth.shape[1], MAX_TRACES), np.arange(truth.shape[0])
    columns = 1 if num_traces == 1 else 2 if num_traces <= 8 else 3
    figure, grid = new_panels(num_traces, columns, (5.2, 1.9), (0.3, 1.1), title)
    for i, axes in enumerate(grid):
        style_axes(axes, "step" if i >= num_traces - columns else "", "")
        axes.axvspan(-0.5, context - 0.5, color=BLUE, alpha=0.12, linewidth=0, label="observed")
        axes.plot(steps, truth[:, i], color=BLUE, linewidth=2.5, label="truth")
        axes.plot(steps, prediction[:, i], color=ORANGE, linewidth=1.5, label="prediction")
        _mark_horizon(axes, trained_horizon, context - 0.5, len(steps) - context)
        axes.set_title(names[i], fontsize=10)
        axes.set_xlim(-0.5, len(steps) - 0.5)
        _widen(axes)
        axes.tick_params(labelbottom=i >= num_traces - columns)
    return _with_legend(figure, grid[0], 2 if columns == 1 else 4, png)


@styled
def plot_dream_errors(
    png: Path, errors: Mapping[str, np.ndarray], baseline: Mapping[str, np.ndarray], title: str,
    units: Mapping[str, str], trained_horizon: int | None = None,
) -> Path:  # fmt: skip
    """Draw the error of each prediction over imagined steps ``[H]``, and of a baseline that repeats the last row."""
    columns = min(2, len(errors))
    figure, grid = new_panels(len(errors), columns, (5.2, 2.4), (0.3, 1.1), title)
    for i, (axes, (name, error)) in enumerate(zip(grid, errors.items(), strict=True)):
        style_axes(axes, "steps imagined" if i >= len(errors) - columns else "", "")
        axes.set_ylabel(textwrap.fill(units[name], 24), fontsize=8)
        steps = np.arange(1, len(error) + 1)
        axes.plot(steps, error, color=ORANGE, linewidth=2, label="dream")
        dashes: Any = {"color": TEXT, "linewidth": 1.6, "linestyle": (0, (4, 2)), "label": "last row repeated"}
        axes.plot(steps, baseline[name], **dashes)  # on top, since it can equal the dream
        _mark_horizon(axes, trained_horizon, 0.5, len(error))
        axes.set_title(name, fontsize=10)
        top = max(1e-3, axes.get_ylim()[1])
        axes.set_ylim(-0.06 * top, top)  # keeps a line at 0 apart from the frame
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return _with_legend(figure, grid[0], 1 + columns, png)


def _with_legend(figure: Figure, axes: Axes, columns: int, png: Path) -> Path:
    """Write a figure with the legend of ``axes`` below all panels."""
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns)
    return save_figure(figure, png)


def _mark_horizon(axes: Axes, horizon: int | None, start: float, imagined: int) -> None:
    """Draw a thin line after the last step that training imagines, if more than that are ``imagined``."""
    if horizon is not None and horizon < imagined:
        label = f"training imagines {horizon} steps"
        axes.axvline(start + horizon, color=TEXT, linewidth=0.8, linestyle="--", label=label)


def _band(axes: Axes, series: Interval, color: str) -> bool:
    """Shade the interval where it is known, and return whether it is; a single point gets an error bar instead."""
    steps, middle, low, high = series
    is_finite = np.isfinite(low) & np.isfinite(high)
    if len(steps) == 1 and is_finite.all():
        axes.errorbar(steps, middle, yerr=np.abs(np.stack([low, high]) - middle), color=color, capsize=4)
    else:
        axes.fill_between(steps, low, high, where=is_finite, color=color, alpha=0.2, linewidth=0)
    return bool(is_finite.any())


def _widen(axes: Axes) -> None:
    """Widen the y axis to at least 5 % around its middle, so that tiny changes do not look like large ones."""
    low, high = axes.get_ylim()
    middle = (low + high) / 2
    half = max((high - low) / 2, 0.05 * max(1.0, abs(middle)))
    axes.set_ylim(middle - half, middle + half)


def _interval(scored: Sequence[Mapping[str, float]]) -> Interval:
    """Return steps, interquartile mean, low and high of each evaluation; the mean and NaN where there are none."""
    steps = np.array([row["step"] for row in scored], float)
    middle = np.array([row.get("eval/score_iqm", row["eval/score"]) for row in scored], float)
    low, high = (np.array([row.get(f"eval/score_iqm_{end}", np.nan) for row in scored]) for end in ("low", "high"))
    return steps, middle, low, high


@styled
def plot_dataset(
    png: Path, scores: Sequence[float], lengths: Sequence[int], actions: Mapping[str, np.ndarray],
    ranges: Mapping[str, tuple[float, float]], title: str,
) -> Path:  # fmt: skip
    """Draw the return ``scores`` and the ``lengths`` of all episodes and the use of actions; return ``png``.

    ``actions``: counts of classes or bins, ``[dimensions, bins]``; ``ranges``: bounds of those with one dimension.
    """
    figure = Figure(figsize=(9.0, 3.2 + 2.2 * len(actions)))
    grid = figure.add_gridspec(1 + len(actions), 2)
    for column, values, name, color in ((0, scores, "return", BLUE), (1, lengths, "steps", MUTED)):
        if not values:
            continue  # no rewards
        axes = style_axes(figure.add_subplot(grid[0, column]), f"{name} of an episode", "episodes")
        counts, edges = histogram(values, min(40, max(5, len(values) // 5)))
        if len(counts) == 1:  # one bar, wide enough to be seen
            half = max(1.0, abs(edges[0]))
            axes.bar(edges[0], counts[0], width=half / 10, color=color)
            axes.set_xlim(edges[0] - half, edges[0] + half)
        else:
            axes.bar(edges[:-1], counts, width=np.diff(edges), align="edge", color=color)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    for row, (name, counts) in enumerate(actions.items(), start=1):
        _use(figure.add_subplot(grid[row, :]), name, counts, ranges.get(name))
    figure.suptitle(title, x=0.02, ha="left")
    return save_figure(figure, png)


def _use(axes: Axes, name: str, counts: np.ndarray, bounds: tuple[float, float] | None) -> None:
    """Draw bars for an action with one dimension, otherwise a heat map with a row for each dimension."""
    if len(counts) == 1:
        style_axes(axes, name, "times taken")
        parts = counts.shape[1]
        if bounds is None:
            axes.bar(np.arange(parts), counts[0], color=ORANGE)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        else:
            edges = np.linspace(*bounds, parts + 1)
            axes.bar(edges[:-1], counts[0], width=np.diff(edges), align="edge", color=ORANGE, edgecolor=BACKGROUND)
        return
    shares = counts[:MAX_DIMENSIONS] / np.maximum(1, counts[:MAX_DIMENSIONS].sum(axis=1, keepdims=True))
    axes.grid(visible=False)
    image = axes.imshow(shares, aspect="auto", cmap="Blues", vmin=0)
    axes.figure.colorbar(image, ax=axes, label="fraction of a dimension's actions")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel(f"{name}: part of the range from the low to the high bound, or class")
    axes.set_ylabel("dimension")
