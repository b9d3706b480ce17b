"""Draw a strip: PNG, or an SVG figure that follows the theme of its reader."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from reverie.core.files import write_atomic
from reverie.log.colors import BLUE, BORDER, HUES, MUTED, ORANGE
from reverie.log.strip import Strip
from reverie.log.style import styled
from reverie.log.themed_svg import themed_svg
from reverie.log.video import outline_truth, shrink

ORIGIN_COLORS = {"seen": BLUE, "imagined": ORANGE, "edited": HUES[3], "": BORDER}
LEVEL_COLORS = {"matches": MUTED, "near": ORANGE, "differs": HUES[4], "": MUTED}
WIDTH, MARGIN, TOP, GAP, BARS = 10.0, 0.8, 0.42, 0.09, 0.55
"""Width of the figure, space left of the pictures, above and between them, and height of the bars, in inches."""
SIDE = 160
"""Maximum length of the longer side of a picture in pixels."""


@styled
def write_strip(path: Path, strip: Strip, real: Sequence[np.ndarray], dream: Sequence[np.ndarray] = ()) -> Path:
    """Draw ``strip`` with pictures ``[H, W, 3]`` uint8 of its columns, write it in the type of ``path``, return it."""
    lanes = {strip.pictured: [shrink(picture, SIDE) for picture in real]}
    if len(dream):
        pairs = zip((shrink(picture, SIDE) for picture in dream), lanes[strip.pictured], strict=True)
        lanes["dream"] = [outline_truth(*pair) for pair in pairs]
    figure, content = _draw(strip, lanes), io.BytesIO()
    if path.suffix == ".png":
        FigureCanvasAgg(figure).print_figure(content, format="png")
        write_atomic(path, content.getvalue())
        return path
    figure.savefig(content, format="svg")
    write_atomic(path, themed_svg(content.getvalue().decode()))
    return path


def _draw(strip: Strip, lanes: dict[str, list[np.ndarray]]) -> Figure:
    """Return the figure. Its coordinates are inches from the upper left corner."""
    count, (rows, columns) = len(strip.columns), next(iter(lanes.values()))[0].shape[:2]
    width = min((WIDTH - MARGIN) / count, 1.6) - GAP
    height = width * rows / columns
    lefts = MARGIN + (width + GAP) * np.arange(count)
    bottom = TOP + len(lanes) * (height + GAP)
    total = bottom + (2 if strip.lines else 1) * (BARS + 0.1) + 0.2
    figure = Figure(figsize=(WIDTH, total))
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.text(0.1, TOP / 2, strip.sentence, weight="bold", fontsize=12, va="center")
    for lane, (name, pictures) in enumerate(lanes.items()):
        top = TOP + lane * (height + GAP)
        _write_label(axes, name, top + height / 2, (BLUE, ORANGE)[lane])
        for left, row, picture in zip(lefts, strip.columns, pictures, strict=True):
            origin = strip.origins[row]
            color = ORIGIN_COLORS["" if lane == 0 and origin != "seen" else origin]
            axes.imshow(picture, extent=(left, left + width, top + height, top), interpolation="none")
            axes.add_patch(Rectangle((left, top), width, height, fill=False, edgecolor=color, linewidth=2.2))
    if strip.parting is not None:
        corner = float(lefts[strip.columns.index(strip.parting)]), TOP
        ring = FancyBboxPatch(corner, width, bottom - TOP - GAP, "round,pad=0.05", fill=False, ec=HUES[4], lw=2.5)
        axes.add_patch(ring)
    centers = np.interp(np.arange(len(strip.origins)), strip.columns, lefts + width / 2)
    if strip.lines:
        _draw_lines(axes, strip.lines, centers, bottom + BARS + 0.05)
    _draw_bars(axes, strip, centers, total - 0.2)
    for row, text in zip(strip.columns, strip.labels or map(str, strip.columns), strict=True):
        axes.text(centers[row], total - 0.1, text, color=MUTED, fontsize=9, ha="center", va="center")
    axes.set(xlim=(0, WIDTH), ylim=(total, 0), aspect="auto")
    axes.axis("off")
    return figure


def _write_label(axes: Axes, text: str, y: float, color: str) -> None:
    axes.text(MARGIN - 0.12, y, textwrap.fill(text, 10), color=color, fontsize=8.5, ha="right", va="center")


def _draw_bars(axes: Axes, strip: Strip, centers: np.ndarray, floor: float) -> None:
    """Draw a bar for each row on the height ``floor``, and a line at the error of "nothing changes"."""
    known = np.flatnonzero(~np.isnan(strip.bars))
    if not len(known):
        return
    is_error = any(strip.levels)
    top = max(1.5, min(3.0, float(strip.bars[known].max()))) if is_error else max(1e-9, float(strip.bars[known].max()))
    widths = np.clip(0.8 * np.diff(centers, append=2 * centers[-1] - centers[-2:][0]), 0.02, 0.3)
    for row in known:
        height, wide, color = BARS * min(1.0, strip.bars[row] / top), widths[row], LEVEL_COLORS[strip.levels[row]]
        axes.add_patch(Rectangle((centers[row] - wide / 2, floor - height), wide, height, color=color, linewidth=0))
    _write_label(axes, strip.bar_label, floor - BARS / 2, MUTED)
    axes.plot((MARGIN, centers[-1] + 0.2), (floor, floor), color=BORDER, linewidth=1)
    if is_error:
        line = floor - BARS / top
        axes.plot((MARGIN, centers[-1] + 0.2), (line, line), color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
        axes.text(MARGIN, line - 0.02, "“nothing changes”", color=MUTED, fontsize=8, va="bottom")


def _draw_lines(axes: Axes, lines: Mapping[str, np.ndarray], centers: np.ndarray, floor: float) -> None:
    """Draw lines over all rows on one scale, whose lowest number is at the height ``floor``."""
    low, high = (float(reduce(list(lines.values()))) for reduce in (np.nanmin, np.nanmax))
    for (name, values), color, y in zip(lines.items(), (BLUE, ORANGE), (0.75, 0.25), strict=True):
        axes.plot(centers, floor - BARS * (values - low) / max(1e-9, high - low), color=color, linewidth=2)
        _write_label(axes, name, floor - BARS * y, color)
