"""Reads HDF5 files in D4RL's layout: one dataset per field of a transition, all episodes one after the other.

Files written by ``datasets/writers.py`` also declare the environment and the action space, in their attributes.

``timeouts`` marks truncations. Without it, a truncation is found only where ``next_observations`` differs from the
observation of the next transition, or by ``time_limit``. Tianshou's ``load_buffer`` reads the same layout without
``timeouts``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError
from reverie.core.space_json import space_of
from reverie.datasets.hdf5 import Hdf5Column, Hdf5File, damage
from reverie.datasets.reader import About, Reader, ReadOptions, Rows, Space, action_space, as_flags, observed_space
from reverie.datasets.transitions import BLOCK, Transitions, limited

NEEDED = ("observations", "actions", "rewards", "terminals")
DECLARED = ("env_id", "env_kwargs", "time_limit", "action_space", "action_classes", "action_low", "action_high")
"""Attributes of files that were converted by this package."""

UNSEEN = (
    "the file has neither timeouts nor next_observations: only terminal ends of episodes are known. If episodes have a "
    "time limit, pass --data.time-limit"
)


class D4RLReader(Reader):
    """See the top of this file."""

    format = "D4RL HDF5"

    def __init__(self, path: Path, options: ReadOptions) -> None:
        super().__init__(path, options)
        self.file = Hdf5File(path)
        with self.file:
            names, attributes = self.file.opened.keys(), self.file.opened.attrs
            if missing := [name for name in NEEDED if name not in names]:
                raise DataError(f"{path} has no {', '.join(missing)}: a D4RL file has {', '.join(NEEDED)}.")
            self.columns = {name: self._column(name) for name in (*NEEDED, "timeouts", "next_observations")
                            if name in names}  # fmt: skip
            self.said = {name: attributes[name] for name in DECLARED if name in attributes}
        lengths = {name: column.shape[0] for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(f"{path}: the columns have different lengths: {lengths}.")
        if not lengths["rewards"]:
            raise DataError(f"{path} contains no transitions.")

    def _column(self, name: str) -> Hdf5Column:
        with damage(f"{self.path}: '{name}'"):
            if not hasattr(self.file.dataset(name), "dtype"):
                raise DataError(
                    f"{self.path}: '{name}' is a group: expected an array. Nested observations need Minari's format."
                )
            return Hdf5Column(self.file, name)

    def uses(self, option: str) -> bool:
        """See ``Reader``."""
        return option == "time_limit" and "timeouts" not in self.columns

    def about(self) -> About:
        """See ``Reader``. Spaces that no attribute declares are derived from the arrays."""
        obs = self.columns["observations"]
        action, measured = self._actions
        return About(
            observation=observed_space(obs.shape[1:], obs.dtype),
            action=action,
            env=self.env_id(),
            env_kwargs=self._env_kwargs(),
            time_limit=int(self.said["time_limit"]) if "time_limit" in self.said else None,
            measured=measured,
            text={"columns": ", ".join(self.columns)},
        )

    def env_id(self) -> str:
        """See ``Reader``. Only files that were converted by this package declare it."""
        return str(self.said.get("env_id", ""))

    def _env_kwargs(self) -> dict[str, Any]:
        said = str(self.said.get("env_kwargs", "{}"))
        try:
            return dict(json.loads(said))
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{self.path}: the attribute env_kwargs is {said[:200]!r}: expected a JSON object ({error}). "
                "Correct it, or delete it if the environment has no arguments."
            ) from None

    @cached_property
    def _actions(self) -> tuple[Space, bool]:
        column, said = self.columns["actions"], self.said
        if "action_space" in said:
            return space_of(str(said["action_space"]), str(self.path)), False
        if "action_classes" in said:
            return spaces.Discrete(int(said["action_classes"])), False
        if "action_low" in said and "action_high" in said:
            dtype = np.result_type(np.float32, column.dtype).type
            low, high = (np.asarray(said[name], dtype)[()] for name in ("action_low", "action_high"))
            return spaces.Box(low, high, column.shape[1:], dtype), False
        with self.file:
            return action_space(
                lambda: (column.read(i, i + BLOCK) for i in range(0, column.shape[0], BLOCK)), self.path
            )

    def disordered(self) -> np.ndarray:
        """See ``Reader``."""
        return self._transitions.disordered()

    def close(self) -> None:
        """See ``Reader``."""
        self.file.close()

    def rows(self) -> int:
        """See ``Reader``. Counted from the flags of the transitions."""
        return self._transitions.rows

    def parts(self) -> Iterator[Rows]:
        """See ``Reader``. A part is about ``PART_BYTES`` large."""
        transitions = self._transitions
        with self.file:
            yield from transitions.parts()

    @cached_property
    def _transitions(self) -> Transitions:
        columns = self.columns
        with self.file:
            terminal = self._flag("terminals")
            made = Transitions(
                obs={"obs": columns["observations"]},
                next_obs={"obs": columns["next_observations"]} if "next_observations" in columns else {},
                action={"action": columns["actions"]},
                reward=columns["rewards"],
                end=terminal | self._timeouts(len(terminal)),
                terminal=terminal,
                note=self.note,
                where=str(self.path),
                ends_told="timeouts" in columns or self.options.time_limit is not None,
            )
            _ = made.ends  # computed now: it reads all observations once
        return made

    def _flag(self, name: str) -> np.ndarray:
        return as_flags(self.columns[name].read(0, self.columns[name].shape[0]), f"{self.path}: '{name}'")

    def _timeouts(self, total: int) -> np.ndarray:
        """Return where episodes are truncated, bool ``[total]``."""
        if "timeouts" in self.columns:
            return self._flag("timeouts")
        out = np.zeros(total, bool)
        if self.options.time_limit is not None:
            return limited(self._flag("terminals"), self.options.time_limit)
        if "next_observations" not in self.columns:
            self.note(UNSEEN)
        return out
