"""Readers of datasets in memory: arrays under D4RL's names, tables, ``minari.MinariDataset``."""

from __future__ import annotations

from pathlib import Path

from reverie.core.errors import DataError
from reverie.datasets.data_path import OBJECT, InMemoryPath
from reverie.datasets.npz import ArraysReader
from reverie.datasets.reader import Reader, ReadOptions
from reverie.datasets.table import TableReader


def open_in_memory(path: str, options: ReadOptions) -> Reader:
    """Return the reader of the object that ``path`` carries; DataError if the object is missing."""
    if not isinstance(path, InMemoryPath):
        raise DataError(
            f"the data were passed in memory ({path.removeprefix(OBJECT)}) and are not stored in a file. Pass them "
            "again in Python, data=..., or write them to a file and pass its path."
        )
    if isinstance(path.content, dict):
        return ArraysReader(Path(path), options, path.content)
    return TableReader(Path(path), options, table=path.content)
