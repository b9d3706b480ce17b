"""Measurements of a run as JSON lines, ``metrics.jsonl``: written, read, moved away if a resumed run repeats them."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reverie.core.files import LARGEST_LOG, check_size, iter_lines, open_file, write_atomic
from reverie.core.logger import logger
from reverie.core.statistics import Series

Values = Mapping[str, float | str | np.ndarray]

LARGEST_STEP = 2**63
"""Larger integers, which JSON allows, are not written by a run."""
FINAL = "eval/final"
"""1 in an evaluation at the end of training, 0 in one during training."""


def scalars(values: Values) -> dict[str, float]:
    """Return the scalars among ``values`` as floats."""
    return {k: float(v) for k, v in values.items() if not isinstance(v, str) and np.ndim(v) == 0}


class JsonlSink:
    """Appends one JSON object per entry, ``{"step": ..., "<name>": ...}``, and writes each line at once.

    Numbers that are not finite become ``null``. An incomplete line of an earlier process is cut off. Lines that a full
    disk rejects stay in memory, and the next write begins with them. A file that was deleted is begun again.
    """

    def __init__(self, path: Path, since: int | None = None, repeated_values: Values | None = None) -> None:
        """``since``: the step at which the run is resumed. For ``repeated_values`` see :func:`_move_future_lines`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        _cut_unfinished_line(path)
        if since is not None:
            _move_future_lines(path, since, repeated_values)
        self._path = path
        self._open()
        self._unwritten = bytearray()  # lines; the first may lack its beginning, which is in the file already

    def write(self, values: Values, step: int) -> None:
        """Append the scalars among ``values``, after all that could not be written before."""
        row = {name: value if math.isfinite(value) else None for name, value in scalars(values).items()}
        if row:
            self._unwritten += (json.dumps({"step": step, **row}) + "\n").encode()
        self._write_out()

    def close(self) -> None:
        """Close the file, after another attempt to write the remaining lines."""
        with self._file:
            self._write_out()

    def _open(self) -> None:
        self._file = self._path.open("ab", buffering=0)  # Python's buffer drops bytes beyond 8 KB

    def _has_gone(self) -> bool:
        """Return whether the path leads to another file or to none, in a folder that is still there."""
        try:
            return not os.path.samestat(os.stat(self._path), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return self._path.parent.is_dir()

    def _write_out(self) -> None:
        if self._unwritten and self._has_gone():
            logger.warning(f"{self._path} was deleted or replaced while the run was writing to it; it is begun again")
            self._file.close()
            self._open()
        while self._unwritten:
            del self._unwritten[: self._file.write(self._unwritten)]


class EpisodeSink(JsonlSink):
    """Appends one JSON object per finished episode."""

    def write(self, values: Values, step: int) -> None:
        """Write what could not be written before; metrics are written elsewhere."""
        self._write_out()

    def write_episodes(self, episodes: Sequence[Mapping[str, float]]) -> None:
        """Append the ``episodes``."""
        self._unwritten += "".join(f"{json.dumps(episode)}\n" for episode in episodes).encode()
        self._write_out()


def read_metrics(path: Path, names: Collection[str] | None = None) -> list[dict[str, Any]]:
    """Return the rows that a ``JsonlSink`` wrote, in the order of steps; ``null`` is read as NaN.

    Damaged and incomplete lines are skipped. Where steps go back, because a run was resumed, later rows replace earlier
    ones. There are no rows if ``path`` does not exist. ``names``: the metrics to keep, besides the step; None: all.
    """
    rows: list[dict[str, Any]] = []
    if not path.exists():
        return rows
    columns = None if names is None else {"step", *names}
    for line in _lines(path):
        if (row := parse_entry(line)) is None:
            continue
        while rows and rows[-1]["step"] > row["step"]:
            rows.pop()
        keys = row if columns is None else row.keys() & columns
        rows.append({sys.intern(name): math.nan if row[name] is None else row[name] for name in keys})
    return rows


def parse_entry(line: bytes) -> dict[str, Any] | None:
    """Return the entry in a line; None if it is damaged: its values are numbers, that of its step is finite."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    has_step = isinstance(row, dict) and isinstance(row.get("step"), int | float) and abs(row["step"]) < LARGEST_STEP
    return row if has_step and all(map(_is_number, row.values())) else None


def _is_number(value: object) -> bool:
    return value is None or isinstance(value, float) or (isinstance(value, int) and abs(value) < LARGEST_STEP)


def metric_series(rows: Sequence[Mapping[str, Any]], name: str) -> Series:
    """Return the steps and values of the metric ``name``, where it is finite."""
    points = [(row["step"], row[name]) for row in rows if math.isfinite(row.get(name, math.nan))]
    steps, values = np.array(points, float).reshape(-1, 2).T
    return steps, values


def split_evaluations(rows: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return the rows of evaluations during training, and the rows of evaluations at the end of training."""
    scored = [row for row in rows if math.isfinite(row.get("eval/score", math.nan))]
    return [row for row in scored if not row.get(FINAL)], [row for row in scored if row.get(FINAL)]


def _move_future_lines(path: Path, since: int, repeated_values: Values | None = None) -> None:
    """Move the lines of steps after ``since``, and lines of ``since`` with the ``repeated_values``, to another file.

    It is ``metrics-aside.jsonl``. A crash can leave lines in both files, but never in neither.
    """
    if not path.exists():
        return
    moved = [line for line in _lines(path) if _is_made_again(line, since, repeated_values)]
    if not moved:
        return
    with path.with_name(f"{path.stem}-aside{path.suffix}").open("ab") as aside:
        aside.writelines(moved)
        aside.flush()
        os.fsync(aside.fileno())
    write_atomic(path, (line for line in _lines(path) if not _is_made_again(line, since, repeated_values)))


def _is_made_again(line: bytes, since: int, repeated_values: Values | None) -> bool:
    """Return whether the step of ``line`` is after ``since``, or equal to it with the ``repeated_values``."""
    if (row := parse_entry(line)) is None:
        return False
    repeated = row["step"] == since and repeated_values is not None and repeated_values.items() <= row.items()
    return bool(row["step"] > since or repeated)


def _lines(path: Path) -> Iterator[bytes]:
    with open_file(path, LARGEST_LOG) as file:  # one at a time, since a long run has many
        yield from iter_lines(file)


def _cut_unfinished_line(path: Path) -> None:
    if not path.exists():
        return
    check_size(path, LARGEST_LOG)
    with path.open("rb+") as file:
        complete_bytes = position = 0
        for line in iter_lines(file):
            position += len(line)
            complete_bytes = position if line.endswith(b"\n") else complete_bytes
        if complete_bytes < position:
            file.truncate(complete_bytes)
            os.fsync(file.fileno())
