"""A dataset as a source of batches: the windows and samplers of the replay, over rows that do not change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reverie.core.errors import DataError, RunError
from reverie.core.protocols import Stateful
from reverie.core.rows import Rows, stepless_error
from reverie.core.types import State
from reverie.replay.buffer import ReplayBuffer
from reverie.replay.storage import HostStorage


class OfflineReplay(ReplayBuffer):
    """All rows of a dataset in one stream, episode after episode. Batches depend only on rows, seed and settings."""

    fingerprint: str = ""  # checksums of the rows: equal for equal rows from any file
    has_rewards: bool = True
    """Whether rewards were recorded. If not, the reward of every row is 0."""

    def fill(self, parts: Iterator[Rows], num_rows: int, label: str = "the dataset") -> None:
        """Store the ``num_rows`` announced rows and set the fingerprint. Actions are clipped to [-1, 1].

        Raise DataError about ``label`` if there are more rows or no windows, or most episodes have no step.
        """
        sums: dict[str, int] = {}
        self.batch_sampler.windows.reserve(num_rows)
        for part in parts:
            if self.count + len(part["is_first"]) > num_rows:
                raise DataError(f"{label} is damaged: it contains more than the {num_rows:,} rows that it declares.")
            done = np.clip(part["action"], -1, 1)  # as environments did: older stores have actions before clipping
            self.extend({name: values[None] for name, values in (part | {"action": done}).items()})
            for name, values in part.items():
                sums[name] = crc32c(values, sums.get(name, 0))
            del part, values, done  # free them before the next part is made
        self.fingerprint = "-".join([str(self.count), *(f"{name}:{sums[name]:08x}" for name in sorted(sums))])
        first = self.column("is_first").copy()  # in one piece
        if problem := stepless_error(self.count, int(np.count_nonzero(first & np.append(first[1:], True)))):
            raise DataError(f"{label}: {problem}.")
        if not len(self):
            raise DataError(
                f"{label}: there is no window of {self.window.rows} rows. Use longer episodes, or shorter "
                "windows (algo.batch_length)."
            )

    def column(self, name: str) -> np.ndarray:
        """Return one column of all rows, ``[n, ...]``, as a read-only view."""
        assert isinstance(self.storage, HostStorage)
        view: np.ndarray = self.storage.columns[name][0, : self.count].view()
        view.flags.writeable = False
        return view

    def write_column(self, name: str, start: int, values: np.ndarray) -> None:
        """Write ``values`` ``[n, ...]``, computed from the rows, into a column from row ``start`` on."""
        assert isinstance(self.storage, HostStorage)
        self.storage.columns[name][0, start : start + len(values)] = values

    def statistics(self) -> Statistics:
        """Return statistics of rewards and of the episodes that have a step. Reads no observations."""
        first, reward = self.column("is_first"), self.column("reward").astype(np.float64)
        starts = np.flatnonzero(first)
        scores = np.add.reduceat(reward, starts)[np.diff(starts, append=len(first)) > 1]
        earned = reward[~first]
        paid = earned[earned != 0]
        return Statistics(
            reward=(float(earned.min(initial=np.inf)), float(earned.max(initial=-np.inf))),
            reward_rms=float(np.sqrt(np.square(paid).mean())) if len(paid) else 0.0,
            scores=(float(scores.min()), float(scores.mean()), float(scores.max())),
            episodes=len(scores),
            terminal=int(np.count_nonzero(self.column("is_terminal"))),
            steps=int(len(first) - len(starts)),
        )


class OfflineReplayPart:
    """A dataset as one part of a checkpoint: its fingerprint and the state of sampling, not the rows."""

    prunable = True

    def __init__(self, dataset: OfflineReplay, path: str, estimator: Stateful | None = None) -> None:
        """``path``: the data's path in the settings. ``estimator``: its state is saved as well."""
        self.dataset = dataset
        self.path = path
        self.estimator = estimator
        self.saved: State = {}

    def state_dict(self) -> State:
        """Return the fingerprint of the rows, and the state of the samplers."""
        estimator = {} if self.estimator is None else {"estimator": self.estimator.state_dict()}
        return {"fingerprint": self.dataset.fingerprint, "replay": dict(self.dataset.state_dict()), **estimator}

    def load_state_dict(self, state: State) -> None:
        """Restore the samplers, on the same rows."""
        if state["fingerprint"] != self.dataset.fingerprint:
            saved, current = (str(s).partition("-")[0] for s in (state["fingerprint"], self.dataset.fingerprint))
            raise RunError(
                f"data.path = '{self.path}': the dataset differs from the one the run was trained on ({saved} rows "
                f"saved, {current} rows found, different contents). Pass the same data, or choose another run folder."
            )
        self.saved = state
        self.dataset.load_state_dict(state["replay"])
        if self.estimator is not None and "estimator" in state:
            self.estimator.load_state_dict(state["estimator"])

    def save_files(self, folder: Path) -> None:
        """Write the latents."""
        self.dataset.save_extras(folder)

    def load_files(self, folder: Path) -> None:
        """Read the latents. Latents that were not saved begin as zeros."""
        if any(folder.glob("*")):
            self.dataset.load_extras(folder)
        self.dataset.load_state_dict(self.saved["replay"])


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Statistics of the rewards and episodes of a dataset."""

    reward: tuple[float, float]  # smallest and largest reward
    reward_rms: float
    """Root mean square of the rewards that are not 0, so that it does not depend on their sparsity; 0 if all are 0."""
    scores: tuple[float, float, float]  # smallest, mean and largest undiscounted return of an episode
    episodes: int  # number of episodes with at least one step
    terminal: int  # number of episodes that end terminally; the others are truncated
    steps: int  # number of actions


def crc32c(values: np.ndarray, before: int) -> int:
    """Return the CRC-32C of data with the checksum ``before``, followed by ``values``."""
    import google_crc32c

    quick = google_crc32c.implementation == "c"  # the Python implementation iterates, so it needs bytes
    return int(google_crc32c.extend(before, np.ascontiguousarray(values) if quick else values.tobytes()))
