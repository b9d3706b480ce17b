"""Prepares a store for writing: repairs it after a crash, sets newer rows aside, reads the last chunk into memory.

Rows that are *set aside* lie in a group of their own, ``aside/<n>``, which the manifest lists and no training reads. A
run does that when it is resumed at a row older than its newest one. It may be killed between any two of these steps:

1. The files with those rows are copied to ``aside/<n>``, and each ``zarr.json`` is written as step 2 will need it.
2. The manifest is replaced: now it lists ``aside/<n>``, and the segment ends earlier.
3. Files of the segment that hold only rows set aside are deleted.
4. The file in which the segment ends still holds newer rows. It is replaced when the next rows are written.

A process may also be killed while it writes or deletes rows. What it may leave behind, and what happens to it
("resume" deletes only in the segment that is resumed; "mended" means by the next ``begin`` or ``resume``)::

    left in the store                                then
    -----------------------------------------------  ------------------------------------------------------------
    .<file>.part, written half (local folders)       never read; deleted by resume, or overwritten
    chunk files after the manifest's last row        never read; deleted by resume, or overwritten by new rows
    newer rows in the file of the last row           never read; overwritten by new rows
    chunk files before the manifest's first row      never read; deleted by resume
    manifest.json newer than its backup              manifest.json is used; the backup is mended
    one of the two manifests damaged or lost         the other is used; mended. If the backup was a commit behind, the
                                                     rows of that commit are lost
    zarr.json of an older or newer manifest          mended, as all of it follows from the manifest
    <n> or aside/<n> that the manifest does not list never read; overwritten by the next group of that name
    a copy in damaged/ of a file not replaced yet    kept, or overwritten by the same copy
    lease.json (behind a URL)                        taken over, see lease.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from reverie.core.errors import RunError
from reverie.core.words import Say
from reverie.store.manifest import MANIFEST, Damage, Manifest, Segment
from reverie.store.objects import LEASE, PART, Objects
from reverie.store.read import read_chunk
from reverie.store.sittings import since, until
from reverie.store.threads import for_each
from reverie.store.zarr import META, chunk_name, is_sealed, store_meta

DAMAGED = "damaged/"


def check_place(objects: Objects, manifest: Manifest) -> None:
    """Check that the place is empty or a store.

    Raises:
        RunError: it holds other files and no manifest.
    """
    if manifest.segments or manifest.aside:
        return
    found = objects.sizes()
    strangers = [name for name in found if not name.endswith((PART, META, LEASE)) and name[0] != "."]
    if strangers and MANIFEST not in strangers:
        raise RunError(
            f"{objects.where} is not empty and is not a replay store (it contains {strangers[0]} but no {MANIFEST}): "
            "choose another folder."
        )


def set_aside(objects: Objects, manifest: Manifest, segment: Segment, rows: int) -> Manifest:
    """Do step 1, and return the manifest for step 2, in which ``segment`` is the last one and ends before row ``rows``.

    Segments after it are not moved, only listed as set aside. Rows are copied as whole files, so the new group may
    begin with rows that the segment keeps; its ``first`` says where the rows set aside begin.
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
    # Also those set aside by versions that kept all sittings.
    aside = tuple(replace(group, sittings=since(group.sittings, group.offset + group.first)) for group in aside)
    return Manifest((*manifest.segments[:position], kept), aside)


def _moved(segment: Segment, base: int) -> Iterator[Damage]:
    for damage in segment.damaged:
        if damage.stop > base:
            yield replace(damage, start=max(0, damage.start - base), stop=damage.stop - base)


def copy_chunks(objects: Objects, source: Segment, target: Segment, number: int) -> None:
    """Copy the files of ``source``, from chunk ``number`` on, to chunks 0 and on of ``target``; skip missing ones."""

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
    """Do step 3: delete the segment's ``.part`` files, and chunk files that hold none of its rows."""
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


def loaded(objects: Objects, segment: Segment, say: Say) -> tuple[Segment, dict[str, np.ndarray] | None]:
    """Read the last chunk of every stream and column, ``[streams, R, *shape]``, as new rows will be added to it.

    Returns the segment and the chunk, None if the segment ends between two chunks. Damaged rows are zeros. As their
    files will be replaced, they are copied to ``damaged/`` first, and the rows are listed in the returned segment.
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
    """Write each ``zarr.json`` again that is not as the manifest says.

    Returns the names of the missing and damaged ones, with the reason. Those of another commit, left by a process that
    was killed between writing the manifest and writing them, are not reported.
    """
    wrong, harmed = wrong_meta(objects, manifest)
    for name, expected in wrong.items():
        objects.stage(name, expected)
    if wrong:
        objects.publish()
    return harmed


def wrong_meta(objects: Objects, manifest: Manifest) -> tuple[dict[str, bytes], dict[str, str]]:
    """Return the right contents of each ``zarr.json`` that is wrong, and the reason for missing and damaged ones."""
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
