"""HDF5 datasets as columns, and files in D4RL's layout.

Columns are memory-mapped if contiguous in the file, else read in pieces. Nothing is unpickled.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from reverie.core.errors import DataError
from reverie.core.space_json import space_of
from reverie.datasets.reader import About, ReadOptions, as_flags, package
from reverie.datasets.transitions import Column, Transitions, TransitionsReader, limited

if TYPE_CHECKING:
    import h5py


CACHE_BYTES = 1 << 20
KEPT_BYTES = 64_000_000
"""Largest size in bytes at which a chunked or compressed column is read into memory as a whole."""


def open_hdf5(path: Path) -> h5py.File:
    """Open an HDF5 file for reading, with a small cache of metadata, which thousands of groups would fill."""
    try:
        file: h5py.File = package("h5py", "hdf5").File(path, "r")
    except OSError as error:
        raise DataError(f"{path} cannot be read as HDF5: {error}. If it is cut off, copy it again.") from None
    config = file.id.get_mdc_config()
    config.set_initial_size = True
    config.initial_size = config.min_size = config.max_size = CACHE_BYTES
    config.incr_mode = config.flash_incr_mode = config.decr_mode = 0  # no automatic resizing
    file.id.set_mdc_config(config)
    return file


class Hdf5File:
    """An HDF5 file that is opened when it is first read, and closed after each ``with``: a process may open few."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: dict[str, Any] = {}  # datasets, with the chunks that they have decompressed, and mapped files

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._held.clear()
        if (opened := self.__dict__.pop("opened", None)) is not None:
            opened.close()

    @cached_property
    def opened(self) -> h5py.File:
        """The open file. Raises as ``open_hdf5`` does."""
        return open_hdf5(self.path)

    def column(self, name: str) -> Column:
        """Return a numeric dataset ``[n, ...]``."""
        data = self.opened[name]
        kind = getattr(data, "dtype", "a group")
        if not isinstance(kind, np.dtype) or kind.kind not in "biuf":
            raise DataError(f"{self.path}: '{name}' contains {kind}: expected an array of numbers.")
        shape: tuple[int, ...] = data.shape
        keeps = data.chunks is not None and data.nbytes <= KEPT_BYTES
        contiguous = data.chunks is None and not data.external and not self.opened.userblock_size
        offset = data.id.get_offset() if contiguous and data.nbytes else None
        whole = cache(lambda: np.asarray(self.opened[name][()]))  # so that each chunk is decompressed once

        def read(start: int, stop: int) -> np.ndarray:
            if keeps:
                return whole()[start:stop]
            if name not in self._held:  # a view of a mapped file is sliced five times as fast
                mapped = None if offset is None else np.memmap(self.path, kind, "r", offset, shape).view(np.ndarray)
                self._held[name] = self.opened[name] if mapped is None else mapped
            return np.asarray(self._held[name][start:stop])

        return Column(shape, kind, read)


# ---------------------------------------------------------------- D4RL

NEEDED = ("observations", "actions", "rewards", "terminals")
OPTIONAL = ("timeouts", "next_observations")
UNSEEN = (
    "there are neither timeouts nor next_observations: only terminal ends of episodes are known. If episodes have a "
    "time limit, pass --data.time-limit"
)


class ColumnsReader(TransitionsReader):
    """One column per field of a transition, under D4RL's names, all episodes one after the other.

    ``timeouts`` marks truncations. Without it, a truncation is found only where ``next_observations`` differs from the
    observation of the next transition, or by ``time_limit``.
    """

    def __init__(self, path: Path, options: ReadOptions) -> None:
        super().__init__(path, options)
        self.declared: dict[Any, Any] = {}
        self.columns: dict[str, Column] = self.found()
        lengths = {name: column.shape[0] for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(f"{path}: the columns have different lengths: {lengths}.")

    @abstractmethod
    def found(self) -> dict[str, Column]:
        """Return the columns, all of ``NEEDED`` and those of ``OPTIONAL`` that there are."""

    def uses(self, option: str) -> bool:
        declared = {"time_limit": "timeouts" in self.columns, "classes": "observation_space" in self.declared}
        return not declared.get(option, True)

    def env_id(self) -> str:
        return str(self.declared.get("env_id", ""))  # files that were converted by this package

    def about(self) -> About:
        env_kwargs = json.loads(self.declared.get("env_kwargs", "{}"))
        action = self.declared.get("action_space")
        more: dict[str, Any] = {"env_kwargs": env_kwargs, "text": {"columns": ", ".join(self.columns)}}
        if action is not None:
            more |= {"action": space_of(str(action), str(self.path)), "measured": False}
        if (observation := self.declared.get("observation_space")) is not None:
            more["observation"] = space_of(str(observation), str(self.path))
        if "time_limit" in self.declared:
            more["time_limit"] = int(self.declared["time_limit"])
        with self.file:
            return self.measured(env=self.env_id(), **more)

    @cached_property
    def transitions(self) -> Transitions:
        columns, limit = self.columns, self.options.time_limit
        with self.file:
            terminal = self._flag("terminals")
            if "timeouts" in columns:
                truncated = self._flag("timeouts")
            else:
                truncated = np.zeros_like(terminal) if limit is None else limited(terminal, limit)
                self.note(UNSEEN, int(limit is None and "next_observations" not in columns))
            return Transitions(
                obs={"obs": columns["observations"]},
                next_obs={"obs": columns["next_observations"]} if "next_observations" in columns else {},
                action={"action": columns["actions"]},
                reward=columns["rewards"],
                end=terminal | truncated,
                terminal=terminal,
                reader=self,
                ends_told="timeouts" in columns or limit is not None,
            )

    def _flag(self, name: str) -> np.ndarray:
        return as_flags(self.columns[name].read(0, self.columns[name].shape[0]), f"{self.path}: '{name}'")


class D4RLReader(ColumnsReader):
    """Columns that are datasets of an HDF5 file. Tianshou's ``load_buffer`` reads the same layout without ``timeouts``.

    Files written by ``datasets/writers.py`` declare the environment and the action space in attributes.
    """

    format = "D4RL HDF5"

    def found(self) -> dict[str, Column]:
        self.file: Hdf5File = Hdf5File(self.path)  # type: ignore[misc]  # one for each reader
        with self.file:
            self.declared: dict[Any, Any] = dict(self.file.opened.attrs)
            names = set(self.file.opened)
            return {name: self.file.column(name) for name in (*NEEDED, *OPTIONAL) if name in names}
