"""A reader that a user wrote, and checks of what it yields: mistakes there would otherwise be learned from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from gymnasium import spaces

from reverie.core.errors import ConfigError, DataError, brief, did_you_mean
from reverie.core.spaces import columns_in
from reverie.core.types import FLAGS
from reverie.datasets.reader import About, Reader, Rows, Space

SHIFTED = "Rewards belong to the row that the action led to: np.append(0, rewards)"
ENDS = "Set is_last in the last row of every episode, and is_terminal as well where it ended terminated"


class OwnReader(Reader):
    """Reads with a user's reader, and checks its rows.

    Raises:
        ConfigError: the reader's ``__init__`` did not call that of ``Reader``.
        DataError: what a method returns is not what ``Reader`` asks for; the message names the column and the row.
    """

    def __init__(self, reader: Reader, *, stays_open: bool = False) -> None:
        """``stays_open``: the reader is an object of the user's, who closes it."""
        kind = type(reader)
        if not hasattr(reader, "notes"):
            raise ConfigError(f"{kind.__name__}.__init__ must call super().__init__(path, options).")
        super().__init__(reader.path, reader.options)
        self.reader, self.stays_open = reader, stays_open
        self.strict = True
        """Whether ``parts`` refuses flags that contradict each other, rather than who writes a choice of its rows."""
        self.notes, self.met = reader.notes, reader.met
        self.format = getattr(reader, "format", kind.__name__)  # type: ignore[misc]  # set on the instance
        self.where = f"{reader.path}, read by {kind.__name__}"

    def uses(self, option: str) -> bool:
        """See ``Reader``. The user's reader gets all options; what it does with them is not known."""
        return True

    def about(self) -> About:
        """See ``Reader``."""
        found: object = self.reader.about()
        if not isinstance(found, About):
            raise DataError(
                f"{self.where}: about() returned {brief(found)}: expected About(observation=..., action=...) with two "
                "spaces of Gymnasium."
            )
        for name in ("observation", "action"):
            if not isinstance(space := getattr(found, name), spaces.Space):
                raise DataError(f"{self.where}: about().{name} is {brief(space)}: expected a space of Gymnasium.")
        return found

    def env_id(self) -> str:
        """See ``Reader``; that of ``about`` if the user's reader does not say."""
        return self.reader.env_id() or self.about().env

    def rows(self) -> int:
        """See ``Reader``."""
        found: object = self.reader.rows()
        if isinstance(found, bool) or not isinstance(found, int | np.integer) or found < 0:
            raise DataError(f"{self.where}: rows() returned {brief(found)}: expected a whole number, 1 or more.")
        if found == 0:
            raise DataError(
                f"{self.where}: rows() returned 0, so nothing was found there. A reader of a folder needs the folder's "
                "path: with a glob, each match is read by a reader of its own, whose path is that match."
            )
        return int(found)

    def parts(self) -> Iterator[Rows]:
        """See ``Reader``."""
        total, limits = 0, Limits(self.where)
        strict = self.strict and self._shape is not None  # our own stores may end without is_last, docs/architecture.md
        for part in self._checked(self.reader.parts()):
            if strict:
                limits.check(part)
            total += len(part["is_first"])
            yield part
        if strict:
            limits.close()
        if total != (said := self.rows()):
            raise DataError(
                f"{self.where}: rows() returned {said:,}, but parts() yielded {total:,} rows. Both must be the number "
                "of rows of all episodes, an episode of n steps having n + 1, and parts() must begin anew on each call."
            )

    def as_recorded(self) -> Iterator[Rows]:
        """See ``Reader``. Flags that contradict each other are left to ``reverie data validate``."""
        return self._checked(self.reader.as_recorded())

    def _checked(self, parts: Iterable[Rows]) -> Iterator[Rows]:
        first = 0
        for part in parts:
            check_columns(part, f"{self.where}, part from row {first} on", self._shape)
            if len(part["is_first"]):
                yield part
            first += len(part["is_first"])

    @cached_property
    def _shape(self) -> dict[str, Space] | None:
        """The space of each column of observations and actions; None for rows as learners see them."""
        about = self.about()
        both = (about.observation, "obs"), (about.action, "action")
        return None if about.specs else {name: leaf for s, kind in both for name, leaf in columns_in(s, kind)}

    def ask(self, answer: Callable[[About], tuple[Space | None, str]]) -> None:
        """See ``Reader``."""
        self.reader.ask(answer)
        self.__dict__.pop("_shape", None)

    def files(self) -> Sequence[Path]:
        """See ``Reader``."""
        return self.reader.files()

    def disordered(self) -> np.ndarray:
        """See ``Reader``."""
        return self.reader.disordered()

    def noted(self) -> Counter[str]:
        """See ``Reader``."""
        return self.reader.noted()

    def close(self) -> None:
        """See ``Reader``; an object of the user's stays open."""
        if not self.stays_open:
            self.reader.close()


def check_columns(part: object, where: str, shape: Mapping[str, Space] | None) -> None:
    """Check that ``part`` has all columns as arrays ``[n, ...]`` of the right kind, and as many rows in each.

    ``shape``: the space of each column of observations and actions, if known.

    Raises:
        DataError: a column is missing or wrong; the message begins with ``where``.
    """
    if not isinstance(part, Mapping):
        raise DataError(
            f"{where}: parts() yielded {brief(part)}: expected a dictionary of arrays, {', '.join(('reward', *FLAGS))} "
            "and those of observations and actions."
        )
    needed = (*(shape or ()), "reward", *FLAGS)
    for name in needed:
        if name not in part:
            hint = did_you_mean(name, [str(x) for x in part if x not in needed])
            raise DataError(f"{where}: there is no column '{name}', only {', '.join(map(str, part))}.{hint}")
    check_lengths(part, where)
    check_flags(part, where)
    for name, space in (shape or {}).items():
        check_values(name, part[name], space, where)


def check_lengths(part: Mapping[str, object], where: str) -> None:
    """Check that all columns are arrays ``[n, ...]`` with the same n.

    Raises:
        DataError: one is not.
    """
    for name, values in part.items():
        if not isinstance(values, np.ndarray) or not values.ndim:
            kind = type(values).__name__
            raise DataError(f"{where}: column '{name}' is a {kind}: expected a NumPy array [n, ...], np.asarray(...).")
        first = part["is_first"]
        if isinstance(first, np.ndarray) and first.ndim and len(values) != len(first):
            raise DataError(
                f"{where}: column '{name}' has {len(values)} rows, but 'is_first' has {len(first)}. An "
                "episode of n steps has n + 1 rows in every column: the last one has the final observation, and its "
                "action is not used."
            )


def check_flags(part: Mapping[str, np.ndarray], where: str) -> None:
    """Check the types of flags and rewards.

    Raises:
        DataError: a flag is not bool ``[n]``, or rewards are not numbers ``[n]``.
    """
    for name in FLAGS:
        if part[name].dtype != np.bool_ or part[name].ndim != 1:
            raise DataError(
                f"{where}: column '{name}' has dtype {part[name].dtype} and shape {list(part[name].shape)}: expected "
                f"bool and shape [{len(part[name])}], {name}.astype(bool)."
            )
    reward = part["reward"]
    if reward.ndim != 1 or reward.dtype.kind not in "biuf":
        raise DataError(
            f"{where}: column 'reward' has dtype {reward.dtype} and shape {list(reward.shape)}: expected one number a "
            f"row, shape [{len(reward)}]."
        )


def check_values(name: str, values: np.ndarray, space: Space, where: str) -> None:
    """Check dtype and shape of a column of observations or actions; bounds are checked where they are converted.

    Raises:
        DataError: they are not those of ``space``.
    """
    if isinstance(space, spaces.Text):
        return
    if values.dtype.kind not in "biuf":
        raise DataError(
            f"{where}: column '{name}' has dtype {values.dtype}: expected numbers, as in its space {space}."
        )
    inner, declared = values.shape[1:], space.shape or ()
    alike = math.prod(inner) == math.prod(declared) if name.partition("/")[0] == "action" else inner == declared
    if not alike:
        raise DataError(
            f"{where}: column '{name}' has shape {list(values.shape)}: expected {[len(values), *declared]}, as its "
            f"space in about() is {brief(space)}."
        )


@dataclass
class Limits:
    """Checks where episodes begin and end, over parts that follow each other."""

    where: str
    total: int = 0
    """Number of rows so far."""
    ended: bool = True
    """Whether the last row of them was ``is_last``."""

    def check(self, part: Rows) -> None:
        """Check the next rows.

        Raises:
            DataError: flags contradict each other, or a first row has a reward.
        """
        first, last, terminal = (part[name] for name in FLAGS)
        before = np.concatenate([[self.ended], last[:-1]])
        if not self.total and not first[0]:
            raise DataError(f"{self.where}: row 0 begins the first episode, but its is_first is False.")
        reward = part["reward"]
        self._refuse(first & ~before, "is_first, but the row before it is not is_last", ENDS)
        self._refuse(~first & before, "not is_first, but the row before it is is_last", ENDS)
        self._refuse(terminal & ~last, "is_terminal, but not is_last", ENDS)
        self._refuse(first & (np.abs(reward) > 0), "is_first, but its reward is not 0", SHIFTED)
        self.total, self.ended = self.total + len(first), bool(last[-1])

    def _refuse(self, wrong: np.ndarray, what: str, advice: str) -> None:
        if wrong.any():
            raise DataError(
                f"{self.where}: row {self.total + int(wrong.argmax())} is {what}. {advice}; "
                "reverie.datasets.episodes.episode_rows makes the rows of an episode."
            )

    def close(self) -> None:
        """Check that the last episode has ended.

        Raises:
            DataError: it has not.
        """
        if not self.ended:
            raise DataError(
                f"{self.where}: row {self.total - 1} is the last one, but not is_last. {ENDS}; "
                "reverie.datasets.episodes.episode_rows makes the rows of an episode."
            )


def sound(episodes: Iterator[Rows], where: str) -> Iterator[Rows]:
    """Yield episodes whose flags do not contradict each other, before they are written.

    Raises:
        DataError: those of one do.
    """
    limits = Limits(where)
    for rows in episodes:
        limits.check(rows)
        yield rows
    limits.close()
