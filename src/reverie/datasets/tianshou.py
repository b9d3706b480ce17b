"""Reads Tianshou's replay buffers, as ``save_hdf5`` writes them, without unpickling anything.

Tianshou pickles Python objects around the data (the list of sub-buffers, a random generator). They are not needed: the
arrays beside them say where transitions lie. Only buffers whose observations or actions are Python objects are refused.

A buffer is a ring, or several rings one after the other. ``last_index`` is the index of the newest transition of each
ring, ``_lengths`` the number of transitions in it. In a full ring, the oldest comes right after the newest.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from reverie.core.errors import DataError
from reverie.datasets.hdf5 import Hdf5Column, Hdf5File, damage, walk
from reverie.datasets.reader import About, Reader, ReadOptions, Rows, action_space, as_flags, observed_space
from reverie.datasets.spaces import nested_spaces
from reverie.datasets.stacked import StackedColumn
from reverie.datasets.transitions import Column, Transitions

MARK = "__data_type__"
UNTOLD = "the buffer does not distinguish truncated from terminated: all ends are treated as terminal"
CUT = "the oldest episode of a full ring may have lost its first steps: it starts at the oldest stored step"


class TianshouReader(Reader):
    """See the top of this file."""

    format = "Tianshou buffer (HDF5)"

    def __init__(self, path: Path, options: ReadOptions) -> None:
        super().__init__(path, options)
        self.file = Hdf5File(path)
        with self.file:
            if "_meta" not in self.file.opened:
                raise DataError(f"{path} has no group '_meta': it is not a buffer saved by Tianshou.")
            with damage(path):
                self.names = set(self.file.opened["_meta"])
        if missing := [name for name in ("obs", "act", "rew", "done") if name not in self.names]:
            raise DataError(
                f"{path} has no {', '.join(missing)}: the buffer was saved before any transition was added."
            )

    def about(self) -> About:
        """See ``Reader``. Nothing is declared: spaces are derived from the arrays."""

        def space(columns: dict[str, Column], root: str) -> Any:
            found = {name: observed_space(column.shape[1:], column.dtype) for name, column in columns.items()}
            return found[root] if root in found else nested_spaces(found, root)

        t = self._transitions
        with self.file:
            found = {
                name: action_space(lambda c=column: [c.read(0, c.shape[0])], self.path, scaled=True)  # type: ignore[misc]  # binds the loop's column
                for name, column in t.action.items()
            }
        action = found["action"][0] if "action" in found else nested_spaces(
            {name: one for name, (one, _) in found.items()}, "action"
        )  # fmt: skip
        text = {"buffer": f"{len(self._order):,} transitions in {len(self._rings)} rings", "stacked": str(self._stack)}
        return About(
            observation=space(dict(t.obs), "obs"),
            action=action,
            measured=any(measured for _, measured in found.values()),
            text=text if self._stack > 1 else {"buffer": text["buffer"]},
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
    def _stack(self) -> int:
        return int(self.file.opened.attrs.get("stack_num", 1))

    # ------------------------------------------------------------------ where rows lie

    def _array(self, name: str) -> np.ndarray | None:
        with damage(f"{self.path}: '{name}'"):
            if name not in self.file.opened:
                return None
            item = self.file.opened[name]
            if str(item.attrs.get(MARK, "ndarray")).startswith(("ndarray", "Tensor")):
                return np.atleast_1d(np.asarray(item[()]))
            return None

    @cached_property
    def _rings(self) -> list[tuple[int, int, int, int]]:
        """Return (index of the first slot, number of slots, number of transitions, index of the newest) of each ring.

        Raises:
            DataError: the arrays do not say that; only pickled objects would.
        """
        said = self.file.opened.attrs
        with damage(self.path):
            room = int(said.get("maxsize", self.file.dataset("_meta/rew").shape[0]))
        newest = self._array("last_index")
        lengths, edges = self._array("_lengths"), self._array("_extend_offset")
        if lengths is None:
            held = int(said.get("_size", room))
            after = int(said.get("_insertion_idx", said.get("_index", held % max(1, room))))
            return [(0, room, held, (after - 1) % max(1, held))]
        if newest is None or edges is None or not len(newest) == len(lengths) == len(edges) - 1:
            raise DataError(
                f"{self.path}: the positions of its {len(lengths)} rings are stored as pickled objects, which are not "
                "read because unpickling can run any code."
            )
        starts, rooms = edges[:-1], np.diff(edges)
        return [tuple(map(int, ring)) for ring in zip(starts, rooms, lengths, newest, strict=True)]  # type: ignore[misc]

    @cached_property
    def _order(self) -> np.ndarray:
        """Indices of all transitions in the file, ``[n]``, ring by ring, oldest first."""
        places = []
        for start, room, held, newest in self._rings:
            if held >= room and held:
                places.append(start + (newest - start + 1 + np.arange(room)) % room)
            else:
                places.append(np.arange(start, start + held))
        order = np.concatenate(places) if places else np.empty(0, np.int64)
        if not len(order):
            raise DataError(f"{self.path} contains no transitions.")
        return order

    # ------------------------------------------------------------------ what they are

    def _columns(self, group: str, root: str) -> dict[str, Column]:
        with damage(f"{self.path}: '_meta/{group}'"):
            item = self.file.opened[f"_meta/{group}"]
            found = dict(walk(item)) if not hasattr(item, "dtype") else {"": item}
        out: dict[str, Column] = {}
        for way, dataset in found.items():
            kind = str(dataset.attrs.get(MARK, "ndarray"))
            name = f"_meta/{group}/{way}".rstrip("/")
            if kind not in ("ndarray", "Tensor"):
                raise DataError(
                    f"{self.path}: '{name}' is a pickled {kind.removeprefix('pickled_')}, which is not read because "
                    "unpickling can run any code. Save the buffer with arrays of numbers instead of objects."
                )
            out[f"{root}/{way}".rstrip("/")] = self._ordered(Hdf5Column(self.file, name))
        return out

    def _ordered(self, column: Column) -> Column:
        order = self._order
        if len(order) and order[-1] - order[0] == len(order) - 1 and (np.diff(order) == 1).all():
            return Shifted(column, int(order[0]), len(order))
        return Reordered(column, order)

    @cached_property
    def _transitions(self) -> Transitions:
        with self.file:
            return self._read_transitions()

    def _read_transitions(self) -> Transitions:
        done = self._flags("done")
        assert done is not None
        terminal, truncated = self._flags("terminated"), self._flags("truncated")
        if terminal is None or truncated is None:
            self.note(UNTOLD)
            terminal, truncated = done, np.zeros_like(done)
        end = done | terminal | truncated
        cuts = np.cumsum([held for _, _, held, _ in self._rings]) - 1
        end[cuts[cuts >= 0]] = True  # the newest episode of each ring may be unfinished: it is truncated
        full = [held >= room for _, room, held, _ in self._rings]
        self.note(CUT, sum(full))
        obs = self._columns("obs", "obs")
        next_obs = self._columns("obs_next", "obs") if "obs_next" in self.names else {}
        if self._stack > 1:
            obs = {name: StackedColumn(column, end, self._stack) for name, column in obs.items()}
            next_obs = {}  # single frames; the earlier frames of their stacks would have to be guessed
        rewards = self._columns("rew", "reward")["reward"]
        return Transitions(
            obs=obs,
            next_obs=next_obs,
            action=self._columns("act", "action"),
            reward=rewards,
            end=end,
            terminal=terminal,
            note=self.note,
            where=str(self.path),
        )

    def _flags(self, name: str) -> np.ndarray | None:
        if name not in self.names:
            return None
        with damage(f"{self.path}: '_meta/{name}'"):
            flags = self.file.dataset(f"_meta/{name}")[()]
        return as_flags(flags.reshape(-1)[self._order], f"{self.path}: '_meta/{name}'")


class Shifted:
    """The transitions of a column from an index on."""

    def __init__(self, column: Column, start: int, count: int) -> None:
        self.column, self.start = column, start
        self.shape, self.dtype = (count, *column.shape[1:]), column.dtype

    def read(self, start: int, stop: int) -> np.ndarray:
        """See ``Column``."""
        return self.column.read(start + self.start, min(stop, self.shape[0]) + self.start)

    def at(self, index: np.ndarray) -> np.ndarray:
        """See ``Column``."""
        return self.column.at(index + self.start)


class Reordered:
    """The transitions of a column in another order."""

    def __init__(self, column: Column, order: np.ndarray) -> None:
        self.column, self.order = column, order
        self.shape, self.dtype = (len(order), *column.shape[1:]), column.dtype

    def read(self, start: int, stop: int) -> np.ndarray:
        """See ``Column``. Transitions that are neighbours in the file are read together."""
        order = self.order[start:stop]
        cuts = np.flatnonzero(np.diff(order) != 1) + 1
        runs = np.split(order, cuts)
        return np.concatenate([self.column.read(int(run[0]), int(run[-1]) + 1) for run in runs if len(run)])

    def at(self, index: np.ndarray) -> np.ndarray:
        """See ``Column``."""
        places = self.order[index]
        back = np.argsort(np.argsort(places))
        return self.column.at(np.sort(places))[back]
