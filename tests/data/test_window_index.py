"""The figure in ``replay/window_index.py`` shows the windows that there are."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from reverie.replay import window_index
from reverie.replay.storage import Column, HostStorage
from reverie.replay.window_index import AllStarts, EpisodeStarts

FIGURE = window_index.__doc__ or ""


def line(name: str) -> list[str]:
    """The entries of one line of the figure."""
    found = re.search(rf"^    {re.escape(name)} +((\S+ +){{10}}\S+)", FIGURE, re.MULTILINE)
    assert found is not None, name
    return found[1].split()


def test_the_figure_shows_the_windows_that_there_are() -> None:
    rows = HostStorage({"is_first": Column((), "bool"), "is_last": Column((), "bool")}, 1, 8)
    drawn = {
        "AllStarts(3)": AllStarts(rows, 3),
        "EpisodeStarts(3)": EpisodeStarts(rows, 3),
        "EpisodeStarts(3, free=1)": EpisodeStarts(rows, 3, free=1),
    }
    for before, episode in zip([None, *line("episode")], line("episode"), strict=False):
        rows.add({"is_first": torch.tensor([episode != before]), "is_last": torch.tensor([False])})
        for windows in drawn.values():
            windows.add_one([episode != before])
    assert rows.count == len(line("row")) == len(line("episode"))
    assert line("row") == [str(row) for row in range(rows.count)]
    assert line("slot") == [str(row % 8) if row >= rows.oldest else "-" for row in range(rows.count)]
    for name, windows in drawn.items():
        held = windows.at(np.arange(len(windows))).tolist()
        assert line(name) == ["x" if row in held else "." for row in range(rows.count)], name


@pytest.mark.parametrize("free", [0, 2])
@pytest.mark.parametrize("kind", [AllStarts, EpisodeStarts])
def test_rows_added_together_complete_only_windows_that_are_still_held(kind: type, free: int) -> None:
    rows = HostStorage({"is_first": Column((), "bool"), "is_last": Column((), "bool")}, 1, 8)
    windows = kind(rows, 5, free)
    for more in (6, 8):
        first = np.zeros((1, more), bool)
        rows.extend({"is_first": first, "is_last": first})
        fresh = windows.add(first)
        assert fresh.min() >= windows.oldest
        assert fresh.max() == rows.count - 5
    assert fresh.tolist() == windows.at(np.arange(len(windows))).tolist()
