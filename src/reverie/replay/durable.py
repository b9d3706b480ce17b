"""Save and restore what a checkpoint holds besides the learner, so that a resumed run continues exactly.

Rows are appended to a *store* (``store/store.py``) as they are collected. A checkpoint holds the position in the
store, the few rows that the store had not confirmed by then, the latents, which every update changes, and the
environments in the middle of their episodes.

Terms:

- *segment*: rows in a store with fixed columns and a fixed number of streams (one per environment);
- *stored*: number of rows per stream that the store had confirmed; *tail*: the rows after them, held by the checkpoint;
- *sitting*: one process's stretch of writing to a segment; equal sittings mean equal rows (``store/sittings.py``);
- *set aside*: moved to ``aside/`` in the store, where rows stay readable but are not part of the run any more;
- *home*: the segment in which a resumed run can go on writing; *parts*: the places where its rows are, in order.

What may be found at loading, and what is done:

=============================================================  =======================================================
In the store                                                   Replay; where new rows go
=============================================================  =======================================================
exactly the rows stored                                        as it was; same segment, tail first
newer rows as well, of this run                                as it was; same segment, the newer rows are set aside
newer rows as well, of another run                             as it was; copied to a new segment beside them
some rows set aside by another run, such as a copy of this     as it was, read from both; copied to a new segment
all rows, but in the store that the settings named before      as it was; copied to a new segment of the new store
some rows missing or damaged, or another number of streams     whole episodes laid out anew; copied to a new segment
nothing of the checkpoint's segment                            empty; new segment
=============================================================  =======================================================

Only a replay that is as it was, row by row (``exact``), gets its latents back, and environments in the middle of their
episodes. Otherwise latents begin as zeros and environments with new episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from reverie.core.errors import RunError
from reverie.core.specs import EXTRAS
from reverie.core.types import State
from reverie.core.words import Say, plural
from reverie.replay.layout import Piece, Pieces, lay_out
from reverie.replay.replay import Replay
from reverie.replay.stored_rows import Found, Names, all_pieces, found_pieces, length_of, once, own_rows
from reverie.store import sittings as marks
from reverie.store.manifest import Segment
from reverie.store.sittings import Part, begun, held_until, parts_of, same_until, until
from reverie.store.store import Store

PATIENCE = 10.0
"""Seconds that a checkpoint waits for the store. Rows not confirmed by then go into the checkpoint."""

BLOCK_BYTES = 64 * 2**20
"""Bytes copied from the replay to a store at a time."""


class DurableReplay:
    """A replay with its durable store, as one part of a checkpoint."""

    spare = True

    def __init__(
        self,
        replay: Replay,
        store: Store | None,
        place: str,
        say: Say,
        *,
        former: Callable[[str], Store | None],
    ) -> None:
        """Connect an empty replay to a store.

        Args:
            replay: still empty.
            store: receives every row; None keeps no rows.
            place: the store's place in the settings. The same store always has the same ``place``.
            say: called with a sentence about each thing that is not as it was.
            former: opens the store at a place that the settings named earlier.
        """
        self.replay, self.store, self.place, self.say = replay, store, place, say
        self.former = former
        self.columns = {name: spec for name, spec in replay.storage.specs.items() if not name.startswith(EXTRAS)}
        self.streams = replay.storage.streams
        self.segment = ""
        self.saved: State = {}
        self.exact = False
        """Whether the replay was restored row by row as it was saved."""
        self.copied = False
        """Whether the loaded rows were copied to a new segment."""

    def begin(self, sources: Mapping[str, Store]) -> None:
        """Begin a new run, empty or with the rows of ``sources``, and store every row from now on."""
        if self.store is not None:  # reading can take long
            self.store.claim()
        total, say = max(1, sum(own_rows(store) for store in sources.values())), once(self.say)

        def pieces(columns: Names) -> Iterator[Piece]:
            for store in sources.values():
                yield from all_pieces(store, say, columns, max(1, self._room * own_rows(store) // total))

        self._start_with(pieces if sources else None)

    def state_dict(self) -> State:
        """Return the position in the store, the rows that are not stored yet, and the state of the samplers."""
        numbers = {"count": self.replay.count, "oldest": self.replay.oldest}
        state: dict[str, Any] = {**numbers, "replay": dict(self.replay.state_dict())}
        if self.store is None:
            return state
        try:
            self.store.flush(PATIENCE)
        except RunError as error:  # the store's thread has failed: rows that it has not stored go into the checkpoint
            self.say(str(error))
        tail = self.store.pending()
        stored = self.replay.count - length_of(tail)
        known = marks.plain(until(self.store.sittings, stored))
        place = {"place": self.place, "segment": self._segment_id(), "sittings": known}
        return {**state, **place, "stored": stored, "tail": tail}

    def load_state_dict(self, state: State) -> None:
        """Fill the replay with the rows that it held, and continue storing.

        If rows are damaged, or the number of environments is another, the whole episodes that are left are laid out
        anew. If there are no rows the replay begins empty.
        """
        self.saved = state
        if self.store is not None:
            self.store.claim(state.get("segment", ""))
        found = self._found(state)
        if found is None:
            self.say("the replay starts empty: its rows were not stored, or are no longer where they were")
            self._start_with(None)
        elif not self._read_back(found, state):
            self.copied, say = True, once(self.say)
            imported = found.store is self.store and found.in_place
            self._start_with(lambda columns: found_pieces(found, say, columns), imported)
            streams = plural(self.streams, "stream")
            self.say(f"the replay was rebuilt from its rows: {self.replay.count:,} in each of {streams}")

    def save_files(self, folder: Path) -> None:
        """Write the latents."""
        self.replay.save_extras(folder)

    def load_files(self, folder: Path) -> None:
        """Restore latents and samplers if the rows are the same. Latents that were not saved begin as zeros."""
        if self.exact and any(folder.glob("*")):
            self.replay.load_extras(folder, int(self.saved["oldest"]))
        self.replay.load_state_dict(self.saved["replay"])

    @property
    def _room(self) -> int:
        return self.streams * self.replay.storage.capacity

    def _segment_id(self) -> str:
        assert self.store is not None
        return next(segment.id for segment in self.store.segments if segment.name == self.segment)

    def _found(self, state: State) -> Found | None:
        """Find the rows of ``state`` in the current store or in the former one."""
        stores = [self.store] if self.store is not None else []
        if state.get("place", self.place) != self.place and (former := self.former(state["place"])) is not None:
            stores.append(former)
        for store in stores:
            groups = [s for s in (*store.segments, *store.aside) if s.id == state.get("segment")]
            if groups:
                return self._found_in(store, groups, state)
        return None

    def _found_in(self, store: Store, groups: list[Segment], state: State) -> Found:
        """Find the rows of ``state`` in ``groups``: a segment, and rows set aside from it."""
        stored, tail, oldest = int(state["stored"]), dict(state["tail"]), int(state["oldest"])
        sittings, home = marks.of_plain(state.get("sittings", ())), groups[0]
        if home not in store.segments or home.rows < stored or same_until(sittings, home.sittings, stored) < stored:
            parts = parts_of(groups, sittings, oldest, stored)
            lost = max(0, stored - (parts[-1].stop if parts else oldest))
            found = Found(store=store, like=home, parts=parts, stored=stored, tail=tail, sittings=sittings, home=None,
                          lost=lost)  # fmt: skip
            self._say_moved(found)
            return found
        start = max(oldest, home.first)
        parts = [Part(home, start, stored)] if start < stored else []
        sittings = until(home.sittings, stored)
        return Found(store=store, like=home, parts=parts, stored=stored, tail=tail, sittings=sittings, home=home)

    def _say_moved(self, found: Found) -> None:
        """Report rows that another run has replaced or set aside, or that are gone."""
        where, own = found.store.objects.where, "Use a separate replay.store for each run"
        aside = [part.group.name for part in found.parts if part.group not in found.store.segments]
        if found.lost:
            self.say(
                f"{found.lost * found.like.streams:,} rows of the checkpoint are no longer in {where}: another run, "
                f"such as a copy of this one, has replaced them, or they were deleted. {own}"
            )
        elif aside:
            self.say(
                f"another run, such as a copy of this one, has continued in {where} and set rows of this run aside. "
                f"None is lost: they are read from {' and '.join(aside)}. {own}"
            )

    def _read_back(self, found: Found, state: State) -> bool:
        """Fill the replay with the rows of a checkpoint as they were. Returns False if that is impossible."""
        if found.lost or (found.like.streams, dict(found.like.columns)) != (self.streams, self.columns):
            return False
        newest = found.stored + length_of(found.tail)
        oldest = max(found.oldest, newest - self.replay.storage.capacity)
        self.replay.begin_at(oldest)
        for part in found.parts:
            start, stop = max(part.start, oldest) - part.group.offset, part.stop - part.group.offset
            if not self.replay.refill(found.store.read(part.group, start, stop, room=self.replay.room)):
                return False
        if length_of(found.tail):
            self.replay.extend(found.tail)
        self._go_on(found)
        self.exact = self.replay.count == int(state["count"])
        return True

    def _go_on(self, found: Found) -> None:
        """Continue writing after the rows just read, or in a new segment if these are elsewhere or another run's."""
        if self.store is None:
            pass
        elif self._can_go_on(found) and found.home is not None:
            self.segment = found.home.name
            self.store.resume(self.segment, found.stored, self.columns, self.streams)
            if length_of(found.tail):
                self.store.extend(found.tail)
        else:
            self.copied = True
            oldest, sittings = self.replay.oldest, begun(found.sittings, found.stored)
            here = [part.stop for part in found.parts if part.group in self.store.segments]
            held = max(held_until(self.store.segments, found.sittings, found.stored), *here, 0)
            self.segment = self.store.begin(
                self.columns, self.streams, first=oldest, imported=max(0, held - oldest), sittings=sittings
            )
            self._store_all(self.store)
        self.replay.attach(self.store)

    def _can_go_on(self, found: Found) -> bool:
        """Return whether to write on in the segment of the rows. Rows of another run are never set aside."""
        home, where = found.home, found.store.objects.where
        if self.store is not found.store and self.store is not None:
            self.say(f"the replay was in {where}: its rows are copied to {self.store.objects.where}, the new store")
            return False
        if home is not None and home.rows > found.stored and not found.store.owns(home):
            self.say(
                f"rows in {where} newer than the checkpoint belong to the run {home.run}: they are kept, and this run "
                "continues beside them. Unless this run was there before, use a separate replay.store for each run"
            )
            return False
        return home is not None

    def _start_with(self, source: Pieces | None, imported: bool = False) -> None:
        """Begin a segment with the rows of ``source``, or an empty one. ``imported``: the store has these already."""
        self.replay.begin_at(0)
        if source is not None and (count := lay_out(self.replay.storage, source)):
            flags = self.replay.storage.read(0, count, ["is_first", "is_last"])
            self.replay.batch_sampler.add(flags["is_first"], flags["is_last"], collected=False)
        if self.store is not None:
            copies = self.replay.count if imported else 0
            self.segment = self.store.begin(self.columns, self.streams, first=self.replay.oldest, imported=copies)
            self._store_all(self.store)
        self.replay.attach(self.store)

    def _store_all(self, store: Store) -> None:
        """Write all rows of the replay to the store."""
        row = self.streams * sum(column.nbytes for column in self.columns.values())
        block = max(1, BLOCK_BYTES // row)
        for start in range(self.replay.oldest, self.replay.count, block):
            stop = min(start + block, self.replay.count)
            store.extend(self.replay.storage.read(start, stop, list(self.columns)))
