"""The replay: takes rows as they are lived and deals them out again in windows."""

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
from reverie.core.specs import ActionSpec, ExtraPart, ObsSpec
from reverie.core.types import Batch, State, Step, Update, Window
from reverie.data.dealer import Dealer, DealerConfig
from reverie.data.device import storage_on
from reverie.data.extras import load_extras, save_extras
from reverie.data.feedback import Feedback
from reverie.data.mapped import MappedStorage
from reverie.data.rings import Rows, as_numpy
from reverie.data.sizes import parse_size
from reverie.data.storage import EXTRAS, HostStorage, Storage, bytes_of, columns_of
from reverie.data.store.read import Chunk


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(DealerConfig):
    """A replay in memory."""

    capacity: int | str = 1_000_000
    """Rows to keep, all streams together, such as 1000000 or 5e6, or their bytes, such as 20GB or 512MiB; the oldest
    make room for new ones."""
    storage: Literal["ram", "mmap"] = "ram"
    """Where rows are kept on the CPU: in memory, or in files mapped into it, for more rows than there is memory."""
    store: str = "auto"
    """Where every row is kept for good: auto for the run's folder, a path, a URL such as s3://bucket/name, or none."""
    keep: Literal["all", "replay"] = "all"
    """Which rows the store keeps: all of them, or those that the replay of a checkpoint may need."""
    buffer: int | str = "1GB"
    """Bytes that may wait for the store when it is slow or away; collecting waits when they are full."""
    init: tuple[str, ...] = ()
    """Run folders or stores of earlier runs: a new run starts with their rows in its replay."""
    device: str = "cpu"
    """Where rows are kept: cpu, or cuda if all of them fit on the GPU that learns from them."""

    def __post_init__(self) -> None:
        parse_size(self.capacity, "replay.capacity")
        if not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise ConfigError(f"replay.device = '{self.device}': expected cpu, cuda or cuda:<number>.")
        if self.device != "cpu" and self.storage != "ram":
            raise ConfigError(
                f"replay.device = '{self.device}', replay.storage = '{self.storage}': files are mapped into the memory "
                "of this computer only. Use replay.device = 'cpu' or replay.storage = 'ram'."
            )
        super().__post_init__()

    def rows(self, row_bytes: float) -> int:
        """The capacity in rows of ``row_bytes``, all streams together."""
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
        """A replay of ``num_envs`` streams that deals out batches of ``window``.

        No more than ``most`` rows, all streams together, are ever needed. Mapped files go to the folder ``scratch``,
        made when the first row comes, or to that of temporary files.

        Raises:
            ConfigError: a stream cannot hold one window, the settings do not fit the algorithm's windows, or the
                memory, the disk or the device cannot be had.
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
            amount = "" if isinstance(self.capacity, int) else f" is {rows} rows, which"
            raise ConfigError(
                f"replay.capacity = {self.capacity}{amount or ' rows'} over {num_envs} envs is {rows // num_envs} rows "
                f"for each, but a window has {window.rows} ({window.context} context + {window.length}): "
                f"expected replay.capacity of at least {(window.rows - window.free) * num_envs}."
            )


class RowStore(Protocol):
    """Keeps rows for longer than the replay does."""

    def add(self, rows: Rows) -> None:
        """One row of each stream, ``[N, ...]`` by column, without extras. They belong to the caller."""
        ...


class Replay:
    """Rows of N streams, in memory, dealt out in windows. A ``Source`` and a ``RowSink``.

    All that it will ever do follows from the rows it holds, with their numbers, and its ``state_dict``: one that was
    filled by ``begin_at``, ``extend`` and ``load_extras`` and took that state over is the same.
    """

    def __init__(self, storage: Storage, window: Window, *, seed: int, config: DealerConfig) -> None:
        """``storage`` is empty; its columns are named as by ``storage.columns_of``."""
        self.window, self.storage = window, storage
        self.dealer = Dealer(storage, window, seed, config)
        self.store: RowStore | None = None
        self.pending: list[Feedback] = []
        self.obs_names = {name: name.removeprefix("obs/") for name in storage.specs if name.startswith("obs/")}
        self.extra_names = {name: name.removeprefix(EXTRAS) for name in storage.specs if name.startswith(EXTRAS)}

    def __len__(self) -> int:
        """Valid window starts, which is what the authors count before they begin to learn."""
        return len(self.dealer.starts)

    @property
    def count(self) -> int:
        """Rows of each stream that there have been: the number of the next one."""
        return self.storage.count

    @property
    def oldest(self) -> int:
        """The number of the oldest row still held; ``count`` if there are none."""
        return self.storage.oldest

    @property
    def nbytes(self) -> int:
        """Bytes that the replay takes once it is full."""
        return self.storage.nbytes

    # ------------------------------------------------------------------ rows

    def attach(self, store: RowStore | None) -> None:
        """Give every row that is added from now on to ``store`` as well; None ends that."""
        self.store = store

    def add(self, step: Step, action: Tensor, extras: Mapping[str, Tensor]) -> None:
        """One row for each of N streams: what was seen, the action ``[N, A]`` taken then, and the policy's extras.

        Raises:
            DataError: a column is of another shape; on the first call only: one is missing or unknown.
            ConfigError: on the first call only: files cannot be mapped.
        """
        rows = {f"obs/{key}": value for key, value in step.obs.items()}
        rows["action"], rows["reward"] = action, step.reward
        rows["is_first"], rows["is_last"], rows["is_terminal"] = step.is_first, step.is_last, step.is_terminal
        self.storage.add(rows | {f"{EXTRAS}{key}": value for key, value in extras.items()} if extras else rows)
        self.dealer.add_one(step.is_first.tolist())
        if self.store is not None:
            self.store.add(rows)

    def begin_at(self, first: int) -> None:
        """Hold nothing. The next row has the number ``first``, as if those before it had been evicted.

        Generators stay where they are.
        """
        self.storage.begin_at(first)
        self.pending.clear()
        self.dealer.clear()

    def extend(self, rows: Mapping[str, np.ndarray]) -> None:
        """Many rows at once, ``[N, n, ...]`` by column. Extras that are absent are blank. The store does not get them.

        They are not dealt out by the online queue. Of more rows than fit the newest are kept, and nothing from before.

        Raises:
            DataError: a column is missing, unknown or of another shape.
            ConfigError: files cannot be mapped.
        """
        kept = self.storage.capacity
        more = next((values.shape[1] for values in rows.values()), 0)
        if more > kept:
            self.begin_at(self.count + more - kept)
            rows = {name: values[:, -kept:] for name, values in rows.items()}
        self.storage.extend(rows)
        self.dealer.add(rows["is_first"].astype(bool), lived=False)

    def room(self, rows: int) -> dict[str, np.ndarray] | None:
        """Where the next ``rows`` rows will lie, without extras: can be filled, then ``refill`` counts them.

        None if they do not lie together, or not in this computer's memory.
        """
        room = self.storage.room(rows)
        return room and {name: column for name, column in room.items() if not name.startswith(EXTRAS)}

    def refill(self, chunks: Iterable[Chunk]) -> bool:
        """Take rows as a store reads them, some of them put where ``room`` said already; all of them, or until damage.

        Whether none was damaged; else the replay has to ``begin_at`` some row anew.
        """
        for chunk in chunks:
            if chunk.damaged:
                return False
            if chunk.placed:
                self.storage.make_room(chunk.stop - chunk.start)
                self.dealer.add(chunk.rows["is_first"].astype(bool), lived=False)
            else:
                self.extend(chunk.rows)
        return True

    def read(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Rows ``start`` to ``stop``, ``[N, stop - start, ...]`` of every column, copied.

        Raises:
            DataError: some of them are not held.
        """
        return self.storage.read(start, stop)

    def save_extras(self, folder: Path) -> list[Path]:
        """Write the extras of all rows held, one file ``[N, rows, ...]`` for each column; the files."""
        return save_extras(self.storage, folder)

    def load_extras(self, folder: Path, first: int | None = None) -> None:
        """Take back what ``save_extras`` wrote, for the same rows or, from row ``first`` on, for more that were held.

        Warns, and leaves zeros, if it was written with other columns.

        Raises:
            DataError: a file is missing, damaged or of other rows.
        """
        load_extras(self.storage, folder, first)

    # ------------------------------------------------------------------ windows

    def sample(self) -> Batch:
        """B windows of T rows, copied out of the storage, on its device; ``index`` is on the CPU, where it is needed.

        Raises:
            RunError: there is no complete window yet.
        """
        if len(self) == 0:
            raise self._too_few()
        if self.dealer.in_sequence:
            self.flush()  # the next windows start from what was learned of the last
        handles, weights = self.dealer.draw()
        rows = self.storage.gather(handles, self.window.rows)
        device = rows["reward"].device
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

        ``update.priority`` ``[B]`` is how those windows are drawn from now on, if any are drawn by priority. Rows
        evicted meanwhile are skipped; where windows overlap, the later one in the batch holds.

        Rows in this computer's memory get feedback of a GPU one feedback later. The host would have to wait for the
        update otherwise, while it could be sampling the next batch; that batch sees latents one update older, always
        and whatever the timing, as nothing but the next feedback writes them. Only whole episodes in sequence wait:
        there the next batch starts from these latents.
        """
        self.flush()
        priority = None if self.dealer.priorities is None or update.priority is None else update.priority.detach()
        if not update.extras and priority is None:
            return
        extras = {key: value.detach() for key, value in update.extras.items()}
        feedback = Feedback(as_numpy(index), extras, priority)
        if isinstance(self.storage, HostStorage) and feedback.on_gpu:
            self.pending.append(feedback.sent())
        else:
            self._write(feedback)

    def flush(self) -> None:
        """Write what feedback has left pending."""
        for feedback in self.pending:
            feedback.wait()
            self._write(feedback)
        self.pending.clear()

    def _write(self, feedback: Feedback) -> None:
        for key, value in feedback.extras.items():
            self.storage.write(f"{EXTRAS}{key}", feedback.handles, self.window.rows - value.shape[1], value)
        if feedback.priority is not None and self.dealer.priorities is not None:
            self.dealer.priorities.feedback(feedback.handles, as_numpy(feedback.priority))

    # ------------------------------------------------------------------ state

    def state_dict(self) -> State:
        """All that does not follow from the rows: generators, queues, priorities, cursors, pending feedback.

        What feedback has left pending stays so, or a run would depend on when it is saved.
        """
        return {**self.dealer.state_dict(), "pending": [feedback.state_dict() for feedback in self.pending]}

    def load_state_dict(self, state: State) -> None:
        """Go on as the replay whose state it is, if the same rows are here already; else with its generators only."""
        same, known = self.dealer.load_state_dict(state), set(self.extra_names.values())
        pending = [Feedback.from_state(entry) for entry in state["pending"]] if same else []
        self.pending = [entry for entry in pending if entry.extras.keys() <= known]  # other versions have others

    def _too_few(self) -> RunError:
        rows, needed = self.count - self.oldest, self.window.rows - self.window.free
        if rows < needed:
            return RunError(f"the replay has {rows} rows of each stream, a window needs {needed}: collect more first.")
        return RunError(
            f"no episode has had the {needed} rows of a window yet, and windows may not cross the end of an episode: "
            "collect longer episodes or choose shorter windows."
        )
