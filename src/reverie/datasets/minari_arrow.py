"""Reads Minari datasets in Arrow's or Parquet's format: a folder for each episode, with a table of T + 1 rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError
from reverie.datasets import minari
from reverie.datasets.arrow import pyarrow_of, table_of
from reverie.datasets.minari import Leaf, MinariHdf5Reader, MinariReader, decoded, is_picture
from reverie.datasets.reader import ReadOptions


class MinariArrowReader(MinariReader):
    """See the top of this file."""

    format = "Minari (Arrow)"

    def __init__(self, path: Path, options: ReadOptions) -> None:
        super().__init__(path, options)
        self.arrow: Any = pyarrow_of()
        self._table = lru_cache(1)(self._read)

    def seed(self, index: int) -> int | None:
        file = self.folder / str(index) / minari.METADATA
        content = minari.json_in(file) if file.is_file() else None
        return content.get("seed") if isinstance(content, dict) else None

    def _tables(self, index: int) -> list[Path]:
        folder = self.folder / str(index)
        found = sorted(p for p in folder.glob("*") if p.suffix in (".arrow", ".parquet"))
        if not found:
            raise DataError(f"{folder} contains no table: the dataset is incomplete. Download or copy it again.")
        return found

    def _read(self, index: int) -> Any:
        return self.arrow.concat_tables([table_of(file) for file in self._tables(index)])

    def outcomes(self, index: int) -> Sequence[np.ndarray]:
        names = ("rewards", "terminations", "truncations")
        return [self._column(index, (name,)).to_numpy(zero_copy_only=False)[:-1] for name in names]

    def _column(self, index: int, path: tuple[str, ...]) -> Any:
        try:
            array = self._table(index).column(path[0]).combine_chunks()
            for name in path[1:]:
                array = array.field(name.removeprefix("_index_"))
        except KeyError:
            raise DataError(f"{self.path}: episode {index} has no {'/'.join(path)}.") from None
        return array

    def values(self, index: int, leaf: Leaf) -> np.ndarray:
        found = self._numbers(self._column(index, leaf.path), leaf)
        return found[:-1] if leaf.is_action else found

    def _numbers(self, array: Any, leaf: Leaf) -> np.ndarray:
        if isinstance(leaf.space, spaces.Text):
            return np.array([text or "" for text in array.to_pylist()], object)
        if self.jpeg and is_picture(leaf.space):
            return decoded(array.to_pylist(), leaf)
        if isinstance(leaf.space, spaces.Discrete):
            return np.asarray(array.to_numpy(zero_copy_only=False))
        flat: np.ndarray = array.flatten().to_numpy(zero_copy_only=False)
        return flat.reshape(len(array), *leaf.space.shape)  # type: ignore[misc]  # all others have a shape


def minari_reader(path: Path, options: ReadOptions) -> MinariReader:
    """Return the reader for the storage format of the dataset at ``path``.

    Raises:
        DataError: it is not a Minari dataset, or its storage format is not supported.
    """
    found = minari.metadata_of(path)
    kind = str(found[1]["data_format"]) if found else ""
    if kind not in ("hdf5", "arrow", "parquet"):
        raise DataError(f"{path}: data_format = '{kind}': expected hdf5, arrow or parquet.")
    return (MinariHdf5Reader if kind == "hdf5" else MinariArrowReader)(path, options)
