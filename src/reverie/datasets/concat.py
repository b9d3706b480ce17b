"""Several files of one format as one dataset."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError
from reverie.core.signature import differences, signature
from reverie.core.spaces import with_leaves
from reverie.datasets.reader import About, Reader, ReadOptions, Rows, Space, format_of
from reverie.datasets.wrappers import Wrapper, are_like, names_of, own_wrappers

OF_ROWS = ("action_repeat", "pool_frames", "frame_stack", "pixels", "resize", "grayscale", "clip_reward")
"""Settings of the environment that decide what its rows mean; ``recorded_env.py`` says which can be applied later."""

OF_STARTS = ("NoopReset",)
"""Wrappers that only decide where episodes begin."""
NAMELESS = "{} of {} parts name no environment: they are taken to be recorded in {}, as the others"


class SeveralReader(Reader):
    """Reads several datasets of one format one after the other."""

    def __init__(self, path: Path, readers: Sequence[Reader], options: ReadOptions) -> None:
        super().__init__(path, options)
        self.readers = readers
        kinds = {reader.format: reader for reader in reversed(readers)}
        if len(kinds) > 1:
            count = Counter(reader.format for reader in readers)
            each = "; ".join(f"{count[kind]} {kind} (such as {r.path.name})" for kind, r in kinds.items())
            raise DataError(f"{path} contains several formats: {each}. Pass a path or glob of one format.")
        self.format = f"{len(readers)} x {readers[0].format}"  # type: ignore[misc]  # set on the instance

    def uses(self, option: str) -> bool:
        """See ``Reader``: whether it can change what some reader reads."""
        return any(reader.uses(option) for reader in self.readers)

    def files(self) -> Sequence[Path]:
        """See ``Reader``: the files of all readers."""
        return [file for reader in self.readers for file in reader.files()]

    def env_id(self) -> str:
        """See ``Reader``: the id of the first reader that names one."""
        return next(filter(None, (reader.env_id() for reader in self.readers)), "")

    def disordered(self) -> np.ndarray:
        """See ``Reader``. Episodes are numbered through all readers; their number is counted by reading all rows."""
        found, before = [np.empty(0, np.int64)], 0
        for reader in self.readers:
            found.append(reader.disordered() + before)
            before += sum(int(part["is_first"].sum()) for part in reader.parts())
        return np.concatenate(found)

    def ask(self, answer: Callable[[About], tuple[Space | None, str]]) -> None:
        """See ``Reader``. Every reader asks; cached descriptions are dropped, as they may change."""
        for reader in self.readers:
            reader.ask(answer)
        self.__dict__.pop("_each", None)

    def close(self) -> None:
        """See ``Reader``."""
        for reader in self.readers:
            reader.close()

    def rows(self) -> int:
        """See ``Reader``: the sum over all readers."""
        return sum(reader.rows() for reader in self.readers)

    def parts(self) -> Iterator[Rows]:
        """See ``Reader``."""
        return self._all(lambda reader: reader.parts())

    def as_recorded(self) -> Iterator[Rows]:
        """See ``Reader``."""
        return self._all(lambda reader: reader.as_recorded())

    def _all(self, rows: Callable[[Reader], Iterator[Rows]]) -> Iterator[Rows]:
        self.met.clear()
        for reader in self.readers:
            yield from rows(reader)
            for what, times in reader.noted().items():
                self.meet(f"{reader.path.name}: {what}", times)

    @cached_property
    def _each(self) -> list[About]:
        return [reader.about() for reader in self.readers]

    def about(self) -> About:
        """See ``Reader``. Observations, declared action spaces and environments must be the same in all.

        The environment is that of the first reader that names one; a note counts those that name none.

        Raises:
            DataError: they differ, or measured action spaces are of different kinds, or actions have different bounds
                in our own stores, whose actions are in [-1, 1].
        """
        self._check_environments()
        first, *rest = self._each
        for reader, other in zip(self.readers[1:], rest, strict=True):
            if other.specs is not None and first.specs is not None:
                both = signature(*other.specs), signature(*first.specs)
                if found := differences(*both, (str(reader.path), str(self.readers[0].path))):
                    raise DataError(f"{'; '.join(found)}: these are not parts of the same dataset.")
            elif other.specs != first.specs or as_seen(other.observation) != as_seen(first.observation):
                raise DataError(
                    f"{reader.path} has observations {said(other)}, but {self.readers[0].path} has {said(first)}: "
                    "these are not parts of the same dataset."
                )
        episodes = [each.episodes for each in self._each]
        named = self._named()
        return dataclasses.replace(
            first,
            env=named.env,
            env_kwargs=named.env_kwargs,
            env_settings=named.env_settings,
            env_spec=named.env_spec,
            time_limit=named.time_limit,
            observation=self._observation(),
            action=self._action(),
            measured=any(each.measured for each in self._each),
            declared=first.declared if all(each.declared == first.declared for each in rest) else None,
            episodes=None if None in episodes else sum(e or 0 for e in episodes),
        )

    def _check_environments(self) -> None:
        """Check that the rows were recorded in the same environment with the same settings and wrappers.

        Only what is declared counts.

        Raises:
            DataError: they were not.
        """
        known: dict[str, tuple[Path, Any]] = {}
        wrapped: tuple[Path, list[Wrapper]] | None = None
        for reader, about in zip(self.readers, self._each, strict=True):
            for name, value in settings_of(about).items():
                path, other = known.setdefault(name, (reader.path, value))
                if value != other:
                    raise DataError(
                        f"{reader.path} was recorded with env.{name} = {value}, but {path} with env.{name} = {other}: "
                        "these are not parts of the same dataset. Pass one of them, or a glob of those that were "
                        "recorded in the same way."
                    )
            if about.env_spec or (about.env and about.env_settings):  # runs name no wrappers, as they have none
                own = [one for one in own_wrappers(about) if one.get("name") not in OF_STARTS]
                path, others = wrapped = wrapped or (reader.path, own)
                if not are_like(own, others):
                    more = " and other arguments" if names_of(own) == names_of(others) else ""
                    raise DataError(
                        f"{reader.path} was recorded in {about.env} with {names_of(own)}, but {path} with "
                        f"{names_of(others)}{more}: these are not parts of the same dataset. Pass "
                        "one of them, or a glob of those that were recorded in the same way."
                    )

    def _named(self) -> About:
        """Return the first description that names an environment, or else settings of one, or else the first."""
        named = [each for each in self._each if each.env]
        if named and len(named) < len(self._each):
            missing = len(self._each) - len(named)
            self.notes[NAMELESS.format(missing, len(self._each), named[0].env)] = 1  # however often it is asked for
        return next(iter(named or [each for each in self._each if each.env_settings] or self._each))

    def _observation(self) -> Space:
        """Return the observation space, with the smallest types of floats that hold the numbers of all."""
        observation = self._each[0].observation
        for about in self._each[1:] if self._each[0].specs is None else ():
            observation = wide_enough(observation, about.observation, str(self.path))
        return observation

    def _action(self) -> Space:
        """Return the smallest action space that holds all; those that are declared must be the same.

        Raises:
            DataError: they differ, or the others are of different kinds.
        """
        declared = [(r, about.action) for r, about in zip(self.readers, self._each, strict=True) if not about.measured]
        for reader, other in declared[1:]:
            if other != declared[0][1]:
                raise DataError(
                    f"{reader.path} declares actions {other}, but {declared[0][0].path} declares {declared[0][1]}: "
                    "these are not parts of the same dataset."
                )
        action = self._each[0].action
        for reader, about in zip(self.readers[1:], self._each[1:], strict=True):
            action = wide_enough(action, about.action, f"{reader.path} and {self.readers[0].path}")
        return action


def settings_of(about: About) -> dict[str, Any]:
    """Return what data declare about their environment and must be the same in all of a dataset's files."""
    usual = {"action_repeat": 1, "pool_frames": 1} if about.env_spec else {}  # other frames are left out by wrappers
    found = usual | {name: value for name, value in about.env_settings.items() if name in OF_ROWS}
    if not about.env:
        return found
    made = {"kwargs": about.env_kwargs, "time_limit": about.time_limit} | about.env_settings
    limit = {} if made["time_limit"] is None else {"time_limit": made["time_limit"]}
    return found | {"id": about.env, "kwargs": made["kwargs"]} | limit


def said(about: About) -> str:
    """Return a short description of the observations."""
    return str(about.observation if about.specs is None else dict(about.specs[0]))


def as_seen(space: Space) -> Space:
    """Return ``space`` with all leaves of unbounded floats as float32, as which learners see them."""

    def seen(_: str, leaf: Space) -> Space:
        if not isinstance(leaf, spaces.Box) or leaf.bounded_below.any() or leaf.bounded_above.any():
            return leaf
        return spaces.Box(-np.inf, np.inf, leaf.shape, np.float32)

    return with_leaves(space, "", seen)


def wide_enough(one: Space, other: Space, where: str) -> Space:
    """Return the smallest space of the same kind that contains both.

    Raises:
        DataError: the two are of different kinds.
    """
    if one == other:
        return one
    if isinstance(one, spaces.Discrete) and isinstance(other, spaces.Discrete) and one.start == other.start:
        return spaces.Discrete(int(max(one.n, other.n)), start=int(one.start))
    if (
        isinstance(one, spaces.MultiDiscrete)
        and isinstance(other, spaces.MultiDiscrete)
        and np.array_equal(one.start, other.start)
    ):
        return spaces.MultiDiscrete(np.maximum(one.nvec, other.nvec), start=one.start)
    if isinstance(one, spaces.Dict) and isinstance(other, spaces.Dict) and one.keys() == other.keys():
        return spaces.Dict({key: wide_enough(one[key], other[key], where) for key in one})
    if isinstance(one, spaces.Tuple) and isinstance(other, spaces.Tuple) and len(one) == len(other):
        return spaces.Tuple([wide_enough(a, b, where) for a, b in zip(one, other, strict=True)])
    if isinstance(one, spaces.Box) and isinstance(other, spaces.Box) and one.shape == other.shape:
        low, high = np.minimum(one.low, other.low), np.maximum(one.high, other.high)
        dtype = np.result_type(np.float32, one.dtype, other.dtype).type
        return spaces.Box(low.astype(dtype), high.astype(dtype), one.shape, dtype)
    raise DataError(f"{where} have different actions, {other} and {one}: they are not parts of the same dataset.")


def files_of(folder: Path, format_: str) -> list[Path]:
    """Return the files in a folder whose suffix names a format, by number; hidden ones are left out."""
    found = (path for path in folder.iterdir() if format_of(path) == format_ and not path.is_dir())
    return sorted((path for path in found if not path.name.startswith(".")), key=by_number)


def by_number(path: Path) -> list[int | str]:
    """Return a sort key that puts ``part-10`` after ``part-9``."""
    return [int(word) if word.isdecimal() else word for word in re.split(r"(\d+)", path.as_posix())]
