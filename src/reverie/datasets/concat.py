"""Several datasets as one."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError
from reverie.core.rows import Rows
from reverie.core.specs import ObsSpec, signature
from reverie.datasets.reader import About, Reader, ReadOptions, Space
from reverie.datasets.recorded_env import own_wrappers

OF_ROWS = ("action_repeat", "pool_frames", "frame_stack", "pixels", "resize", "grayscale", "clip_reward", "life_loss",
           "kwargs", "time_limit", "wrappers")  # fmt: skip
"""Settings of the environment that decide what its rows mean."""


class ConcatReader(Reader):
    """Reads several datasets one after the other. Their spaces and environments must be the same."""

    def __init__(self, path: Path, readers: Sequence[Reader], options: ReadOptions) -> None:
        super().__init__(path, options)
        self.readers = readers
        counts = Counter(reader.format for reader in readers)
        self.format: str = ", ".join(f"{n} x {kind}" for kind, n in counts.items())  # type: ignore[misc]  # of the instance

    def uses(self, option: str) -> bool:
        return any(reader.uses(option) for reader in self.readers)

    def assume(self, observation: Space, spec: ObsSpec) -> None:
        for reader in self.readers:
            reader.assume(observation, spec)

    def env_id(self) -> str:
        return next(filter(None, (reader.env_id() for reader in self.readers)), "")

    def disordered(self) -> np.ndarray:
        found, before = [np.empty(0, np.int64)], 0
        for reader in self.readers:
            found.append(reader.disordered() + before)
            before += sum(int(part["is_first"].sum()) for part in reader.parts())
        return np.concatenate(found)

    def close(self) -> None:
        for reader in self.readers:
            reader.close()

    def rows(self) -> int:
        return sum(reader.rows() for reader in self.readers)

    def parts(self) -> Iterator[Rows]:
        return self._all("parts")

    def as_recorded(self) -> Iterator[Rows]:
        return self._all("as_recorded")

    def _all(self, name: str) -> Iterator[Rows]:
        for reader in self.readers:
            yield from getattr(reader, name)()
            self.note_all({f"{reader.path.name}: {what}": times for what, times in reader.notes.items()})

    def origin(self, row: int, column: str) -> str:
        for reader in self.readers:
            if row < (rows := reader.rows()):
                origin = reader.origin(row, column)
                return f"{origin} of {reader.path}" if origin else f"in {reader.path}"
            row -= rows
        return ""

    def about(self) -> About:
        """Return what the datasets have in common. Measured action spaces are joined; all else must be equal."""
        every = as_numbers([reader.about() for reader in self.readers])
        first = max(every, key=lambda each: (bool(each.env), bool(each.env_settings)))  # the first of the best
        declared = next((each.action for each in every if not each.measured), None)
        for reader, other in zip(self.readers, every, strict=True):
            if (other.specs is None) != (first.specs is None):
                raise DataError(
                    f"{self.path}: {reader.path} ({reader.format}) cannot be joined with others, as only some of them "
                    "hold rows as learners see them, which stores do. Convert the stores: reverie data convert."
                )
            _check(reader, "observations", _seen(other), _seen(first))
            if other.specs is not None and first.specs is not None:
                _check(reader, "actions", signature({}, other.specs[1]), signature({}, first.specs[1]))
            elif not other.measured:
                _check(reader, "actions", other.action, declared)
            if other.env:
                mine, theirs = _task(other), _task(first)
                found = [name for name in mine | theirs if mine.get(name) != theirs.get(name)]
                _check(reader, "the environment", *({n: each.get(n) for n in found} for each in (mine, theirs)))
        if unnamed := sum(not each.env for each in every) if first.env else 0:
            self.note(f"{unnamed} of {len(every)} parts name no environment: they are taken to be of {first.env}")
        return dataclasses.replace(
            first,
            action=functools.reduce(lambda one, other: _joined(one, other, self.path), (e.action for e in every)),
            measured=any(each.measured for each in every),
            numbered=any(each.numbered for each in every),
            declared=first.declared if all(each.declared == first.declared for each in every) else None,
        )


def as_numbers(every: Sequence[About]) -> list[About]:
    """Return descriptions in which actions are no classes where others show that the same floats are continuous."""
    if not any(isinstance(each.action, spaces.Box) for each in every):
        return list(every)

    def box(action: Space) -> Space:
        most = np.float32(action.n if isinstance(action, spaces.Discrete) else action.nvec) - 1  # type: ignore[attr-defined]
        return spaces.Box(np.zeros_like(most), most, action.shape, np.float32)

    return [dataclasses.replace(e, action=box(e.action), numbered=False) if e.numbered else e for e in every]


def _check(reader: Reader, what: str, other: Any, first: Any) -> None:
    if other != first:
        apart = "these are not parts of one dataset"
        raise DataError(f"{reader.path} has {what} {other}, but others have {first}: {apart}.")


def _task(about: About) -> dict[str, Any]:
    wrappers = [(one.get("name"), one.get("kwargs")) for one in own_wrappers(about) if one.get("name") != "NoopReset"]
    made = {"kwargs": about.env_kwargs, "time_limit": about.time_limit, "action_repeat": 1, "pool_frames": 1}
    settings = {name: value for name, value in about.env_settings.items() if name in OF_ROWS}
    return {"id": about.env, "wrappers": [], **made, **settings, "around": wrappers}


def _seen(about: About) -> Any:
    """Return the observations as learners see them: all unbounded floats are float32."""
    if about.specs is not None:
        return about.specs[0]
    space = about.observation
    if isinstance(space, spaces.Box) and space.dtype.kind == "f" and np.isinf([space.low, space.high]).all():
        return spaces.Box(-np.inf, np.inf, space.shape, np.float32)
    return space


def _joined(one: Space, other: Space, where: Path) -> Space:
    """Return the smallest action space that contains both; raise DataError if they are of different kinds."""
    if one == other:
        return one
    if isinstance(one, spaces.Discrete) and isinstance(other, spaces.Discrete) and one.start == other.start:
        return spaces.Discrete(int(max(one.n, other.n)), start=int(one.start))
    if isinstance(one, spaces.Box) and isinstance(other, spaces.Box) and one.shape == other.shape:
        low, high = np.minimum(one.low, other.low), np.maximum(one.high, other.high)
        return spaces.Box(low, high, one.shape, np.result_type(one.dtype, other.dtype).type)
    raise DataError(f"{where} has different actions, {other} and {one}: these are not parts of one dataset.")
