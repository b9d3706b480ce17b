"""Checks step numbers and times that a dataset stores beside its steps, but that rows do not contain."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import numpy as np

from reverie.datasets.reader import Reader

STEP_NUMBERS = re.compile(
    r"((env|global|episode|ep|local|elapsed|sim|current|control)_?)?(t|frame|step|timestep|time_step)s?"
    r"(_?(id|idx|index|num|number|nr|no|count))?",
    re.IGNORECASE,
)
"""Names of columns that seem to number the steps of an episode."""
TIMES = re.compile(
    r"((wall|event|unix|sim|log|recording)_?)?(time|timestamp|datetime|date|ts)s?(_?(s|ms|us|ns|utc))?"
    r"|(created|recorded|logged)_at|index|__index_level_\d+__|Unnamed: 0|",
    re.IGNORECASE,
)
"""Names of columns that seem to have the time of each step, or its place in a log; pandas' index is one.

In a CSV file, it has no name.
"""
OUT_OF_ORDER = (
    "'{}' does not grow from a step of an episode to the next one: sort the steps by it within episodes, or mark where "
    "episodes end"
)
MISSING = "'{}' skips steps within an episode: the steps before and after them are read as consecutive"


def _seems_ordered(name: str) -> bool:
    """Return whether a column of this name, perhaps behind names of groups, seems to grow within an episode."""
    key = name.rpartition("/")[2]
    return bool(STEP_NUMBERS.fullmatch(key) or TIMES.fullmatch(key))


def find_disorder(
    names: Iterable[str], read: Callable[[str], np.ndarray], end: np.ndarray
) -> dict[str, tuple[int, int]]:
    """Return how often columns go back or stand still, and how often they skip steps, within episodes.

    ``names``: of all columns; ``read``: returns the numbers ``[n]`` of one, or an array of another length or kind if
    it has none. ``end``: bool ``[n]``. Flags and constants count nothing, and columns in order are left out.
    """
    disorder: dict[str, tuple[int, int]] = {}
    for name in sorted(filter(_seems_ordered, names)):
        values = read(name)
        if values.dtype.kind not in "iuf" or values.shape != end.shape or np.isin(values, (0, 1)).all():
            continue
        steps = np.diff(values if values.dtype.kind == "f" else values.astype(np.int64))[~end[:-1]]
        if not steps.any():
            continue
        if TIMES.fullmatch(name.rpartition("/")[2]):
            back, skipped = int((steps < 0).sum()), 0
        else:
            usual = np.unique(steps[steps > 0])[:1]
            back, skipped = int((steps <= 0).sum()), int((steps > usual).sum()) if len(usual) else 0
        disorder |= {name: (back, skipped)} if back or skipped else {}
    return disorder


def note_disorder(
    reader: Reader, names: Iterable[str], read: Callable[[str], np.ndarray], end: np.ndarray, has_next_obs: bool = False
) -> None:
    """Add remarks on columns that are not in the order of steps; see ``find_disorder``.

    ``has_next_obs``: next observations tell where steps are missing.
    """
    for name, (back, skipped) in find_disorder(names, read, end).items():
        reader.add_remark(OUT_OF_ORDER.format(name), back)
        reader.add_remark(MISSING.format(name), 0 if has_next_obs else skipped)
