"""Where the episodes of a table end, row by row. A closing row holds a final observation and no step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from reverie.datasets.table_ends import EpisodeIds, Tables, ends_of


def found(numbers, terminal, lacking):
    """What ``ends_of`` finds in a table: the indices of ends, of terminal ends and of closing rows."""
    total = len(terminal)
    tables = Tables(Path("a.csv"), [Path("a.csv")], np.array([total]))
    ids = None if numbers is None else EpisodeIds("episode", np.array(numbers), list(range(total)))
    flags = {"terminal": np.array(terminal, bool)} if any(terminal) else {}
    ends = ends_of(flags, {"terminal": "done"}, ids, tables, lambda index: np.isin(index, lacking))
    return [np.flatnonzero(flag).tolist() for flag in (ends.end, ends.terminal, ends.closing)]


@pytest.mark.parametrize("numbers", [[0, 0, 1, 1, 1], None])
def test_a_flag_goes_with_the_closing_row_after_a_single_step(numbers):
    assert found(numbers, [1, 0, 0, 1, 0], lacking=[1, 4]) == [[1, 4], [1, 4], [1, 4]]


@pytest.mark.parametrize("numbers", [[0, 0, 1, 1, 1], None])
def test_a_flag_in_the_closing_row_stays_there(numbers):
    assert found(numbers, [0, 1, 0, 0, 1], lacking=[1, 4]) == [[1, 4], [1, 4], [1, 4]]


def test_without_closing_rows_the_last_step_ends_an_episode():
    assert found([0, 0, 1, 1, 1], [0, 1, 0, 0, 0], lacking=[]) == [[1], [1], []]
    assert found(None, [0, 1, 0, 0, 1], lacking=[]) == [[1, 4], [1, 4], []]


def test_a_recording_that_was_cut_off_ends_with_a_step():
    """Neither an end nor a closing row: the other episodes have theirs all the same."""
    assert found([0, 0, 0, 1, 1], [0, 0, 0, 0, 0], lacking=[2]) == [[2], [], [2]]
    assert found([0, 0, 0, 1, 1], [0, 1, 0, 0, 0], lacking=[2]) == [[2], [2], [2]]
    assert found(None, [0, 1, 0, 0, 0], lacking=[2]) == [[2], [2], [2]]


def test_a_recording_that_was_cut_off_before_its_final_observation():
    assert found(None, [0, 1, 0, 0, 1], lacking=[2]) == [[2, 4], [2, 4], [2]]
