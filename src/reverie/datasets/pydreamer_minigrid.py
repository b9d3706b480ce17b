"""PyDreamer's observations of MiniGrid as ``env.map_view`` observes it, and back.

In PyDreamer's files, a cell is one of 38 numbers (``PYDREAMER_CELLS``); in reverie, a class of ``MapView``.

Source: github.com/jurgisp/pydreamer, envs/minigrid.py: MiniGrid, and preprocessing.py: map_coord.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError
from reverie.core.rows import Rows
from reverie.datasets.reader import Space
from reverie.datasets.source import import_optional

RECORDED = {"obs/image": 3, "obs/map": 3, "obs/agent_pos": 2, "obs/agent_dir": 2}
"""Columns of PyDreamer's MiniGrid files, with their numbers of axes."""
DERIVED = {"obs/map_agent", "obs/map_masked", "obs/map_vis", "obs/map_centered"}
"""Columns that PyDreamer derives from others."""
MAP_VIEW = {"obs/view": 3, "obs/map": 3, "obs/map_coord": 2}
"""Columns of ``MapView``, with their numbers of axes."""
FIRST_AGENT = 4
"""PyDreamer's number of the agent facing right; the numbers of the other directions follow it."""
CELLS_READ = (
    "image, map, agent_pos and agent_dir are read as view, map and map_coord of env.map_view; map_agent, map_masked, "
    "map_vis and map_centered are left out"
)
LOST_CELLS = "PyDreamer has no numbers for lava, floor and locked doors: in its files they are unseen cells, 0"


def is_minigrid(columns: Rows, axes: dict[str, int]) -> bool:
    """Return whether ``columns`` have those of ``axes``, each with its number of axes, and cells as integers."""
    has_all = all(name in columns and columns[name].ndim == num_axes for name, num_axes in axes.items())
    return has_all and columns["obs/map"].dtype.kind in "iu"


def from_pydreamer(columns: Rows, path: Path) -> Rows:
    """Return observations ``[n, ...]`` of PyDreamer's MiniGrid as those of ``MapView``; others stay."""
    number_kinds, _ = _tables()
    kinds = {}
    for name in ("image", "map"):
        if (highest := int(columns[f"obs/{name}"].max(initial=0))) >= len(number_kinds):
            raise DataError(
                f"{path}: '{name}' contains {highest}: expected PyDreamer's numbers of MiniGrid's cells, up to "
                f"{len(number_kinds) - 1}. To read other classes, set their number: data.classes."
            )
        kinds[name] = number_kinds[columns[f"obs/{name}"]]
    position = columns["obs/agent_pos"].astype(np.float64) / kinds["map"].shape[1:] * 2 - 1
    coord = np.concatenate([position, columns["obs/agent_dir"]], axis=1, dtype=np.float32)
    remaining = {name: values for name, values in columns.items() if name not in DERIVED | RECORDED.keys()}
    return {"obs/view": kinds["image"], "obs/map": kinds["map"], "obs/map_coord": coord} | remaining


def class_spaces(columns: Rows) -> dict[str, Space]:
    """Return the spaces of the classes in columns of :func:`from_pydreamer`."""
    shapes = {name: columns[name].shape[1:] for name in ("obs/view", "obs/map")}
    return {name: spaces.MultiDiscrete(np.full(shape, len(_tables()[1]))) for name, shape in shapes.items()}


def to_pydreamer(rows: Rows) -> Rows:
    """Return ``rows`` with PyDreamer's observations instead of those of ``MapView``; what it cannot number is 0."""
    _, kind_numbers = _tables()
    grid, coord = kind_numbers[rows["obs/map"]], rows["obs/map_coord"]
    position = np.rint((coord[:, :2] + 1) / 2 * grid.shape[1:]).astype(np.int64)  # [n, 2]
    quarter_turns = np.rint(np.arctan2(coord[:, 3], coord[:, 2]) / (np.pi / 2)).astype(np.int64) % 4
    with_agent = grid.copy()
    with_agent[np.arange(len(grid)), *position.T] = FIRST_AGENT + quarter_turns
    out = {"obs/image": kind_numbers[rows["obs/view"]], "obs/map": grid, "obs/map_agent": with_agent}
    out |= {"obs/agent_pos": position.astype(np.float32), "obs/agent_dir": coord[:, 2:]}
    return {name: values for name, values in rows.items() if name not in MAP_VIEW} | out


def _tables() -> tuple[np.ndarray, np.ndarray]:
    """Return the class of ``MapView`` by PyDreamer's number, ``[38]``, and the number by class, ``[K]``."""
    import_optional("minigrid", "minigrid")
    from reverie.envs.minigrid import PYDREAMER_KINDS as number_kinds

    kind_numbers = np.zeros(number_kinds[0] + 1, np.uint8)  # unseen cells are the first number and the last class
    kind_numbers[number_kinds[::-1]] = np.arange(len(number_kinds))[::-1]  # the first number of a class remains
    return number_kinds, kind_numbers
