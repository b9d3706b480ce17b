"""Writing where something may be: what lies beyond a row is set aside, and the last chunk comes back into memory.

A process may be killed between any two steps:

1. Files with rows to be set aside are copied to ``aside/<n>/``, and every ``zarr.json`` is written as the manifest is
   about to say. Killed here, all of it is done again next time.
2. The manifest is replaced: it lists ``aside/<n>`` and ends the segment earlier. This is the moment when it counts.
3. Files that lie wholly beyond are deleted. Killed before, the next resume finds them and deletes them; nobody reads
   them, and rows added later replace them before the manifest counts those.
4. The file in which the segment now ends still holds rows beyond. It is replaced, by one with the rows before and new
   ones, when the manifest is about to count these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from reverie.core.errors import RunError
from reverie.data.store.manifest import MANIFEST, Damage, Manifest, Segment
from reverie.data.store.objects import LEASE, PART, Objects
from reverie.data.store.read import read_chunk
from reverie.data.store.sittings import until
from reverie.data.store.threads import for_each
from reverie.data.store.zarr import META, chunk_name, is_sealed, store_meta

DAMAGED = "damaged/"


def check_place(objects: Objects, manifest: Manifest) -> None:
    """The place is empty, or a store.

    Raises:
        RunError: it holds something else.
    """
    if manifest.segments or manifest.aside:
        return
    found = objects.sizes()
    strangers = [name for name in found if not name.endswith((PART, META, LEASE)) and name[0] != "."]
    if strangers and MANIFEST not in strangers:
        raise RunError(
            f"{objects.where} is not empty and not a store (it has no {MANIFEST}, but {strangers[0]}): choose "
            "another folder."
        )


def set_aside(objects: Objects, manifest: Manifest, segment: Segment, rows: int) -> Manifest:
    """Step 1, and the manifest of step 2: ``segment`` ends at ``rows`` and is the last one.

    Segments begun later stay where they are and are listed as set aside. Rows are copied as whole files, so that the
    group begins with some that the segment has, too; its ``first`` says where those set aside begin.
    """
    position = manifest.segments.index(segment)
    later = tuple(replace(s, origin=s.name) for s in manifest.segments[position + 1 :])
    aside, kept = (*manifest.aside, *later), segment
    if segment.rows > rows:
        start, base = max(rows, segment.first), max(rows, segment.first) // segment.chunk * segment.chunk
        beyond = replace(segment, name=manifest.next_aside(), start=start - base, first=start - base,
                         rows=segment.rows - base, imported=0, origin=segment.name, offset=base,
                         damaged=tuple(_moved(segment, base)))  # fmt: skip
        copy_chunks(objects, segment, beyond, base // segment.chunk)
        aside = (*aside, beyond)
        kept = replace(segment, rows=rows, first=min(segment.first, rows), sittings=until(segment.sittings, rows),
                       damaged=tuple(d for d in segment.damaged if d.start < rows))  # fmt: skip
    return Manifest((*manifest.segments[:position], kept), aside)


def _moved(segment: Segment, base: int) -> Iterator[Damage]:
    for damage in segment.damaged:
        if damage.stop > base:
            yield replace(damage, start=max(0, damage.start - base), stop=damage.stop - base)


def copy_chunks(objects: Objects, source: Segment, target: Segment, number: int) -> None:
    """The files of ``source`` from chunk ``number`` on become those of ``target`` from 0 on. Lost ones stay lost."""

    def copy(job: tuple[str, int, int]) -> None:
        name, stream, index = job
        try:
            data = objects.get(chunk_name(source, name, stream, number + index))
        except FileNotFoundError:
            return
        objects.stage(chunk_name(target, name, stream, index), data)

    chunks = range(-(-target.rows // target.chunk))
    jobs = [(name, stream, i) for name in target.columns for stream in range(target.streams) for i in chunks]
    for_each(copy, jobs, objects.threads)
    objects.publish()


def tidied(objects: Objects, segment: Segment) -> None:
    """Step 3, and what killed processes left: files that were being written, chunks outside the segment's rows."""
    strays = []
    for file in objects.sizes(segment.name):
        name = file.rpartition("/")[2]
        if name.startswith("c."):
            number = int(name.split(".")[2])
            if not segment.first // segment.chunk <= number < -(-segment.rows // segment.chunk):
                strays.append(file)
        elif name.endswith(PART):
            strays.append(file)
    objects.delete(strays)


def loaded(
    objects: Objects, segment: Segment, say: Callable[[str], None]
) -> tuple[Segment, dict[str, np.ndarray] | None]:
    """The last chunk of every stream and column, if the segment ends within one: new rows go on in it.

    What is damaged is zeros there. As those files will be replaced, they are copied to ``damaged/`` first, and the
    rows are noted in the segment that is returned.
    """
    base = segment.rows // segment.chunk * segment.chunk
    if base == segment.rows:
        return segment, None
    block = {name: np.zeros((segment.streams, segment.chunk, *c.shape), c.dtype)
             for name, c in segment.columns.items()}  # fmt: skip
    if segment.first >= segment.rows:
        return segment, block
    start = max(base, segment.first)
    chunk = read_chunk(objects, segment, start, segment.rows, tuple(range(segment.streams)), tuple(segment.columns))
    for name, rows in chunk.rows.items():
        block[name][:, start - base : segment.rows - base] = rows
    found = [damage for damage in chunk.damaged if not any(_covers(known, damage) for known in segment.damaged)]
    for damage in found:
        say(f"damaged rows in the store {objects.where}: {damage}; they will not be used")
        _keep_damaged(objects, damage.file)
    return replace(segment, damaged=(*segment.damaged, *found)), block


def _covers(known: Damage, damage: Damage) -> bool:
    return known.file == damage.file and known.start <= damage.start and known.stop >= damage.stop


def _keep_damaged(objects: Objects, file: str) -> None:
    try:
        objects.put(f"{DAMAGED}{file}", objects.get(file))
    except FileNotFoundError:
        return


def mend(objects: Objects, manifest: Manifest) -> dict[str, str]:
    """Write those ``zarr.json`` again that do not say what the manifest says; names of lost and damaged ones, and why.

    Others are of another commit, as when a process was killed after it had replaced the manifest.
    """
    wrong, harmed = wrong_meta(objects, manifest)
    for name, expected in wrong.items():
        objects.stage(name, expected)
    if wrong:
        objects.publish()
    return harmed


def wrong_meta(objects: Objects, manifest: Manifest) -> tuple[dict[str, bytes], dict[str, str]]:
    """The ``zarr.json`` that are not as the manifest says, and how they should be; why, for the lost and damaged."""
    wrong: dict[str, bytes] = {}
    harmed: dict[str, str] = {}

    def check(item: tuple[str, bytes]) -> None:
        name, expected = item
        try:
            found = objects.get(name)
            if found == expected:
                return
            if not is_sealed(found):
                harmed[name] = "is damaged"
        except FileNotFoundError:
            harmed[name] = "is missing"
        wrong[name] = expected

    for_each(check, store_meta(manifest).items(), objects.threads)
    return dict(sorted(wrong.items())), dict(sorted(harmed.items()))
