"""The replay buffer: stores rows as they are collected, and samples windows of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import numpy as np
import torch
from torch import Tensor

from reverie.core.columns import as_numpy, copy_in, load_numbers
from reverie.core.errors import RunError
from reverie.core.protocols import RowAnnotator
from reverie.core.specs import EXTRAS, IS_INTERVENTION, LATE_COLUMNS, VERSION_COLUMN
from reverie.core.types import Batch, SharedBatch, State, Step, Update, Window, count_set, no_flags
from reverie.replay.batch_sampler import BatchSampler
from reverie.replay.config import BatchSamplerConfig
from reverie.replay.goals import GOALS, GoalSampler
from reverie.replay.hindsight import GoalRelabeler
from reverie.replay.sources import Feedback
from reverie.replay.storage import HostStorage, Storage
from reverie.replay.tagged import TaggedWindows
from reverie.store.read import Chunk
from reverie.store.store import ReplayStore

COPY_BYTES = 2**26
"""Approximate bytes of an extra column that are copied at once."""


class ReplayBuffer:
    """Rows of N streams in memory, sampled in windows. A ``BatchSource`` and a ``RowSink``.

    Its behavior depends only on the stored rows, their numbers, and its ``state_dict``. A buffer that is filled by
    ``restart_at``, ``extend`` and ``load_extras`` and loads that state behaves the same.
    """

    def __init__(
        self, storage: Storage, window: Window, *, seed: int, config: BatchSamplerConfig, online: bool = True
    ) -> None:
        """Use an empty ``storage`` whose columns are named as by ``row_columns``."""
        self.window = window
        self.storage = storage
        self.batch_sampler: BatchSampler = BatchSampler(storage, window, seed, config, online)
        self.store: ReplayStore | None = None
        self.store_turns: int = 1  # rows of each stream that the store gets at once: more if they are on a GPU
        self.stored: int = 0  # number of the first row that waits for others
        self.annotator: RowAnnotator | None = None
        self.goals: GoalRelabeler | GoalSampler | None = None
        self.tagged: TaggedWindows | None = None
        self.stale: bool = False  # rows were added that the annotator has not seen
        self.pending: list[Feedback] = []
        self.shares_batch: bool = False
        """Whether every batch is the same :class:`SharedBatch`: set by a caller that uses each before the next."""
        self._shared: tuple[Batch, dict[str, Tensor]] | None = None  # that batch, and all its columns
        self.ended: Tensor = torch.ones(storage.streams, dtype=torch.bool)  # where no episode is unfinished
        names = list(storage.specs)
        self.obs_names: dict[str, str] = {name: name[len("obs/") :] for name in names if name.startswith("obs/")}
        self.extra_names: dict[str, str] = {name: name[len(EXTRAS) :] for name in names if name.startswith(EXTRAS)}
        self.extra_names |= {name: name for name in names if name == IS_INTERVENTION}

    def __len__(self) -> int:
        """Return the number of windows that can be sampled."""
        return len(self.batch_sampler.windows)

    @property
    def count(self) -> int:
        """Number of rows that were added to each stream so far, which is the number of its next row."""
        return self.storage.count

    @property
    def oldest(self) -> int:
        """Number of the oldest stored row; ``count`` if there is none."""
        return self.storage.oldest

    @property
    def oldest_needed(self) -> int:
        """Number of the oldest row that can still be sampled."""
        return self.oldest

    @property
    def nbytes(self) -> int:
        """Bytes of the replay when it is full."""
        return self.storage.nbytes

    @property
    def supports_sharing(self) -> bool:
        """Whether ``shares_batch`` can be set: all columns of batches are gathered."""
        return self.goals is None

    # ------------------------------------------------------------------ rows

    def attach(self, store: ReplayStore | None) -> None:
        """Also write every row that is added from now on to ``store``; None: to no store."""
        self.store, self.stored = store, self.count

    def store_rows(self) -> None:
        """Write the rows to the store that wait for others, see ``store_turns``."""
        if self.store is not None and self.store_turns > 1 and self.stored < self.count:
            names = [name for name in self.storage.specs if not name.startswith(EXTRAS)]
            self.store.extend(self.storage.read(self.stored, self.count, names))
            self.stored = self.count

    def add(self, step: Step, action: Tensor, extras: Mapping[str, Tensor], version: int | None = None) -> None:
        """Add one row to each stream, see ``RowSink``; ``version`` of the policy, if there is a column for it."""
        rows = {f"obs/{key}": value for key, value in step.obs.items()}
        rows["action"], rows["reward"] = action, step.reward
        rows["is_first"], rows["is_last"], rows["is_terminal"] = step.is_first, step.is_last, step.is_terminal
        if version is not None:
            rows[VERSION_COLUMN] = torch.full((self.storage.streams,), version, dtype=torch.int32)
        if self.has_tags:
            rows[IS_INTERVENTION] = torch.zeros_like(step.is_last)
        if count_set(step.is_first):
            self._end_cut_episodes(step.is_first)
        if self.store is not None and self.store_turns == 1:  # first, as it can fail: then nothing is added
            self.store.add(rows)
        elif self.count - self.stored >= min(self.store_turns, self.storage.capacity):
            self.store_rows()
        self.storage.add(rows | {f"{EXTRAS}{key}": value for key, value in extras.items()} if extras else rows)
        self.register_row(step)
        self.ended = step.is_last if step.is_last is no_flags(len(step)) else step.is_last.clone()
        if self.annotator is not None and not self.stale:
            self.annotator.on_add(self.storage, step)

    def correct(self, action: Tensor, is_takeover: Tensor | None) -> None:
        """Replace the actions of the newest rows by those that were executed, see ``RowSink``."""
        rows = {"action": action}
        if is_takeover is not None:
            self.add_tags()
            rows[IS_INTERVENTION] = is_takeover
        self.storage.correct(rows)
        if self.store is not None and self._has_stored_all:
            self.store.correct({name: as_numpy(value) for name, value in rows.items()})

    @property
    def _has_stored_all(self) -> bool:
        """Whether the store has the newest rows."""
        return self.store_turns == 1 or self.stored == self.count

    @property
    def has_tags(self) -> bool:
        """Whether there is a column ``is_intervention``."""
        return IS_INTERVENTION in self.storage.specs

    def add_tags(self) -> None:
        """Add the column ``is_intervention``, which is false in all rows so far; the store begins a new segment."""
        if self.has_tags:
            return
        self.storage.add_column(IS_INTERVENTION, LATE_COLUMNS[IS_INTERVENTION])
        self.extra_names[IS_INTERVENTION] = IS_INTERVENTION
        self._shared = None
        if self.store is not None:
            columns = {name: x for name, x in self.storage.specs.items() if not name.startswith(EXTRAS)}
            first = self.count - 1 if self._has_stored_all else self.stored  # the newest row can still change
            self.store.change_columns(columns, first)
            if first < self.count and self._has_stored_all:
                self.store.extend(self.storage.read(first, self.count, list(columns)))

    def register_row(self, step: Step) -> None:
        """Register one newly collected row of each stream with the samplers."""
        is_first = step.is_first.tolist()
        self.batch_sampler.add_one(is_first, step.is_last.tolist())
        if self.goals is not None and True in is_first:
            self.goals.episodes.add(as_numpy(step.is_first)[:, None])

    def _end_cut_episodes(self, is_first: Tensor) -> None:
        """Set ``is_last`` in newest rows that the next rows do not continue: an environment or a process crashed."""
        for stream in (is_first & ~self.ended).nonzero().flatten().tolist():
            self.storage.end_episode(self.count - 1, stream)
            if self.store is not None and self._has_stored_all:
                self.store.end_episode(stream)

    def restart_at(self, first: int) -> None:
        """Drop all rows. The next row gets the number ``first``, as if all earlier rows had been evicted."""
        self.storage.begin_at(first)
        self.ended = torch.ones(self.storage.streams, dtype=torch.bool)
        self.stale = True
        self.pending.clear()
        self.batch_sampler.clear()
        if self.goals is not None:
            self.goals.episodes.clear()
        if self.tagged is not None:
            self.tagged.clear()

    def extend(self, rows: Mapping[str, np.ndarray]) -> None:
        """Add n rows to each stream, ``[N, n, ...]`` by column. Missing extras are blank; the store gets nothing.

        The online queue ignores them. If they do not fit, only the newest of them are kept, and no earlier rows.
        """
        capacity = self.storage.capacity
        n = next((values.shape[1] for values in rows.values()), 0)
        if n > capacity:
            self.restart_at(self.count + n - capacity)
            rows = {name: values[:, -capacity:] for name, values in rows.items()}
        self.storage.extend(rows)
        self.stale = True
        self.register(rows)

    def register(self, rows: Mapping[str, np.ndarray]) -> None:
        """Register stored ``rows``, ``[N, n, ...]`` by column, with the samplers."""
        is_last = rows["is_last"].astype(bool)
        self.batch_sampler.add(rows["is_first"].astype(bool), is_last, collected=False)
        if self.goals is not None:
            self.goals.episodes.add(rows["is_first"])
        if is_last.shape[1]:
            self.ended = torch.from_numpy(is_last[:, -1].copy())

    def reserve(self, rows: int) -> dict[str, np.ndarray] | None:
        """Return views ``[N, rows, ...]`` of memory for the next rows, without extras: ``Storage.reserve_views``."""
        room = self.storage.reserve_views(rows)
        return room and {name: column for name, column in room.items() if not name.startswith(EXTRAS)}

    def add_chunks(self, chunks: Iterable[Chunk]) -> bool:
        """Add chunks that a store reads, some into reserved memory. False: a chunk is damaged; call ``restart_at``."""
        for chunk in chunks:
            if chunk.damaged:
                return False
            if chunk.in_buffer:
                self.storage.make_room(chunk.stop - chunk.start)
                self.stale = True
                self.register(chunk.rows)
            else:
                self.extend(chunk.rows)
        return True

    def save_extras(self, folder: Path) -> None:
        """Write the extras of the rows from ``oldest_needed`` on, one file ``[N, rows, ...]`` a column."""
        self._save(self._extra_files(folder))

    def save_rows(self, folder: Path) -> None:
        """Write all other columns, as :meth:`save_extras` does."""
        self._save(self._row_files(folder))

    def read_rows(self, folder: Path) -> dict[str, np.ndarray] | None:
        """Return what ``save_rows`` wrote, memory-mapped; None if there is no such file."""
        if self._row_file(folder, IS_INTERVENTION).exists():
            self.add_tags()
        files = dict(self._row_files(folder))
        if not all(path.exists() for path in files.values()):
            return None
        return {name: np.load(path, mmap_mode="r", allow_pickle=False) for name, path in files.items()}

    def _save(self, files: Iterable[tuple[str, Path]]) -> None:
        first = self.oldest_needed
        for name, path in files:
            path.parent.mkdir(parents=True, exist_ok=True)
            spec = self.storage.specs[name]
            shape = (self.storage.streams, self.count - first, *spec.shape)
            header = {"descr": np.dtype(spec.dtype).str, "fortran_order": False, "shape": shape}
            with path.open("wb") as file:
                np.lib.format.write_array_header_2_0(file, header)
                for stream, start, stop in self._pieces(name, first):
                    file.write(self.storage.read(start, stop, [name], stream)[name].tobytes())

    def load_extras(self, folder: Path, first: int | None = None) -> None:
        """Load what ``save_extras`` wrote. The files begin with row ``first``, by default the oldest stored row."""
        first = self.oldest if first is None else first
        for name, path in self._extra_files(folder):
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            for stream, start, stop in self._pieces(name, self.oldest):
                self.storage.replace(name, start, stream, array[stream, start - first : stop - first])

    def _extra_files(self, folder: Path) -> Iterator[tuple[str, Path]]:
        """Yield each column that checkpoints keep, with its file; quoted, as file names cannot have all characters."""
        for name, spec in self.storage.specs.items():
            if name.startswith(EXTRAS) and spec.in_checkpoints:
                yield name, folder / f"{quote(name.removeprefix(EXTRAS), safe='')}.npy"

    def _row_files(self, folder: Path) -> Iterator[tuple[str, Path]]:
        """Yield each column that is no extra, with its file."""
        for name in self.storage.specs:
            if not name.startswith(EXTRAS):
                yield name, self._row_file(folder, name)

    def _row_file(self, folder: Path, name: str) -> Path:
        return folder / "rows" / f"{quote(name, safe='')}.npy"

    def _pieces(self, name: str, first: int) -> Iterator[tuple[int, int, int]]:
        """Yield the rows from ``first`` on as ``(stream, start, stop)``, of at most about ``COPY_BYTES`` bytes."""
        rows = max(1, COPY_BYTES // max(1, self.storage.specs[name].nbytes))
        for stream in range(self.storage.streams):
            for start in range(first, self.count, rows):
                yield stream, start, min(start + rows, self.count)

    # ------------------------------------------------------------------ windows

    def sample(self, count: int | None = None, handles: Tensor | None = None) -> Batch:
        """Return B windows of T rows, or ``count`` windows, copied, on the storage's device; ``index`` on the CPU.

        ``handles``: the windows to return instead of drawing some.
        """
        if len(self.batch_sampler.windows) == 0:
            raise RunError(
                f"there is no window of {self.window.rows - self.window.num_free_rows} rows yet: collect more rows, "
                "or longer episodes, or choose shorter windows (algo.batch_length)."
            )
        if self.batch_sampler.sequence is not None:
            self.flush()  # the next windows start from the latents written back to the last ones
        if self.stale and self.annotator is not None:
            self.annotator.on_extend(self.storage)
        self.stale = False
        is_drawn, weights = handles is None, None
        shared = self._shared if count is None and is_drawn else None
        if handles is None:
            handles, weights = self.batch_sampler.draw(count, None if shared is None else shared[0].index)
        if shared is not None:
            return self._refill(*shared, handles, weights)
        rows = self.storage.gather(handles, self.window.rows)
        if self.goals is not None:
            self.goals.annotate(rows, handles)
        self._mark_resets(rows)
        weight = rows.get("weight")
        if weight is None:
            weight = rows["reward"].new_empty(len(handles))
        else:  # with the rows, so that one copy moves them all to a GPU
            handles = rows["index"].copy_(handles)
        _set_weights(weight, weights)
        batch = Batch(
            obs={key: rows[name] for name, key in self.obs_names.items()},
            extras={key: rows[name] for name, key in self.extra_names.items()},
            goals={} if self.goals is None
            else {name.removeprefix(GOALS): x for name, x in rows.items() if name.startswith(GOALS)},
            action=rows["action"], reward=rows["reward"], is_first=rows["is_first"], is_last=rows["is_last"],
            is_terminal=rows["is_terminal"], weight=weight, index=handles,
        )  # fmt: skip
        if self.shares_batch and count is None and is_drawn:
            batch = SharedBatch.of(batch)
            self._shared = batch, rows
        return batch

    def _refill(self, batch: Batch, rows: dict[str, Tensor], handles: Tensor, weights: Tensor | None) -> Batch:
        """Overwrite ``batch``, whose columns are ``rows``, with the windows ``handles``."""
        self.storage.gather(handles, self.window.rows, rows)
        self._mark_resets(rows)
        if handles is not batch.index:
            batch.index.copy_(handles)
        _set_weights(batch.weight, weights)
        return batch

    def _mark_resets(self, rows: dict[str, Tensor]) -> None:
        """Mark the windows that do not continue the state that the learner carries."""
        if (resets := self.batch_sampler.state_resets) is not None:
            rows["is_first"][:, 0] |= load_numbers(resets, rows["is_first"].device)

    def feedback(self, index: Tensor, update: Update) -> None:
        """Write ``update.extras`` ``[B, T', ...]`` to the last T' rows of the windows ``index`` ``[B]``.

        ``update.priority`` ``[B]`` becomes the priority of those windows, if windows are drawn by priority. Rows that
        were evicted since are skipped. Where windows overlap, the later one in the batch counts.

        From a GPU to rows in host memory, the feedback is written at the next call, so that the host need not wait: the
        next batch always has latents that are one update older. Only sequential sampling waits.
        """
        self.flush()
        priority = None if self.batch_sampler.priorities is None else update.priority
        priority = None if priority is None else priority.detach()
        if not update.extras and priority is None:
            return
        extras = {key: value.detach() for key, value in update.extras.items()}
        feedback = Feedback(as_numpy(index), extras, priority)
        if isinstance(self.storage, HostStorage) and feedback.gpu is not None:
            self.pending.append(feedback.to_host())
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
        """Return everything that does not follow from the rows: generators, queues, priorities, pending feedback."""
        pending = [feedback.state_dict() for feedback in self.pending]
        goals = {} if self.goals is None else {"goals": self.goals.state_dict()}
        tagged = {} if self.tagged is None else {"tagged": self.tagged.state_dict()}
        return {**self.batch_sampler.state_dict(), "pending": pending, **goals, **tagged}

    def load_state_dict(self, state: State) -> None:
        """Restore a saved state if the buffer already contains the same rows; otherwise sampling starts over."""
        if self.batch_sampler.load_state_dict(state):
            self.pending = [Feedback.from_state(entry) for entry in state["pending"]]
            if self.goals is not None and "goals" in state:
                self.goals.load_state_dict(state["goals"])
            if self.tagged is not None and "tagged" in state:
                self.tagged.load_state_dict(state["tagged"])


def _set_weights(weight: Tensor, weights: Tensor | None) -> None:
    """Write importance weights ``[B]`` of the CPU to ``weight`` on any device; None: all are 1."""
    if weights is None:
        weight.fill_(1.0)
    else:
        copy_in(weight, weights)
