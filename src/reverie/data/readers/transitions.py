"""Transitions, as most files hold them, to rows.

A transition is an observation, the action taken then, and what came of it: a reward, an end, perhaps the observation
after it. A row is what was seen, with the reward that came with it. So an episode of n transitions is n + 1 rows, where
the last one shows what the last action led to::

    transition    o0 a0 r1    o1 a1 r2    o2 a2 r3 end
    row           o0 a0 0     o1 a1 r1    o2 a2 r2         o3 0 r3 last

Where ``o3`` was not recorded there are two cases. After a terminal end nothing is ever asked of it, since the future is
worth nothing: ``o2`` is shown once more. After an end by time its value is needed and cannot be made up: the last
transition is left out, and ``o2`` becomes the last row.

Where ``o2`` is recorded as what ``a1`` led to, it must be what the next transition begins with. Where it is not (a file
whose transitions were shuffled, or of which some were left out) the episode is cut, as by time, and ``o2`` shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from reverie.core.errors import DataError
from reverie.data.readers.base import PART_BYTES, Rows

REPEATED = "the observation after a terminal end was not recorded: the one before is shown again"
DROPPED = "the observation after the end of an episode was not recorded: its last step is left out"
OPEN = "an episode has no end: it is taken as cut off by time"
TORN = "a step does not begin with what the one before led to: the episode is cut there, as by time"
BLOCK = 1 << 14
"""Transitions that are looked at together."""
COMPARED = 1 << 10
"""Those whose observations are held against each other together: they stay in a processor's cache."""


class Column(Protocol):
    """One thing of every transition, somewhere."""

    @property
    def shape(self) -> tuple[int, ...]:
        """``[n, ...]``."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the values."""
        ...

    def read(self, start: int, stop: int) -> np.ndarray:
        """Those of transitions ``start`` to ``stop - 1``, perhaps the file itself: not to be written to."""
        ...

    def at(self, index: np.ndarray) -> np.ndarray:
        """Those of some transitions, in ascending order, copied."""
        ...


@dataclass(frozen=True)
class ArrayColumn:
    """A column that lies in memory."""

    values: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        """``[n, ...]``."""
        return self.values.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the values."""
        return self.values.dtype

    def read(self, start: int, stop: int) -> np.ndarray:
        """See ``Column``."""
        return self.values[start:stop]

    def at(self, index: np.ndarray) -> np.ndarray:
        """See ``Column``."""
        found: np.ndarray = self.values[index]
        return found


@dataclass(frozen=True, kw_only=True)
class Transitions:
    """Columns of n transitions in the order in which they were lived, episode after episode."""

    obs: Mapping[str, Column]
    next_obs: Mapping[str, Column]
    """The same keys, or none if what an action led to was not recorded."""
    action: Mapping[str, Column]
    reward: Column
    end: np.ndarray  # [n] bool, an episode ends with this transition, for whatever cause
    terminal: np.ndarray  # [n] bool, and the future is worth nothing
    note: Callable[[str, int], None]
    where: str
    """The file, for sentences."""
    ends_told: bool = True
    """Whether ``end`` has ends by time. If not, they show where ``next_obs`` is not what follows."""

    def __post_init__(self) -> None:
        self._check()
        if len(self.end):
            self.note(OPEN, int(not self.end[-1]))
        if self.ends_told:
            self.note(TORN, int(np.count_nonzero(self.ends) - np.count_nonzero(self._told())))
        lost = np.count_nonzero(self.ends & ~self.terminal), np.count_nonzero(self.terminal)
        if not self.next_obs:
            self.note(DROPPED, int(lost[0]))
            self.note(REPEATED, int(lost[1]))

    def _check(self) -> None:
        """The columns can be what they are said to be.

        Raises:
            DataError: they cannot; names them.
        """
        if int(np.prod(self.reward.shape[1:], dtype=np.int64)) != 1:
            raise DataError(f"{self.where}: its rewards are {list(self.reward.shape)}: expected one of each step.")
        for name, column in self.next_obs.items():
            if name not in self.obs or column.shape[1:] != self.obs[name].shape[1:]:
                before = list(self.obs[name].shape[1:]) if name in self.obs else "nothing"
                raise DataError(
                    f"{self.where}: what was seen after an action is {list(column.shape[1:])} in {name}, and what was "
                    f"seen before it is {before}: expected the same."
                )

    def _told(self) -> np.ndarray:
        """``[n]`` bool: an end is said, or there is no next transition."""
        out: np.ndarray = self.end | self.terminal
        out[-1:] = True
        return out

    @cached_property
    def ends(self) -> np.ndarray:
        """``[n]`` bool: an end is said, or the next transition does not begin with what this one led to."""
        out = self._told()
        for name, column in self.next_obs.items():
            mark_jumps(self.obs[name], column, out)
        return out

    @property
    def rows(self) -> int:
        """How many rows they make."""
        return len(self.end) + int(np.count_nonzero(self.ends if self.next_obs else self.terminal))

    def disordered(self) -> np.ndarray:
        """Numbers of episodes that had to be cut, since what follows is not what they led to."""
        ends = self.ends
        episode = np.cumsum(ends) - ends
        found: np.ndarray = episode[ends & ~self._told()] if self.ends_told else np.empty(0, np.int64)
        return found

    def parts(self) -> Iterator[Rows]:
        """The rows, a part at a time."""
        columns = [*self.obs.values(), *self.action.values()]
        size = sum(int(np.prod(c.shape[1:], dtype=np.int64)) * c.dtype.itemsize for c in columns)
        block = block_of(size)
        ends, carried = self.ends, Carried()
        for start in range(0, len(ends), block):
            yield self._part(start, min(start + block, len(ends)), ends, carried)

    def _part(self, start: int, stop: int, ends: np.ndarray, carried: Carried) -> Rows:
        place = Places.of(ends[start:stop], self.terminal[start:stop], bool(self.next_obs))
        rows = {name: column.read(start, stop).take(place.source, axis=0) for name, column in self.obs.items()}
        for name, column in self.next_obs.items():
            if len(place.shown):
                rows[name][place.added] = column.at(start + place.shown)
        for name, column in self.action.items():
            rows[name] = column.read(start, stop).take(place.source, axis=0)
            rows[name][place.last] = 0
        rows |= place.flags(carried.inside)
        rows["reward"] = place.rewards(self.reward.read(start, stop), carried.reward)
        carried.inside = not ends[stop - 1]
        carried.reward = float(self.reward.read(stop - 1, stop)[0]) if carried.inside else 0.0
        return rows


@dataclass
class Carried:
    """What one part hands on to the next."""

    inside: bool = False
    """An episode goes on."""
    reward: float = 0.0
    """The reward that came with its next row."""


@dataclass(frozen=True)
class Places:
    """Where m rows come from, given the ends of n transitions."""

    source: np.ndarray
    """``[m]``, the transition of each row; of an added one the transition that led to it."""
    added: np.ndarray
    """Rows that show what the last transition of an episode led to."""
    shown: np.ndarray
    """Those transitions."""
    last: np.ndarray
    """Rows that end an episode, in order."""
    terminal: np.ndarray
    """Which of these are terminal."""

    @classmethod
    def of(cls, ends: np.ndarray, terminal: np.ndarray, has_next: bool) -> Places:
        """The places of transitions with these flags ``[n]``."""
        adds = ends if has_next else terminal
        shown = np.flatnonzero(adds)
        added = shown + 1 + np.arange(len(shown))
        source = np.arange(len(ends) + len(shown))
        if len(shown):
            extra = np.zeros(len(source), np.int64)
            extra[added] = 1
            source -= np.cumsum(extra)
        at = np.flatnonzero(ends)  # a transition's own row lies as many places further on as were added before it
        last = at + np.searchsorted(shown, at) + adds[at]
        return cls(source, added, shown, last, terminal[at])

    def flags(self, inside: bool) -> Rows:
        """``is_first``, ``is_last``, ``is_terminal``; the first row goes on with an episode if ``inside``."""
        first, last, terminal = (np.zeros(len(self.source), bool) for _ in range(3))
        first[:1] = not inside
        last[self.last] = True
        terminal[self.last] = self.terminal
        first[1:] = last[:-1]
        return {"is_first": first, "is_last": last, "is_terminal": terminal}

    def rewards(self, rewards: np.ndarray, carried: float) -> np.ndarray:
        """Each row's reward: that of the transition before it in its episode."""
        flat = rewards.reshape(len(rewards), -1)[:, 0]
        out = np.empty(len(self.source), np.float32)
        out[:1] = carried
        out[1:] = flat.take(self.source[:-1])
        after = self.last + 1
        out[after[after < len(out)]] = 0.0
        return out


def block_of(size: int) -> int:
    """How many transitions of ``size`` bytes make a part."""
    return max(256, PART_BYTES // max(1, size))


def mark_jumps(obs: Column, next_obs: Column, ends: np.ndarray) -> None:
    """Mark in ``ends`` ``[n]`` after which transitions the next one does not begin with what this one led to."""
    total = obs.shape[0]
    for begin in range(0, total - 1, BLOCK):
        end = min(begin + BLOCK, total - 1)
        led_to, follows = next_obs.read(begin, end), obs.read(begin + 1, end + 1)
        for start in range(begin, end, COMPARED):
            stop = min(start + COMPARED, end)
            one, two = led_to[start - begin : stop - begin], follows[start - begin : stop - begin]
            differs = one != two
            differs[ends[start:stop]] = False
            if differs.any():
                differs &= (one == one) & (two == two)  # what is no number is a matter of its own
                ends[start:stop] |= differs.reshape(stop - start, -1).any(axis=1)


def torn(episode: np.ndarray, end: np.ndarray) -> tuple[int, int]:
    """The first episode ``[n]`` that comes again though it was left before an ``end`` ``[n]`` of its own.

    The transitions behind which it was left and with which it comes again; -1 and -1 if there is none.
    """
    cut = episode[1:] != episode[:-1]
    left = np.flatnonzero(cut & ~end[:-1])
    numbers, first = np.unique(episode[left], return_index=True)
    after = dict(zip(numbers.tolist(), left[first].tolist(), strict=True))
    for again in (np.flatnonzero(cut) + 1).tolist():
        found = after.get(episode[again].item(), len(episode))
        if found < again:
            return found, again
    return -1, -1
