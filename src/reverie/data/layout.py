"""Rows from elsewhere, laid out as streams of one length."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

import numpy as np

from reverie.core.errors import DataError


def lay_out(parts: Iterable[Mapping[str, np.ndarray]], streams: int, most: int | None = None) -> dict[str, np.ndarray]:
    """Rows ``[n, ...]`` of one stream each, the oldest part first, as ``[streams, rows, ...]``.

    Rows before the first ``is_first`` of a part belong to an episode whose beginning is lost, and are left out. All
    others follow each other, the newest ``most`` of them if there are more, and are cut into streams of equal length,
    which costs up to ``streams - 1`` of the oldest. A stream may therefore begin in the middle of an episode and end
    in one, as streams do whose oldest rows have been evicted. No flag is changed: wherever an ``is_first`` row
    follows, the row before it is taken for the last of its episode when windows are sampled. Only so many rows are
    held in memory as are returned, and one part. Without any parts there are no columns.

    Raises:
        DataError: parts differ in their columns, or columns in their length.
    """
    kept: deque[dict[str, np.ndarray]] = deque()
    total = 0
    for part in parts:
        rows = from_first(part)
        if kept and kept[0].keys() != rows.keys():
            raise DataError(f"rows to be joined differ in their columns: {sorted(kept[0])} and {sorted(rows)}.")
        kept.append(rows)
        total += length(rows)
        while most is not None and len(kept) > 1 and total - length(kept[0]) >= most:
            total -= length(kept.popleft())
    used = (total if most is None else min(total, most)) // streams * streams
    return {name: dealt([rows[name] for rows in kept], streams, used) for name in (kept[0] if kept else ())}


def from_first(part: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The rows from the first ``is_first`` on."""
    lengths = {name: len(values) for name, values in part.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"the columns of rows to be joined differ in their length: {lengths}.")
    found = np.flatnonzero(part["is_first"])
    start = int(found[0]) if len(found) else len(part["is_first"])
    return {name: values[start:] for name, values in part.items()}


def length(rows: Mapping[str, np.ndarray]) -> int:
    """How many there are."""
    return len(rows["is_first"])


def dealt(pieces: list[np.ndarray], streams: int, used: int) -> np.ndarray:
    """The last ``used`` rows of one column, in ``streams`` equal pieces."""
    joined = np.concatenate(pieces)
    return joined[len(joined) - used :].reshape(streams, used // streams, *joined.shape[1:])
