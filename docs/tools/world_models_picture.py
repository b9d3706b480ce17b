#!/usr/bin/env python3
"""Draw docs/images/world_models.svg: what the world models here learn, and how agents act by them.

python docs/tools/world_models_picture.py
"""

from __future__ import annotations

import io
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from reverie.log.colors import BLUE, MUTED, ORANGE
from reverie.log.style import styled
from reverie.log.themed_svg import themed_svg

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "world_models.svg"
PLAIN, LEARNED, ACTING = MUTED, BLUE, ORANGE


def box(axes: Axes, x: float, y: float, text: str, color: str = LEARNED) -> None:
    """A box around a word."""
    shape = FancyBboxPatch(
        (x - 0.62, y - 0.24), 1.24, 0.48, boxstyle="round,pad=0.04", facecolor=(color, 0.2), edgecolor=color
    )
    axes.add_patch(shape)
    axes.text(x, y, text, ha="center", va="center", fontsize=8.5)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], style: str = "-") -> None:
    """An arrow between two places; dashed: a target of the loss."""
    ends = {"arrowstyle": "-|>", "mutation_scale": 10, "linestyle": style, "color": MUTED}
    axes.add_patch(FancyArrowPatch(start, end, shrinkA=0, shrinkB=0, **ends))


def panel(axes: Axes, title: str, learns: str, acts: list[str], *, decodes: bool) -> None:
    """Two steps of a model: observations below, latents between, what is predicted above."""
    for i, x in enumerate((1.0, 4.0)):
        box(axes, x, 0.0, f"observation {'t' if i == 0 else 't + 1'}", PLAIN)
        box(axes, x, 1.0, f"latent {'t' if i == 0 else 't + 1'}")
        box(axes, x, 2.0, "what is seen,\nreward, end" if decodes else "reward, value,\nend")
        arrow(axes, (x, 0.3), (x, 0.7))
        arrow(axes, (x, 1.3), (x, 1.7))
    box(axes, 2.5, 1.5, "action", ACTING)
    arrow(axes, (1.66, 1.0), (3.34, 1.0))
    arrow(axes, (2.5, 1.2), (2.5, 1.02))
    axes.text(2.5, 0.42, learns, ha="center", va="center", fontsize=8, style="italic")
    for i, text in enumerate(acts):
        axes.text(2.5, 2.75 - 0.27 * i, text, ha="center", va="center", fontsize=8.5)
    axes.set(xlim=(0.2, 4.8), ylim=(-0.4, 3.1))
    axes.set_title(title)
    axes.axis("off")


@styled
def main() -> None:
    """Draw it."""
    figure = Figure(figsize=(8.4, 3.6))
    left, right = figure.subplots(1, 2)
    panel(left, "Dreamer", "the latent is learned from\nwhat is seen, by a decoder", decodes=True,
          acts=["acting: a policy, trained beforehand in dreams"])  # fmt: skip
    panel(right, "TD-MPC2", "the latent is learned from\nthe next latent, encoded", decodes=False,
          acts=["acting: hundreds of action sequences are tried in the model, at each step"])  # fmt: skip
    content = io.StringIO()
    figure.savefig(content, format="svg")
    PICTURE.write_text(themed_svg(content.getvalue()), encoding="utf-8")


if __name__ == "__main__":
    main()
