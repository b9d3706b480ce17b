"""A recorded dataset as rows that learners see: a reader's, with values as an environment of its spaces shows them.

The readers know formats and nothing of spaces' meaning; ``envs/recorded.py`` knows spaces and nothing of files.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np
from gymnasium import spaces

from reverie.core.errors import ConfigError, DataError, EnvError
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.data.dataset import DatasetConfig
from reverie.data.readers.base import About, Reader, Rows
from reverie.data.readers.detect import open_reader
from reverie.envs.base import EnvConfig
from reverie.envs.naming import registered
from reverie.envs.recorded import RecordedActions, RecordedImages, RecordedObs

MEASURED = (
    "the bounds of its actions are not declared: those of the recorded ones are taken. With an environment, its own are"
)
LATE = {
    "resize": ("resize", "grayscale", "frame_stack"),
    "grayscale": ("frame_stack",),
    "clip_reward": ("clip_reward",),
}
"""Settings of environments that can be applied to recorded rows, unless one of these was applied to them before."""
CANNOT = {
    "frame_stack": "algo.frames stacks frames as they are learned from, where an algorithm has it",
    "action_repeat": "a row is what was decided once",
    "pool_frames": "the frames between two rows were not recorded",
    "pixels": "nothing can be drawn from recorded rows",
}
"""Those about which nothing can be done afterwards, and why."""
PATIENCE = 1.0
"""Seconds after which reading shows how far it is, on a terminal."""


class Recorded:
    """Rows of a dataset, in the order in which they were lived.

    Raises:
        DataError: it is not what it seems to be, is damaged, or holds what cannot be learned from.
        ConfigError: an option does not fit, or a package is missing.
    """

    def __init__(
        self, reader: Reader, env: EnvConfig | None = None, action_space: spaces.Space[Any] | None = None
    ) -> None:
        """Rows of ``reader``.

        Args:
            reader: of the files.
            env: what an environment's settings do to observations and rewards is done to recorded ones.
            action_space: the environment's, for data that do not say theirs.
        """
        self.reader = reader
        self.about: About = reader.about()
        self.obs: RecordedObs | None = None
        self.actions: RecordedActions | None = None
        seen, self.action_spec = self._spaces(env, action_space)
        if env is not None and not self.about.env_settings:
            check_shown(seen, env)
            if env.action_repeat > 1:
                reader.note(f"rows are taken for decisions that lasted env.action_repeat = {env.action_repeat} frames")
        todo = to_apply(self.about, env or EnvConfig())
        self.clip = todo.clip_reward
        try:
            self.images = RecordedImages(seen, todo.resize, todo.grayscale)
        except EnvError as error:
            raise DataError(f"{reader.path}: {error}") from None
        self.obs_spec: ObsSpec = self.images.spec

    def _spaces(self, env: EnvConfig | None, action_space: spaces.Space[Any] | None) -> tuple[ObsSpec, ActionSpec]:
        """What is seen and done, as it was recorded."""
        if self.about.specs is not None:
            return self._own(self.about.specs, env)
        keep: Callable[[str], bool] = env.keeps if env is not None else bool
        try:
            self.obs = RecordedObs(self.about.observation, keep, env.channels if env is not None else "auto")
            self.actions = RecordedActions(self._action_space(action_space))
        except EnvError as error:
            raise DataError(f"{self.reader.path}: {error}") from None
        return self.obs.spec, self.actions.spec

    def _own(self, specs: tuple[ObsSpec, ActionSpec], env: EnvConfig | None) -> tuple[ObsSpec, ActionSpec]:
        kept = {key: part for key, part in specs[0].items() if env is None or env.keeps(key)}
        if not kept:
            raise DataError(f"{self.reader.path}: no observation is left to learn from of {', '.join(specs[0])}.")
        return kept, specs[1]

    def _action_space(self, given: spaces.Space[Any] | None) -> spaces.Space[Any]:
        """What is declared; else the environment's, or what was measured."""
        own = self.about.action
        if not self.about.measured:
            return own
        if given is not None and type(given) is type(own) and prod(given.shape or ()) == prod(own.shape or ()):
            return given  # a column of numbers is as good as one of vectors of one
        if own != spaces.Box(-1.0, 1.0, own.shape or (), np.float32):
            self.reader.note(MEASURED)
        return own

    @property
    def where(self) -> str:
        """Path and format, for sentences."""
        return f"{self.reader.path} ({self.reader.format})"

    def rows(self) -> int:
        """How many there are, of all episodes."""
        return self.reader.rows()

    def parts(self) -> Iterator[Rows]:
        """All rows, ``[n, ...]`` by column as in ``data/storage.py: columns_of``.

        Raises:
            DataError: a value is not what the space declares.
        """
        first = 0
        for part in self.reader.parts():
            yield self._seen(part, first)
            first += len(part["is_first"])

    def _seen(self, part: Rows, first: int) -> Rows:
        if self.obs is None or self.actions is None:
            wanted = {f"obs/{key}" for key in self.obs_spec}
            rows = {name: v for name, v in part.items() if not name.startswith("obs/") or name in wanted}
        else:
            try:
                rows = {**self.obs(part, first), "action": self.actions(part, first)}
            except DataError as error:
                raise DataError(
                    f"{self.reader.path}: {error}. `reverie data validate` finds all of these, with --quarantine it "
                    "writes the good episodes elsewhere."
                ) from None
        rows = self.images(rows | {"is_first": part["is_first"]})
        rows["reward"] = self._reward(part["reward"].astype(np.float32, copy=False), first)
        return rows | {name: part[name] for name in ("is_first", "is_last", "is_terminal")}

    def _reward(self, reward: np.ndarray, first: int) -> np.ndarray:
        if not np.isfinite(np.add.reduce(reward)) and not np.isfinite(reward).all():
            row = first + int(np.argmin(np.isfinite(reward)))
            raise DataError(
                f"{self.reader.path}: the reward of row {row} is {reward[row - first]}. `reverie data validate` finds "
                "all of these, with --quarantine it writes the good episodes elsewhere."
            )
        if self.clip == "none":
            return reward
        clip = {"sign": np.sign, "tanh": np.tanh}[self.clip]
        clipped: np.ndarray = clip(reward.astype(np.float64)).astype(np.float32)  # as environments do, in float64
        return clipped

    def close(self) -> None:
        """Let go of open files."""
        self.reader.close()

    def remarks(self) -> list[str]:
        """What was left out or had to be assumed so far."""
        notes = self.actions.notes if self.actions is not None else {}
        moved = [f"{what} ({times:,} times)" for what, times in notes.items() if times]
        return [*self.reader.remarks(), *moved]


def open_recorded(
    config: DatasetConfig, env: EnvConfig | None = None, action_space: spaces.Space[Any] | None = None
) -> Recorded:
    """The dataset that ``config`` names; see ``Recorded``.

    Raises:
        DataError: there is none, or it cannot be read.
        ConfigError: an option does not fit, or a package is missing.
    """
    return Recorded(open_reader(config.path, config.reading), env, action_space)


def to_apply(about: About, env: EnvConfig) -> EnvConfig:
    """What of the settings ``env`` is still to be done to recorded rows.

    Where data say with which settings they were made, what was done to them then is not done again. Of others that is
    not known; ``action_repeat`` and ``pool_frames`` are taken to be theirs.

    Raises:
        ConfigError: a setting asks for what recorded rows cannot become.
    """
    usual = EnvConfig()
    was = usual.merge(dict(about.env_settings))
    todo = {}

    def differs(name: str) -> bool:
        return bool(getattr(was, name) != getattr(usual, name))

    for name in (*LATE, *(CANNOT if about.env_settings else ())):
        asked = getattr(env, name)
        if asked in (getattr(usual, name), getattr(was, name)):
            continue
        hinder = LATE.get(name, (name,))
        before = [f"env.{other} = {getattr(was, other)}" for other in hinder if differs(other)]
        if name in LATE and not before:
            todo[name] = asked
            continue
        why = CANNOT.get(name, "that cannot come before what was done to them")
        told = " and ".join(before) or f"env.{name} = {getattr(was, name)}"
        raise ConfigError(f"env.{name} = {asked}: the rows were recorded with {told}, and {why}. Leave it out.")
    return usual.merge(todo)


def made_with(about: About) -> list[str]:
    """Settings of rows of our own that the name of their environment does not say: ``env.resize = (64, 64)``."""
    usual = EnvConfig()
    was = usual.merge(dict(about.env_settings))
    names = (name for name in (*LATE, *CANNOT) if getattr(was, name) != getattr(usual, name))
    return [f"env.{name} = {getattr(was, name)}" for name in names]


def check_shown(seen: ObsSpec, env: EnvConfig) -> None:
    """Rows of which nothing more is known can be what an environment with the settings ``env`` would have shown.

    Raises:
        ConfigError: they are no stacks, no drawings, or no images, and were to be.
    """
    images = [part for part in seen.values() if part.kind == "image"]
    has = ", ".join(f"{key} {list(part.shape)}" for key, part in seen.items())
    count = env.frame_stack
    if count > 1 and any(p.shape[-1] % count if p.kind == "image" else p.shape[:1] != (count,) for p in seen.values()):
        raise ConfigError(f"env.frame_stack = {count}: the recorded rows are no such stacks ({has}), and "
                          f"{CANNOT['frame_stack']}. Leave it out.")  # fmt: skip
    if env.pixels != "none" and "image" not in seen:
        raise ConfigError(f"env.pixels = '{env.pixels}': {CANNOT['pixels']}, and they hold no 'image' ({has}).")
    if (env.resize or env.grayscale) and not images:
        name = "resize" if env.resize else "grayscale"
        raise ConfigError(f"env.{name} is for images, and the recorded rows have none ({has}). Leave it out.")


def env_of(about: About, env: EnvConfig | None = None) -> EnvConfig:
    """The environment that data name, as they say that it was made, with the settings of ``env``."""
    env = env or EnvConfig()
    if about.env_settings:  # how many there are is another matter, and what is still to be done to recorded rows
        usual = EnvConfig()
        own = {name for name in LATE if getattr(env, name) != getattr(usual, name)}
        return env.merge({name: v for name, v in about.env_settings.items() if name not in {"num", "vector"} | own})
    found = env.merge({"id": about.env, "kwargs": dict(env.kwargs or about.env_kwargs)})
    spec = registered(about.env) if env.time_limit is None and about.time_limit is not None else None
    if spec is not None and spec.max_episode_steps != about.time_limit:
        return found.merge({"time_limit": about.time_limit})
    return found


@contextlib.contextmanager
def shown(what: str, total: int) -> Iterator[Callable[[Iterator[Rows]], Iterator[Rows]]]:
    """Counts the rows of an iterator in a progress bar, if there is a terminal and it takes a while."""
    if not sys.stderr.isatty():
        yield lambda parts: parts
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn("rows"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4) as progress:
        task = progress.add_task(what, total=total or None)

        def counted(parts: Iterator[Rows]) -> Iterator[Rows]:
            for part in parts:
                yield part
                progress.advance(task, len(part["is_first"]))

        yield counted
