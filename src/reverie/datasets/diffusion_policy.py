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

import bz2
import gzip
import io
import json
import lzma
import math
import re
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np

from reverie.core.documents import read_json
from reverie.core.errors import DataError
from reverie.core.files import MAX_EXPANDED, check_expanded, open_zip, read_member
from reverie.datasets.act import REWARDS
from reverie.datasets.compressed_images import are_images, decode_column
from reverie.datasets.hdf5 import NUMBERS_OR_BYTES, check_numbers, is_end_flag
from reverie.datasets.options import PROPENSITY
from reverie.datasets.reader import DatasetInfo, ReadOptions, to_bool_column
from reverie.datasets.source import COPY_ADVICE, MAX_MISSING_CHUNKS, Source, reading
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
COMPRESSORS = frozenset({"blosc", "zstd", "zlib", "gzip", "bz2", "lzma", "lz4"})
"""Those that can make a chunk larger."""
MAX_WIDER = 8
"""Times a filter may store a number wider than it is."""


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
        folder, files, metadata = self.path / name, self.files.files(name), self.files.metadata(name)
        declared = [*(metadata.get("filters") or ()), metadata.get("compressor"), *metadata.get("codecs", ())]
        codecs = [str(codec.get("id", codec.get("name"))).removeprefix("numcodecs.") for codec in declared if codec]
        if unknown := sorted({*codecs} - CODECS):
            raise DataError(f"{folder} is encoded by {unknown[0]}: expected {', '.join(sorted(CODECS))}.")
        if len(compressors := [codec for codec in codecs if codec in COMPRESSORS]) > 1:
            raise DataError(f"{folder} is compressed by {' and '.join(compressors)}: expected one of them.")
        import zarr  # takes a while, and every reader is imported to find the format

        with reading(folder):
            store = _bounded_store(self.files.store(), self.path, codecs)
            array = zarr.open_array(store, path=name, mode="r")
            chunk_bytes = math.prod(array.chunks) * array.dtype.itemsize
            store.max_bytes = MAX_EXPANDED // MAX_WIDER if array.dtype.hasobject else chunk_bytes
            indices = {tuple(map(int, re.findall(r"\d+", file))) for file in files}
            missing = array.nchunks - sum(
                len(index) == array.ndim and all(i < n for i, n in zip(index, array.cdata_shape, strict=True))
                for index in indices
            )
        if array.dtype.kind not in NUMBERS_OR_BYTES:
            raise DataError(f"{folder} contains {array.dtype}: expected numbers.")
        check_expanded(folder, sum(files.values()), max(array.nbytes, array.nchunks * chunk_bytes))
        if missing > MAX_MISSING_CHUNKS or (missing and array.fill_value is None):
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


def _bounded_store(store: Any, path: Path, codecs: Sequence[str]) -> Any:
    """Return the ``store`` of an array of the dataset at ``path``, with the bytes to which its chunks may expand.

    ``codecs``: of the array, in the order of encoding, one of which may compress.
    """
    from zarr.storage import WrapperStore

    number = next((number for number, codec in enumerate(codecs) if codec in COMPRESSORS), None)
    checksums = 4 * codecs[number:].count("crc32c")

    class BoundedStore(WrapperStore[Any]):
        max_bytes = 0

        async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
            chunk = await super().get(key, prototype, byte_range)
            if chunk is not None and number is not None and self.max_bytes:
                content, limit = chunk.to_bytes(), MAX_WIDER * self.max_bytes + 64
                if _expanded_bytes(codecs[number], content[: len(content) - checksums], limit) > limit:
                    raise DataError(f"{path}: {key} expands to more bytes than the chunk has: it seems damaged.")
            return chunk

    return BoundedStore(store)


class ZarrFiles(ABC):
    """The files of arrays, by their names below the dataset, such as ``data/action/0.0``."""

    def __init__(self, path: Path, stored_bytes: dict[str, int]) -> None:
        """``stored_bytes``: bytes of each file."""
        self.path = path
        self._bytes = stored_bytes

    def is_array(self, name: str) -> bool:
        """Return whether a member of a group is an array, not a group."""
        return f"{name}/.zarray" in self._bytes or (
            f"{name}/zarr.json" in self._bytes and self.metadata(name).get("node_type") != "group"
        )

    def children(self, group: str) -> list[str]:
        """Return the sorted names of the members of a group."""
        return sorted({name.partition("/")[0] for name in self.files(group) if "/" in name})

    def files(self, name: str) -> dict[str, int]:
        """Return the bytes of the files of an array or a group, by their names in it."""
        return {
            file.removeprefix(f"{name}/"): size for file, size in self._bytes.items() if file.startswith(f"{name}/")
        }

    def metadata(self, name: str) -> dict[str, Any]:
        """Return the metadata of an array."""
        return self._read_json(next(f"{name}/{file}" for file in METADATA if f"{name}/{file}" in self._bytes))

    @abstractmethod
    def _read_json(self, name: str) -> dict[str, Any]:
        """Return the object in a file."""

    @abstractmethod
    def store(self) -> Any:
        """Return the store that Zarr opens."""


class ZarrFolder(ZarrFiles):
    """Files in a folder."""

    def __init__(self, path: Path) -> None:
        files = (file for file in path.rglob("*") if file.is_file())
        super().__init__(path, {file.relative_to(path).as_posix(): file.stat().st_size for file in files})

    def _read_json(self, name: str) -> dict[str, Any]:
        return read_json(self.path / name)

    def store(self) -> Any:
        from zarr.storage import LocalStore

        return LocalStore(self.path, read_only=True)


class ZarrArchive(ZarrFiles):
    """Files in a zip file, which are read there and not unpacked."""

    def __init__(self, path: Path) -> None:
        with open_zip(path) as file, zipfile.ZipFile(file) as archive:  # not one that expands without limit
            super().__init__(path, {entry.filename: entry.compress_size for entry in archive.infolist()})

    def _read_json(self, name: str) -> dict[str, Any]:
        with reading(f"{self.path}: {name}"), open_zip(self.path) as content, zipfile.ZipFile(content) as archive:
            values = json.loads(read_member(self.path, archive, name))
            if not isinstance(values, dict):
                raise DataError(f"{self.path}: {name} contains {type(values).__name__}: expected an object.")
            return values

    def store(self) -> Any:
        from zarr.storage import ZipStore

        return ZipStore(self.path, mode="r")


def _expanded_bytes(codec: str, chunk: bytes, limit: int) -> int:
    """Return the bytes of a ``chunk`` encoded by ``codec`` after expansion; counting ends beyond ``limit``."""
    if codec in ("blosc", "lz4"):
        start = 4 * (codec == "blosc")
        return int.from_bytes(chunk[start : start + 4], "little")
    if codec == "zlib":
        return len(zlib.decompressobj().decompress(chunk, limit + 1))
    import zstandard

    decompressor = zstandard.ZstdDecompressor()
    readers: dict[str, Callable[[IO[bytes]], Any]] = {
        "gzip": gzip.open, "bz2": bz2.open, "lzma": lzma.open,
        "zstd": lambda content: decompressor.stream_reader(content, read_across_frames=True),
    }  # fmt: skip
    with readers[codec](io.BytesIO(chunk)) as stream:
        return len(stream.read(limit + 1))
