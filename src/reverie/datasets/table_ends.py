"""Finds where the episodes of a table end whose rows are steps: by flags, by a column of episode ids, or by both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reverie.core.errors import DataError
from reverie.datasets.transitions import torn


@dataclass(frozen=True)
class Tables:
    """The files of a dataset. Rows are numbered through all of them."""

    path: Path
    """The dataset, for messages."""
    files: Sequence[Path]
    ends: np.ndarray
    """Number of rows up to the end of each file, ``[files]``."""

    def remark(self, *rows: int) -> str:
        """Return a remark on which of several files hold these rows; "" if there is one file."""
        if len(self.files) == 1:
            return ""
        names = [self.files[int(np.searchsorted(self.ends, row, "right"))].name for row in rows]
        return f" (rows are numbered through all tables; these are in {' and '.join(dict.fromkeys(names[::-1]))})"


@dataclass(frozen=True)
class EpisodeIds:
    """The episode of each of n rows, as a column tells it."""

    column: str
    number: np.ndarray
    """Number of the episode of each row, ``[n]``."""
    ids: Sequence[Any]
    """The id of each number."""

    def of(self, row: int) -> str:
        """Name the episode of a row."""
        return f"episode {self.ids[self.number[row]]} ('{self.column}')"

    def last(self, end: np.ndarray, tables: Tables) -> np.ndarray:
        """Return the last row of each episode, bool ``[n]``; ``end`` ``[n]`` are flags.

        An id may begin anew in the next file: each file may number its own episodes.
        """
        out = np.ones(len(end), bool)
        out[:-1] = self.number[1:] != self.number[:-1]
        borders = tables.ends - 1
        out[borders] |= end[borders]
        return out


@dataclass(frozen=True)
class Ends:
    """The ends of episodes among n rows."""

    end: np.ndarray  # [n] bool, an episode ends here
    terminal: np.ndarray  # [n] bool, it ends terminally
    closing: np.ndarray  # [n] bool, this last row holds no step, only the final observation


def ends_of(
    flags: Mapping[str, np.ndarray],
    named: Mapping[str, str],
    ids: EpisodeIds | None,
    tables: Tables,
    lacking: Callable[[np.ndarray], np.ndarray],
) -> Ends:
    """Combine what the columns of a table say.

    Args:
        flags: ``terminal``, ``truncated`` and ``end``, bool ``[n]``, as far as the table has them.
        named: the column of each of these.
        ids: the episode of each row, if a column tells it.
        tables: the files.
        lacking: returns which rows of an index may hold no step, as they lack an action, bool.

    Raises:
        DataError: an episode is interrupted by another one, or continues after a flag has ended it.
    """
    total = int(tables.ends[-1])
    terminal = flags.get("terminal", np.zeros(total, bool))
    end = np.any([*flags.values(), terminal], axis=0)
    last = end.copy() if ids is None else ids.last(end, tables)
    last[-1] = True
    ended = end.copy()  # where the next row may belong to the same episode
    if ids is not None:
        ended[:-1] &= ids.number[1:] == ids.number[:-1]
    closing = np.zeros(total, bool)
    closing[closing_rows(np.flatnonzero(last), ended, lacking)] = True
    end, terminal, last = moved(end, closing) | closing, moved(terminal, closing), moved(last, closing)
    if ids is not None:
        check_order(ids, end, tables)
        check_flags({named[role]: flag for role, flag in flags.items()}, end & ~last, ids, tables)
        end[:-1] |= last[:-1]
    return Ends(end, terminal, closing)


def closing_rows(last: np.ndarray, ended: np.ndarray, lacking: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return the index of the rows that hold only the final observations of episodes, empty if not all have such a row.

    If no flag ends the table, the recording of the last episode was cut off: its last row may hold a step.

    Args:
        last: index of the rows that ids or flags show as the last ones of episodes, ascending.
        ended: where a flag ends an episode whose final observation may be in the next row, bool ``[n]``.
        lacking: see ``ends_of``.
    """
    for rows in (last, last[:0] if ended[-1] else last[:-1]):
        if len(final_rows(rows[:1], ended, lacking)):  # one row says enough about most tables
            found = final_rows(rows, ended, lacking)
            if len(found):
                return found
    return last[:0]


def final_rows(last: np.ndarray, ended: np.ndarray, lacking: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return the rows ``last``, or those after them where they hold a step; an empty index if one of those does too.

    The arguments are those of ``closing_rows``.
    """
    later = ended[last] & ~lacking(last)
    found = np.unique(last + later)
    if later[:-1].any():  # a flag in the very last row: the recording was cut off before the final observation
        found = found[found < len(ended)]
    inside = len(found) and found[-1] < len(ended)
    return found if inside and lacking(found).all() else found[:0]


def moved(flag: np.ndarray, closing: np.ndarray) -> np.ndarray:
    """Return ``flag`` ``[n]`` with what the last step of an episode says moved to its ``closing`` row ``[n]``."""
    out, last = flag.copy(), np.flatnonzero(closing)
    step = last[last > 0] - 1
    step = step[~closing[step]]
    out[step + 1] |= out[step]
    out[step] = False
    return out


def check_order(ids: EpisodeIds, end: np.ndarray, tables: Tables) -> None:
    """Check that the rows of no episode are interrupted by another one; ``end`` ``[n]`` are flags.

    Raises:
        DataError: some are; the message says which and where.
    """
    left, again = torn(ids.number, end)
    if again < 0:
        return
    raise DataError(
        f"{tables.path}: the steps of {ids.of(again)} are not contiguous: they stop after row {left:,} and continue in "
        f"row {again:,}{tables.remark(left, again)}. Sort the table by this column (stably, to keep the order of "
        "steps), or give episodes of different files different ids."
    )


def check_flags(flags: Mapping[str, np.ndarray], inner: np.ndarray, ids: EpisodeIds, tables: Tables) -> None:
    """Check that no flag, by its column, ends an episode before its last row; ``inner`` ``[n]`` is where one does.

    Raises:
        DataError: some do; the message says which and where.
    """
    if not inner.any():
        return
    row = int(inner.argmax())
    column = next(column for column, flag in flags.items() if flag[row])
    raise DataError(
        f"{tables.path}: '{column}' ends {ids.of(row)} in row {row:,}, but row {row + 1:,} belongs to it too"
        f"{tables.remark(row)}. There are {int(inner.sum()):,} such contradictions. Correct the table, or do not name "
        f"the column that is wrong: without '{ids.column}' only flags end episodes, without '{column}' only another id."
    )
