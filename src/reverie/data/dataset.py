"""Recorded experience as a source of batches: the windows and samplers of the replay over rows that do not change."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from reverie.core.config import Config
from reverie.core.errors import ConfigError, DataError, brief
from reverie.core.specs import ActionSpec, ExtraPart, ObsSpec
from reverie.core.types import Window
from reverie.data.dealer import DealerConfig
from reverie.data.mapped import MappedStorage
from reverie.data.readers.base import Named, ReadOptions, Rows
from reverie.data.replay import Replay
from reverie.data.starts import EpisodeStarts
from reverie.data.storage import EXTRAS, HostStorage, Storage, columns_of

BLOCK = 1 << 16


def no_path(data: object) -> ConfigError:
    """The error for ``data`` that are no path, such as episodes in memory: how to get them onto a disk."""
    return ConfigError(
        f"data = {brief(data)} ({type(data).__name__}): expected a path, minari:NAME, or a "
        "DatasetConfig(path=...). Data in memory are written first: as Parquet, a row for each step (of pandas "
        "frame.to_parquet('steps.parquet')), as HDF5 or as a Minari dataset; docs/datasets.md has an example."
    )


@dataclass(frozen=True, kw_only=True)
class DatasetConfig(Config):
    """Recorded data to learn from."""

    path: str = ""
    """A file, folder or glob of any format that can be read, or minari:NAME. Empty: nothing recorded."""
    fraction: float = 1.0
    """Which part of each batch is recorded; the rest is lived meanwhile. 1: nothing is lived."""
    eval_env: str = "auto"
    """Where to evaluate what learned from data alone: auto for the data's own environment, an id, or none."""
    estimate_updates: int = 5000
    """Updates of each estimate of what the policy would earn (fitted Q evaluation), made where there is no environment
    to evaluate in; 0: none is made."""
    storage: Literal["ram", "mmap"] = "ram"
    """Where the rows are kept: in memory, or in files mapped into it, for more rows than there is memory."""
    columns: dict[str, Named] = field(default_factory=dict)
    """Tables: which column is what, '{obs: state, action: action, reward: reward, terminal: done}'; columns of numbers
    that are one vector are a list, '{obs: [x, y], ...}'."""
    time_limit: int | None = None
    """Steps after which episodes end, for files that do not say where their time ran out."""
    partial: bool = False
    """Use what can be read of files that were cut off in the middle."""

    def __post_init__(self) -> None:
        if not 0.0 < self.fraction <= 1.0:
            raise ConfigError(f"data.fraction = {self.fraction}: expected a part above 0 and up to 1.")
        _ = self.reading  # which looks at its own
        if self.estimate_updates < 0:
            raise ConfigError(f"data.estimate_updates = {self.estimate_updates}: expected 0 or more.")

    @property
    def reading(self) -> ReadOptions:
        """What concerns the reader."""
        return ReadOptions(columns=dict(self.columns), time_limit=self.time_limit, partial=self.partial)

    @property
    def alone(self) -> bool:
        """Whether all that is learned is learned from recorded data."""
        return bool(self.path) and self.fraction == 1.0

    def build(
        self,
        rows: RecordedRows,
        *,
        window: Window,
        seed: int,
        dealer: DealerConfig | None = None,
        extra_spec: Mapping[str, ExtraPart] | None = None,
        scratch: Path | None = None,
        parts: Iterator[Rows] | None = None,
    ) -> Dataset:
        """A dataset of ``rows``, all of them read.

        Args:
            rows: recorded rows with their specs.
            window: what a batch is made of.
            seed: of the samplers.
            dealer: how windows are chosen; uniformly unless given. There is no online queue: nothing is new.
            extra_spec: columns that an algorithm keeps beside the rows; they begin as zeros.
            scratch: where mapped files go.
            parts: ``rows.parts()`` by way of something that counts them.

        Raises:
            DataError: there are no rows, more than were announced, or none make a window.
            ConfigError: the memory or the disk cannot be had, or ``dealer`` does not fit the windows.
        """
        dealer = dealer or DealerConfig()
        dealer.check(window)
        columns = columns_of(rows.obs_spec, rows.action_spec, extra_spec or {})
        total = rows.rows()
        if total < 1:
            raise DataError("the dataset holds no rows.")
        capacity = total + window.free  # or the windows of the first rows would count as evicted (data/starts.py)
        storage: Storage
        if self.storage == "mmap":
            storage = MappedStorage(columns, 1, capacity, scratch or Path(tempfile.gettempdir()))
        else:
            storage = HostStorage(columns, 1, capacity)
        chosen = dealer.merge({"online": False})
        settings = DealerConfig(**{f.name: getattr(chosen, f.name) for f in fields(DealerConfig)})
        dataset = Dataset(storage, window, seed=seed, config=settings)
        dataset.fill(parts if parts is not None else rows.parts(), total)
        return dataset


class RecordedRows(Protocol):
    """Where rows come from, and what they are."""

    obs_spec: ObsSpec
    action_spec: ActionSpec

    def rows(self) -> int:
        """How many there are at most."""
        ...

    def parts(self) -> Iterator[Rows]:
        """All of them in one stream, ``[n, ...]`` by column, the first ``is_first`` and the last ``is_last``."""
        ...


class Dataset(Replay):
    """All rows of a dataset in one stream, one episode behind the other, dealt out in windows.

    Windows reach from one episode into the next only where the algorithm says that it does not mind
    (``Window.crosses_episodes``). What is dealt out follows from the rows, the seed and the settings alone.
    """

    fingerprint: str = ""
    """What the rows are: another one for other rows, whatever file they come from."""

    def fill(self, parts: Iterator[Rows], most: int) -> None:
        """Take in all rows, of which ``most`` were announced.

        Raises:
            DataError: there are more than that, none, or none that make a window.
        """
        sums: dict[str, int] = {}
        if isinstance(self.dealer.starts, EpisodeStarts):
            self.dealer.starts.queue.reserve(most)
        for part in parts:
            if self.count + len(part["is_first"]) > most:
                raise DataError(f"there are more than the {most:,} rows that the dataset announces: it is damaged.")
            done = np.clip(part["action"], -1, 1)  # as environments did: stores once held what policies had drawn
            self.extend({name: values[None] for name, values in (part | {"action": done}).items()})
            for name, values in part.items():
                sums[name] = crc32c(values, sums.get(name, 0))
            del part, values, done  # or the next one is made beside it
        self.fingerprint = "-".join([str(self.count), *(f"{name}:{sums[name]:08x}" for name in sorted(sums))])
        if not self.count:
            raise DataError("the dataset holds no rows.")
        if not len(self):
            raise DataError(
                f"no episode of the dataset has the {self.window.rows} rows of a window: the algorithm needs longer "
                "ones, or a shorter window (algo.batch_length)."
            )

    @property
    def rows_held(self) -> int:
        """How many rows there are."""
        return self.count - self.oldest

    def column(self, name: str) -> np.ndarray:
        """One column of all rows, ``[n, ...]``: the memory itself, not to be written to."""
        assert isinstance(self.storage, HostStorage)
        view: np.ndarray = self.storage.columns[name][0, : self.count].view()
        view.flags.writeable = False
        return view

    def write_column(self, name: str, start: int, values: np.ndarray) -> None:
        """Write ``values`` ``[n, ...]`` into a column from row ``start`` on: what was found out about the rows."""
        assert isinstance(self.storage, HostStorage)
        self.storage.columns[name][0, start : start + len(values)] = values

    def statistics(self) -> Statistics:
        """What normalisation needs to know."""
        vectors = {
            name.removeprefix("obs/"): self.column(name)
            for name, spec in self.storage.specs.items()
            if name.startswith("obs/") and spec.dtype == "float32" and not name.startswith(EXTRAS)
        }
        moments = {key: moments_of(values) for key, values in vectors.items()}
        first, reward = self.column("is_first"), self.column("reward").astype(np.float64)
        scores = np.add.reduceat(reward, np.flatnonzero(first)) if first.any() else np.empty(0)
        return Statistics(
            mean={key: mean for key, (mean, _) in moments.items()},
            std={key: std for key, (_, std) in moments.items()},
            reward=(float(reward[~first].min(initial=np.inf)), float(reward[~first].max(initial=-np.inf))),
            scores=(float(scores.min()), float(scores.mean()), float(scores.max())),
            episodes=len(scores),
            steps=int(len(first) - len(scores)),
        )


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Of a dataset. Means and deviations are of every row, the last ones of episodes included."""

    mean: Mapping[str, np.ndarray]
    """Of each observation of float32 numbers, ``[*shape]`` float32."""
    std: Mapping[str, np.ndarray]
    """The standard deviation, of a population, ``[*shape]`` float32; 0 where nothing ever changes."""
    reward: tuple[float, float]
    """The smallest and the largest."""
    scores: tuple[float, float, float]
    """Sums of the rewards of an episode: the smallest, their mean, the largest."""
    episodes: int
    steps: int
    """Actions."""


def moments_of(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of ``[n, *shape]``, in float64 and a block at a time (Chan et al., 1979, eq. 2.1)."""
    mean = np.zeros(values.shape[1:])
    squares = np.zeros(values.shape[1:])
    count = 0
    for start in range(0, len(values), BLOCK):
        block = values[start : start + BLOCK].astype(np.float64)
        own = block.mean(axis=0)
        block -= own
        delta, total = own - mean, count + len(block)
        squares += np.einsum("i...,i...->...", block, block) + delta**2 * (count * len(block) / total)
        mean += delta * (len(block) / total)
        count = total
    return mean.astype(np.float32), np.sqrt(squares / max(1, count)).astype(np.float32)


def crc32c(values: np.ndarray, before: int) -> int:
    """The checksum of what ``before`` is the checksum of, followed by ``values``."""
    import google_crc32c

    quick = google_crc32c.implementation == "c"  # the other one goes through bytes, and takes numbers for those
    found: int = google_crc32c.extend(before, np.ascontiguousarray(values) if quick else values.tobytes())
    return found
