"""Convert transitions, the layout of most files, to rows.

A transition is an observation, the action taken there, and its outcome: a reward, whether the episode ends, perhaps the
next observation. A row is an observation, with the reward that came with it. So an episode of n transitions has n + 1
rows; the last row contains the final observation::

    transition    o0 a0 r1    o1 a1 r2    o2 a2 r3 end
    row           o0 a0 0     o1 a1 r1    o2 a2 r2         o3 0 r3 last

If ``o3`` was not recorded there are two cases. After a terminal end its value is never used, as it is 0 by definition:
``o2`` is repeated. After a truncation its value is needed and unknown: the last transition is omitted, and ``o2``
becomes the last row.

If the next observation of ``a1`` was recorded, it must equal the observation of the next transition. If it does not (a
file whose transitions were shuffled or filtered), the episode is truncated there, with the recorded next observation
as its last row. Floats are compared as float32, the dtype of stored rows.
"""

from __future__ import annotations

import contextlib
import math
from abc import abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError
from reverie.core.rows import Rows
from reverie.datasets.inferred_spaces import measured_action, nested_space, seen_space, text_space
from reverie.datasets.options import PROPENSITY
from reverie.datasets.reader import PART_BYTES, TASK, TRUNCATED_COLUMN, DatasetInfo, Reader

REPEATED = "the observation after a terminal step was not recorded: the previous one is repeated"
DROPPED = "the observation after the last step of a truncated episode was not recorded: this step is omitted"
UNMARKED = "the files do not mark which episodes terminated: all are treated as truncated"
OPEN = "an episode has no end: it is treated as truncated"
UNOBSERVED_TASKS = "the episodes have different tasks, which are not observed"
STEPLESS = "an episode without steps is omitted"
EARLY_END_REMARK = "terminated or truncated is set before the last step of an episode: ignored"
NEXT_OBS_MISMATCH = "a step does not start from the previous step's next observation: the episode is truncated there"
ROUNDING = 1e-5
"""By which sums of float32 probabilities can exceed 1."""
BLOCK = 1 << 14
"""Number of transitions read together."""
MIN_PART_TRANSITIONS = 256
"""Minimum number of transitions in a part."""
MAX_BLOCK_BYTES = 64_000_000
"""Maximum bytes of large images in a part, and of observations that are compared with the next ones."""
COMPARED = 1 << 10
"""Number of transitions whose observations are compared together; they fit into a processor's cache."""


@dataclass(frozen=True)
class LazyColumn:
    """One field of all n transitions, independent of its storage."""

    shape: tuple[int, ...]  # [n, ...]
    dtype: np.dtype[Any]
    read: Callable[[int, int], np.ndarray]
    """Returns the values of transitions ``start`` to ``stop - 1``, read-only: they can be a view of the file itself."""


def reorder(column: LazyColumn, order: np.ndarray) -> LazyColumn:
    """Return the transitions of a column in another order."""

    def read(start: int, stop: int) -> np.ndarray:
        some = order[start:stop]
        runs = [run for run in np.split(some, np.flatnonzero(np.diff(some) != 1) + 1) if len(run)]
        parts = [column.read(int(run[0]), int(run[-1]) + 1) for run in runs]  # neighbors in the file together
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    return LazyColumn((len(order), *column.shape[1:]), column.dtype, read)


def without_axis(column: LazyColumn) -> LazyColumn:
    """Return vectors of one element ``[n, 1]`` as numbers ``[n]``; other columns as they are."""
    if column.shape[1:] != (1,):
        return column
    return LazyColumn(column.shape[:1], column.dtype, lambda start, stop: column.read(start, stop)[:, 0])


def chain(lengths: Sequence[int], sample: np.ndarray, read_piece: Callable[[int, int, int], np.ndarray]) -> LazyColumn:
    """Return a column that is stored in pieces, such as one for each episode.

    ``lengths``: number of transitions in each piece. ``sample``: some of the values, for shape and dtype.
    ``read_piece(k, start, stop)`` returns transitions of piece number k.
    """
    edges = [0, *np.cumsum(lengths).tolist()]

    def read(start: int, stop: int) -> np.ndarray:
        pieces = range(bisect_right(edges, start) - 1, bisect_left(edges, stop))
        spans = [(k, max(0, start - edges[k]), min(stop, edges[k + 1]) - edges[k]) for k in pieces if lengths[k]]
        parts = [read_piece(*span) for span in spans]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    return LazyColumn((edges[-1], *sample.shape[1:]), sample.dtype, read)


def chain_cached(lengths: Sequence[int], sample: np.ndarray, read_piece: Callable[[int], np.ndarray]) -> LazyColumn:
    """Return ``chain`` of pieces that are read as a whole; the latest one stays in memory."""
    piece = lru_cache(1)(read_piece)
    return chain(lengths, sample, lambda k, start, stop: piece(k)[start:stop])


@dataclass(frozen=True, kw_only=True)
class Transitions:
    """Columns of n transitions in the order in which they were collected, episode after episode."""

    obs: Mapping[str, LazyColumn]
    next_obs: Mapping[str, LazyColumn]
    """The same keys as ``obs``; empty if next observations were not recorded."""
    action: Mapping[str, LazyColumn]
    reward: LazyColumn | None
    """None if rewards were not recorded: the reward of every row is 0."""
    end: np.ndarray  # [n] bool, an episode ends with this transition, terminated or truncated
    terminal: np.ndarray  # [n] bool, it is terminated: the value of the next observation is 0
    reader: Reader
    """Collects remarks, and is named in messages."""
    propensity: LazyColumn | None = None
    """See ``reader.PROPENSITY``."""
    truncated: np.ndarray | None = None  # [n] bool, it is truncated, possibly at the same step; None if unknown
    has_truncations: bool = True
    """True if ``end`` includes truncations. Otherwise these are only found where ``next_obs`` differs from the next
    observation."""
    has_final_steps: bool = False
    """True if the last step of an episode contains the final observation, and an action that was not taken."""

    def __post_init__(self) -> None:
        path = self.reader.path
        if self.reward is not None and math.prod(self.reward.shape[1:]) != 1:
            raise DataError(f"{path}: rewards have shape {list(self.reward.shape)}: expected one for each step.")
        if self.propensity is not None:
            chance = self.propensity.read(0, self.propensity.shape[0])
            if (wrong := ~((chance > 0) & (chance <= 1 + ROUNDING))).any():
                step = int(wrong.argmax())
                expected = "the probability of the recorded action, above 0 and at most 1"
                raise DataError(f"{path}: the propensity of step {step:,} is {chance[step]}: expected {expected}.")
        shapes, next_shapes = ({name: c.shape[1:] for name, c in part.items()} for part in (self.obs, self.next_obs))
        if next_shapes and next_shapes != shapes:
            expected = f"expected {shapes}, like the observations"
            raise DataError(f"{path}: next observations have shapes {next_shapes}: {expected}.")
        self.reader.add_remark(OPEN, int(len(self.end) and not self.end[-1]))
        torn = np.count_nonzero(self.ends) - np.count_nonzero(self._declared_ends)  # reads all observations, once
        self.reader.add_remark(NEXT_OBS_MISMATCH, int(torn) if self.has_truncations else 0)
        if not self.next_obs:
            self.reader.add_remark(REPEATED, int(np.count_nonzero(self._adds)))
            dropped = 0 if self.has_final_steps else np.count_nonzero(self.ends & ~self.terminal)
            self.reader.add_remark(DROPPED, int(dropped))

    @cached_property
    def _declared_ends(self) -> np.ndarray:
        """Where an end is declared or no transition follows, bool ``[n]``."""
        out: np.ndarray = self.end | self.terminal
        out[-1:] = True
        return out

    @cached_property
    def ends(self) -> np.ndarray:
        """Where an end is declared, or the next transition does not start from this next observation, bool ``[n]``."""
        out = self._declared_ends.copy()
        for name, column in self.next_obs.items():
            _mark_obs_jumps(self.obs[name], column, out)
        return out

    @property
    def _adds(self) -> np.ndarray:
        """Where a row with the final observation of an episode is added, bool ``[n]``."""
        return self.ends if self.next_obs else self.terminal & (not self.has_final_steps)

    @property
    def rows(self) -> int:
        """Number of rows that ``parts`` will yield."""
        return len(self.end) + int(np.count_nonzero(self._adds))

    def cut_episodes(self) -> np.ndarray:
        """Return the numbers of episodes split because the next transition starts from another observation."""
        episode = np.cumsum(self.ends) - self.ends
        return np.asarray(episode[self.ends & ~self._declared_ends] if self.has_truncations else np.empty(0), np.int64)

    def parts(self, with_truncated: bool = False) -> Iterator[Rows]:
        """Yield the rows, about ``PART_BYTES`` at a time; ``with_truncated``: with ``TRUNCATED_COLUMN``, if known."""
        columns = [*self.obs.values(), *self.action.values()]
        size = sum(math.prod(c.shape[1:]) * c.dtype.itemsize for c in columns)
        fewest = min(MIN_PART_TRANSITIONS, MAX_BLOCK_BYTES // max(1, size))
        block = max(1, fewest, PART_BYTES // max(1, size))
        for start in range(0, len(self.ends), block):
            rows = self._part(start, stop := min(start + block, len(self.ends)))
            if with_truncated and self.truncated is not None:
                rows[TRUNCATED_COLUMN] = rows["is_terminal"].copy()
                rows[TRUNCATED_COLUMN][rows["is_last"]] &= self.truncated[start:stop][self.ends[start:stop]]
            yield rows

    def _part(self, start: int, stop: int) -> Rows:
        """Return the rows of transitions ``start`` to ``stop - 1``, including final observations."""
        ends, adds = self.ends[start:stop], self._adds[start:stop]
        # the transition whose observation or outcome a row contains
        source = np.repeat(np.arange(start, stop), 1 + adds)
        newest = np.cumsum(1 + adds) - 1  # the last row of each transition
        rows = {name: column.read(start, stop).take(source - start, axis=0) for name, column in self.obs.items()}
        for name, column in self.next_obs.items():
            if adds.any():
                rows[name][newest[adds]] = column.read(start, stop)[adds]
        for name, column in self.action.items():
            rows[name] = column.read(start, stop).take(source - start, axis=0)
            rows[name][newest[ends]] = 0
        if self.propensity is not None:
            chance = self.propensity.read(start, stop).reshape(stop - start).take(source - start)
            rows[PROPENSITY] = np.minimum(chance, 1)
            rows[PROPENSITY][newest[ends]] = 1
        first, last, terminal = (np.zeros(len(source), bool) for _ in range(3))
        last[newest[ends]] = True
        terminal[newest[ends]] = self.terminal[start:stop][ends]
        first[0] = not start or self.ends[start - 1]
        first[1:] = last[:-1]
        before = max(0, start - 1)  # the transition before the first row
        recorded = np.zeros(stop - before) if self.reward is None else self.reward.read(before, stop)
        earned = recorded.reshape(stop - before, -1)[:, 0]
        reward = earned.take(np.append(before, source[:-1]) - before).astype(np.float32)
        reward[first] = 0.0
        return rows | {"is_first": first, "is_last": last, "is_terminal": terminal, "reward": reward}


class TransitionsReader(Reader):
    """A dataset stored as transitions, in a ``file`` that is open inside its context."""

    file: ClassVar[Any] = contextlib.nullcontext()
    episode_tasks: Sequence[str] = ()
    """The task of each episode that has a step, "" if it is unknown; empty if the files declare none."""
    all_tasks: Collection[str] = ()
    """The tasks of all datasets that are joined with this one."""

    def tasks(self) -> Collection[str]:
        return {task for task in self.episode_tasks if task}

    def assume_tasks(self, tasks: Collection[str]) -> None:
        self.all_tasks = sorted(tasks)

    def task_column(self, end: np.ndarray) -> dict[str, LazyColumn]:
        """Return the observation ``task``, if there are several; ``end``, bool ``[n]``, marks last steps."""
        if len(self.all_tasks or self.tasks()) < 2 or not self.episode_tasks:
            return {}
        texts, episode = np.array(self.episode_tasks, object), np.cumsum(end) - end
        return {f"obs/{TASK}": LazyColumn(end.shape, texts.dtype, lambda start, stop: texts[episode[start:stop]])}

    def supports_option(self, option: str) -> bool:
        return option == "classes"

    @property
    @abstractmethod
    def transitions(self) -> Transitions:
        """The columns of all transitions."""

    def infer_info(self, *, scaled: bool = False, classes: bool = True, **declared: object) -> DatasetInfo:
        """Infer the description of the dataset from its columns; ``declared`` fields take precedence.

        ``scaled`` and ``classes``: see ``reader.measured_action``.
        """
        transitions = self.transitions

        def blocks(column: LazyColumn) -> Iterator[np.ndarray]:
            return (column.read(i, min(i + BLOCK, column.shape[0])) for i in range(0, column.shape[0], BLOCK))

        fields: dict[str, Any] = {"has_rewards": transitions.reward is not None, **declared}
        fields["has_propensity"] = transitions.propensity is not None
        tasks = self.all_tasks or self.tasks()
        arrays = {name: (column.shape[1:], column.dtype) for name, column in transitions.obs.items()}
        observes_tasks = any(dtype.kind == "O" for _, dtype in arrays.values())
        self.add_remark(UNOBSERVED_TASKS, int(len(tasks) > 1 and not observes_tasks))
        if "observation" not in declared:
            fields |= {"observation": seen_space(arrays, self.options, self.env_spaces, self.path, tasks)}
            fields |= {"inferred": not self.options.classes}
        elif isinstance(space := declared["observation"], spaces.Dict) and observes_tasks and TASK not in space.spaces:
            fields |= {"observation": spaces.Dict({**space.spaces, TASK: text_space(tasks)})}
        if "action" in declared:
            return DatasetInfo(**fields)
        actions = {
            name: measured_action(self, partial(blocks, column), scaled=scaled, classes=classes)
            for name, column in transitions.action.items()
        }
        fields["action"] = nested_space({name: action.space for name, action in actions.items()}, "action")
        measured, numbered = (any(values) for values in zip(*(action[1:] for action in actions.values()), strict=True))
        return DatasetInfo(**{"has_measured_bounds": measured, "numbered": numbered} | fields)

    def cut_episodes(self) -> np.ndarray:
        return self.transitions.cut_episodes()

    def rows(self) -> int:
        return self.transitions.rows

    def parts(self) -> Iterator[Rows]:
        with self.file:
            yield from self.transitions.parts()

    def as_recorded(self) -> Iterator[Rows]:
        with self.file:
            yield from self.transitions.parts(with_truncated=True)

    def close(self) -> None:
        self.file.__exit__(None, None, None)


def time_limit_truncations(terminal: np.ndarray, limit: int) -> np.ndarray:
    """Return where episodes are truncated if each has at most ``limit`` steps, bool ``[n]``."""
    out = np.zeros_like(terminal)
    start = 0
    for end in [*(np.flatnonzero(terminal) + 1).tolist(), len(terminal)]:
        out[start + limit - 1 : end : limit] = True
        start = end
    return np.asarray(out & ~terminal)


def _mark_obs_jumps(obs: LazyColumn, next_obs: LazyColumn, ends: np.ndarray) -> None:
    """Set ``ends`` ``[n]`` to True where the next transition does not begin with this one's next observation."""
    total, size = obs.shape[0], math.prod(obs.shape[1:]) * obs.dtype.itemsize
    block = max(1, min(BLOCK, MAX_BLOCK_BYTES // max(1, size)))
    for begin in range(0, total - 1, block):
        end = min(begin + block, total - 1)
        led_to, follows = next_obs.read(begin, end), obs.read(begin + 1, end + 1)
        for start in range(begin, end, COMPARED):
            stop = min(start + COMPARED, end)
            a, b = (_to_float32(values[start - begin : stop - begin]) for values in (led_to, follows))
            differs = a != b
            differs[ends[start:stop]] = False
            if differs.any():
                differs &= (a == a) & (b == b)  # NaN is reported elsewhere
                ends[start:stop] |= differs.reshape(stop - start, -1).any(axis=1)


def _to_float32(values: np.ndarray) -> np.ndarray:
    """Return floats as float32, the dtype of stored rows: 0.1 + 0.2 and 0.3 are the same observation."""
    if values.dtype.kind != "f" or values.dtype == np.float32:
        return values
    with np.errstate(over="ignore"):
        return values.astype(np.float32)
