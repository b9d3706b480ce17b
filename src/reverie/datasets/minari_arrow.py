"""The storage formats of Minari datasets: one HDF5 file, or an Arrow or Parquet table for each episode."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError
from reverie.datasets.hdf5 import damage, open_hdf5
from reverie.datasets.minari import MAIN, METADATA, Leaf, MinariReader, json_in, metadata_of
from reverie.datasets.reader import About, ReadOptions, needs
from reverie.datasets.spaces import is_picture


class MinariHdf5Reader(MinariReader):
    """Reads ``data/main_data.hdf5``, which has a group for each episode."""

    format = "Minari (HDF5)"

    def __init__(self, path: Path, options: ReadOptions) -> None:
        super().__init__(path, options)
        self.main = self.folder / MAIN
        if not self.main.is_file():
            raise DataError(f"{self.main} is missing: the dataset is incomplete. Download or copy it again.")
        self.empty = self.main.stat().st_size == 0
        self.file = None if self.empty else open_hdf5(self.main)
        self.kinds: dict[str, tuple[Any, np.dtype[Any]]] = {}

    def close(self) -> None:
        """See ``Reader``."""
        if self.file is not None:
            self.file.close()

    def files(self) -> Sequence[Path]:
        """See ``Reader``: the metadata and the HDF5 file."""
        return [self.folder / METADATA, self.main]

    def about(self) -> About:
        """See ``Reader``. Raises DataError unless the metadata and the file agree on the number of episodes."""
        with damage(self.main):
            held = 0 if self.file is None else sum(name.startswith("episode_") for name in self.file)
        if self.file is not None and held != self.count:
            raise DataError(
                f"{self.folder / METADATA} says total_episodes = {self.count:,}, but {self.main.name} has {held:,} "
                "episodes. Correct this number, or download or copy the dataset again."
            )
        return super().about()

    def seeds(self) -> list[int | None]:
        """See ``MinariReader``."""
        if self.file is None:
            return super().seeds()
        with damage(self.main):
            names = (f"episode_{i}" for i in range(self.count))
            found = [self.file[name].attrs.get("seed") if name in self.file else None for name in names]
        return [None if seed is None else int(seed) for seed in found]

    def episode(self, index: int) -> tuple[dict[str, Any], np.ndarray, np.ndarray, np.ndarray]:
        """See ``MinariReader``."""
        values = {leaf.column: self.values(index, leaf) for leaf in self.leaves}
        rewards, terminations, truncations = (
            self._numbers(index, (name,)) for name in ("rewards", "terminations", "truncations")
        )
        return values, rewards, terminations, truncations

    def values(self, index: int, leaf: Leaf) -> np.ndarray:
        """See ``MinariReader``."""
        if isinstance(leaf.space, spaces.Text):
            found = self._all(index, leaf.path)
            return np.array([text.decode() if isinstance(text, bytes) else str(text) for text in found], object)
        if self.jpeg and is_picture(leaf.space):
            return decoded([bytes(picture) for picture in self._all(index, leaf.path)], leaf)
        return self._numbers(index, leaf.path)

    def _numbers(self, index: int, path: tuple[str, ...]) -> np.ndarray:
        """Return one numeric dataset, by h5py's low-level interface, as there are thousands of them."""
        from h5py import h5d, h5s

        name = "/".join(path)
        try:
            assert self.file is not None
            found = h5d.open(self.file.id, f"episode_{index}/{name}".encode())
            out = np.empty(found.shape, self._dtype(found, index, name))
            found.read(h5s.ALL, h5s.ALL, out)
        except (KeyError, AssertionError):
            raise DataError(f"{self.main}: episode_{index}/{name} is missing.") from None
        except (OSError, RuntimeError) as error:
            raise DataError(f"{self.main}: episode_{index}/{name} cannot be read: {error}.") from None
        return out

    def _dtype(self, found: Any, index: int, name: str) -> np.dtype[Any]:
        """Return the dtype of a dataset; the latest of each name is kept, as comparing HDF5's types is faster."""
        type_ = found.get_type()
        if name not in self.kinds or not self.kinds[name][0].equal(type_):
            dtype: np.dtype[Any] = type_.dtype
            if dtype.kind not in "biuf":
                raise DataError(f"{self.main}: episode_{index}/{name} contains {dtype}: expected numbers.")
            self.kinds[name] = type_, dtype
        return self.kinds[name][1]

    def _all(self, index: int, path: tuple[str, ...]) -> Any:
        name = f"episode_{index}/{'/'.join(path)}"
        with damage(f"{self.main}: {name}"):
            if self.file is None or name not in self.file:
                raise DataError(f"{self.main}: {name} is missing.")
            return self.file[name][()]


class MinariArrowReader(MinariReader):
    """Reads one folder per episode, with a table of T + 1 rows in Arrow or Parquet format."""

    format = "Minari (Arrow)"

    @cached_property
    def arrow(self) -> Any:
        """The package pyarrow.

        Raises:
            ConfigError: it is not installed.
        """
        try:
            import pyarrow.ipc
            import pyarrow.parquet
        except ImportError as error:
            raise needs("pyarrow", "arrow", error) from None
        return pyarrow

    def files(self) -> Sequence[Path]:
        """See ``Reader``: the metadata and the tables."""
        return [
            self.folder / METADATA,
            *(file for i in range(self.count) for file in self._tables(i)),
        ]

    def seeds(self) -> list[int | None]:
        """See ``MinariReader``."""
        found = []
        for index in range(self.count):
            file = self.folder / str(index) / METADATA
            said = json_in(file) if file.is_file() else None
            found.append(said.get("seed") if isinstance(said, dict) else None)
        return found

    def _tables(self, index: int) -> list[Path]:
        folder = self.folder / str(index)
        found = sorted(p for p in folder.glob("*") if p.suffix in (".arrow", ".parquet")) if folder.is_dir() else []
        if not found:
            raise DataError(f"{folder} contains no table: the dataset is incomplete. Download or copy it again.")
        return found

    def _table(self, index: int) -> Any:
        tables = []
        for file in self._tables(index):
            try:
                if file.suffix == ".parquet":
                    table = self.arrow.parquet.read_table(file)
                else:
                    table = self.arrow.ipc.open_file(self.arrow.memory_map(str(file))).read_all()
                table.validate(full=True)  # reading beyond the end of a buffer would end the process
                tables.append(table)
            except (self.arrow.ArrowException, OSError, UnicodeDecodeError) as error:
                raise DataError(f"{file} is damaged or incomplete: {error}.") from None
        return self.arrow.concat_tables(tables)

    def episode(self, index: int) -> tuple[dict[str, Any], np.ndarray, np.ndarray, np.ndarray]:
        """See ``MinariReader``."""
        table = self._table(index)
        values = {leaf.column: self._leaf(table, leaf, index) for leaf in self.leaves}
        try:
            rewards, terminations, truncations = (
                table.column(name).to_numpy()[:-1] for name in ("rewards", "terminations", "truncations")
            )
        except KeyError as error:
            raise DataError(f"{self.path}: episode {index}: {error.args[0]}.") from None
        return values, rewards, terminations, truncations

    def values(self, index: int, leaf: Leaf) -> np.ndarray:
        """See ``MinariReader``."""
        return self._leaf(self._table(index), leaf, index)

    def _leaf(self, table: Any, leaf: Leaf, index: int) -> np.ndarray:
        found = self._column(table, leaf, index)
        return found[:-1] if leaf.is_action else found

    def _column(self, table: Any, leaf: Leaf, index: int) -> np.ndarray:
        try:
            array = table.column(leaf.path[0]).combine_chunks()
            for name in leaf.path[1:]:
                array = array.field(name.removeprefix("_index_"))
        except KeyError:
            raise DataError(f"{self.path}: episode {index} has no {'/'.join(leaf.path)}.") from None
        if isinstance(leaf.space, spaces.Text):
            return np.array([text or "" for text in array.to_pylist()], object)
        if self.jpeg and is_picture(leaf.space):
            return decoded(array.to_pylist(), leaf)
        if isinstance(leaf.space, spaces.Discrete):
            return np.asarray(array.to_numpy(zero_copy_only=False))
        flat: np.ndarray = array.flatten().to_numpy(zero_copy_only=False)
        return flat.reshape(len(array), *leaf.space.shape)  # type: ignore[misc]  # all others have a shape


def decoded(pictures: Sequence[bytes], leaf: Leaf) -> np.ndarray:
    """Decode n compressed images to uint8 ``[n, *shape]``, with the shape of the leaf's space.

    Raises:
        DataError: one of them cannot be decoded.
    """
    from PIL import Image

    out = np.empty((len(pictures), *leaf.space.shape), np.uint8)  # type: ignore[misc]  # boxes have a shape
    for i, picture in enumerate(pictures):
        try:
            out[i] = np.asarray(Image.open(io.BytesIO(picture)), np.uint8)
        except (OSError, ValueError) as error:
            raise DataError(f"{'/'.join(leaf.path)}: image {i} cannot be read: {error}.") from None
    return out


def minari_reader(path: Path, options: ReadOptions) -> MinariReader:
    """Return the reader for the storage format of the dataset at ``path``.

    Raises:
        DataError: it is not a Minari dataset, or its storage format is not supported.
    """
    found = metadata_of(path)
    kind = str(found[1]["data_format"]) if found else ""
    if kind == "hdf5":
        return MinariHdf5Reader(path, options)
    if kind in ("arrow", "parquet"):
        return MinariArrowReader(path, options)
    raise DataError(f"{path}: data_format = '{kind}': expected hdf5, arrow or parquet.")
