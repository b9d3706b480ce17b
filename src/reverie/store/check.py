"""Checks all files of a store. Rows are checked as those of any dataset (``datasets/validate.py``)."""

from __future__ import annotations

from dataclasses import dataclass, field

from reverie.store.segment import parse
from reverie.store.store import Store
from reverie.store.zarr import segment_metas


@dataclass
class Report:
    """Number of files and rows read, and what is wrong with them."""

    files: int = 0
    rows: int = 0
    damaged: list[str] = field(default_factory=list)
    """Files that are missing or do not match their checksum, a sentence each."""


def validate(store: Store) -> Report:
    """Read every file of every segment. Needs the memory of one chunk of all streams."""
    report = Report()
    for segment in store.segments:
        for name, expected in segment_metas(segment).items():
            try:
                found = store.objects.get(name)
                if found != expected and b"seal" in expected:  # it may be older, if a process was killed
                    parse(segment.name, found)
                elif found != expected:
                    raise ValueError("is not as it was written")
            except FileNotFoundError:
                report.damaged.append(f"{name} is missing")
            except ValueError as error:
                report.damaged.append(f"{name} is damaged ({error})")
        for chunk in store.read(segment):
            report.files += len(segment.columns) * segment.streams
            report.rows += (chunk.stop - chunk.start) * segment.streams
            report.damaged += [str(damage) for damage in chunk.damaged]
    return report
