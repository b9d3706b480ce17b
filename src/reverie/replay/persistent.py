"""The replay of a run with its store: saved and restored so that a resumed run continues exactly.

A checkpoint contains the position in the *store* (``store/store.py``), the few rows that the store had not confirmed by
then (*tail*), and the latents, which every update changes. A resumed run begins a new segment, whose parent is the
position. Loading distinguishes these cases:

=========================================================  ===================================================
In the store                                               Replay; where new rows go
=========================================================  ===================================================
the rows, possibly followed by rows of any process         as it was; a child of their segment, tail first
the rows, but in the store of the previous settings        as it was; copied to a segment of the new store
some rows missing or damaged, or another number of streams episodes rearranged; copied to a segment
nothing of the checkpoint's segment                        empty; a segment without a parent
=========================================================  ===================================================

Environments on a device have no store by default: checkpoints then contain all rows (``replay.save``).

Only a replay that is restored row by row (``exact``) gets its latents back, and its environments continue within their
episodes. Otherwise latents start as zeros and environments start new episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reverie.core.columns import ColumnSpec
from reverie.core.errors import DataError, RunError, count_noun
from reverie.core.locations import check_location
from reverie.core.logger import logger
from reverie.core.specs import EXTRAS, IS_INTERVENTION, LATE_COLUMNS
from reverie.core.types import State
from reverie.replay.buffer import ReplayBuffer
from reverie.replay.config import ReplayConfig, absolute_store_path, parse_size
from reverie.replay.storage import Storage
from reverie.store.segment import Segment, SegmentRange
from reverie.store.store import ReplayStore

FLUSH_SECONDS = 10.0
"""Seconds that a checkpoint waits for the store. Rows not confirmed by then go into the checkpoint."""
BLOCK_BYTES = 64 * 2**20
"""Bytes copied from the replay to a store at a time."""
Names = Sequence[str] | None
"""Columns, or None for all."""
StreamPiece = tuple[bool, Mapping[str, np.ndarray]]
"""``(broken, rows)``: rows ``[n, ...]`` of one stream; ``broken`` if they do not continue the piece before."""
Pieces = Callable[[Names], Iterable[StreamPiece]]
"""A function that yields all pieces, the oldest first. Called more than once."""


class LocatedRows(NamedTuple):
    """Locations of the rows of a checkpoint, with the replay's row numbers."""

    store: ReplayStore
    parts: list[SegmentRange]  # the parts found in the store, in order of their rows; at least one, which may be empty
    stored: int  # number of rows of each stream that the store should contain; the rows after them are in ``tail``
    tail: dict[str, np.ndarray]
    """Rows that the store had not confirmed when the checkpoint was written; they are in the checkpoint."""

    def num_lost(self, oldest: int) -> int:
        """Return how many rows of each stream, from ``oldest`` on, are missing in the store."""
        num_found = sum(max(0, stop - max(start, oldest)) for _, start, stop in self.parts)
        return max(0, self.stored - oldest - num_found)


class PersistentReplay:
    """The replay of a run with its durable store, if it has one; a part of a checkpoint."""

    prunable = True

    def __init__(
        self,
        replay: ReplayBuffer,
        config: ReplayConfig,
        run: Path,
        *,
        stop: Callable[[], bool],
        on_device: bool = False,
    ) -> None:
        """Open the store of the run for reading; ``replay`` is empty.

        ``stop``: whether the run is about to end. ``on_device``: whether the rows come from environments on a device.
        """
        self.replay = replay
        self.config = config
        self.run = run
        self.location: str = absolute_store_path(config.store_path)
        if self.location == "auto" and (on_device or replay.window.rollout):  # writing rows would take longer
            self.location = "none"  # than learning from them
        self.store: ReplayStore | None = self._open(self.location)
        if self.store is not None:
            self.store.stopping = stop
        self.streams: int = replay.storage.streams
        self.sources: dict[str, ReplayStore] = {}  # the stores that a new run begins with, by path
        self.loaded: State = {}
        self.saves_rows: bool = on_device and config.save and self.store is None
        self.settle: Callable[[], None] = lambda: None
        """Waits for what can still change the newest rows; called before they are saved."""
        self.exact: bool = False  # whether the replay was restored row by row as it was saved
        self.is_copied: bool = False  # whether the loaded rows were copied to a new segment
        self._counts: dict[str, int] = {}  # rows of the replay at each checkpoint that this process wrote

    @property
    def columns(self) -> dict[str, ColumnSpec]:
        """The columns that are stored."""
        specs = self.replay.storage.specs.items()
        return {name: spec for name, spec in specs if not name.startswith(EXTRAS)}

    def _open(self, location: str) -> ReplayStore | None:
        """Open the store at ``location``: ``auto`` is in the run's folder; ``none`` returns None."""
        if location == "none":
            return None
        buffer = parse_size(self.config.write_buffer, "replay.write_buffer").amount
        url, owner = (self.run / "replay", "") if location == "auto" else (location, str(self.run.resolve()))
        return ReplayStore(url, buffer_bytes=buffer, keep=self.config.store_keep, run=owner)

    # ------------------------------------------------------------ the life of a run

    def check(self) -> None:
        """Check that any rows in the store have the same spaces as the replay."""
        if self.store is not None:
            self._check_columns(self.store, f"replay.store_path = '{self.config.store_path}'")

    def check_writable(self) -> None:
        """Check that a run without a checkpoint can write to its store, and open the stores that it begins with."""
        self.sources = {path: self._init_store(path) for path in self.config.init_from}
        self.check()
        if self.store is not None:
            self.store.check_writable()

    def begin(self) -> bool:
        """Start storing in a run without a checkpoint, after ``check_writable``; return whether the replay has rows."""
        sources, room = self.sources, self.streams * self.replay.storage.capacity
        total = max(1, sum(store.num_rows() for store in sources.values()))

        def pieces(columns: Names) -> Iterator[StreamPiece]:
            """Yield the newest rows of every history, up to its capacity, stream by stream."""
            names, share = columns or list(self.columns), min(1.0, room / total)
            for store, history in ((s, history) for s in sources.values() for history in s.histories()):
                num_stored, newest = sum(stop - start for _, start, stop in history), history[-1].stop
                for stream in range(history[0].segment.streams):
                    yield from _iter_stream_pieces(store, history, stream, newest - int(num_stored * share), names)

        self._expect_tags(segment for store in sources.values() for segment in store.segments)
        self._start_with(pieces if sources else None)
        if sources:
            rows = count_noun(self.replay.count * self.streams, "row")
            logger.info(f"the replay starts with {rows} from {', '.join(sources)}")
        return bool(sources)

    def on_checkpoint(self, name: str, retained: Sequence[str]) -> None:
        """After checkpoint ``name``, let the store delete the rows that none of the ``retained`` checkpoints needs."""
        self._counts[name] = self.replay.count
        if self.store is not None and all(checkpoint in self._counts for checkpoint in retained):
            self.store.drop(min(self._counts[checkpoint] for checkpoint in retained) - self.replay.storage.capacity)

    def close(self, *, failed: bool) -> None:
        """Stop the store's thread, at once after an error. Rows that it has not written are in the last checkpoint."""
        if self.store is not None:
            self.store.close(0.0 if failed else FLUSH_SECONDS)

    def _init_store(self, path: str) -> ReplayStore:
        """Open the store of an earlier run: ``path`` is the run's folder, or the store itself."""
        inside = Path(path) / "replay"
        store = ReplayStore(inside if inside.is_dir() else path)
        if not store.segments:
            raise RunError(
                f"replay.init_from = '{path}': no store there. Pass a run folder, or the folder or URL of a store. "
                "Recorded data are passed as data.path, or made a store: reverie data convert "
                f"{path} FOLDER --format store"
            )
        self._check_columns(store, f"replay.init_from = '{path}'")
        return store

    def _check_columns(self, store: ReplayStore, error_prefix: str) -> None:
        """Check that the rows in ``store`` have the same spaces as the replay."""
        for segment in store.segments:
            names = {*segment.columns, *self.columns} - LATE_COLUMNS.keys()
            if differing := sorted(name for name in names if segment.columns.get(name) != self.columns.get(name)):
                raise RunError(
                    f"{error_prefix}: the stored rows do not fit this environment's observations and actions. "
                    f"Different columns: {', '.join(differing)}. Choose another store."
                )

    # ------------------------------------------------------------ checkpoints

    def state_dict(self) -> State:
        """Return the position in the store, the rows that are not stored yet, and the state of the samplers."""
        self.settle()
        first, count = self.replay.oldest_needed, self.replay.count
        numbers = {"count": count, "oldest": first}
        state: dict[str, Any] = {**numbers, "replay": dict(self.replay.state_dict())}
        if self.store is None:
            if self.saves_rows:  # as files
                return {**state, "saved": True}
            is_rollout = self.replay.window.rollout > 0
            return state | ({"rows": self.replay.storage.read(first, count, list(self.columns))} if is_rollout else {})
        try:
            self.replay.store_rows()
            self.store.flush(FLUSH_SECONDS)
        except RunError as error:  # the store's thread has failed: rows that it has not stored go into the checkpoint
            logger.warning(str(error))
        tail = self.store.pending()
        stored = self.replay.count - _count_rows(tail)
        return {**state, "place": self.location, "segment": self.store.segment_name, "stored": stored, "tail": tail}

    def load_state_dict(self, state: State) -> None:
        """Fill the replay with its saved rows, and continue storing; the module's docstring lists all cases."""
        self.loaded = state
        if "saved" in state:
            return  # load_files loads the rows
        if IS_INTERVENTION in state.get("rows", ()):
            self.replay.add_tags()
        if "rows" in state and self._fits(state["rows"]):
            self._load_rows(state["rows"], int(state["count"]))
            return
        located = self._find_rows(state)
        if located is None:
            if "rows" in state:
                logger.info("a new rollout begins: the rows of the checkpoint do not fit these environments")
            else:
                logger.warning("the replay buffer starts empty: its rows were not stored or have been moved")
            self._start_with(None)
        elif not self._read_back(located, state):
            self.is_copied = True
            oldest = int(state["oldest"])
            self._start_with(
                lambda columns: _iter_located_pieces(located, oldest, columns or [*self.columns]),
                located.store is self.store,
            )
            streams = count_noun(self.streams, "stream")
            logger.info(f"the replay was rebuilt from its rows: {self.replay.count:,} in each of {streams}")

    def complete(self, state: State) -> None:
        """Store the rows of a finished run that only its checkpoint has, because its process was killed."""
        if self.store is None or (located := _locate_rows(self.store, state)) is None:
            return
        end = (located.parts[-1].segment.name, located.stored)
        stored = [s for s in self.store.segments if end in (s.parent, (s.name, located.stored))]
        if all(segment.rows < int(state["count"]) for segment in stored):
            self._expect_tags(part.segment for part in located.parts)
            self._continue_store(located)

    def load_share(self, saved: Sequence[tuple[ReplayStore | None, State]], rank: int, count: int) -> None:
        """Start with every ``count``-th episode of the rows of other replays, from episode number ``rank`` on.

        ``saved``: the store (None if it had none) and the state of each replay.
        """
        sources = [(_locate_rows(store, state), int(state["oldest"])) for store, state in saved if store is not None]
        located = [(rows, oldest) for rows, oldest in sources if rows is not None]
        self.is_copied = True
        self._expect_tags(part.segment for rows, _ in located for part in rows.parts)

        def pieces(columns: Names) -> Iterator[StreamPiece]:
            names = columns or [*self.columns]
            chained = (piece for rows, oldest in located for piece in _iter_located_pieces(rows, oldest, names))
            yield from iter_every_nth_episode(chained, rank, count)

        self._start_with(pieces if located else None)

    def save_files(self, folder: Path) -> None:
        """Write the latents, and all rows if there is no store for them."""
        self.replay.save_extras(folder)
        if self.saves_rows:
            self.replay.save_rows(folder)

    def load_files(self, folder: Path) -> None:
        """Restore latents and samplers if the rows are the same. Latents that were not saved begin as zeros."""
        if "saved" in self.loaded:
            rows = self.replay.read_rows(folder)
            if rows is not None and self._fits(rows):
                self._load_rows(rows, int(self.loaded["count"]))
            else:
                logger.warning("the replay buffer starts empty: its rows are not in this checkpoint, or do not fit")
                self._start_with(None)
        if self.exact and any(folder.glob("*")):
            self.replay.load_extras(folder, int(self.loaded["oldest"]))
        self.replay.load_state_dict(self.loaded["replay"])

    def _find_rows(self, state: State) -> LocatedRows | None:
        """Find the rows of ``state`` in the current store or in the previous one."""
        stores = dict.fromkeys((self.store, self.find_store(state)))
        return next((rows for store in stores if store and (rows := _locate_rows(store, state))), None)

    def find_store(self, state: State) -> ReplayStore | None:
        """Return the store with the rows of ``state``: the current one, or the one that the settings named before."""
        if (saved_location := state.get("place", self.location)) == self.location:
            return self.store
        check_location(saved_location, f"a checkpoint of {self.run}")
        return self._open(saved_location)

    def _read_back(self, located: LocatedRows, state: State) -> bool:
        """Fill the replay with exactly the rows of a checkpoint. Returns False if that is impossible."""
        self._expect_tags(part.segment for part in located.parts)
        like = located.parts[-1].segment
        newest = located.stored + _count_rows(located.tail)
        oldest = max(int(state["oldest"]), newest - self.replay.storage.capacity)
        if lost := located.num_lost(oldest):
            location = located.store.objects.location
            logger.warning(f"{lost * like.streams:,} rows of the checkpoint are no longer in {location}")
        if lost or (like.streams, dict(like.columns)) != (self.streams, self.columns):
            return False
        self.replay.restart_at(oldest)
        for segment, start, stop in located.parts:
            if not self.replay.add_chunks(
                located.store.read(segment, max(start, oldest), stop, columns=[*self.columns], room=self.replay.reserve)
            ):
                return False
        if _count_rows(located.tail):
            self.replay.extend(located.tail)
        self._continue_store(located)
        self.exact = self.replay.count == int(state["count"])
        return True

    def _expect_tags(self, segments: Iterable[Segment]) -> None:
        """Add the column ``is_intervention`` to the replay if one of the ``segments`` has it."""
        if any(IS_INTERVENTION in segment.columns for segment in segments):
            self.replay.add_tags()

    def _fits(self, rows: Mapping[str, np.ndarray]) -> bool:
        """Return whether ``rows`` ``[N, n, ...]`` have the replay's streams and columns."""
        expected = {name: (self.streams, *spec.shape) for name, spec in self.columns.items()}
        return {name: (len(x), *x.shape[2:]) for name, x in rows.items()} == expected

    def _load_rows(self, rows: Mapping[str, np.ndarray], count: int) -> None:
        """Continue with the ``rows`` of a checkpoint without a store; the next row is number ``count``."""
        n, block = _count_rows(rows), self._block_rows()
        self.replay.restart_at(count - n)
        for start in range(0, n, block):
            self.replay.extend({name: values[:, start : start + block] for name, values in rows.items()})
        self.exact = True
        if self.store is not None:
            self.store.begin(self.columns, self.streams, first=self.replay.oldest)
            self._store_all(self.store)
        self.replay.attach(self.store)

    def _continue_store(self, located: LocatedRows) -> None:
        """Continue writing after the rows just read, or copy them if they are in another store."""
        if self.store is located.store:
            parent = (located.parts[-1].segment.name, located.stored)
            self.store.begin(self.columns, self.streams, first=located.stored, parent=parent)
            if _count_rows(located.tail):
                self.store.extend(located.tail)
        elif self.store is not None:
            self.is_copied = True
            location = located.store.objects.location
            logger.info(
                f"the replay was in {location}: its rows are copied to {self.store.objects.location}, the new store"
            )
            self.store.begin(self.columns, self.streams, first=self.replay.oldest)
            self._store_all(self.store)
        self.replay.attach(self.store)

    def _start_with(self, source: Pieces | None, imported: bool = False) -> None:
        """Begin a segment with the rows of ``source``, or an empty one. ``imported``: the store has these already."""
        self.replay.restart_at(0)
        if source is not None and (count := fill_storage(self.replay.storage, source)):
            self.replay.register(self.replay.storage.read(0, count, ["is_first", "is_last"]))
        if self.store is not None:
            copies = self.replay.count if imported else 0
            self.store.begin(self.columns, self.streams, first=self.replay.oldest, imported=copies)
            self._store_all(self.store)
        self.replay.attach(self.store)

    def _block_rows(self) -> int:
        """Return the rows of each stream that are copied at a time."""
        return max(1, BLOCK_BYTES // (self.streams * sum(column.nbytes for column in self.columns.values())))

    def _store_all(self, store: ReplayStore) -> None:
        """Write all rows of the replay to the store."""
        block = self._block_rows()
        for start in range(self.replay.oldest, self.replay.count, block):
            stop = min(start + block, self.replay.count)
            store.extend(self.replay.storage.read(start, stop, list(self.columns)))


def _locate_rows(store: ReplayStore, state: State) -> LocatedRows | None:
    """Return where the rows of a saved ``state`` are in ``store``; None if the store has none of them."""
    parts = store.ancestor_parts(state.get("segment", ""), int(state.get("stored", 0)))
    return LocatedRows(store, parts, int(state["stored"]), dict(state["tail"])) if parts else None


def iter_every_nth_episode(pieces: Iterable[StreamPiece], rank: int, count: int) -> Iterator[StreamPiece]:
    """Yield the rows of every ``count``-th episode of ``pieces``, from number ``rank`` on."""
    number = -1  # of the episode of the row before
    for broken, rows in pieces:
        numbers = number + np.cumsum(rows["is_first"])  # [n]
        number = int(numbers[-1]) if len(numbers) else number
        is_mine = numbers % count == rank
        edges = np.flatnonzero(np.diff(is_mine.astype(np.int8), prepend=0, append=0))
        for start, stop in edges.reshape(-1, 2):
            yield broken and start == 0, {name: values[start:stop] for name, values in rows.items()}


def _count_rows(rows: Mapping[str, np.ndarray]) -> int:
    """Return n, the number of rows per stream in columns ``[N, n, ...]``; 0 without columns."""
    return int(next(iter(rows.values())).shape[1]) if rows else 0


def _iter_located_pieces(located: LocatedRows, oldest: int, columns: Sequence[str]) -> Iterator[StreamPiece]:
    """Yield the rows of a checkpoint, stream by stream, from ``oldest`` on."""
    for stream in range(located.parts[-1].segment.streams):
        stop = yield from _iter_stream_pieces(located.store, located.parts, stream, oldest, columns)
        if _count_rows(located.tail):
            blank = np.zeros(_count_rows(located.tail), bool)  # of a column that the tail lacks
            tail = {name: located.tail[name][stream] if name in located.tail else blank for name in columns}
            yield stop != located.stored, tail


def _iter_stream_pieces(
    store: ReplayStore, parts: Sequence[SegmentRange], stream: int, oldest: int, columns: Sequence[str]
) -> Generator[StreamPiece, None, int]:
    """Yield the undamaged rows of one stream by chunks; log damage. Return the number of the row after the last one."""
    end = -1
    for first, rows in store.intact(parts, stream, columns, store.log_damage, oldest):
        yield first != end, rows
        end = first + len(rows["is_first"])
    return end


# ---------------------------------------------------------------- rows of another run as streams of equal length


def fill_storage(storage: Storage, source: Pieces) -> int:
    """Fill an empty ``storage`` with the rows of ``source``. Return the number of rows of each stream.

    Rows before the first ``is_first`` of an unbroken run are left out, because the beginning of their episode is lost.
    All others are concatenated; if they do not fit, the newest are kept. They are cut into streams of equal length, so
    a stream may begin and end in the middle of an episode, as after an eviction.

    Rows are counted first, from their flags. If damage in other columns leaves fewer rows, filling starts over.
    """
    streams = storage.streams
    total = sum(len(rows["is_first"]) for rows in _from_first_rows(source(("is_first",))))
    while True:
        rows_per_stream = min(total // streams, storage.capacity)
        storage.begin_at(0)
        storage.make_room(rows_per_stream)
        num_placed = _fill_streams(storage, _from_first_rows(source(None)), total - rows_per_stream * streams)
        if num_placed == total:
            _end_cut_episodes(storage)
            return rows_per_stream
        total = num_placed


def _end_cut_episodes(storage: Storage) -> None:
    """Set ``is_last`` in each row that precedes an ``is_first`` row: the rest of its episode is missing."""
    flags = storage.read(0, storage.count, ["is_first", "is_last"])
    for stream, row in np.argwhere(flags["is_first"][:, 1:] & ~flags["is_last"][:, :-1]).tolist():
        storage.end_episode(row, stream)


def _fill_streams(storage: Storage, parts: Iterable[Mapping[str, np.ndarray]], skip: int) -> int:
    """Fill one stream after the other, without the first ``skip`` rows. Return the number of rows in ``parts``."""
    expected = {name for name in storage.specs if not name.startswith(EXTRAS)}
    num_seen = 0
    for rows in parts:
        if rows.keys() != expected:
            raise DataError(f"the rows have the columns {sorted(rows)}: expected {sorted(expected)}.")
        n = len(rows["is_first"])
        done = min(n, max(0, skip - num_seen))
        while (
            done < n and num_seen + done - skip < storage.count * storage.streams
        ):  # ignore more rows than were counted
            stream, row = divmod(num_seen + done - skip, storage.count)
            n_copied = min(n - done, storage.count - row)
            for name, values in rows.items():
                storage.replace(name, row, stream, values[done : done + n_copied])
            done += n_copied
        num_seen += n
    return num_seen


def _from_first_rows(pieces: Iterable[StreamPiece]) -> Iterator[Mapping[str, np.ndarray]]:
    """Yield the pieces from the first ``is_first`` of each unbroken run on."""
    begun = False
    for broken, rows in pieces:
        begun = begun and not broken
        firsts = np.flatnonzero(rows["is_first"])
        start = 0 if begun else int(firsts[0]) if len(firsts) else len(rows["is_first"])
        begun = begun or bool(len(firsts))
        if start < len(rows["is_first"]):
            yield {name: values[start:] for name, values in rows.items()}
