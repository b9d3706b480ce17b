"""SVG figures that follow the theme of their reader."""

from __future__ import annotations

import re

from reverie.log.style import BLUE, CARD, GREEN, HUES, INK, LINE, ORANGE, SOFT

DARK = {INK: "#e6e8ec", SOFT: "#a0a7b3", LINE: "#2c313a", CARD: "#1c1f25", BLUE: "#6fabf2", ORANGE: "#f0a352",
        GREEN: "#6cc58e", HUES[3]: "#e07fd8", HUES[4]: "#f2857d", HUES[5]: "#c6c86a", HUES[6]: "#6fd0d0",
        HUES[7]: "#cda585"}  # fmt: skip
"""Each color in a dark theme."""


NAMES = {color: f"--c{number}" for number, color in enumerate(DARK)}
"""The CSS variable of each color."""
THEME = "<style>:root{{{}}}@media(prefers-color-scheme:dark){{:root{{{}}}}}</style>".format(
    ";".join(f"{name}:{color}" for color, name in NAMES.items()),
    ";".join(f"{name}:{DARK[color]}" for color, name in NAMES.items()),
)
"""What each figure begins with: its colors, in both themes."""


def themed_svg(svg: str) -> str:
    """Return an SVG figure of Matplotlib in the fonts of the reader's system, whose colors follow its theme."""
    if "<metadata>" not in svg:  # it follows it already
        return svg
    plain = {"#000000": NAMES[INK], "#808080": NAMES[SOFT]}  # Matplotlib's black, and "gray" in tutorials
    for color, name in {**plain, **NAMES}.items():
        svg = re.sub(color, f"var({name})", svg, flags=re.IGNORECASE)
    svg = svg.replace("'DejaVu Sans', 'Bitstream Vera Sans'", "system-ui, sans-serif, 'DejaVu Sans'")
    return re.sub("<metadata>.*?</metadata>", THEME, svg, count=1, flags=re.DOTALL)
