"""HDF5 datasets as columns, and files in D4RL's layout.

Columns are memory-mapped if contiguous in the file, else read in pieces. Nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import re
import zlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from reverie.core.errors import DataError
from reverie.core.files import MAX_EXPANDED, check_expanded
from reverie.core.space_json import space_from_json
from reverie.datasets.compressed_images import are_images, decode_column, decode_rows
from reverie.datasets.options import OPTIONAL_COLUMNS, PROPENSITY, REQUIRED_COLUMNS
from reverie.datasets.reader import DatasetInfo, ReadOptions, to_bool_column
from reverie.datasets.source import MAX_MISSING_CHUNKS, Source, arrays_below, open_hdf5, reading
from reverie.datasets.time_order import note_disorder
from reverie.datasets.transitions import (
    EARLY_END_REMARK,
    STEPLESS,
    UNMARKED,
    LazyColumn,
    Transitions,
    TransitionsReader,
    chain,
    chain_cached,
    time_limit_truncations,
)

if TYPE_CHECKING:
    import h5py


HDF5_SUFFIXES = (".hdf5", ".h5", ".hdf")
NUMBERS_OR_BYTES = "biufSO"
"""Kinds of arrays that are read; bytes are compressed images."""
KEPT_BYTES = 64_000_000
"""Largest size in bytes at which a chunked or compressed column is read into memory as a whole."""
LARGE_CHUNK = MAX_EXPANDED // 1032
"""Bytes of a compressed chunk that could expand to more than a file may: zlib expands a byte to 1032 at most."""


def check_storage(item: h5py.Dataset, path: Path) -> None:
    """Raise DataError unless all values of a dataset are in the file ``path``.

    HDF5 would read any file of this machine for values in other files, and zeros if these are missing.
    """
    if item.id.get_offset() is not None:  # contiguous in its own file
        return
    from h5py import h5d

    settings = item.id.get_create_plist()
    if settings.get_external_count() or settings.get_layout() == h5d.VIRTUAL:
        name = item.name.lstrip("/")
        raise DataError(f"{path}: '{name}' is stored in other files: expected values. Copy them into the file.")
    check_expanded(path, path.stat().st_size, item.size * item.dtype.itemsize)
    if item.chunks is not None:
        _check_chunks(item, path)


def _check_chunks(item: h5py.Dataset, path: Path) -> None:
    """Raise DataError if many chunks are missing, or if one that could fill the memory expands beyond its own bytes."""
    total = math.prod(-(-size // chunk) for size, chunk in zip(item.shape, item.chunks, strict=True))
    if (missing := total - item.id.get_num_chunks()) > MAX_MISSING_CHUNKS:
        raise DataError(f"{path}: '{item.name}': {missing:,} of {total:,} chunks are missing. Copy the file again.")
    if item.compression != "gzip":
        return
    limit, offsets = math.prod(item.chunks) * item.dtype.itemsize, list[tuple[int, ...]]()
    item.id.chunk_iter(lambda chunk: offsets.append(chunk.chunk_offset) if chunk.size > LARGE_CHUNK else None)
    for offset in offsets:
        content = item.id.read_direct_chunk(offset)[1]
        if len(zlib.decompressobj().decompress(content, limit + 1)) > limit:
            raise DataError(f"{path}: '{item.name}' has a chunk that expands to more bytes than it has: it is damaged.")


def _check_filters(data: h5py.Dataset, label: str) -> None:
    """Raise DataError if a dataset is compressed with an HDF5 filter that is not installed."""
    from h5py import h5z

    settings = data.id.get_create_plist()
    for number, _, _, name in map(settings.get_filter, range(settings.get_nfilters())):
        if not h5z.filter_avail(number):
            with contextlib.suppress(ImportError):
                importlib.import_module("hdf5plugin")  # registers the common filters
        if not h5z.filter_avail(number):
            named = f"number {number} ({name.decode(errors='replace') or 'unnamed'})"
            raise DataError(
                f"{label} is compressed with the HDF5 filter {named}, which is not installed: pip install hdf5plugin."
            )


class Hdf5File:
    """An HDF5 file that is opened on first use and closed after each ``with``, since open files are limited."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: dict[str, Any] = {}  # datasets with their decompressed chunks, and mapped files

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._held.clear()
        if (handle := self.__dict__.pop("handle", None)) is not None:
            handle.close()

    @cached_property
    def handle(self) -> h5py.File:
        """The open file. Raises the same errors as ``open_hdf5``."""
        return open_hdf5(self.path)

    def dataset(self, name: str) -> h5py.Dataset:
        """Return a dataset that has all its values in this file or folder, not yet read; KeyError without it."""
        data = self.handle[name]
        if hasattr(data, "dtype"):
            check_storage(data, self.path)
        return data

    def column(self, name: str) -> LazyColumn:
        """Return a dataset ``[n, ...]`` of numbers, or of compressed images."""
        data, label = self.dataset(name), f"{self.path}: '{name}'"
        kind = getattr(data, "dtype", "a group")
        if not isinstance(kind, np.dtype) or kind.kind not in NUMBERS_OR_BYTES:
            raise DataError(f"{label} contains {kind}: expected an array of numbers.")
        _check_filters(data, label)
        shape: tuple[int, ...] = data.shape
        keeps = data.chunks is not None and data.nbytes <= KEPT_BYTES
        contiguous = data.chunks is None and not self.handle.userblock_size
        offset = data.id.get_offset() if contiguous and data.nbytes and kind.kind != "O" else None
        read_all = cache(lambda: np.asarray(self.handle[name][()]))  # so that each chunk is decompressed once

        def read(start: int, stop: int) -> np.ndarray:
            with reading(f"{label}, index {start:,} to {stop - 1:,}"):
                return values(start, stop)

        def values(start: int, stop: int) -> np.ndarray:
            if keeps:
                return read_all()[start:stop]
            if name not in self._held:  # slicing a view of a mapped file is five times as fast
                mapped = None if offset is None else np.memmap(self.path, kind, "r", offset, shape).view(np.ndarray)
                self._held[name] = self.handle[name] if mapped is None else mapped
            return np.asarray(self._held[name][start:stop])

        return check_numbers(decode_column(LazyColumn(shape, kind, read), label), label)


def check_numbers(column: LazyColumn, label: str) -> LazyColumn:
    """Return a column of numbers; DataError for other columns."""
    if column.dtype.kind not in "biuf":
        raise DataError(f"{label} contains {column.dtype}: expected an array of numbers.")
    return column


class EpisodeArraysReader(TransitionsReader):
    """An HDF5 file with arrays for each episode."""

    suffixes: ClassVar[tuple[str, ...]] = HDF5_SUFFIXES

    def __init__(self, path: Path, options: ReadOptions | None) -> None:
        super().__init__(path, options)
        self.file: Hdf5File = Hdf5File(path)  # type: ignore[misc]  # one for each reader
        self.steps: dict[Any, int] = {}
        """Number of steps of each episode that has any."""

    def set_steps(self, steps: Mapping[Any, int]) -> None:
        """Set the number of steps of each episode; DataError if none has a step."""
        self.steps = {key: count for key, count in steps.items() if count}
        self.add_remark(STEPLESS, len(steps) - len(self.steps))
        if not self.steps:
            raise DataError(f"{self.path} has no episode with a step.")

    def array(self, name: str) -> Any:
        """Return an array of numbers, or of compressed images, not yet read."""
        array = self.file.handle.get(name)
        if getattr(getattr(array, "dtype", None), "kind", "") not in tuple(NUMBERS_OR_BYTES):
            raise DataError(f"{self.path}: {name} is {'missing' if array is None else 'not an array of numbers'}.")
        check_storage(array, self.path)
        return array

    def column(self, name: str) -> LazyColumn:
        """Return the arrays ``name`` of all episodes, such as ``actions_{}``, as one column."""
        names = {name.format(key): steps for key, steps in self.steps.items()}
        first, label = self.array(next(iter(names))), f"{self.path}: '{name}'"
        _check_filters(first, label)
        has_images = are_images(first[:1])
        for array_name, steps in names.items():
            expected = (steps, *((...,) * (first.ndim - 1) if has_images else first.shape[1:]))  # padded differently
            shape = self.array(array_name).shape
            if len(shape) != len(expected) or any(e not in (..., s) for s, e in zip(shape, expected, strict=True)):
                raise DataError(f"{self.path}: {array_name} has shape {list(shape)}: expected {list(expected)}.")

        def read(index: int) -> np.ndarray:
            with reading(f"{self.path}: {ordered[index]}"):
                return np.asarray(self.array(ordered[index])[()])

        def read_images(index: int, start: int, stop: int) -> np.ndarray:
            return decode_rows(self.array(ordered[index])[start:stop], f"{self.path}: {ordered[index]}", start)

        ordered, lengths = list(names), list(names.values())
        if has_images:
            return chain(lengths, read_images(0, 0, 1), read_images)
        return check_numbers(chain_cached(lengths, first[:0], read), label)

    def last_steps(self) -> np.ndarray:
        """Return which steps are the last of their episode, bool ``[n]``."""
        last = np.zeros(sum(self.steps.values()), bool)
        last[np.cumsum(list(self.steps.values())) - 1] = True
        return last


# ---------------------------------------------------------------- D4RL

D3RLPY_ARRAYS = frozenset({"discrete_action", "version"})
"""Additional arrays that ``MDPDataset.dump`` of d3rlpy 1 writes."""
NO_TRUNCATIONS = (
    "there are neither timeouts nor next_observations: only terminal ends of episodes are known. If episodes have a "
    "time limit, pass --data.max-episode-steps"
)
MARKS = re.compile(
    r"(?:^|[^a-z])(?:done|end|(?:last|first)(?!_)|start|reset|trunc|time_?(?:out|limit)|termin|episode|ep(?![a-z])|traj|"
    r"bound|cut|final|eos|over|mask)",
    re.IGNORECASE,
)
"""Names of arrays that can mark where episodes begin or end."""
EPISODE_IDS = re.compile(
    r"(^|/)(episode|ep|traj|trajectory|demo|user|session)(_?(id|idx|index|num|number|nr)s?)?$", re.I
)
"""Names of arrays that seem to contain the id of each step's episode."""
END_FLAGS = re.compile(
    r"((is|next|episode|ep)[_.])?(terminal|terminat(ed|ion)|done|truncat(ed|ion)|time_?(out|limit)|last|end)s?",
    re.IGNORECASE,
)
"""Names of flags that mark ends of episodes, and that are no observations."""
REWARDS = re.compile(r"r|rews?|rewards?", re.IGNORECASE)
"""Names of arrays that can contain rewards."""


D4RL_ARRAYS = {name: name for name in (*REQUIRED_COLUMNS[:2], "rewards", "terminals", *OPTIONAL_COLUMNS[1:])}
OGBENCH_TRANSITIONS = {
    name: name for name in ("observations", "actions", "rewards", "next_observations", "masks")
} | {"episode_terminals": "terminals"}  # fmt: skip
"""As ``ogbench/utils.py: make_env_and_datasets`` returns them: ``masks`` is 0 where a step terminates."""


def is_end_flag(name: str, values: np.ndarray) -> bool:
    """Return whether an array seems to mark ends of episodes, by its name and its ``values``."""
    is_named = values.dtype.kind in "biuf" and END_FLAGS.fullmatch(name) is not None
    return is_named and bool(np.isin(values, (0, 1)).all())


class ColumnsReader(TransitionsReader):
    """Columns under D4RL's names.

    At the end of an episode, ``terminals`` marks whether it terminated. If not, the last step has no next observation,
    and is omitted. ``MDPDataset`` of d3rlpy 1.1.1 does the same (``dataset.pyx: _to_transitions``).
    """

    required_names: ClassVar[Sequence[str]] = REQUIRED_COLUMNS
    array_names: Mapping[str, str] = D4RL_ARRAYS
    """Names of the arrays in the files, by D4RL's name of each; ``episode_starts`` marks first steps."""
    has_final_steps: ClassVar[bool] = False
    """Whether the last step of an episode contains the final observation, and an action that was not taken."""
    declared: Mapping[str, Any] = {}
    """Metadata that the file declares in addition to its columns."""

    def __init__(self, path: Path, options: ReadOptions) -> None:
        super().__init__(path, options)
        with self.file:
            names = self.names()
            if self.array_names is D4RL_ARRAYS and {*OGBENCH_TRANSITIONS.values()} - {"rewards"} <= {*names}:
                ends, masks = (to_bool_column(np.asarray(self.array(name)), name) for name in ("terminals", "masks"))
                if (ends & masks).any():  # else ``terminals`` are terminal
                    self.array_names = OGBENCH_TRANSITIONS
            arrays = self.array_names
            if missing := [name for name in self.required_names if name not in names]:
                contents = f"{', '.join(names[:10]) or 'nothing'}, but no {' and no '.join(missing)}"
                raise DataError(
                    f"{path} contains {contents}: expected {', '.join(self.required_names)} ({self.format})."
                )
            if "valids" in names and "next_observations" not in names:  # each episode would end twice
                raise DataError(f"{path}: 'valids' seems to mark final states. Load it with compact_dataset=False.")
            self.columns: dict[str, LazyColumn] = {
                ours: self.column(name) for ours, name in arrays.items() if name in names
            }
            is_d3rlpy = {"episode_terminals", "discrete_action"} <= set(names)
            self.is_continuous: bool = is_d3rlpy and not np.all(self.array("discrete_action"))
        used = {*arrays.values(), *(D3RLPY_ARRAYS if is_d3rlpy else ())}
        self.left_out: list[str] = [name for name in names if name not in used]
        if self.left_out:
            self.add_remark(f"left out: {', '.join(self.left_out)}")
        if "rewards" not in self.columns and (names := list(filter(REWARDS.fullmatch, self.left_out))):
            raise DataError(f"{path}: '{names[0]}' seems to contain the rewards: expected the name 'rewards'.")
        lengths = {name: column.shape[0] for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(f"{path}: the columns have different lengths: {lengths}.")

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of all arrays."""

    @abstractmethod
    def column(self, name: str) -> LazyColumn:
        """Return an array of numbers as a column."""

    @abstractmethod
    def array(self, name: str) -> np.ndarray | None:
        """Return a whole array; None if it contains Python objects."""

    @property
    def tells_ends(self) -> bool:
        """Whether the columns mark where episodes were truncated."""
        return bool({"timeouts", "episode_terminals", "episode_starts"} & self.columns.keys())

    def supports_option(self, option: str) -> bool:
        declared = {"max_episode_steps": self.tells_ends, "classes": "observation_space" in self.declared}
        return not declared.get(option, True)

    def env_id(self) -> str:
        return str(self.declared.get("env_id", ""))  # files written by reverie

    def info(self) -> DatasetInfo:
        fields, text = declared_fields(self.declared, self.path), {"columns": ", ".join(self.columns)}
        with self.file:
            return self.infer_info(text=text, classes=not self.is_continuous, **fields)

    @cached_property
    def transitions(self) -> Transitions:
        columns, limit = self.columns, self.options.max_episode_steps
        with self.file:
            none = np.zeros(columns["actions"].shape[0], bool)
            terminal = self._flag("terminals") if "terminals" in columns else none
            end = terminal.copy()
            if "timeouts" in columns:
                end |= self._flag("timeouts")
            if "episode_terminals" in columns:
                end = self._flag("episode_terminals") | (end & ~terminal)
                self.add_remark(EARLY_END_REMARK, int(np.count_nonzero(terminal & ~end)))
                terminal = terminal & end
            if "masks" in columns:
                terminal = ~self._flag("masks")
                end |= terminal
            if "episode_starts" in columns:
                end |= np.append(self._flag("episode_starts")[1:], True)
                self.add_remark(UNMARKED, int("terminals" not in columns))
            if not self.tells_ends and limit is not None:
                end |= time_limit_truncations(terminal, limit)
            elif "next_observations" not in columns:
                if unknown := not (self.tells_ends and end[:-1].any()):
                    self.add_remark(NO_TRUNCATIONS, int(not self.tells_ends))
                self.check_marks(end, MARKS if unknown else EPISODE_IDS)
            note_disorder(self, self.left_out, self._times, end, "next_observations" in columns)
            return Transitions(
                obs={"obs": columns["observations"]},
                next_obs={"obs": columns["next_observations"]} if "next_observations" in columns else {},
                action={"action": columns["actions"]},
                reward=columns.get("rewards"),
                end=end,
                terminal=terminal,
                reader=self,
                propensity=columns.get(PROPENSITY),
                truncated=self._flag("timeouts") if "timeouts" in columns else None,
                has_truncations=self.tells_ends or limit is not None,
                has_final_steps=self.has_final_steps,
            )

    def _times(self, name: str) -> np.ndarray:
        values = self.array(name)
        return np.empty(0) if values is None else np.asarray(values).reshape(-1)

    def check_marks(self, end: np.ndarray, names: re.Pattern[str]) -> None:
        """Raise DataError if an unused array of these ``names`` marks an episode end that ``end`` ``[n]`` does not."""
        is_single_episode = not end[:-1].any()  # otherwise all would be a single episode
        for name in self.left_out if is_single_episode else filter(names.search, self.left_out):
            values = self.array(name)
            if values is not None and _marks_more(values, end):
                raise DataError(
                    f"{self.path}: '{name}' seems to mark ends of episodes that 'terminals' does not, and is not a "
                    "D4RL name. Store truncations as 'timeouts', or all ends of episodes as 'episode_terminals': 1 "
                    "in the last step, else 0. Or pass --data.max-episode-steps."
                )

    def _flag(self, name: str) -> np.ndarray:
        column, label = self.columns[name], f"{self.path}: '{self.array_names[name]}'"
        return to_bool_column(column.read(0, column.shape[0]), label)


def declared_fields(attributes: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the fields of ``DatasetInfo`` that a file at ``path`` written by reverie declares in its attributes."""
    fields: dict[str, Any] = {"env": str(attributes.get("env_id", ""))}
    fields["env_kwargs"] = json.loads(attributes.get("env_kwargs", "{}"))
    if (action := attributes.get("action_space")) is not None:
        fields |= {"action": space_from_json(str(action), str(path)), "has_measured_bounds": False}
    if (observation := attributes.get("observation_space")) is not None:
        fields["observation"] = space_from_json(str(observation), str(path))
    if (names := attributes.get("element_names")) is not None:
        fields["element_names"] = {column: tuple(elements) for column, elements in json.loads(names).items()}
    if "max_episode_steps" in attributes:
        fields["max_episode_steps"] = int(attributes["max_episode_steps"])
    return fields


def _marks_more(values: np.ndarray, ends: np.ndarray) -> bool:
    """Return whether ``values`` mark an episode end where ``ends`` ``[n]`` bool is not set.

    They can be flags of first, last or all other steps, episode or step numbers ``[n]``, or one number per episode: its
    end, or its length.
    """
    flat, running = values.reshape(-1), ~ends[:-1]
    is_whole = flat.dtype.kind in "biuf" and bool((flat >= 0).all() and (flat == np.rint(flat)).all())
    if flat.size != len(ends):
        return is_whole and values.ndim == 1 and bool(flat.size > np.count_nonzero(ends))
    before, after = flat[:-1], flat[1:]
    if is_whole and (flat <= 1).all():
        return all((running & (side == value)).any() for side in (before, after) for value in (0, 1))
    if is_whole and np.count_nonzero(before != after) > len(flat) // 2:
        return bool((running & (after < before)).any())
    return bool(flat.dtype.kind != "f" or is_whole) and bool((running & (before != after)).any())


class D4RLReader(ColumnsReader):
    """Columns that are datasets of an HDF5 file. Tianshou's ``load_buffer`` reads the same layout without ``timeouts``.

    Files written by ``datasets/writers.py`` declare the environment and the action space in attributes.
    """

    format = "D4RL HDF5"
    suffixes: ClassVar[tuple[str, ...]] = HDF5_SUFFIXES

    @classmethod
    def matches(cls, source: Source) -> bool:
        return source.is_hdf5 and not source.names.isdisjoint(D4RL_ARRAYS)

    def __init__(self, path: Path, options: ReadOptions) -> None:
        self.file: Hdf5File = Hdf5File(path)  # type: ignore[misc]  # one for each reader
        with self.file:
            self.declared: Mapping[str, Any] = dict(self.file.handle.attrs)
        super().__init__(path, options)

    def names(self) -> list[str]:
        linked = [name for name in D4RL_ARRAYS if name in self.file.handle]  # links are not visited
        return list(dict.fromkeys([*arrays_below(self.file.handle), *linked]))

    def column(self, name: str) -> LazyColumn:
        return self.file.column(name)

    def array(self, name: str) -> np.ndarray | None:
        return np.asarray(self.file.dataset(name)[()])
