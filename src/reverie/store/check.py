"""Checks all files of a store, and that its rows follow the convention of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from reverie.store.manifest import Segment
from reverie.store.read import Chunk
from reverie.store.rollback import wrong_meta
from reverie.store.store import Store


@dataclass
class Report:
    """Number of files and rows read, and what is wrong with them."""

    files: int = 0
    rows: int = 0
    damaged: list[str] = field(default_factory=list)
    """Files that are missing or do not match their checksum or the manifest, a sentence each."""
    broken: list[str] = field(default_factory=list)
    """Readable rows that break a rule, a sentence for each rule, stream and range of rows."""

    @property
    def sound(self) -> bool:
        """True if nothing is wrong."""
        return not self.damaged and not self.broken


def validate(store: Store) -> Report:
    """Read every file of every segment and of the rows set aside. Needs the memory of one chunk of all streams."""
    report = Report()
    _, harmed = wrong_meta(store.objects, store.manifest)
    report.damaged += [f"{name} {why}" for name, why in harmed.items()]
    for segment in (*store.segments, *store.aside):
        ended: dict[int, tuple[int, bool]] = {}  # by stream: the next row, and whether an episode ended before it
        for chunk in store.read(segment):
            report.files += len(segment.columns) * segment.streams
            report.rows += (chunk.stop - chunk.start) * segment.streams
            report.damaged += [str(damage) for damage in chunk.damaged]
            report.broken += broken_rows(segment, chunk, ended)
    return report


def broken_rows(segment: Segment, chunk: Chunk, ended: dict[int, tuple[int, bool]]) -> Iterator[str]:
    """Yield a sentence for each rule that undamaged rows of a chunk break; ``ended`` is updated for the next chunk."""
    for index, stream in enumerate(chunk.streams):
        for start, stop in chunk.intact(stream):
            part = slice(start - chunk.start, stop - chunk.start)
            rows = {name: column[index, part] for name, column in chunk.rows.items()}
            following, over = ended.get(stream, (-1, False))
            for rule, bad in broken(rows, over and following == start).items():
                if bad.any():
                    yield (f"segment {segment.name}, stream {stream}: {rule} (row {start + int(bad.argmax())}"
                           + (f" and {int(bad.sum()) - 1} more)" if bad.sum() > 1 else ")"))  # fmt: skip
            ended[stream] = stop, bool(rows["is_last"][-1])


def broken(rows: dict[str, np.ndarray], over: bool) -> dict[str, np.ndarray]:
    """Return for each rule which of n rows break it, bool ``[n]``. ``over``: an episode ended right before them."""
    first, last = rows["is_first"], rows["is_last"]
    after_last = np.concatenate([[over], last[:-1]])
    out = {
        "episode continues after its is_last row": after_last & ~first,
        "non-zero reward on an is_first row": first & (rows["reward"] != 0),
        "non-zero action on an is_last row": last & (rows["action"] != 0).any(axis=1),
        "is_terminal without is_last": rows["is_terminal"] & ~last,
    }
    for name, column in rows.items():
        if column.dtype.kind == "f":
            out[f"{name} is NaN or infinite"] = ~np.isfinite(column.reshape(len(column), -1)).all(axis=1)
    return out
