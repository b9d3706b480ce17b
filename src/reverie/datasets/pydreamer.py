"""Reads PyDreamer's npz files. Their row t holds the action that *led to* observation t; ours holds the one taken in t.

A file holds one episode, several in a row, or a piece of a long one; ``reset`` marks the first row of an episode.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError
from reverie.core.rows import Rows
from reverie.datasets.npz import arrays_in, open_npz
from reverie.datasets.reader import About, MeasuredAction, Reader, ReadOptions, as_flags, by_number, files_of

from reverie.datasets.reader import measured_action, nested_space, observed_space, reading  # isort: skip

OF_ROWS = {"action", "reward", "terminal", "reset"}
OF_GENERATOR = {"action_next", "policy_value", "policy_entropy", "action_prob"}
"""Arrays that PyDreamer stores as well, which are no observations."""
LOOKED_AT = 8
"""Number of files with actions that are examined to tell one-hot actions from continuous ones."""
EMPTY = "a file without rows is left out"
LOST = "a file begins within an episode whose first steps are missing: the episode starts with the file"


class PyDreamerReader(Reader):
    """Reads one file, several files or all files of a folder, in the order of the numbers in their names."""

    format = "PyDreamer npz"

    def __init__(self, path: Path, options: ReadOptions, paths: Sequence[Path] = ()) -> None:
        super().__init__(path, options)
        self.paths: list[Path] = sorted(paths or (files_of(path, "npz") if path.is_dir() else [path]), key=by_number)

    @cached_property
    def _one_hot(self) -> bool:
        every = (load(path, "action", "reset") for path in self.paths)
        found = (is_one_hot(arrays["action"], arrays["reset"]) for arrays in every)
        telling = list(itertools.islice((one for one in found if one is not None), LOOKED_AT))
        return bool(telling) and all(telling)

    def about(self) -> About:
        """Return what the files show. Observations are those of the first file; continuous actions are those of all."""
        first = load(self.paths[0])
        found = {name: observed_space(v.shape[1:], v.dtype) for name, v in self._obs(first).items()}
        if self._one_hot:
            action = MeasuredAction(spaces.Discrete(first["action"].shape[-1]), False, False)
        else:
            action = measured_action(self, self._actions, scaled=True)
        text = {"files": f"{len(self.paths):,}", "actions": "one-hot" if self._one_hot else "continuous"}
        space, measured, numbered = action
        observation = nested_space(found, "obs")
        return About(observation=observation, action=space, measured=measured, numbered=numbered, text=text)

    def _actions(self) -> Iterator[np.ndarray]:
        return (load(path, "action")["action"] for path in self.paths)

    def rows(self) -> int:
        return sum(len(load(path, "reset")["reset"]) for path in self.paths)

    def parts(self) -> Iterator[Rows]:
        """Yield one file at a time. The action of its last row is in the next file, if the episode continues there."""
        inside, lost = False, 0
        files = itertools.chain(self._files(), [(None, Rows())])
        for (path, values), (after, coming) in itertools.pairwise(files):
            with reading(path or self.path):
                goes_on = after is not None and follows(path, after) and not coming["reset"].reshape(-1)[0]
                first, terminal = (as_flags(values[name], f"{path}: '{name}'") for name in ("reset", "terminal"))
                lost += int(not first[0] and not inside)
                first[0] |= not inside
                last = np.append(first[1:], not goes_on)
                led_on = coming["action"][:1] if goes_on else np.zeros_like(values["action"][:1])
                action = np.concatenate([values["action"][1:], led_on])
                action = action.argmax(axis=1) if self._one_hot else action
                action[last] = 0
                reward = values["reward"].reshape(-1).astype(np.float32)
                reward[first] = 0.0
                flags = {"is_first": first, "is_last": last, "is_terminal": terminal & last}
            yield self._obs(values) | {"action": action, "reward": reward} | flags
            inside = goes_on
        self.note(LOST, lost)

    def _files(self) -> Iterator[tuple[Path | None, Rows]]:
        """Yield the files that have rows, with their arrays."""
        empty = 0
        for path in self.paths:
            values = load(path)
            empty += not values["reset"].size
            if values["reset"].size:
                yield path, values
        self.note(EMPTY, empty)

    def origin(self, row: int, column: str) -> str:
        row += column.startswith("action")  # a file has it beside what it led to
        for path in self.paths:
            if row < (rows := len(load(path, "reset")["reset"])):
                return f"index {row:,} of {path.name}"
            row -= rows
        return ""

    def _obs(self, values: Rows) -> Rows:
        """Return observations by column. The last axis of ``image_t`` is time; a lone ``vecobs`` becomes ``obs``."""
        found = {}
        for key, value in values.items():
            if key in OF_ROWS or key in OF_GENERATOR:
                continue
            value = np.moveaxis(value, -1, 0) if key.endswith("_t") and value.ndim == 4 else value
            if value.shape[:1] == (len(values["reset"]),):
                found["obs/" + (key.removesuffix("_t") if value.ndim == 4 else key)] = value
        return {"obs": found["obs/vecobs"]} if list(found) == ["obs/vecobs"] else found


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


def load(path: Path, *names: str) -> Rows:
    """Return the arrays ``names`` of a file, by default all but those of Python objects."""
    with open_npz(path) as file:
        if missing := sorted(OF_ROWS - set(file.files)):
            found = f"has {', '.join(file.files)}, but no {', '.join(missing)}"
            raise DataError(f"{path} {found}: a PyDreamer file has {', '.join(sorted(OF_ROWS))}.")
        return arrays_in(file, names or file.files)
