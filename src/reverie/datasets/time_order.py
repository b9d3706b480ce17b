"""Checks step numbers and times that a dataset stores beside its steps, but that rows do not contain."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from reverie.core.errors import ConfigError, short_repr
from reverie.datasets.reader import Reader
from reverie.datasets.source import import_optional, import_pyarrow

STEP_NUMBERS = re.compile(
    r"((env|global|episode|ep|local|elapsed|sim|current|control)_?)?(t|frame|step|timestep|time_step)s?"
    r"(_?(id|idx|index|num|number|nr|no|count))?",
    re.IGNORECASE,
)
"""Names of columns that seem to number the steps of an episode."""
TIMES = re.compile(
    r"(.*(time|(?<!up)date|stamp|hour|minute|second|sec|seq)s?|(.*[^a-z])?(ts|year|day|epoch|tick|round|turn|bloc|sequence))"
    r"([_\-. ]?\W?(s|ms|us|ns|utc|gmt|id|idx|index|no|nr|num|number)\W?)?"
    r"|.*_at|index|__index_level_\d+__|Unnamed: 0|",
    re.IGNORECASE,
)
"""Names of columns that seem to have the time of each step, or its place in a log; pandas' index is one.

In a CSV file, it has no name.
"""
DATES = ("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%Y%m%d", "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y",
         "%d/%m/%y", "%m/%d/%y", "%d %b %Y", "%d-%b-%Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y")  # fmt: skip
CLOCKS = ("%H:%M", "%H:%M:%S", "%I:%M %p", "%I:%M:%S %p", "%H%M%S", "%H%M")
FORMATS = (*DATES, *CLOCKS, *(date + gap + clock for date, gap, clock in product(DATES, " T", CLOCKS)))
"""Formats of times as text, in addition to those of ISO 8601."""
OUT_OF_ORDER = (
    "'{}' does not grow from a step of an episode to the next one: if it is their time, sort the steps by it within "
    "episodes, or mark where episodes end"
)
MISSING = "'{}' skips steps within an episode: the steps before and after them are read as consecutive"
NO_TIMES = "'{}' seems to be the time of each step, but {} is not read as one: the order of the steps is not checked"


class Disorder(NamedTuple):
    """How often a column goes back or stands still, how often it skips steps, and a text that is no time."""

    back: int
    skipped: int
    no_time: str = ""


def _is_time(name: str) -> bool:
    """Return whether a column of this name, perhaps behind names of groups, seems to have times."""
    return bool(TIMES.fullmatch(re.split(r"[/.]", name)[-1]))


def find_disorder(names: Iterable[str], read: Callable[[str], np.ndarray], end: np.ndarray) -> dict[str, Disorder]:
    """Return the disorder within episodes of columns whose names seem to be those of step numbers or times.

    ``names``: of all columns; ``read``: returns the numbers or texts ``[n]`` of one, or an array of another length or
    kind if it has none. ``end``: bool ``[n]``. Flags and constants count nothing, and columns in order are left out.
    """
    disorder: dict[str, Disorder] = {}
    for name in sorted(names):
        if not ((is_time := _is_time(name)) or STEP_NUMBERS.fullmatch(re.split(r"[/.]", name)[-1])):
            continue
        values = read(name)
        if values.shape != end.shape or values.dtype.kind not in "iufSUO":
            continue
        if values.dtype.kind in "SUO" and is_time:
            readings = [*_parse_times(values)]
            if not readings:
                disorder[name] = Disorder(0, 0, short_repr(values[0]))
        else:
            readings = [values] if values.dtype.kind in "iuf" else []
        smallest = min((_compare(reading, end, is_time) for reading in readings), default=Disorder(0, 0))
        disorder |= {name: smallest} if smallest.back or smallest.skipped else {}
    return disorder


def _compare(values: np.ndarray, end: np.ndarray, is_time: bool) -> Disorder:
    """Return the disorder of numbers ``[n]``. Times can be equal in neighboring steps."""
    steps = np.diff(values if values.dtype.kind == "f" else values.astype(np.int64))[~end[:-1]]
    if np.isin(values, (0, 1)).all() or not steps.any():
        return Disorder(0, 0)
    if is_time:
        return Disorder(int((steps < 0).sum()), 0)
    usual = np.unique(steps[steps > 0])[:1]
    return Disorder(int((steps <= 0).sum()), int((steps > usual).sum()) if len(usual) else 0)


def _parse_times(values: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the numbers ``[n]`` that texts mean as times, NaN if one is missing: several if the format is ambiguous."""
    texts = [text.decode(errors="replace") if isinstance(text, bytes) else text for text in values.tolist()]
    first = next((text for text in texts if isinstance(text, str) and text), None)
    with contextlib.suppress(ConfigError):  # pyarrow is missing
        arrow, compute = import_pyarrow(), import_optional("pyarrow.compute", "arrow")
        if first is None or not all(text is None or isinstance(text, str) for text in texts):
            return
        array = arrow.array([text or None for text in texts], arrow.string())
        for kind in (arrow.float64(), arrow.timestamp("ns"), arrow.timestamp("ns", "UTC")):
            with contextlib.suppress(arrow.ArrowInvalid):
                yield _to_numbers(array.cast(kind))
                return
        array = compute.replace_substring_regex(array, r"(:\d\d)[.,]\d+", r"\1")  # fractions of seconds
        first = re.sub(r"(:\d\d)[.,]\d+", r"\1", first)
        for text_format in filter(lambda text_format: _fits(first, text_format), FORMATS):
            times = compute.strptime(array, text_format, "s", error_is_null=True)
            if times.null_count == array.null_count:
                yield _to_numbers(times)


def _fits(text: str, text_format: str) -> bool:
    try:
        return bool(datetime.strptime(text, text_format))  # zones do not change the order
    except ValueError:
        return False


def _to_numbers(array: Any) -> np.ndarray:
    """Return Arrow's numbers or times as float64 ``[n]``, NaN where one is missing."""
    arrow = import_pyarrow()
    is_number = arrow.types.is_floating(array.type)
    numbers: np.ndarray = np.asarray((array if is_number else array.cast(arrow.int64())).to_numpy(zero_copy_only=False))
    return numbers.astype(np.float64)


def note_disorder(
    reader: Reader, names: Iterable[str], read: Callable[[str], np.ndarray], end: np.ndarray, has_next_obs: bool = False
) -> None:
    """Add remarks on columns that are not in the order of steps; see ``find_disorder``.

    ``has_next_obs``: next observations tell where steps are missing.
    """
    for name, (back, skipped, no_time) in find_disorder(names, read, end).items():
        reader.add_remark(OUT_OF_ORDER.format(name), back)
        reader.add_remark(MISSING.format(name), 0 if has_next_obs else skipped)
        reader.add_remark(NO_TIMES.format(name, no_time), int(bool(no_time)))
