"""Reads HDF5 files in D4RL's layout: one dataset per field of a transition, all episodes one after the other.

``timeouts`` marks truncations. Without it, a truncation is found only where ``next_observations`` differs from the
observation of the next transition, or by ``time_limit``. Tianshou's ``load_buffer`` reads the same layout without
``timeouts``. Files written by ``datasets/writers.py`` declare the environment and the action space in attributes.
"""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from reverie.core.errors import DataError
from reverie.core.space_json import space_of
from reverie.datasets.hdf5 import Hdf5Column, Hdf5File
from reverie.datasets.reader import About, ReadOptions, as_flags
from reverie.datasets.transitions import Transitions, TransitionsReader, limited

NEEDED = ("observations", "actions", "rewards", "terminals")
UNSEEN = (
    "the file has neither timeouts nor next_observations: only terminal ends of episodes are known. If episodes have a "
    "time limit, pass --data.time-limit"
)


class D4RLReader(TransitionsReader):
    """See the top of this file."""

    format = "D4RL HDF5"

    def __init__(self, path: Path, options: ReadOptions) -> None:
        super().__init__(path, options)
        self.file: Hdf5File = Hdf5File(path)  # type: ignore[misc]  # one for each reader
        with self.file:
            names = set(self.file.opened)
            self.declared: dict[Any, Any] = dict(self.file.opened.attrs)
            found = [name for name in (*NEEDED, "timeouts", "next_observations") if name in names]
            self.columns: dict[str, Hdf5Column] = {name: self.file.column(name) for name in found}
        lengths = {name: column.shape[0] for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(f"{path}: the columns have different lengths: {lengths}.")

    def uses(self, option: str) -> bool:
        return option == "time_limit" and "timeouts" not in self.columns

    def env_id(self) -> str:
        return str(self.declared.get("env_id", ""))  # files that were converted by this package

    def about(self) -> About:
        env_kwargs = json.loads(self.declared.get("env_kwargs", "{}"))
        action = self.declared.get("action_space")
        own: dict[str, Any] = (
            {"action": space_of(str(action), str(self.path)), "measured": False} if action is not None else {}
        )
        limit = int(self.declared["time_limit"]) if "time_limit" in self.declared else None
        text = {"columns": ", ".join(self.columns)}
        with self.file:
            return self.measured(
                self.transitions, env=self.env_id(), env_kwargs=env_kwargs, time_limit=limit, text=text, **own
            )

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
            made = Transitions(
                obs={"obs": columns["observations"]},
                next_obs={"obs": columns["next_observations"]} if "next_observations" in columns else {},
                action={"action": columns["actions"]},
                reward=columns["rewards"],
                end=terminal | truncated,
                terminal=terminal,
                note=self.note,
                where=str(self.path),
                ends_told="timeouts" in columns or limit is not None,
            )
            _ = made.ends  # computed now, while the file is open: it reads all observations once
        return made

    def _flag(self, name: str) -> np.ndarray:
        return as_flags(self.columns[name].read(0, self.columns[name].shape[0]), f"{self.path}: '{name}'")
