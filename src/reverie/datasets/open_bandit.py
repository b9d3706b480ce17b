"""Reads CSV files of the Open Bandit Dataset (``obp/dataset/real.py``): recommendations, clicks and propensities.

A row is an episode of one step: a user sees one item at one position.

| column | role |
|---|---|
| `user_feature_K` | observation `user`, class numbers in the order of the sorted values |
| `user-item_affinity_K` | observation `affinity`, a vector |
| `position` | observation `position`, a class |
| `item_id` | action |
| `click` | reward |
| `propensity_score` | the behavior policy's probability of the item at this position |

`item_context.csv` next to the file, with features of the items, is not used.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from gymnasium import spaces

from reverie.datasets.inferred_spaces import infer_obs_space
from reverie.datasets.options import PROPENSITY
from reverie.datasets.reader import DatasetInfo, Reader, ReadOptions, Space
from reverie.datasets.source import Source, open_data
from reverie.datasets.table import TableReader
from reverie.datasets.transitions import LazyColumn, Transitions

COLUMNS = frozenset({"item_id", "position", "click", "propensity_score"})
"""Columns that each file has."""
ITEMS = "item_context.csv"


def _header_of(path: Path) -> list[str]:
    """Return the column names in the first line of a CSV file."""
    with io.TextIOWrapper(open_data(path), encoding="utf-8", errors="replace") as file:
        return file.readline().strip().split(",")


def _is_log(path: Path) -> bool:
    return COLUMNS.issubset(_header_of(path))


def _logs_in(folder: Source) -> list[Path]:
    return list(filter(_is_log, folder.files(".csv")))


class OpenBanditReader(TableReader):
    """See the top of this file."""

    format = "Open Bandit CSV"

    @classmethod
    def matches(cls, source: Source) -> bool:
        if source.is_folder:
            return (source.path / ITEMS).is_file() and bool(_logs_in(source))
        return source.path.suffix.lower() == ".csv" and _is_log(source.path)

    @classmethod
    def open(cls, path: Path, sources: Sequence[Source], options: ReadOptions) -> list[Reader]:
        files = [_logs_in(source)[0] if source.is_folder else source.path for source in sources]
        return [TableReader(file, options, [file]) if options.columns else cls(file, options) for file in files]

    def __init__(self, path: Path, options: ReadOptions) -> None:
        names = _header_of(path)
        groups = {"obs.user": "user_feature", "obs.affinity": "user-item_affinity"}
        vectors = {role: tuple(n for n in names if n.startswith(prefix)) for role, prefix in groups.items()}
        scalars = {"obs.position": "position", "action": "item_id", "reward": "click", PROPENSITY: "propensity_score"}
        roles = {role: columns for role, columns in vectors.items() if columns} | scalars
        super().__init__(path, dataclasses.replace(options, columns=roles))

    def supports_option(self, option: str) -> bool:
        return option == "columns"

    @cached_property
    def user_classes(self) -> tuple[np.ndarray, list[int]]:
        """Class numbers of the user's features, int64 ``[n, k]``, and the number of classes of each."""
        codes, counts = [], []
        for column in self.columns("obs.user"):
            numbers, values = column.category_codes()
            rank = np.argsort(np.argsort(np.array(values, str)))
            codes.append(rank[numbers])
            counts.append(len(values))
        return np.stack(codes, axis=1), counts

    def column(self, role: str) -> LazyColumn:
        if role != "obs.user":
            return super().column(role)
        codes = self.user_classes[0]
        return LazyColumn(codes.shape, codes.dtype, lambda start, stop: codes[start:stop])

    @cached_property
    def transitions(self) -> Transitions:
        terminal = np.ones(self.total, bool)
        return Transitions(
            obs=self.role_columns("obs"),
            next_obs={},
            action=self.role_columns("action"),
            reward=self.column("reward"),
            end=terminal,
            terminal=terminal,
            reader=self,
            propensity=self.column(PROPENSITY),
        )

    def info(self) -> DatasetInfo:
        positions = self.column("obs.position").read(0, self.total)
        leaves: dict[str, Space] = {"position": spaces.Discrete(int(np.ptp(positions)) + 1, start=int(positions.min()))}
        if "obs.user" in self.roles:
            leaves["user"] = spaces.MultiDiscrete(self.user_classes[1])
        if "obs.affinity" in self.roles:
            affinity = self.column("obs.affinity")
            leaves["affinity"] = infer_obs_space(affinity.shape[1:], affinity.dtype)
        self.note_unread()
        return self.infer_info(observation=spaces.Dict(leaves))
