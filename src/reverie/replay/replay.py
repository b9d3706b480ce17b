"""The replay buffer: stores rows as they are collected, and samples windows of them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from reverie.core.errors import ConfigError, RunError
from reverie.core.protocols import Hindsight
from reverie.core.specs import EXTRAS, ActionSpec, ExtraPart, ObsSpec
from reverie.core.types import Batch, State, Step, Update, Window
from reverie.core.words import plural
from reverie.replay.batch_sampler import BatchSampler, BatchSamplerConfig
from reverie.replay.device import storage_on
from reverie.replay.extras import load_extras, save_extras
from reverie.replay.feedback import Feedback
from reverie.replay.mapped import MappedStorage
from reverie.replay.rings import Rows, as_numpy
from reverie.replay.sizes import parse_size
from reverie.replay.storage import HostStorage, Storage, bytes_of, columns_of
from reverie.store.read import Chunk


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(BatchSamplerConfig):
    """Settings of the replay buffer."""

    capacity: int | str = 1_000_000
    """Capacity in rows of all streams together, such as 1000000 or 5e6, or in bytes, such as 20GB or 512MiB. When it is
    full, the oldest rows are evicted."""
    storage: Literal["ram", "mmap"] = "ram"
    """Storage of the rows with device cpu: ram, or mmap (memory-mapped files) for more rows than fit into memory."""
    store: str = "auto"
    """Permanent store of all rows: auto (the run's folder), a path, a URL such as s3://bucket/name, or none."""
    keep: Literal["all", "replay"] = "all"
    """Rows that the store keeps: all, or replay for those that the replay of a checkpoint may need."""
    buffer: int | str = "1GB"
    """Bytes that may wait for a store that is slow or cannot be reached; when they are full, collecting waits."""
    init: tuple[str, ...] = ()
    """Run folders or stores of earlier runs, with whose rows a new run fills its replay."""
    device: str = "cpu"
    """Device that holds the rows: cpu, or cuda (or cuda:<number>) if all of them fit on the GPU of the learner."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_size(self.capacity, "replay.capacity")
        if not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise ConfigError(f"replay.device = '{self.device}': expected cpu, cuda or cuda:<number>.")
        if self.device != "cpu" and self.storage != "ram":
            raise ConfigError(
                f"replay.device = '{self.device}', replay.storage = '{self.storage}': rows on a GPU cannot be in "
                "memory-mapped files. Use replay.device = 'cpu' or replay.storage = 'ram'."
            )

    def rows(self, row_bytes: float) -> int:
        """Return the capacity in rows of ``row_bytes`` bytes, of all streams together."""
        return parse_size(self.capacity, "replay.capacity").rows(row_bytes)

    def build(
        self,
        *,
        obs_spec: ObsSpec,
        action_spec: ActionSpec,
        extra_spec: Mapping[str, ExtraPart],
        num_envs: int,
        window: Window,
        seed: int,
        most: int | None = None,
        scratch: Path | None = None,
    ) -> Replay:
        """Return a replay of ``num_envs`` streams that samples batches of ``window``.

        Memory is allocated for ``most`` rows of all streams together, if that is less than the capacity. Memory-mapped
        files are in the folder ``scratch``, made with the first row, or in the folder for temporary files.

        Raises:
            ConfigError: a stream cannot hold one window, the settings do not fit the algorithm's windows, there is too
                little memory or disk space, or the device does not exist.
        """
        columns = columns_of(obs_spec, action_spec, extra_spec)
        rows = self.rows(bytes_of(columns))
        self.check(window)
        self._check_window(rows, num_envs, window)
        lived = (rows if most is None else min(rows, most)) // num_envs
        per_stream = max(window.rows, lived + window.free)  # as many windows as without free rows in front
        if self.storage == "mmap":
            folder = scratch or Path(tempfile.gettempdir())
            return Replay(MappedStorage(columns, num_envs, per_stream, folder), window, seed=seed, config=self)
        return Replay(storage_on(self.device, columns, num_envs, per_stream), window, seed=seed, config=self)

    def _check_window(self, rows: int, num_envs: int, window: Window) -> None:
        if rows // num_envs < window.rows - window.free:
            amount = "" if isinstance(self.capacity, int) else f" ({rows} rows)"
            raise ConfigError(
                f"replay.capacity = {self.capacity}{amount}: each of {num_envs} environments gets {rows // num_envs} "
                f"rows, but a window has {window.rows} ({window.context} context + {window.length}). Expected at least "
                f"{(window.rows - window.free) * num_envs} rows."
            )


class RowStore(Protocol):
    """Stores rows permanently."""

    def add(self, rows: Rows) -> None:
        """Add one row of each stream, ``[N, ...]`` by column, without extras. The tensors belong to the caller."""
        ...


class Replay:
    """Rows of N streams in memory, sampled in windows. A ``Source`` and a ``RowSink``.

    Its behaviour depends only on the rows it holds, their numbers, and its ``state_dict``. A replay that is filled by
    ``begin_at``, ``extend`` and ``load_extras`` and loads that state behaves the same.
    """

    def __init__(self, storage: Storage, window: Window, *, seed: int, config: BatchSamplerConfig) -> None:
        """Use an empty ``storage`` whose columns are named as by ``storage.columns_of``."""
        self.window, self.storage = window, storage
        self.batch_sampler = BatchSampler(storage, window, seed, config)
        self.store: RowStore | None = None
        self.hindsight: Hindsight | None = None
        self.stale = False  # rows were added that hindsight has not seen
        self.pending: list[Feedback] = []
        self.obs_names = {name: name.removeprefix("obs/") for name in storage.specs if name.startswith("obs/")}
        self.extra_names = {name: name.removeprefix(EXTRAS) for name in storage.specs if name.startswith(EXTRAS)}

    def __len__(self) -> int:
        """Return the number of windows that can be sampled, which DreamerV3's authors count before learning starts."""
        return len(self.batch_sampler.starts)

    @property
    def count(self) -> int:
        """Number of rows that each stream has had so far, which is the number of its next row."""
        return self.storage.count

    @property
    def oldest(self) -> int:
        """Number of the oldest row still held; ``count`` if there is none."""
        return self.storage.oldest

    @property
    def nbytes(self) -> int:
        """Bytes of the replay when it is full."""
        return self.storage.nbytes

    # ------------------------------------------------------------------ rows

    def attach(self, store: RowStore | None) -> None:
        """Pass every row that is added from now on to ``store`` as well, or to none if None."""
        self.store = store

    def add(self, step: Step, action: Tensor, extras: Mapping[str, Tensor]) -> None:
        """Add one row to each of N streams: what was seen, the action ``[N, A]`` then taken, the policy's extras.

        Raises:
            DataError: a column has a wrong shape; on the first call only: one is missing or unknown.
            ConfigError: on the first call only: files cannot be mapped.
        """
        rows = {f"obs/{key}": value for key, value in step.obs.items()}
        rows["action"], rows["reward"] = action, step.reward
        rows["is_first"], rows["is_last"], rows["is_terminal"] = step.is_first, step.is_last, step.is_terminal
        if self.store is not None:  # first, as it can fail: then nothing is added
            self.store.add(rows)
        self.storage.add(rows | {f"{EXTRAS}{key}": value for key, value in extras.items()} if extras else rows)
        self.batch_sampler.add_one(step.is_first.tolist(), step.is_last.tolist())
        if self.hindsight is not None and not self.stale:
            self.hindsight.added(self.storage, step)

    def begin_at(self, first: int) -> None:
        """Drop all rows. The next row gets the number ``first``, as if those before it had been evicted.

        Random generators keep their states.
        """
        self.storage.begin_at(first)
        self.stale = True
        self.pending.clear()
        self.batch_sampler.clear()

    def extend(self, rows: Mapping[str, np.ndarray]) -> None:
        """Add n rows to each stream, ``[N, n, ...]`` by column. Absent extras are blank; the store gets nothing.

        The online queue ignores them. If they do not fit, only the newest of them are kept, and no earlier rows.

        Raises:
            DataError: a column is missing, unknown or of a wrong shape.
            ConfigError: files cannot be mapped.
        """
        kept = self.storage.capacity
        more = next((values.shape[1] for values in rows.values()), 0)
        if more > kept:
            self.begin_at(self.count + more - kept)
            rows = {name: values[:, -kept:] for name, values in rows.items()}
        self.storage.extend(rows)
        self.stale = True
        self._register(rows)

    def _register(self, rows: Mapping[str, np.ndarray]) -> None:
        """Tell the samplers of ``rows`` already stored, ``[N, n, ...]`` by column."""
        self.batch_sampler.add(rows["is_first"].astype(bool), rows["is_last"].astype(bool), lived=False)

    def room(self, rows: int) -> dict[str, np.ndarray] | None:
        """Return views ``[N, rows, ...]`` of the memory for the next rows, without extras, to fill before ``refill``.

        None if that memory is not contiguous, or not on the host.
        """
        room = self.storage.room(rows)
        return room and {name: column for name, column in room.items() if not name.startswith(EXTRAS)}

    def refill(self, chunks: Iterable[Chunk]) -> bool:
        """Add chunks of rows that a store reads; ``placed`` ones were written to the views of ``room`` already.

        Return False at the first damaged chunk: the replay must then be emptied by ``begin_at``.
        """
        for chunk in chunks:
            if chunk.damaged:
                return False
            if chunk.placed:
                self.storage.make_room(chunk.stop - chunk.start)
                self.stale = True
                self._register(chunk.rows)
            else:
                self.extend(chunk.rows)
        return True

    def read(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Return copies of rows ``start`` to ``stop`` of every column, ``[N, stop - start, ...]``.

        Raises:
            DataError: some of them are not held.
        """
        return self.storage.read(start, stop)

    def save_extras(self, folder: Path) -> list[Path]:
        """Write the extras of all rows held, one file ``[N, rows, ...]`` for each column, and return the files."""
        return save_extras(self.storage, folder)

    def load_extras(self, folder: Path, first: int | None = None) -> None:
        """Load what ``save_extras`` wrote. The files hold the rows from ``first`` on, by default the oldest one held.

        If they were written with other columns, it warns and leaves the columns blank.

        Raises:
            DataError: a file is missing, damaged or of other rows.
        """
        load_extras(self.storage, folder, first)

    # ------------------------------------------------------------------ windows

    def sample(self) -> Batch:
        """Return B windows of T rows, copied, on the storage's device; ``index`` is on the CPU.

        Raises:
            RunError: there is no complete window yet.
        """
        if len(self) == 0:
            raise self._too_few()
        if self.batch_sampler.in_sequence:
            self.flush()  # the next windows start from the latents written back to the last ones
        if self.stale and self.hindsight is not None:
            self.hindsight.filled(self.storage)
        self.stale = False
        handles, weights = self.batch_sampler.draw()
        rows = self.storage.gather(handles, self.window.rows)
        device = rows["reward"].device
        if (resets := self.batch_sampler.resets) is not None:
            rows["is_first"][:, 0] |= torch.from_numpy(resets).to(device)
        return Batch(
            obs={key: rows[name] for name, key in self.obs_names.items()},
            action=rows["action"],
            reward=rows["reward"],
            is_first=rows["is_first"],
            is_last=rows["is_last"],
            is_terminal=rows["is_terminal"],
            weight=torch.ones(len(handles), device=device)
            if weights is None
            else weights.to(device, non_blocking=True),
            index=handles,
            extras={key: rows[name] for name, key in self.extra_names.items()},
        )

    def feedback(self, index: Tensor, update: Update) -> None:
        """Write ``update.extras`` ``[B, T', ...]`` to the last T' rows of the windows ``index`` ``[B]``.

        ``update.priority`` ``[B]`` becomes the priority of those windows, if windows are drawn by priority. Rows
        evicted meanwhile are skipped. Where windows overlap, the later one in the batch counts.

        If the update ran on a GPU and rows are in host memory, the feedback is written at the next call. Otherwise the
        host would wait for the update instead of sampling the next batch. That batch therefore always sees latents that
        are one update older, whatever the timing. Only ``sequence`` sampling waits, because there the next batch starts
        from these latents.
        """
        self.flush()
        priority = (
            None if self.batch_sampler.priorities is None or update.priority is None else update.priority.detach()
        )
        if not update.extras and priority is None:
            return
        extras = {key: value.detach() for key, value in update.extras.items()}
        feedback = Feedback(as_numpy(index), extras, priority)
        if isinstance(self.storage, HostStorage) and feedback.gpu is not None:
            self.pending.append(feedback.sent())
        else:
            self._write(feedback)

    def flush(self) -> None:
        """Write all pending feedback."""
        for feedback in self.pending:
            feedback.wait()
            self._write(feedback)
        self.pending.clear()

    def _write(self, feedback: Feedback) -> None:
        for key, value in feedback.extras.items():
            self.storage.write(f"{EXTRAS}{key}", feedback.handles, self.window.rows - value.shape[1], value)
        if feedback.priority is not None and self.batch_sampler.priorities is not None:
            self.batch_sampler.priorities.feedback(feedback.handles, as_numpy(feedback.priority))

    # ------------------------------------------------------------------ state

    def state_dict(self) -> State:
        """Return everything that does not follow from the rows: generators, queues, priorities, cursors, feedback.

        Pending feedback is saved as pending, or a run would depend on when it is saved.
        """
        return {**self.batch_sampler.state_dict(), "pending": [feedback.state_dict() for feedback in self.pending]}

    def load_state_dict(self, state: State) -> None:
        """Restore a saved state if the replay holds the same rows already, else only its generators."""
        same, known = self.batch_sampler.load_state_dict(state), set(self.extra_names.values())
        pending = [Feedback.from_state(entry) for entry in state["pending"]] if same else []
        self.pending = [entry for entry in pending if entry.extras.keys() <= known]  # other versions have others

    def _too_few(self) -> RunError:
        rows, needed = self.count - self.oldest, self.window.rows - self.window.free
        if rows < needed:
            return RunError(
                f"the replay has {plural(rows, 'row')} of each stream; a window needs {needed}: collect more first."
            )
        return RunError(
            f"no episode has the {needed} rows of a window yet, and windows may not cross the end of an episode: "
            "collect longer episodes or choose shorter windows (algo.batch_length)."
        )
