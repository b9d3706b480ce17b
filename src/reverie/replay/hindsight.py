"""Hindsight experience replay: sampled windows are relabeled with goals that their own episodes have achieved.

Source: Andrychowicz et al. 2017, Hindsight Experience Replay, arXiv 1707.01495, section 3.2.

A *run* is a maximal sequence of rows of one episode in a window; most windows are one run. All rows of a run get one
goal, the achieved goal of a later stored row of the episode, and the rewards and terminations that belong to it::

    row               r      r+1    r+2    ...   e       e: the newest stored row of the episode
    desired goal      g      g      g                    future: g is achieved in a row after r, up to e
    reward            .      f(r+1) f(r+2)               f(t): the reward of the goal achieved in row t, given g

Where goals end episodes, a relabeled episode ends at its goal: the rows behind it in the window are ``is_last`` too, so
that no transition begins there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from reverie.core.columns import as_numpy
from reverie.core.errors import ConfigError
from reverie.core.logger import logger
from reverie.core.seeding import GeneratorState
from reverie.core.specs import ACHIEVED_GOAL, DESIRED_GOAL, MASK_KEY
from reverie.core.types import Window
from reverie.replay.config import Hindsight
from reverie.replay.episodes import EpisodeBounds
from reverie.replay.storage import Storage

ACHIEVED, DESIRED = f"obs/{ACHIEVED_GOAL}", f"obs/{DESIRED_GOAL}"
"""The columns of achieved and of desired goals."""
MASK = f"obs/{MASK_KEY}"
"""The column of action masks. All actions are legal in a terminal row whose mask is unknown."""
GoalFn = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray | None]]
"""Maps achieved and desired goals ``[M, ...]`` of M rows to rewards ``[M]``, and to whether the goal terminates the
episode there, ``[M]`` bool; None: unknown."""
TOLERANCE = 1e-4
"""Relative and absolute tolerance for equal rewards: stored goals are rounded to float32."""
MAX_DIFFERENT = 0.01
"""Largest fraction of rewards that may differ: rounded goals may lie on the other side of a threshold."""


class GoalRelabeler(GeneratorState):
    """Relabels sampled windows of a storage, which has columns of achieved and desired goals."""

    def __init__(self, storage: Storage, window: Window, config: Hindsight, goal_fn: GoalFn, seed: int) -> None:
        self.storage = storage
        self.context: int = window.context
        self.config = config
        self.goal_fn = goal_fn
        self.rng: np.random.Generator = np.random.default_rng([seed, 100])  # samplers have smaller numbers
        self.episodes: EpisodeBounds = EpisodeBounds(storage)
        self.is_checked: bool = False
        self.has_terminations: bool = False
        """Whether ``goal_fn`` knows terminations, or the user knows that it does not."""

    def annotate(self, rows: dict[str, Tensor], handles: Tensor) -> None:
        """Relabel windows ``[B, T, ...]`` in place, which begin with the rows ``handles`` ``[B]``.

        ``rows`` are copies of the stored rows, and contiguous.
        """
        is_first = as_numpy(rows["is_first"])
        if not self.is_checked:
            self.check(rows, is_first)
        if not self.has_terminations:
            self.check_terminations(rows, is_first)
        window_row, stream = np.divmod(handles.numpy(), self.storage.streams)  # [B]
        begins_run = is_first.copy()  # [B, T]
        begins_run[:, 0] = True
        window, offset = np.nonzero(begins_run)  # [R]
        stream = stream[window]
        begin, end = self.episodes.find(np.maximum(window_row[window] + offset, 0), stream)
        row = window_row[window] + np.maximum(offset, self.context)  # the first row that is learned from
        run = np.flatnonzero((self.rng.random(len(row)) < self.config.share) & (row < end))  # [G]
        if not len(run):
            return
        goal_row = self.config.draw_rows(self.rng, begin[run], row[run], end[run])
        goals = self.storage.gather_column(ACHIEVED, goal_row * self.storage.streams + stream[run])
        goal_of_run = np.full(len(row), -1)
        goal_of_run[run] = np.arange(len(run))
        run_of_row = begins_run.ravel().cumsum() - 1  # [B T]
        goal_of_row = goal_of_run[run_of_row]
        ended = self.write(rows, np.flatnonzero(goal_of_row >= 0), goals, goal_of_row, is_first.ravel())  # [E]
        if (length := is_first.shape[1]) - self.context > 2:
            behind = _find_rows_behind(ended[ended % length >= self.context], run_of_row, length)
            rows["is_last"].flatten(0, 1)[torch.from_numpy(behind).to(rows["is_last"].device)] = True

    def write(
        self, rows: dict[str, Tensor], index: np.ndarray, goals: Tensor, goal_of_row: np.ndarray, is_first: np.ndarray
    ) -> np.ndarray:
        """Write ``goals`` ``[G, ...]`` to the rows ``index`` ``[M]`` of all ``[B T]``, and what follows from them.

        Return those ``[E]`` of the rows that terminate their relabeled episodes.
        """
        flat = {name: rows[name].flatten(0, 1) for name in (ACHIEVED, DESIRED, "reward", "is_last", "is_terminal")}
        assert flat["reward"].data_ptr() == rows["reward"].data_ptr(), "the rows are contiguous"

        def on_device(values: np.ndarray) -> Tensor:
            return torch.from_numpy(values).to(goals.device)

        at, desired = on_device(index), goals[on_device(goal_of_row[index])]  # [M], [M, ...]
        achieved, stored, is_terminal = (as_numpy(flat[name][at]) for name in (ACHIEVED, DESIRED, "is_terminal"))
        other_end = self.find_other_ends(achieved, stored, is_terminal)
        reward, terminal = self.goal_fn(achieved, as_numpy(desired))
        if terminal is not None and MASK in rows:
            unknown = is_terminal & ~(terminal | other_end) & as_numpy(rows[MASK].flatten(0, 1)[at]).all(1)
            if unknown.any():  # learners would bootstrap from illegal actions: these runs keep their goals
                is_known = ~np.isin(goal_of_row[index], goal_of_row[index[unknown]])
                return self.write(rows, index[is_known], goals, goal_of_row, is_first)
        flat[DESIRED][at] = desired
        no_step = is_first[index]  # no action led there
        flat["reward"][at] = on_device(np.where(no_step, 0, reward).astype(np.float32))
        if terminal is None:
            return index[:0]
        ended = (terminal | other_end) & ~no_step
        flat["is_terminal"][at] = on_device(ended)
        flat["is_last"] |= flat["is_terminal"]
        return np.asarray(index[ended])

    def find_other_ends(self, achieved: np.ndarray, desired: np.ndarray, is_terminal: np.ndarray) -> np.ndarray:
        """Return whether each of M rows terminates for another reason than its stored goal, such as a fall."""
        out = is_terminal.copy()
        if is_terminal.any() and (by_goal := self.goal_fn(achieved[out], desired[out])[1]) is not None:
            out[is_terminal] = ~by_goal
        return out

    def check_terminations(self, rows: dict[str, Tensor], is_first: np.ndarray) -> None:
        """Warn once if achieved goals terminate episodes, but ``goal_fn`` does not know it."""
        ended = as_numpy(rows["is_terminal"]) & ~is_first
        if not ended.any():
            return
        achieved, stored = (as_numpy(rows[name])[ended] for name in (ACHIEVED, "reward"))
        success, terminal = self.goal_fn(achieved, achieved)
        self.has_terminations = terminal is not None
        if terminal is None and np.isclose(success, stored, rtol=TOLERANCE, atol=TOLERANCE).any():
            self.has_terminations = True
            logger.warning(
                f"replay.hindsight = {self.config.to_text()}: episodes terminate at achieved goals, but those of "
                "relabeled goals continue, so values become too large. Give the environment a method "
                "compute_terminated(achieved_goal, desired_goal, info)"
            )

    def check(self, rows: dict[str, Tensor], is_first: np.ndarray) -> None:
        """Raise ConfigError unless ``goal_fn`` returns the stored rewards for the stored goals ``[B, T, ...]``."""
        achieved, desired, stored = (as_numpy(rows[name])[~is_first] for name in (ACHIEVED, DESIRED, "reward"))
        reward, terminal = self.goal_fn(achieved, desired)
        if (
            terminal is not None
            and (early := terminal & ~as_numpy(rows["is_terminal"])[~is_first]).mean() > MAX_DIFFERENT
        ):
            raise ConfigError(
                f"replay.hindsight = {self.config.to_text()}: compute_terminated returns True for {early.sum():,} of "
                f"{len(stored):,} rows that do not terminate. It must return what step() returns as terminated."
            )
        differs = ~np.isclose(reward, stored, rtol=TOLERANCE, atol=TOLERANCE)
        if differs.mean() > MAX_DIFFERENT:
            first = int(differs.argmax())
            name = self.config.reward or "compute_reward"
            raise ConfigError(
                f"replay.hindsight = {self.config.to_text()}: {name} returns {reward[first]:g} for a row whose reward "
                f"is {stored[first]:g}, and differs in {differs.sum():,} of {len(stored):,} rows. Rewards must depend "
                "on the goals alone, and options and wrappers must not change them."
            )
        self.is_checked = True


def _find_rows_behind(ended: np.ndarray, run_of_row: np.ndarray, length: int) -> np.ndarray:
    """Return the rows behind the rows ``ended`` ``[E]`` of the same run, in windows of ``length`` rows."""
    behind = np.minimum(ended[:, None] + np.arange(1, length), len(run_of_row) - 1)  # [E, T-1]
    return np.asarray(behind[run_of_row[behind] == run_of_row[ended][:, None]])
