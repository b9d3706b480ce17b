"""Figures of runs and datasets, drawn without a display."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from reverie.core.errors import count_noun
from reverie.core.files import write_atomic
from reverie.core.statistics import Interval, histogram, running_mean
from reverie.log.jsonl import FINAL, metric_series, read_metrics, split_evaluations

if TYPE_CHECKING:
    from reverie.log.aggregate import Aggregate, ComparedSetting


BLUE, ORANGE, GRAY, GREEN, DARK = "#3b6fb6", "#d9772b", "#8a8f98", "#2ea043", "#3d434b"
SCORE_METRICS = ("episode/score", "eval/score", "eval/score_iqm", "eval/score_iqm_low", "eval/score_iqm_high", FINAL)
"""Metrics that a learning curve shows."""
MAX_TRACES = MAX_DIMENSIONS = 12
"""Maximum numbers of a dream, and dimensions of an action, in a figure."""
RETURN_LABELS = {"evaluation": "mean return of an evaluation", "training": "return of training episodes, running mean"}
"""Axis labels for the scores of several seeds."""


def plot_learning_curve(metrics: Path, png: Path, title: str = "", unit: str = "env steps") -> Path | None:
    """Draw the scores in ``metrics.jsonl`` over steps of ``unit``; return ``png``, or None if there is no score yet.

    Evaluations are drawn as interquartile means with 95 % intervals; the final evaluation has a separate mark.
    """
    rows = read_metrics(metrics, SCORE_METRICS)
    train, (on_the_way, final) = metric_series(rows, "episode/score"), map(_interval, split_evaluations(rows))
    if not any(len(series[0]) for series in (train, on_the_way, final)):
        return None
    figure, axes = new_curve_figure(unit, "return of an episode")
    if len(train[0]):
        axes.plot(*train, color=BLUE, alpha=0.3, linewidth=1)
        smooth = running_mean(train[1])
        axes.plot(train[0], smooth, line_style(train), color=BLUE, linewidth=2, label="training episodes, running mean")
    if len(on_the_way[0]):
        label = "evaluation, interquartile mean"
        axes.plot(*on_the_way[:2], "o-", color=ORANGE, linewidth=1.5, markersize=5, label=label)
        _band(axes, on_the_way, label="its 95 % interval")
    if len(final[0]):
        _finals(axes, final)
    _finish(axes, title)
    return save_figure(figure, png)


def plot_seeds_curve(png: Path, aggregate: Aggregate, title: str = "") -> Path | None:
    """Draw the curves of several seeds, and their interquartile mean with its 95 % interval; None without any score."""
    curve, middle, final = aggregate.curve, aggregate.curve.interval(), aggregate.final()
    if not len(middle[0]) and not len(final[0]):
        return None
    figure, axes = new_curve_figure(aggregate.unit, RETURN_LABELS[curve.source])
    color = ORANGE if curve.source == "evaluation" else BLUE
    for number, series in enumerate(curve.points):
        label = f"each of {count_noun(len(curve.points), 'seed')}" if not number and len(series[0]) else None
        axes.plot(*series, line_style(series), color=GRAY, alpha=0.55, linewidth=0.9, label=label)
    if len(middle[0]):
        axes.plot(*middle[:2], line_style(middle), color=color, linewidth=2.2, label="interquartile mean of the seeds")
        _band(axes, middle, label="its 95 % interval", color=color)
    if len(final[0]):
        _finals(axes, final)
    _finish(axes, title)
    return save_figure(figure, png)


def plot_comparison(png: Path, settings: Sequence[ComparedSetting]) -> Path | None:
    """Draw the interquartile means of several settings with intervals, a panel per environment; None without any."""
    drawn = [setting for setting in settings if len(setting.curve[0])]
    if not drawn:
        return None
    groups = dict.fromkeys(setting.comparison_key for setting in drawn)
    figure, grid = new_panels(len(groups), 1, (7.5, 4.5))
    for axes, env in zip(grid, groups, strict=True):
        style_axes(axes, "steps", "return, interquartile mean of the seeds")
        for number, setting in enumerate(s for s in drawn if s.comparison_key == env):
            color = f"C{number % 10}"
            axes.plot(*setting.curve[:2], line_style(setting.curve), color=color, linewidth=2, label=setting.name)
            _band(axes, setting.curve, label="_", color=color)
        _finish(axes, env)
    return save_figure(figure, png)


Trials = Sequence[tuple[float, Mapping[str, Any]]]


def plot_trials(png: Path, logs: Mapping[str, bool], finished: Trials, pruned: Trials, title: str = "") -> Path | None:
    """Draw the scores of the trials of a search over each setting, one panel per setting; None if there is no score.

    ``logs``: the settings, and whether their axis is logarithmic. A trial is ``(score, settings)``.
    """
    if not finished:
        return None
    figure, grid = new_panels(len(logs), min(3, len(logs)), (4.2, 3.4), title=title)
    for axes, (name, log) in zip(grid, logs.items(), strict=True):
        style_axes(axes, name, "score")
        words = not all(isinstance(settings[name], int | float) for _, settings in finished)
        for trials, color, mark, label in ((pruned, GRAY, "x", "pruned"), (finished, ORANGE, "o", "finished")):
            values = [str(settings[name]) if words else settings[name] for _, settings in trials]
            axes.plot(values, [score for score, _ in trials], mark, color=color, label=label)
        if log:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter("")  # its labels would run into each other
    grid[0].legend(frameon=False, loc="best")
    return save_figure(figure, png)


def new_curve_figure(unit: str, ylabel: str) -> tuple[Figure, Axes]:
    """Return a figure for learning curves."""
    figure, (axes,) = new_panels(1, 1, (7.5, 4.5))
    return figure, style_axes(axes, unit, ylabel)


def new_panels(
    count: int, columns: int, size: tuple[float, float], margin: tuple[float, float] = (0, 0), title: str = ""
) -> tuple[Figure, list[Axes]]:
    """Return a figure with ``count`` panels of ``size``, in inches, and a ``margin`` around them."""
    lines = -(-count // columns)
    figure = Figure(figsize=(size[0] * columns + margin[0], size[1] * lines + margin[1]), layout="constrained")
    grid = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes in grid[count:]:
        axes.set_visible(False)
    if title:
        figure.suptitle(title, x=0.02, ha="left", fontweight="bold", parse_math=False)
    return figure, grid[:count]


def line_style(series: Sequence[np.ndarray]) -> str:
    """Return the format of a series: a line, or a dot if it is a single point, which a line would not show."""
    return "o" if len(series[0]) == 1 else "-"


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
        axes.axvspan(-0.5, context - 0.5, color=GREEN, alpha=0.12, linewidth=0, label="observed")
        axes.plot(steps, truth[:, i], color=GRAY, linewidth=2.5, label="truth")
        axes.plot(steps, prediction[:, i], color=ORANGE, linewidth=1.5, label="prediction")
        _mark_horizon(axes, trained_horizon, context - 0.5, len(steps) - context)
        axes.set_title(names[i], loc="left", fontsize=10, parse_math=False)
        axes.set_xlim(-0.5, len(steps) - 0.5)
        _widen(axes)
        axes.tick_params(labelbottom=i >= num_traces - columns)
    return _with_legend(figure, grid[0], 2 if columns == 1 else 4, png)


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
        dashes: Any = {"color": DARK, "linewidth": 1.6, "linestyle": (0, (4, 2)), "label": "last row repeated"}
        axes.plot(steps, baseline[name], **dashes)  # on top, since it can equal the dream
        _mark_horizon(axes, trained_horizon, 0.5, len(error))
        axes.set_title(name, loc="left", fontsize=10, parse_math=False)
        top = max(1e-3, axes.get_ylim()[1])
        axes.set_ylim(-0.06 * top, top)  # keeps a line at 0 apart from the frame
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return _with_legend(figure, grid[0], 1 + columns, png)


def _with_legend(figure: Figure, axes: Axes, columns: int, png: Path) -> Path:
    """Write a figure with the legend of ``axes`` below all panels."""
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns, frameon=False)
    return save_figure(figure, png)


def _mark_horizon(axes: Axes, horizon: int | None, start: float, imagined: int) -> None:
    """Draw a thin line after the last step that training imagines, if more than that are ``imagined``."""
    if horizon is not None and horizon < imagined:
        label = f"training imagines {horizon} steps"
        axes.axvline(start + horizon, color="black", linewidth=0.8, linestyle="--", label=label)


def _finish(axes: Axes, title: str) -> None:
    """Add the title, the legend and the format of steps that all learning curves share."""
    axes.set_title(title, loc="left", fontweight="bold", parse_math=False)
    axes.legend(frameon=False, loc="best")
    axes.xaxis.set_major_formatter(lambda x, _: _steps(x))


def _band(axes: Axes, series: Interval, *, label: str, color: str = ORANGE) -> None:
    """Shade the interval where it is known; a single point gets an error bar instead."""
    steps, middle, low, high = series
    is_finite = np.isfinite(low) & np.isfinite(high)
    if len(steps) == 1 and is_finite.all():
        axes.errorbar(steps, middle, yerr=np.abs(np.stack([low, high]) - middle), color=color, capsize=4, label=label)
    elif is_finite.any():
        axes.fill_between(steps, low, high, where=is_finite, color=color, alpha=0.2, linewidth=0, label=label)


def _finals(axes: Axes, final: Interval) -> None:
    """Mark evaluations at the end of training, with error bars where their intervals are known."""
    ends = np.nan_to_num(np.abs(np.array(final[2:]) - final[1]))
    axes.errorbar(
        *final[:2], yerr=ends, fmt="D", color=DARK, markersize=5, capsize=4, linewidth=1.5, zorder=5,
        label="evaluation at the end, with its interval" if ends.any() else "evaluation at the end",
    )  # fmt: skip


def _steps(number: float) -> str:
    """Format a number of steps: 500, 20k, 1.5M."""
    scale, unit = next(((s, u) for s, u in ((1e6, "M"), (1e3, "k")) if abs(number) >= s), (1.0, ""))
    return f"{number / scale:g}{unit}"


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


def style_axes(axes: Axes, xlabel: str, ylabel: str) -> Axes:
    """Give ``axes`` a light grid, no frame on the top and the right, and labels; return them."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    return axes


def save_figure(figure: Figure, png: Path) -> Path:
    """Write ``figure`` to the file ``png`` and return its path."""
    content = io.BytesIO()
    FigureCanvasAgg(figure).print_figure(content, format="png", dpi=130)
    write_atomic(png, content.getvalue())
    return png


def plot_dataset(
    png: Path, scores: Sequence[float], lengths: Sequence[int], actions: Mapping[str, np.ndarray],
    ranges: Mapping[str, tuple[float, float]], title: str,
) -> Path:  # fmt: skip
    """Draw the return ``scores`` and the ``lengths`` of all episodes and the use of actions; return ``png``.

    ``actions``: counts of classes or bins, ``[dimensions, bins]``; ``ranges``: bounds of those with one dimension.
    """
    figure = Figure(figsize=(9.0, 3.2 + 2.2 * len(actions)), layout="constrained")
    grid = figure.add_gridspec(1 + len(actions), 2)
    for column, values, name, color in ((0, scores, "return", BLUE), (1, lengths, "steps", GRAY)):
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
    figure.suptitle(title, x=0.02, ha="left", fontweight="bold", parse_math=False)
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
            axes.bar(edges[:-1], counts[0], width=np.diff(edges), align="edge", color=ORANGE, edgecolor="white")
        return
    shares = counts[:MAX_DIMENSIONS] / np.maximum(1, counts[:MAX_DIMENSIONS].sum(axis=1, keepdims=True))
    image = axes.imshow(shares, aspect="auto", cmap="Blues", vmin=0)
    axes.figure.colorbar(image, ax=axes, label="fraction of a dimension's actions")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel(f"{name}: part of the range from the low to the high bound, or class")
    axes.set_ylabel("dimension")
