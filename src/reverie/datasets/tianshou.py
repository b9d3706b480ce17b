"""Reads Tianshou's replay buffers, as ``save_hdf5`` writes them, without unpickling anything.

Pickled objects next to the arrays are not needed; observations or actions that are Python objects are rejected. A
buffer is one ring, or several consecutive rings. ``last_index`` is the index of the newest transition of each ring,
``_lengths`` the number of transitions in it. In a full ring, the oldest transition follows directly after the newest.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from reverie.core.action_codec import ActionCodec
from reverie.core.errors import DataError
from reverie.core.obs_conversion import has_channels_first
from reverie.datasets.hdf5 import HDF5_SUFFIXES, Hdf5File, declared_fields
from reverie.datasets.options import PROPENSITY
from reverie.datasets.reader import DatasetInfo, ReadOptions, Space, to_bool_column
from reverie.datasets.source import arrays_below
from reverie.datasets.transitions import LazyColumn, Transitions, TransitionsReader, reorder

NO_TRUNCATION_REMARK = "the buffer does not distinguish truncated from terminated: all ends are treated as terminal"
OLDEST_EPISODE_CUT = (
    "the oldest episode of a full ring may have lost its first steps: it starts at the oldest stored step"
)


class TianshouReader(TransitionsReader):
    """See the top of this file."""

    format = "Tianshou buffer (HDF5)"
    suffixes: ClassVar[tuple[str, ...]] = HDF5_SUFFIXES
    required_names: ClassVar[Sequence[str]] = ("_meta",)

    def __init__(self, path: Path, options: ReadOptions) -> None:
        super().__init__(path, options)
        self.file: Hdf5File = Hdf5File(path)  # type: ignore[misc]  # one for each reader
        with self.file:
            self.names: set[Any] = set(self.file.handle["_meta"])
            self.attributes: dict[Any, Any] = dict(self.file.handle.attrs)
        self.declared: dict[str, Any] = declared_fields(self.attributes, path)
        self.frames: int = int(self.attributes.get("stack_num", 1))
        """Number of frames in an observation; each frame is stored once."""

    def info(self) -> DatasetInfo:
        text = {"buffer": f"{len(self._order):,} transitions in {len(self._rings)} rings"}
        with self.file:
            return self.infer_info(scaled=True, text=text, **self.declared)

    def env_id(self) -> str:
        return str(self.declared["env"])  # files written by reverie

    def supports_option(self, option: str) -> bool:
        return super().supports_option(option) and "observation" not in self.declared

    @cached_property
    def _rings(self) -> list[tuple[int, ...]]:
        """Return (first slot, number of slots, number of transitions, slot of the newest) of each ring."""
        names = ("last_index", "_lengths", "_extend_offset")
        with self.file:
            size = int(self.file.dataset("_meta/rew").shape[0])
            room = int(self.attributes.get("maxsize", size))
            arrays = {n: np.atleast_1d(self.file.dataset(n)[()]) for n in names if n in self.file.handle}
        if "_lengths" not in arrays:
            length = int(self.attributes.get("_size", room))
            candidates = (self.attributes.get(name) for name in ("_insertion_idx", "_index"))
            following = int(next((index for index in candidates if index is not None), length % max(1, room)))
            rings: list[tuple[int, ...]] = [(0, room, length, (following - 1) % max(1, length))]
        else:
            newest, lengths, edges = (arrays[name].tolist() for name in names)
            rings = [*zip(edges[:-1], np.diff(edges).tolist(), lengths, newest, strict=True)]
        if max(self.frames, *(start + max(room, length) for start, room, length, _ in rings)) > size:
            raise DataError(f"{self.path}: it describes more steps than it has, {size:,}. Write it again.")
        return rings

    @cached_property
    def _order(self) -> np.ndarray:
        """Indices of all transitions in the file, ``[n]``, ring by ring, oldest first."""
        slots = [
            start + (newest - start + 1 + np.arange(room)) % room if length >= room > 0 else start + np.arange(length)
            for start, room, length, newest in self._rings
        ]
        return np.concatenate(slots).astype(np.int64)

    def _columns(self, group: str, root: str) -> dict[str, LazyColumn]:
        columns: dict[str, LazyColumn] = {}
        top = self.file.handle[f"_meta/{group}"]
        for key, item in ({"": top} if hasattr(top, "dtype") else arrays_below(top)).items():
            kind, name = str(item.attrs.get("__data_type__", "ndarray")), f"_meta/{group}/{key}".rstrip("/")
            if kind not in ("ndarray", "Tensor"):
                raise DataError(
                    f"{self.path}: '{name}' is a pickled {kind.removeprefix('pickled_')}, which is not read because "
                    "unpickling can run arbitrary code. Save the buffer with arrays of numbers."
                )
            columns[f"{root}/{key}".rstrip("/")] = reorder(self.file.column(name), self._order)
        return columns

    @cached_property
    def transitions(self) -> Transitions:
        with self.file:
            done, terminal, truncated = (self._flags(name) for name in ("done", "terminated", "truncated"))
            assert done is not None
            if terminal is None or truncated is None:
                self.add_remark(NO_TRUNCATION_REMARK)
                terminal, truncated = done, np.zeros_like(done)
            end = done | terminal | truncated
            cuts = np.cumsum([length for _, _, length, _ in self._rings]) - 1
            end[cuts[cuts >= 0]] = True  # the newest episode of each ring can be unfinished: it is truncated
            self.add_remark(OLDEST_EPISODE_CUT, sum(length >= room for _, room, length, _ in self._rings))
            obs = self._columns("obs", "obs")
            next_obs = self._columns("obs_next", "obs") if "obs_next" in self.names else {}
            if self.frames > 1:
                obs = {name: _stack_frames(column, end, self.frames) for name, column in obs.items()}
                next_obs = {}  # single frames; the earlier frames of their stacks would have to be guessed
            action, reward = self._columns("act", "action"), self._columns("rew", "reward")["reward"]
            propensity = self._propensity()
            if (space := self.declared.get("action")) is not None and is_bounded(space):
                action = {"action": unscale(action["action"], space)}
            return Transitions(
                obs=obs, next_obs=next_obs, action=action, reward=reward, end=end, terminal=terminal, reader=self,
                propensity=propensity, truncated=truncated,
            )  # fmt: skip

    def _propensity(self) -> LazyColumn | None:
        """Return the propensities that reverie's writer stored in ``info``; everything else there is left out."""
        tops = {group: self.file.handle[f"_meta/{group}"] for group in {"info", "policy"} & self.names}
        named = [f"{g}/{key}" for g, top in tops.items() if hasattr(top, "keys") for key in arrays_below(top)]
        key = f"info/{PROPENSITY}"
        if unused := sorted({*named} - {key}):
            self.add_remark(f"left out: {', '.join(unused)}")
        return reorder(self.file.column(f"_meta/{key}"), self._order) if key in named else None

    def _flags(self, name: str) -> np.ndarray | None:
        if name not in self.names:
            return None
        flags = self.file.column(f"_meta/{name}")
        return to_bool_column(flags.read(0, flags.shape[0])[self._order], f"{self.path}: '_meta/{name}'")


def is_bounded(space: Space) -> bool:
    """Return whether Tianshou scales actions of this space to [-1, 1]."""
    return isinstance(space, spaces.Box) and space.dtype.kind == "f" and space.is_bounded()


def unscale(column: LazyColumn, space: Space) -> LazyColumn:
    """Return actions in [-1, 1] ``[n, *shape]`` in the units of their ``space``."""
    codec = ActionCodec(space)

    def read(start: int, stop: int) -> np.ndarray:
        unit = column.read(start, stop).reshape(stop - start, -1)
        return codec.unflatten(unit, np.zeros(len(unit), bool))["action"].reshape(-1, *column.shape[1:])

    return LazyColumn(column.shape, column.dtype, read)


def _stack_frames(frames: LazyColumn, end: np.ndarray, count: int) -> LazyColumn:
    """Return the last ``count`` of the ``frames`` up to each transition, oldest first.

    Images are stacked along their channels, ``[n, H, W, C * count]``. Everything else, and images with their channels
    first, is stacked along a new first axis, ``[n, count, ...]``. At the beginning of an episode its first frame is
    repeated, as by ``env.frame_stack``. ``end``, bool ``[n]``, marks the last transition of each episode.
    """
    shape = frames.shape[1:]
    image = len(shape) == 2 or (len(shape) == 3 and not has_channels_first(shape))
    frame_shape = (*shape, 1)[: max(3, len(shape))] if image else (1, *shape)
    stack_shape = (*frame_shape[:-1], frame_shape[-1] * count) if image else (count, *shape)
    begins = np.zeros(len(end), np.int64)
    begins[1:] = np.where(end[:-1], np.arange(1, len(end)), 0)
    begins = np.maximum.accumulate(begins)  # [n], the first transition of each one's episode

    def read(start: int, stop: int) -> np.ndarray:
        low, index = max(start - count + 1, 0), np.arange(start, stop)
        near = frames.read(low, stop)
        near = near.reshape(len(near), *frame_shape)
        first = np.maximum(begins[start:stop], low)
        parts = [near.take(np.maximum(index - back, first) - low, axis=0) for back in range(count - 1, -1, -1)]
        return np.concatenate(parts, axis=-1 if image else 1)

    return LazyColumn((frames.shape[0], *stack_shape), frames.dtype, read)
