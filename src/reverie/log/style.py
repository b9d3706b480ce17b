"""The style of every figure: the colors of the viewer, and labels at lines."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import ContextDecorator
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from reverie.core.files import write_atomic
from reverie.log.colors import BACKGROUND, BORDER, HUES, MUTED, TEXT

SETTINGS: dict[str, Any] = {
    "font.size": 10, "axes.titlesize": 11, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "figure.titlesize": 12, "figure.titleweight": "bold", "text.color": TEXT, "axes.titlecolor": TEXT,
    "axes.labelcolor": MUTED, "xtick.color": BORDER, "ytick.color": BORDER, "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED, "axes.edgecolor": BORDER, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "axes.axisbelow": True, "grid.color": BORDER, "grid.linewidth": 0.8,
    "axes.facecolor": BACKGROUND, "figure.facecolor": BACKGROUND, "savefig.facecolor": BACKGROUND,
    "legend.frameon": False, "lines.linewidth": 2,
    "lines.markersize": 5, "axes.prop_cycle": f"cycler('color', {list(HUES)})", "text.parse_math": False,
    "axes.unicode_minus": False, "svg.fonttype": "none", "svg.hashsalt": "reverie", "savefig.dpi": 200,
    "pdf.fonttype": 42,  # TrueType, which publishers ask for
    "figure.constrained_layout.use": True, "figure.constrained_layout.h_pad": 0.1,
    "figure.constrained_layout.w_pad": 0.1,
}  # fmt: skip
"""Matplotlib's settings for figures."""
styled: ContextDecorator = rc_context(SETTINGS)  # type: ignore[arg-type]
"""Decorator of a function that draws a figure."""


def new_panels(
    count: int, columns: int, size: tuple[float, float], margin: tuple[float, float] = (0, 0), title: str = ""
) -> tuple[Figure, list[Axes]]:
    """Return a figure with ``count`` panels of ``size``, in inches, and a ``margin`` around them."""
    lines = -(-count // columns)
    figure = Figure(figsize=(size[0] * columns + margin[0], size[1] * lines + margin[1]))
    grid = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes in grid[count:]:
        axes.set_visible(False)
    if title:
        figure.suptitle(title, x=0.02, ha="left")
    return figure, grid[:count]


def style_axes(axes: Axes, xlabel: str, ylabel: str, title: str = "") -> Axes:
    """Label ``axes`` and separate the thousands of its numbers; return it."""
    axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda number, _: f"{number:,.10g}")
    return axes


def set_ends(axes: Axes, low: float | None, high: float) -> None:
    """End the y axis at the lowest (None: as it is) and highest possible number, where lines are drawn in full."""
    axes.set_ylim(low, high)
    for line in axes.lines:
        line.set_clip_on(False)


def label_lines(axes: Axes, labels: Sequence[tuple[float, str, str]]) -> None:
    """Write ``labels``, the height of a line's end, a text and a color, to the right of all lines, without overlap."""
    em = 12.5 / (axes.bbox.height * 72 / axes.figure.dpi)  # height of a line of text, in heights of the axes
    right, to_axes = axes.get_xlim()[1], axes.transData - axes.transAxes
    spread: list[tuple[float, str, str]] = []
    floor = -0.05
    for y, text, color in sorted(labels):
        half = em * (text.count("\n") + 1) / 2
        at = max(float(to_axes.transform((right, y))[1]), floor + half)
        spread, floor = [*spread, (at, text, color)], at + half
    roof = 1.05
    for at, text, color in reversed(spread):
        half = em * (text.count("\n") + 1) / 2
        at = min(at, roof - half)
        roof = at - half
        axes.text(1.02, at, text, color=color, transform=axes.transAxes, va="center", fontsize=9)


def save_figure(figure: Figure, path: Path) -> Path:
    """Write ``figure`` to a file, in the format of its suffix, and return its path."""
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix.removeprefix("."))
    write_atomic(path, content.getvalue())
    return path
