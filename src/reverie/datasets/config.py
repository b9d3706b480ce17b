"""Recorded data as a source of batches: the windows and samplers of the replay, over fixed rows."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from reverie.core.config import Config
from reverie.core.errors import ConfigError, DataError, RunError, brief
from reverie.core.protocols import Stateful
from reverie.core.specs import ActionSpec, ExtraPart, ObsSpec
from reverie.core.types import State, Window
from reverie.datasets.episodes import WRONG_ENDS, mostly_stepless
from reverie.datasets.named import settings_of
from reverie.datasets.reader import Named, Reader, ReadOptions, Rows
from reverie.replay.batch_sampler import BatchSamplerConfig
from reverie.replay.mapped import MappedStorage
from reverie.replay.replay import Replay
from reverie.replay.storage import HostStorage, Storage, columns_of
from reverie.replay.window_index import EpisodeStarts

# Type checkers accept a reader as well. The command line takes its name.
if TYPE_CHECKING:
    _ReaderField = str | Reader
else:
    _ReaderField = str


def no_path(data: object) -> ConfigError:
    """Return the error for ``data`` that are not a path, such as episodes in memory; it says how to write them."""
    return ConfigError(
        f"data = {brief(data)} ({type(data).__name__}): expected a path, minari:NAME, a DatasetConfig(path=...), or an "
        "object of your own Reader class. Write data in memory to a file first: Parquet with a row for each step (in "
        "pandas, frame.to_parquet('steps.parquet')), HDF5 or a Minari dataset; see the example in docs/datasets.md."
    )


@dataclass(frozen=True, kw_only=True)
class DatasetConfig(Config):
    """Recorded data to learn from."""

    path: str = ""
    """File, folder or glob in any supported format, or minari:NAME. Empty: no recorded data."""
    reader: _ReaderField = ""
    """Class that reads a format of your own, module:Class or module:Class(setting=value); empty: the format is
    detected. In Python also an object."""
    estimate_updates: int = 5000
    """Updates of each fitted Q evaluation, which estimates the policy's return if there is no environment to evaluate
    in; 0: no estimates."""
    storage: Literal["ram", "mmap"] = "ram"
    """Storage of the rows: ram, or mmap (memory-mapped files) for more rows than fit into memory."""
    columns: dict[str, Named] = field(default_factory=dict)
    """Tables: the column of each quantity, '{obs: state, action: action, reward: reward, terminal: done}'; several
    number columns that form one vector are a list, '{obs: [x, y], ...}'."""
    time_limit: int | None = None
    """Steps after which episodes are truncated, for D4RL files and tables that do not mark truncations."""
    partial: bool = False
    """RL Unplugged: use the readable part of shards that are cut off."""

    def __post_init__(self) -> None:
        if isinstance(self.reader, Reader) and not self.path:
            object.__setattr__(self, "path", str(self.reader.path))
        _ = self.reading  # it checks its own settings
        if self.estimate_updates < 0:
            raise ConfigError(f"data.estimate_updates = {self.estimate_updates}: expected 0 or more.")

    @property
    def reading(self) -> ReadOptions:
        """The settings of the reader."""
        return ReadOptions(
            reader=self.reader, columns=dict(self.columns), time_limit=self.time_limit, partial=self.partial
        )

    def build(
        self,
        rows: RecordedRows,
        *,
        window: Window,
        seed: int,
        batch_sampler: BatchSamplerConfig | None = None,
        extra_spec: Mapping[str, ExtraPart] | None = None,
        scratch: Path | None = None,
        parts: Iterator[Rows] | None = None,
    ) -> Dataset:
        """Read all ``rows`` and return them as a dataset.

        Args:
            rows: recorded rows with their specs.
            window: the windows of a batch.
            seed: seed of the samplers.
            batch_sampler: how windows are chosen; uniformly by default. Its online queue is unused, as no rows are new.
            extra_spec: columns that an algorithm stores with the rows; they begin as blank.
            scratch: folder of memory-mapped files.
            parts: ``rows.parts()``, wrapped to report progress.

        Raises:
            DataError: there are no rows, more than announced, or no window fits.
            ConfigError: memory or disk space is missing, or ``batch_sampler`` does not fit the windows.
        """
        batch_sampler = batch_sampler or BatchSamplerConfig()
        batch_sampler.check(window)
        columns = columns_of(rows.obs_spec, rows.action_spec, extra_spec or {})
        total = rows.rows()
        if total < 1:
            raise DataError("the dataset contains no rows.")
        capacity = total + window.free  # or the windows of the first rows would count as evicted (``window_index.py``)
        storage: Storage
        if self.storage == "mmap":
            storage = MappedStorage(columns, 1, capacity, scratch or Path(tempfile.gettempdir()))
        else:
            storage = HostStorage(columns, 1, capacity)
        chosen = batch_sampler.merge({"online": False})
        settings = BatchSamplerConfig(**{f.name: getattr(chosen, f.name) for f in fields(BatchSamplerConfig)})
        dataset = Dataset(storage, window, seed=seed, config=settings)
        dataset.fill(parts if parts is not None else rows.parts(), total)
        return dataset


def dataset_config(data: object, storage: Literal["ram", "mmap"] = "ram") -> DatasetConfig:
    """Return the settings of ``data``: a path, a reader, or settings already, which keep their own ``storage``.

    Raises:
        ConfigError: ``data`` is something else.
    """
    if isinstance(data, DatasetConfig):
        return data
    if isinstance(data, Reader):
        return DatasetConfig(storage=storage).merge({k.removeprefix("data."): v for k, v in settings_of(data).items()})
    if not isinstance(data, str | Path):
        raise no_path(data)
    return DatasetConfig(path=str(data), storage=storage)


class RecordedRows(Protocol):
    """A source of recorded rows, with their specs."""

    obs_spec: ObsSpec
    action_spec: ActionSpec

    def rows(self) -> int:
        """Return the largest possible number of rows."""
        ...

    def parts(self) -> Iterator[Rows]:
        """Yield all rows in parts of one stream, ``[n, ...]`` by column; it begins ``is_first``, ends ``is_last``."""
        ...


class Dataset(Replay):
    """All rows of a dataset in one stream, episode after episode, sampled in windows.

    Windows continue from one episode into the next only if the algorithm allows it (``Window.crosses_episodes``).
    Batches depend on the rows, the seed and the settings alone.
    """

    fingerprint: str = ""
    """Checksums of the rows, equal for equal rows whatever file they come from."""

    def fill(self, parts: Iterator[Rows], most: int) -> None:
        """Store all rows, of which ``most`` were announced, and set the fingerprint. Actions are clipped to [-1, 1].

        Raises:
            DataError: there are more than announced, none, none with an action, or no window fits.
        """
        sums: dict[str, int] = {}
        if isinstance(self.batch_sampler.starts, EpisodeStarts):
            self.batch_sampler.starts.queue.reserve(most)
        for part in parts:
            if self.count + len(part["is_first"]) > most:
                raise DataError(f"the dataset is damaged: it contains more than the {most:,} rows that it declares.")
            done = np.clip(part["action"], -1, 1)  # as environments did: older stores hold actions before clipping
            self.extend({name: values[None] for name, values in (part | {"action": done}).items()})
            for name, values in part.items():
                sums[name] = crc32c(values, sums.get(name, 0))
            del part, values, done  # free them before the next part is made
        self.fingerprint = "-".join([str(self.count), *(f"{name}:{sums[name]:08x}" for name in sorted(sums))])
        if not self.count:
            raise DataError("the dataset contains no rows.")
        if self.column("is_first").all():
            raise DataError(
                "the dataset contains no step: every episode is a single row, an observation without an action after "
                f"it. {WRONG_ENDS}."
            )
        if not len(self):
            where = "the dataset does not have" if self.window.crosses_episodes else "no episode of the dataset has"
            raise DataError(
                f"{where} the {self.window.rows} rows of a window. Use longer episodes, or shorter windows "
                "(algo.batch_length)."
            )

    def check_steps(self) -> None:
        """Check that most rows belong to an episode with a step.

        Raises:
            DataError: they do not: the ends of episodes were probably misread.
        """
        first = self.column("is_first")
        stepless = int(np.count_nonzero(first & np.append(first[1:], True)))
        if wrong := mostly_stepless(self.count, stepless):
            raise DataError(f"{wrong}.")

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
            reward_size=float(np.sqrt(np.square(paid).mean())) if len(paid) else 0.0,
            scores=(float(scores.min()), float(scores.mean()), float(scores.max())),
            episodes=len(scores),
            terminal=int(np.count_nonzero(self.column("is_terminal"))),
            steps=int(len(first) - len(starts)),
        )


class DatasetPart:
    """Recorded rows as one part of a checkpoint: their fingerprint and the state of sampling, not the rows."""

    spare = True

    def __init__(self, dataset: Dataset, path: str, estimator: Stateful | None = None) -> None:
        """``path``: the data's path in the settings. ``estimator``: its state is saved as well."""
        self.dataset, self.path, self.estimator = dataset, path, estimator
        self.saved: State = {}

    def state_dict(self) -> State:
        """Return the fingerprint of the rows, and the state of the samplers."""
        more = {} if self.estimator is None else {"estimator": self.estimator.state_dict()}
        return {"fingerprint": self.dataset.fingerprint, "replay": dict(self.dataset.state_dict()), **more}

    def load_state_dict(self, state: State) -> None:
        """Restore the samplers, on the same rows.

        Raises:
            RunError: these are other rows.
        """
        if state["fingerprint"] != self.dataset.fingerprint:
            before, now = (str(s).partition("-")[0] for s in (state["fingerprint"], self.dataset.fingerprint))
            raise RunError(
                f"data.path = '{self.path}': these are not the data that the run was trained on ({before} rows then, "
                f"{now} rows now, with different contents). Pass the same data, or choose another run folder."
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

    reward: tuple[float, float]
    """Smallest and largest reward."""
    reward_size: float
    """Root mean square of the rewards that are not 0, so that it is the same for sparse rewards; 0 if all are 0."""
    scores: tuple[float, float, float]
    """Smallest, mean and largest undiscounted return of an episode."""
    episodes: int
    """Number of episodes with at least one step."""
    terminal: int
    """Number of episodes that end terminally; the others are truncated."""
    steps: int
    """Number of actions."""


def crc32c(values: np.ndarray, before: int) -> int:
    """Return the CRC-32C of data with the checksum ``before``, followed by ``values``."""
    import google_crc32c

    quick = google_crc32c.implementation == "c"  # the Python implementation iterates, so it needs bytes
    found: int = google_crc32c.extend(before, np.ascontiguousarray(values) if quick else values.tobytes())
    return found
