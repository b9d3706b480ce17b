"""A figure of a dataset: returns and lengths of its episodes, and how often actions were taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from reverie.core.statistics import binned
from reverie.log.plot import BLUE, GREY, ORANGE, save_figure, styled

MAX_DIMENSIONS = 12
"""Most dimensions of an action that are shown."""


def dataset_plot(
    png: Path,
    scores: Sequence[float],
    lengths: Sequence[int],
    actions: Mapping[str, np.ndarray],
    ranges: Mapping[str, tuple[float, float]] | None = None,
    title: str = "",
) -> Path:
    """Draw the return ``scores`` and the ``lengths`` of all episodes and the use of actions; return ``png``.

    ``actions``: by name, counts of each class or each bin of the range, ``[dimensions, bins]``; ``ranges``: by name,
    the bounds of continuous actions with one dimension.
    """
    figure = Figure(figsize=(9.0, 3.2 + 2.2 * len(actions)), layout="constrained")
    grid = figure.add_gridspec(1 + len(actions), 2)
    for place, values, name, color in ((0, scores, "return", BLUE), (1, lengths, "steps", GREY)):
        axes = styled(figure.add_subplot(grid[0, place]), f"{name} of an episode", "episodes")
        counts, edges = binned(values, min(40, max(5, len(values) // 5)))
        if len(counts):
            if len(counts) == 1:  # one bar, wide enough to be seen
                half = max(1.0, abs(edges[0]))
                axes.bar(edges[0], counts[0], width=half / 10, color=color)
                axes.set_xlim(edges[0] - half, edges[0] + half)
            else:
                axes.bar(edges[:-1], counts, width=np.diff(edges), align="edge", color=color)
            axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    for row, (name, counts) in enumerate(actions.items(), start=1):
        _use(figure.add_subplot(grid[row, :]), name, counts, (ranges or {}).get(name))
    figure.suptitle(title, x=0.02, ha="left", fontweight="bold", parse_math=False)
    return save_figure(figure, png)


def _use(axes: Axes, name: str, counts: np.ndarray, bounds: tuple[float, float] | None) -> None:
    """Draw bars for an action with one dimension, otherwise a heat map with a row for each dimension."""
    if len(counts) == 1:
        styled(axes, name, "times taken")
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
    axes.figure.colorbar(image, ax=axes, label="share of a dimension's actions")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel(f"{name}: part of the range from the low to the high bound, or class")
    axes.set_ylabel("dimension")
