"""Measurements of a run as JSON lines, ``metrics.jsonl``: written, read, and set aside where they are made again."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reverie.core.files import LARGEST_LOG, check_size, open_file, write_atomic
from reverie.core.statistics import Series

Values = Mapping[str, float | np.ndarray]

FINAL = "eval/final"
"""1 in an evaluation at the end of training, 0 in one during training."""


def scalars(values: Values) -> dict[str, float]:
    """Return the scalars among ``values`` as floats."""
    return {k: float(v) for k, v in values.items() if np.ndim(v) == 0}


class JsonlSink:
    """Appends one JSON object per entry, ``{"step": ..., "<name>": ...}``, and writes each line at once.

    Numbers that are not finite become ``null``. An incomplete line of an earlier process is cut off. What a full disk
    does not take stays in memory, and the next write begins with it.
    """

    def __init__(self, path: Path, since: int | None = None, again: Values | None = None) -> None:
        """``since``: the step at which the run is resumed; for it and ``again`` see :func:`set_aside`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        _cut_unfinished_line(path)
        if since is not None:
            set_aside(path, since, again)
        self._file = path.open("ab", buffering=0)  # Python's own buffer drops what is beyond 8 KB
        self._unwritten = bytearray()  # lines; the first may lack its beginning, which is in the file already

    def write(self, values: Values, step: int) -> None:
        """Append the scalars among ``values``, after all that could not be written before."""
        row = {name: value if math.isfinite(value) else None for name, value in scalars(values).items()}
        if row:
            self._unwritten += (json.dumps({"step": step, **row}) + "\n").encode()
        self._write_out()

    def close(self) -> None:
        """Close the file, after another attempt to write what is left."""
        with self._file:
            self._write_out()

    def _write_out(self) -> None:
        while self._unwritten:
            del self._unwritten[: self._file.write(self._unwritten)]


def read_metrics(path: Path, names: Collection[str] | None = None) -> list[dict[str, Any]]:
    """Return the rows that a ``JsonlSink`` wrote, in the order of steps; ``null`` is read as NaN.

    Damaged and incomplete lines are skipped. Where steps go back, because a run was resumed, later rows replace earlier
    ones. There are no rows if ``path`` does not exist. ``names``: the metrics to keep, besides the step; None: all.
    """
    rows: list[dict[str, Any]] = []
    if not path.exists():
        return rows
    wanted = None if names is None else {"step", *names}
    for line in _lines(path):
        if (row := row_of(line)) is None:
            continue
        while rows and rows[-1]["step"] > row["step"]:
            rows.pop()
        kept = row if wanted is None else row.keys() & wanted
        rows.append({sys.intern(name): math.nan if row[name] is None else row[name] for name in kept})
    return rows


def row_of(line: bytes) -> dict[str, Any] | None:
    """Return the entry in a line; None if it is damaged."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int | float) else None


def series_of(rows: Sequence[Mapping[str, Any]], name: str) -> Series:
    """Return the steps and values of the metric ``name``, where it is finite."""
    points = [(row["step"], row[name]) for row in rows if math.isfinite(row.get(name, math.nan))]
    steps, values = np.array(points, float).reshape(-1, 2).T
    return steps, values


def evaluations_in(rows: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return the rows of evaluations during training, and those of evaluations at the end of training."""
    scored = [row for row in rows if math.isfinite(row.get("eval/score", math.nan))]
    return [row for row in scored if not row.get(FINAL)], [row for row in scored if row.get(FINAL)]


def set_aside(path: Path, since: int, again: Values | None = None) -> None:
    """Move the lines of steps after ``since``, and those of ``since`` with the values ``again``, to another file.

    It is ``metrics-aside.jsonl``. A crash may leave lines in both files, but never in none.
    """
    if not path.exists():
        return
    moved = [line for line in _lines(path) if _is_made_again(line, since, again)]
    if not moved:
        return
    with path.with_name(f"{path.stem}-aside{path.suffix}").open("ab") as aside:
        aside.writelines(moved)
        aside.flush()
        os.fsync(aside.fileno())
    write_atomic(path, (line for line in _lines(path) if not _is_made_again(line, since, again)))


def _is_made_again(line: bytes, since: int, again: Values | None) -> bool:
    """Return whether ``line`` is of a step after ``since``, or of that step itself and holds the values ``again``."""
    if (row := row_of(line)) is None:
        return False
    return bool(row["step"] > since or (row["step"] == since and again is not None and again.items() <= row.items()))


def _lines(path: Path) -> Iterator[bytes]:
    with open_file(path, LARGEST_LOG) as file:  # one at a time, as a long run has many
        yield from file


def _cut_unfinished_line(path: Path) -> None:
    if not path.exists():
        return
    check_size(path, LARGEST_LOG)
    with path.open("rb+") as file:
        whole = sum(len(line) for line in file if line.endswith(b"\n"))
        if whole < file.seek(0, os.SEEK_END):
            file.truncate(whole)
            os.fsync(file.fileno())
