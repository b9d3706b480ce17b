"""Reads PyDreamer's npz files. Their row t holds the action that *led to* observation t; ours holds the one taken in t.

A file holds one episode, several in a row, or a piece of a long one; ``reset`` marks the first row of an episode.
"""

from __future__ import annotations

import itertools
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError
from reverie.datasets.concat import by_number, files_of
from reverie.datasets.reader import About, Reader, ReadOptions, Rows, Space, action_space, as_flags, observed_space

OF_ROWS = {"action", "reward", "terminal", "reset"}
OF_GENERATOR = {"action_next", "policy_value", "policy_entropy", "action_prob"}
"""Arrays that PyDreamer stores as well, which are no observations."""
LOOKED_AT = 8
"""Number of files with actions that are examined to tell one-hot actions from continuous ones."""
BROKEN = (OSError, ValueError, zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, TokenError)
"""Exceptions of reading a damaged npz file; the last three come from nonsense in its headers."""
LOST = "a file begins within an episode whose first steps are missing: the episode starts with the file"


class PyDreamerReader(Reader):
    """Reads one file, several files or all files of a folder, in the order of the numbers in their names."""

    format = "PyDreamer npz"

    def __init__(self, path: Path, options: ReadOptions, paths: Sequence[Path] = ()) -> None:
        super().__init__(path, options)
        found = paths or (files_of(path, "npz") if path.is_dir() else [path])
        self.paths = sorted(found, key=by_number)
        if not self.paths:
            raise DataError(f"{path} contains no npz files.")

    def files(self) -> Sequence[Path]:
        """See ``Reader``: the npz files in the order of the episodes."""
        return self.paths

    @cached_property
    def _first(self) -> dict[str, np.ndarray]:
        values = load(self.paths[0])
        check_names(values, self.paths[0])
        return values

    @cached_property
    def _one_hot(self) -> bool:
        found = (is_one_hot(member(path, "action"), member(path, "reset")) for path in self.paths)
        telling = list(itertools.islice((one for one in found if one is not None), LOOKED_AT))
        return bool(telling) and all(telling)

    def about(self) -> About:
        """See ``Reader``. Observations are those of the first file; types and continuous actions are those of all."""
        others = [self._obs(outlines(path)) for path in self.paths[1:]]
        found: dict[str, Space] = {
            name: observed_space(values.shape[1:], values.dtype, *{o[name].dtype for o in others if name in o})
            for name, values in self._obs(self._first).items()
        }
        if not found:
            raise DataError(f"{self.paths[0]} contains no observations, only {', '.join(self._first)}.")
        action: Space
        if self._one_hot:
            action, measured = spaces.Discrete(self._first["action"].shape[1]), False
        else:
            action, measured = action_space(
                lambda: (member(path, "action") for path in self.paths), self.path, scaled=True
            )
        return About(
            observation=found["obs"]
            if "obs" in found
            else spaces.Dict({name.removeprefix("obs/"): space for name, space in found.items()}),
            action=action,
            measured=measured,
            text={"files": f"{len(self.paths):,}", "actions": "one-hot" if self._one_hot else "continuous"},
        )

    def rows(self) -> int:
        """See ``Reader``. Read from the header of one array in each file."""
        return sum(len(outlines(path)["reset"]) for path in self.paths)

    def parts(self) -> Iterator[Rows]:
        """Yield one file at a time. Its last row needs the next file, in which the episode may continue."""
        self.met.clear()
        held: Rows | None = None
        before: Path | None = None
        for path in self.paths:
            values = load(path)
            rows = self._rows(values, path, goes_on=held is not None and follows(before, path))
            if held is not None:
                yield self._ended(held, rows)
            held, before = rows, path
        if held is not None:
            yield self._ended(held, None)

    def _obs(self, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return observations by column. The last axis of ``image_t`` is time; a lone ``vecobs`` becomes ``obs``."""
        total = len(values["reset"])
        found = {}
        for key, value in values.items():
            if key in OF_ROWS or key in OF_GENERATOR:
                continue
            value = np.moveaxis(value, -1, 0) if key.endswith("_t") and value.ndim == 4 else value
            if value.shape[:1] == (total,):
                found["obs/" + (key.removesuffix("_t") if value.ndim == 4 else key)] = value
        return {"obs": found["obs/vecobs"]} if list(found) == ["obs/vecobs"] else found

    def _rows(self, values: dict[str, np.ndarray], path: Path, goes_on: bool) -> Rows:
        """Convert a file to rows, without knowing what comes after it; ``_ended`` completes its last row.

        The extra column ``led`` ``[1, ...]`` is the action that led to the first row: it belongs to the row before.
        """
        check_names(values, path)
        first, terminal = (as_flags(values[name], f"{path}: '{name}'") for name in ("reset", "terminal"))
        if not len(first):
            raise DataError(f"{path} contains no rows.")
        if not first[0] and not goes_on:
            self.meet(LOST)
            first = first.copy()
            first[0] = True
        action = values["action"]
        moved = np.zeros_like(action)
        moved[:-1] = action[1:]
        last = np.zeros(len(first), bool)
        last[:-1] = first[1:]
        reward = values["reward"].reshape(-1).astype(np.float32)
        reward[first] = 0.0
        rows = self._obs(values) | {"reward": reward, "is_first": first, "is_last": last}
        rows["is_terminal"] = terminal
        lengths = {name: len(column) for name, column in (rows | {"action": action}).items()}
        if len(set(lengths.values())) > 1:
            raise DataError(f"{path}: the arrays have different lengths: {lengths}.")
        return rows | {"action": moved, "led": action[:1]}

    def _ended(self, rows: Rows, following: Rows | None) -> Rows:
        """Complete the last of ``rows`` with the action from the next file, or end the episode there."""
        rows.pop("led")
        if following is not None and not following["is_first"][0]:
            rows["action"][-1] = following["led"][0]
        else:
            rows["is_last"][-1] = True
        last = rows["is_last"]
        rows["is_terminal"] &= last
        if self._one_hot:
            rows["action"] = rows["action"].argmax(axis=1)
        rows["action"][last] = 0
        return rows


def check_names(values: Mapping[str, np.ndarray], path: Path) -> None:
    """Check that a file has the arrays that all files of PyDreamer have.

    Raises:
        DataError: some are missing.
    """
    if missing := sorted(OF_ROWS - values.keys()):
        raise DataError(
            f"{path} has no {', '.join(missing)}: a PyDreamer file has {', '.join(sorted(OF_ROWS))}. If it is not "
            "part of the dataset, move it elsewhere."
        )


def follows(before: Path | None, path: Path) -> bool:
    """Return True if ``path`` is the piece after ``before``: ``ep000003_000003-1-r5-1000`` follows ``...-0-...``."""
    pattern = r"ep(\d+)_(\d+)-(\d+)-r.*"
    one, two = (re.fullmatch(pattern, p.stem) if p is not None else None for p in (before, path))
    return bool(one and two and one[1] == two[1] and one[2] == two[2] and int(two[3]) == int(one[3]) + 1)


def is_one_hot(action: np.ndarray, reset: np.ndarray) -> bool | None:
    """Return whether all actions ``[n, A]`` are one-hot vectors; None if all rows are those of a reset, without one."""
    if action.ndim != 2 or action.shape[1] < 2 or len(action) != reset.size:
        return False
    taken = action[~reset.astype(bool).reshape(-1)]
    return bool(((taken == 0) | (taken == 1)).all() and (taken.sum(axis=1) == 1).all()) if len(taken) else None


def load(path: Path) -> dict[str, np.ndarray]:
    """Return all arrays of a file by name.

    Raises:
        DataError: the file is damaged, cut off, or holds Python objects.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: array_in(file, name) for name in file.files}
    except (*BROKEN, zlib.error) as error:
        raise broken(path, error) from None


def array_in(file: Any, name: str) -> np.ndarray:
    """Return one array of an opened npz file.

    Raises:
        ValueError: it does not begin as NumPy's arrays do; NumPy would return its bytes.
    """
    values = file[name]
    if not isinstance(values, np.ndarray):
        raise ValueError(f"{name} is no array of NumPy's")
    return values


def member(path: Path, name: str) -> np.ndarray:
    """Return one array of a file.

    Raises:
        DataError: the array is missing or damaged, or holds Python objects.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            return array_in(file, name)
    except KeyError:
        raise DataError(f"{path} has no '{name}': it is not a PyDreamer episode.") from None
    except (*BROKEN, zlib.error) as error:
        raise broken(path, error) from None


def outlines(path: Path) -> dict[str, np.ndarray]:
    """Return arrays with the shapes and types of a file's arrays, by name, reading only their headers.

    Their values are all one, which has no meaning.

    Raises:
        DataError: an array is missing or damaged.
    """
    out = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                with archive.open(name) as file:
                    version = np.lib.format.read_magic(file)
                    format_ = np.lib.format
                    read = format_.read_array_header_1_0 if version == (1, 0) else format_.read_array_header_2_0
                    shape, _, dtype = read(file)
                    out[name.removesuffix(".npy")] = np.broadcast_to(np.empty((), dtype), shape)
        if "reset" in out:
            out["reset"].shape[0]
    except (*BROKEN, IndexError, zlib.error) as error:
        raise broken(path, error) from None
    check_names(out, path)
    return out


def broken(path: Path, error: Any) -> DataError:
    """Return the error for a file that cannot be read."""
    if "allow_pickle" in str(error) or "Object arrays" in str(error):
        return DataError(
            f"{path} contains an array of Python objects, which are not read because unpickling can run any code. "
            "Save arrays of numbers."
        )
    return DataError(f"{path} is damaged or incomplete: {error}.")
