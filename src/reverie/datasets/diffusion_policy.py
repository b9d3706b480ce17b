"""Reads the Zarr folders of diffusion policy's ReplayBuffer, and zip files of them, of Zarr format 2 or 3.

No code from files runs.

| in the folder | shape | what |
|---|---|---|
| `data/action` | `[n, A]` | actions |
| `data/reward` or `data/rewards` | `[n]` | rewards; optional |
| `data/done`, `terminals`, `terminated`, ... | `[n]` | whether the episode terminated; optional |
| `data/propensity` | `[n]` | the probability of the action; optional |
| `data/KEY` | `[n, ...]` | the observation `KEY` before each action |
| `meta/episode_ends` | `[episodes]` | the number of steps up to the end of each episode |

Arrays can have more rows than the last end, which are not used. Zarr does not store chunks in which all values are the
array's fill value; they are read as Zarr reads them, with a remark. Final observations are not recorded. Source:
github.com/real-stanford/diffusion_policy, diffusion_policy/common/replay_buffer.py.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from reverie.core.documents import read_json
from reverie.core.errors import DataError
from reverie.core.files import check_expanded, check_size, open_zip, read_member
from reverie.datasets.act import REWARDS
from reverie.datasets.compressed_images import are_images, decode_column
from reverie.datasets.hdf5 import NUMBERS_OR_BYTES, check_numbers, is_end_flag
from reverie.datasets.options import PROPENSITY
from reverie.datasets.reader import DatasetInfo, ReadOptions, to_bool_column
from reverie.datasets.source import COPY_ADVICE, Source, reading
from reverie.datasets.table import COMMON_COLUMN_NAMES
from reverie.datasets.time_order import note_disorder
from reverie.datasets.transitions import (
    EARLY_END_REMARK,
    UNMARKED,
    LazyColumn,
    Transitions,
    TransitionsReader,
    chain_cached,
)

ENDS, DATA = "meta/episode_ends", "data"
METADATA = (".zarray", "zarr.json")
UNSTORED = "{}: some of {} chunks are not stored: their values are {}, as written, or the folder is incomplete"
CODECS = frozenset({
    "blosc", "zstd", "zlib", "gzip", "bz2", "lzma", "lz4", "shuffle", "delta", "crc32", "crc32c", "bytes", "transpose",
    "vlen-bytes",
})  # fmt: skip
"""Codecs that are read. Others could run code, such as numcodecs' pickle."""


class DiffusionPolicyReader(TransitionsReader):
    """See the top of this file."""

    format = "diffusion policy (Zarr)"

    @classmethod
    def matches(cls, source: Source) -> bool:
        if not source.is_folder:
            return any(f"{ENDS}/{name}" in source.names for name in METADATA)
        return any((source.path / ENDS / name).is_file() for name in METADATA)

    def __init__(self, path: Path, options: ReadOptions | None = None) -> None:
        super().__init__(path, options)
        self.files: ZarrFiles = ZarrFolder(path) if path.is_dir() else ZarrArchive(path)
        parts = self.files.children(DATA)
        names = [part for part in parts if self.files.is_array(f"{DATA}/{part}")]
        if groups := [part for part in parts if part not in names]:
            self.add_remark(f"left out: {', '.join(groups)}, which are groups")
        if "action" not in names:
            raise DataError(f"{path}: data has {', '.join(names) or 'nothing'}: expected action and observations.")
        with reading(path):
            self.ends: np.ndarray = np.asarray(self._open(ENDS)[:], np.int64).reshape(-1)
        self.arrays: dict[str, Any] = {name: self._open(f"{DATA}/{name}") for name in names}
        self.total: int = int(self.ends[-1]) if len(self.ends) else 0
        if not self.total or (np.diff(self.ends, prepend=0) < 0).any():
            raise DataError(f"{path}: {ENDS} = {self.ends[:8].tolist()}: expected ascending numbers of steps, above 0.")
        for name, array in self.arrays.items():
            if not array.shape or array.shape[0] < self.total:
                shape = list(array.shape)
                raise DataError(f"{path}: data/{name} has shape {shape}, but the episodes have {self.total:,} steps.")

    def _open(self, name: str) -> Any:
        """Return an array that is complete, of numbers, and not expanded without limit."""
        folder, stored, metadata = self.path / name, self.files.stored_bytes(name), self.files.metadata(name)
        codecs = [metadata.get("compressor"), *(metadata.get("filters") or ()), *metadata.get("codecs", ())]
        kinds = {str(codec.get("id", codec.get("name"))).removeprefix("numcodecs.") for codec in codecs if codec}
        if unknown := sorted(kinds - CODECS):
            raise DataError(f"{folder} is encoded by {unknown[0]}: expected {', '.join(sorted(CODECS))}.")
        import zarr  # takes a while, and every reader is imported to find the format

        with reading(folder):
            array = zarr.open_array(self.files.store(), path=name, mode="r")
            missing = array.nchunks - array.nchunks_initialized
        if array.dtype.kind not in NUMBERS_OR_BYTES:
            raise DataError(f"{folder} contains {array.dtype}: expected numbers.")
        check_expanded(folder, stored, array.nbytes)
        if missing and array.fill_value is None:
            raise DataError(f"{folder}: {missing:,} of {array.nchunks:,} chunks are missing. {COPY_ADVICE}")
        self.add_remark(UNSTORED.format(name, array.nchunks, array.fill_value), missing)
        return array

    def _values(self, name: str) -> np.ndarray:
        """Return numbers or texts ``[n]``; empty for an array of other shapes."""
        array = self.arrays[name]
        is_single = math.prod(array.shape[1:]) == 1
        return np.asarray(array[: self.total]).reshape(-1) if is_single else np.empty(0)

    def is_text(self, name: str) -> bool:
        """Return whether an array has texts, which are no compressed images."""
        return self.arrays[name].dtype.kind in "SO" and not are_images(np.asarray(self.arrays[name][:1]))

    def _column(self, name: str) -> LazyColumn:
        array = self.arrays[name]
        edges = [*range(0, self.total, max(1, array.chunks[0])), self.total]

        def chunk(number: int) -> np.ndarray:
            with reading(f"{self.path}: {DATA}/{name}"):
                return np.asarray(array[edges[number] : edges[number + 1]])

        label = f"{self.path}: {DATA}/{name}"
        column = chain_cached(np.diff(edges).tolist(), np.empty((0, *array.shape[1:]), array.dtype), chunk)
        return check_numbers(decode_column(column, label), label)

    @cached_property
    def transitions(self) -> Transitions:
        end = np.zeros(self.total, bool)
        end[self.ends[self.ends > 0] - 1] = True
        dones = COMMON_COLUMN_NAMES["terminal"]
        reward, done = (next((n for n in names if n in self.arrays), None) for names in (REWARDS, dones))
        flags = to_bool_column(self.arrays[done][: self.total], f"{self.path}: {done}") if done else np.zeros_like(end)
        self.add_remark(EARLY_END_REMARK, int(np.count_nonzero(flags & ~end)))
        self.add_remark(UNMARKED, int(not done))
        note_disorder(self, self.arrays, self._values, end)
        candidates = [name for name in self.arrays if name not in ("action", PROPENSITY, *REWARDS, done)]
        unused = [name for name in candidates if self.is_text(name) or is_end_flag(name, self._values(name))]
        self.add_remark(f"left out: {', '.join(unused)}", int(bool(unused)))
        obs_names = [name for name in candidates if name not in unused]
        return Transitions(
            obs={f"obs/{name}": self._column(name) for name in obs_names},
            next_obs={},
            action={"action": self._column("action")},
            reward=self._column(reward) if reward else None,
            propensity=self._column(PROPENSITY) if PROPENSITY in self.arrays else None,
            end=end,
            terminal=flags & end,
            reader=self,
        )

    def info(self) -> DatasetInfo:
        return self.infer_info(text={"episodes": f"{len(self.ends):,}"})


class ZarrFiles(ABC):
    """The files of arrays, by the names of these, such as ``data/action``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def is_array(self, name: str) -> bool:
        """Return whether a member of a group is an array, not a group."""
        return self.has_file(f"{name}/.zarray") or (
            self.has_file(f"{name}/zarr.json") and self.metadata(name).get("node_type") != "group"
        )

    @abstractmethod
    def children(self, group: str) -> list[str]:
        """Return the sorted names of the members of a group."""

    @abstractmethod
    def has_file(self, name: str) -> bool:
        """Return whether there is a file."""

    @abstractmethod
    def stored_bytes(self, name: str) -> int:
        """Return the bytes of the files of an array."""

    @abstractmethod
    def metadata(self, name: str) -> dict[str, Any]:
        """Return the metadata of an array."""

    @abstractmethod
    def store(self) -> Any:
        """Return the store that Zarr opens."""


class ZarrFolder(ZarrFiles):
    """Files in a folder."""

    def children(self, group: str) -> list[str]:
        return sorted(part.name for part in (self.path / group).iterdir() if part.is_dir())

    def has_file(self, name: str) -> bool:
        return (self.path / name).is_file()

    def stored_bytes(self, name: str) -> int:
        return sum(_check_file(entry) for entry in _files_in(self.path / name))

    def metadata(self, name: str) -> dict[str, Any]:
        return next(read_json(self.path / name / file) for file in METADATA if (self.path / name / file).is_file())

    def store(self) -> Any:
        return self.path


class ZarrArchive(ZarrFiles):
    """Files in a zip file, which are read there and not unpacked."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with open_zip(path) as file, zipfile.ZipFile(file) as archive:  # not one that expands without limit
            self.entries: dict[str, zipfile.ZipInfo] = {entry.filename: entry for entry in archive.infolist()}

    def children(self, group: str) -> list[str]:
        inside = (name.removeprefix(f"{group}/") for name in self.entries if name.startswith(f"{group}/"))
        return sorted({name.partition("/")[0] for name in inside if "/" in name})

    def has_file(self, name: str) -> bool:
        return name in self.entries

    def stored_bytes(self, name: str) -> int:
        return sum(entry.compress_size for file, entry in self.entries.items() if file.startswith(f"{name}/"))

    def metadata(self, name: str) -> dict[str, Any]:
        file = next(f"{name}/{file}" for file in METADATA if f"{name}/{file}" in self.entries)
        with reading(f"{self.path}: {file}"), open_zip(self.path) as content, zipfile.ZipFile(content) as archive:
            values = json.loads(read_member(self.path, archive, file))
            if not isinstance(values, dict):
                raise DataError(f"{self.path}: {file} contains {type(values).__name__}: expected an object.")
            return values

    def store(self) -> Any:
        from zarr.storage import ZipStore

        return ZipStore(self.path, mode="r")


def _files_in(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield all files below a folder; DataError for a link, which could lead anywhere."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                raise DataError(f"{entry.path} is a link: expected a file. Copy the data into the folder.")
            if entry.is_dir():
                yield from _files_in(Path(entry.path))
            else:
                yield entry


def _check_file(entry: os.DirEntry[str]) -> int:
    """Return the size of a regular file; RunError for pipes and devices, which may never end."""
    if not entry.is_file():
        check_size(Path(entry.path))
    return entry.stat().st_size
