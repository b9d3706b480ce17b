"""What all figures share: colours, the style of axes, and saving as PNG without a display."""

from __future__ import annotations

import io
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from reverie.core.files import write_atomic

BLUE, ORANGE, GREY, GREEN, DARK = "#3b6fb6", "#d9772b", "#8a8f98", "#2ea043", "#3d434b"


def styled(axes: Axes, xlabel: str, ylabel: str) -> Axes:
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
