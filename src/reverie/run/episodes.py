"""Finished and running episodes of a run, and a collector as the loop sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from reverie.core.protocols import Env
from reverie.core.specs import PLAYER_KEY, SUCCESS_RATE, mover_sign
from reverie.core.types import State, Step, count_set

TERMINATED = "terminated"
"""Column of ``Episodes.info`` that is no metric: 1 if a terminal state ended the episode."""


@dataclass(frozen=True, eq=False)
class Episodes:
    """E finished episodes as columns ``[E]`` of float64, without an object for each: hundreds can end in one turn."""

    score: np.ndarray
    """Sums of their rewards."""
    length: np.ndarray
    """Decisions."""
    count: np.ndarray
    """Number of episodes whose means these are: of collectors on a device, those of a whole rollout."""
    longest: np.ndarray
    """Length of the longest of them."""
    info: Mapping[str, np.ndarray]
    """Their success and ``env.log_info`` values; NaN: an episode has none of this name."""

    def __len__(self) -> int:
        return int(self.count.sum())

    def means(self) -> dict[str, float]:
        """Return as metrics the mean score and length, and of each value in ``info`` over the episodes that have it."""
        both = {"episode/score": self.score, "episode/length": self.length}
        means = {name: float(np.average(column, weights=self.count)) for name, column in both.items()}
        info = {name: column for name, column in self.info.items() if name != TERMINATED}
        return means | {f"episode/{name}": x for name, x in means_of_columns(info, self.count).items()}

    def rows(self) -> list[dict[str, float]]:
        """Return an entry of episodes.jsonl for each episode; for several episodes, their means and their number."""
        info = {"success" if name == SUCCESS_RATE else name: column for name, column in self.info.items()}
        columns = {"return": self.score, "length": self.length, **info, "episodes": self.count}
        entries = [dict(zip(columns, row, strict=True)) for row in np.stack([*columns.values()], 1).tolist()]
        if (self.count != 1).any():
            return entries
        return [{name: x for name, x in entry.items() if x == x and name != "episodes"} for entry in entries]


def join_episodes(parts: Sequence[Episodes]) -> Episodes:
    """Return the episodes of all ``parts``, in their order."""
    columns = {name: [getattr(part, name) for part in parts] for name in ("score", "length", "count", "longest")}
    names = dict.fromkeys(name for part in parts for name in part.info)
    info = {name: [_info_column(part, name) for part in parts] for name in names}
    return Episodes(
        **{name: np.concatenate([np.zeros(0), *column]) for name, column in columns.items()},
        info={name: np.concatenate(column) for name, column in info.items()},
    )


def _info_column(part: Episodes, name: str) -> np.ndarray:
    return part.info[name] if name in part.info else np.full(len(part.score), np.nan)


def info_columns(infos: Sequence[Mapping[str, float]]) -> dict[str, np.ndarray]:
    """Return the values of each name ``[E]``, NaN where one of E ``infos`` has none."""
    names = dict.fromkeys(name for info in infos for name in info)
    return {name: np.array([info.get(name, np.nan) for info in infos], np.float64) for name in names}


def means_of_columns(columns: Mapping[str, np.ndarray], counts: np.ndarray) -> dict[str, float]:
    """Return the mean of each column ``[E]`` over the entries that are not NaN, each of which stands for ``counts``."""
    has = {name: ~np.isnan(column) for name, column in sorted(columns.items())}
    return {name: float(np.average(columns[name][rows], weights=counts[rows]))
            for name, rows in has.items() if rows.any()}  # fmt: skip


def read_exact_rewards(env: Env, step: Step) -> np.ndarray:
    """Return the rewards of the current rows ``step``, float64 ``[N]``; exact if the environment provides them so."""
    exact = step.reward if env.exact_rewards is None else env.exact_rewards
    return exact.numpy(force=True).astype(np.float64) if isinstance(exact, Tensor) else exact


NOBODY = np.zeros(0, int)
"""Numbers of no environments."""


class EpisodeCounter:
    """Sums the rewards and decisions of N running episodes."""

    def __init__(self, num_envs: int, two_players: bool = False) -> None:
        """``two_players``: whether the rows are those of a game, see ``core/specs.py: has_players``."""
        self._two_players = two_players
        self.totals: np.ndarray = np.zeros((2, num_envs))
        """Scores and lengths of the running episodes, ``[2, N]`` float64."""
        self._gains: np.ndarray = np.ones((2, num_envs))  # of the newest rows

    def add(self, step: Step, rewards: np.ndarray) -> np.ndarray:
        """Count one row of each environment; return the numbers of those whose episodes end with it.

        Episodes of a single row, which an environment yields while it is down, have no step and do not count.
        ``rewards``: ``exact_rewards`` of the rows. With two players, the score is the first player's.
        """
        if self._two_players:
            rewards = rewards * mover_sign(step.obs[PLAYER_KEY].numpy(force=True))
        self._gains[0] = rewards
        self.totals += self._gains
        if count_set(step.is_first):
            self.totals[:, step.is_first.numpy(force=True)] = 0.0
        return self.find(step.is_last.numpy(force=True)) if count_set(step.is_last) else NOBODY

    def find(self, chosen: np.ndarray, steps: float = 1) -> np.ndarray:
        """Return the numbers of the environments ``chosen`` ``[N]`` whose episodes have at least this many steps."""
        return np.flatnonzero(chosen & (self.totals[1] >= steps))


class CollectorProtocol(Protocol):
    """A collector as the loop sees it: it collects rows in this process, or receives them from other processes."""

    unlogged_episodes: list[Episodes]
    """Finished episodes that are not logged yet. The caller that logs them clears the list; checkpoints save it."""

    seconds: dict[str, float]
    """Metrics: the wall-clock seconds since the last log entry, by task."""

    @property
    def restarts(self) -> int:
        """Number of restarts of failed environments in this run, including earlier processes."""

    def collect(self) -> int:
        """Add rows to the replay buffer; return the env steps taken, one for each row that is not ``is_last``."""

    def pop_episodes(self, *, at_the_end: bool = False) -> list[Episodes]:
        """Return the episodes that ended since the last call. ``at_the_end``: no more rows will be collected."""

    def pop_late_episodes(self) -> list[Episodes]:
        """Count the rows that wait for it on a device; return the episodes that ended there, or [] without any."""

    def pop_action_rates(self) -> dict[str, float]:
        """Return how often filters and people replaced the policy's actions, as metrics; {} if nobody did."""

    def state_dict(self) -> State:
        """Return what a checkpoint holds."""

    def load_state_dict(self, state: State) -> None:
        """Restore the state that ``state_dict`` returned."""

    def close(self) -> None:
        """Close environments and processes. Can be called twice."""
