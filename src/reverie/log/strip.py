"""What a strip shows of an episode: some of its rows as pictures, and numbers of all rows below them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from reverie.core.errors import ConfigError

COLUMNS = 12
"""Default number of pictures."""
STRIP_FORMATS = (".png", ".svg")
"""File types of a strip."""


@dataclass(frozen=True, kw_only=True)
class Strip:
    """A strip of T rows, of an episode and its dream, or of an episode and its critic."""

    sentence: str
    """What it shows, in words."""
    columns: list[int]
    """Rows with a picture, ascending."""
    origins: list[str]
    """How each row of the dream came about, ``[T]``: "seen", "imagined" or "edited". Without a dream: "" each."""
    levels: list[str]
    """Whether the dream of a row "matches", is "near" or "differs", ``[T]``; "" where this is unknown."""
    texts: list[str]
    """The same in words with a number, ``[T]``."""
    bars: np.ndarray
    """Height of a bar for each row, ``[T]``; NaN where it is unknown."""
    bar_label: str
    """What a bar measures. The bars of a dream are errors, as multiples of the error of "nothing changes"."""
    parting: int | None = None
    """The row where truth and dream part: the first that differs. Numbers may come near again within three rows."""
    lines: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    """Numbers of each row by name, ``[T]``, drawn as lines."""
    labels: list[str] = field(default_factory=list[str])
    """Texts below the columns; empty: the numbers of their rows."""
    pictured: str = "truth"
    """What the pictures show."""


def choose_columns(length: int, fixed: Collection[int | None], count: int = COLUMNS) -> list[int]:
    """Return up to ``count`` evenly spaced rows, of which the nearest give way to those in ``fixed``."""
    columns = np.unique(np.linspace(0, length - 1, min(count, length)).round().astype(int)).tolist()
    required = {0, length - 1} | {row for row in fixed if row is not None and 0 <= row < length}
    for row in sorted(required - {*columns}):
        free = [column for column in columns if column not in required]
        columns.remove(min(free, key=lambda column: abs(column - row)))
        columns.append(row)
    return sorted(columns)


def check_strip_path(path: Path) -> Path:
    """Return the folder of ``path``; ConfigError if a strip cannot be written in this file type."""
    if path.suffix not in STRIP_FORMATS:
        raise ConfigError(f"strip = {path}: expected a file name that ends in {', '.join(STRIP_FORMATS)}.")
    return path.parent
