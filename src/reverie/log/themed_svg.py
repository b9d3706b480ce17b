"""SVG figures that follow the theme of their reader."""

from __future__ import annotations

import re

from reverie.log.colors import DARK, MUTED, TEXT

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
    plain = {"#000000": NAMES[TEXT], "#808080": NAMES[MUTED]}  # Matplotlib's black, and "gray" in tutorials
    for color, name in {**plain, **NAMES}.items():
        svg = re.sub(color, f"var({name})", svg, flags=re.IGNORECASE)
    svg = svg.replace("'DejaVu Sans', 'Bitstream Vera Sans'", "system-ui, sans-serif, 'DejaVu Sans'")
    return re.sub("<metadata>.*?</metadata>", THEME, svg, count=1, flags=re.DOTALL)
