"""A person's labels of recorded rows, in a file of their own: the data stays as it is."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from operator import index
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reverie.core.errors import DataError, ReverieError, count_noun
from reverie.core.files import (
    LARGEST_STATE,
    below,
    delete_temporary_files,
    disk_errors_as_run_error,
    iter_lines,
    open_file,
    read_file,
    write_atomic,
)
from reverie.core.locations import check_location
from reverie.core.rows import Rows
from reverie.datasets.dataset import RecordedEpisodes
from reverie.datasets.npz import open_npz
from reverie.datasets.source import reading
from reverie.replay.offline import crc32c

SKIP = "skip"
"""The answer "I cannot tell"."""
WRONG = "wrong"
"""The answer about a pair of clips of which one looks wrong, as imagined ones can."""

MAX_STEPS = 1_000_000
"""Steps of a clip are fewer."""


class Label(NamedTuple):
    """An answer about one clip, or about a pair; a clip is named by its episode and first row."""

    clips: tuple[tuple[int, int], ...]
    answer: str
    is_chosen: bool = False
    """Whether a fit to earlier answers has chosen the question; otherwise it was a random one."""
    copy: str = ""
    """Name of the file that has the rows; "": the labeled dataset has them."""


@dataclass
class LabelFile:
    """Labels of a dataset: a line of JSON about the data, and a line for each label.

    Rows of runs, which grow, are copied to a folder next to the file.
    """

    path: Path
    kind: str
    """What was asked: ``preferences`` or ``success``."""
    steps: int
    """Actions of a clip, which has a row more."""
    data: str = ""
    """The labeled dataset; "" if all labeled rows are copied."""
    fingerprint: str = ""
    """Checksum of the dataset: see :attr:`IndexedRows.fingerprint`."""
    labels: list[Label] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path, kind: str) -> LabelFile:
        """Read a file; DataError if it is none, or has labels of another ``kind``."""
        try:
            with open_file(path) as opened:
                lines = map(json.loads, iter_lines(opened))
                head: Any = next(lines, {})
                labels = [
                    Label(
                        tuple((index(i), index(j)) for i, j in line["clips"]),
                        str(line["answer"]),
                        bool(line["is_chosen"]),
                        str(line["copy"]),
                    )
                    for line in lines
                ]
            data, fingerprint = str(head["data"]), str(head["fingerprint"])
            file = cls(path, str(head["kind"]), index(head["steps"]), data, fingerprint, labels)
            is_pair = file.kind == "preferences"
            if not is_pair <= file.steps < MAX_STEPS or any(len(label.clips) != 1 + is_pair for label in labels):
                raise ValueError("clips of no length or a million steps, or another number of them for each answer")
            if file.folder.is_symlink():
                raise ValueError(f"{file.folder} is a link")
            if not data and any(label.answer != SKIP and not label.copy for label in labels):
                raise ValueError("neither data nor copies")
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(
                f"{path}: {type(error).__name__}: {error}. Expected a file that reverie data compare-clips or reverie "
                "data label has written."
            ) from None
        if file.kind != kind:
            raise DataError(f"{path} has labels of {file.kind}: expected labels of {kind}. Pass {file.kind}:{path}.")
        check_location(data, path)
        return file

    def delete_unfinished(self) -> None:
        """Delete the files that a killed process was writing."""
        delete_temporary_files(self.path.parent, self.path.name)
        delete_temporary_files(self.folder)

    def write(self) -> None:
        """Write all labels; the file is complete at any time."""
        with disk_errors_as_run_error(self.path):
            write_atomic(self.path, self._format())

    @property
    def folder(self) -> Path:
        """The folder of copied rows."""
        return self.path.with_name(f"{self.path.name}.rows")

    @property
    def checksum(self) -> str:
        """Checksum of the labels and of their data."""
        return hashlib.sha256(self._format().encode()).hexdigest()

    def _format(self) -> str:
        head = {"kind": self.kind, "data": self.data, "fingerprint": self.fingerprint, "steps": self.steps}
        lines = [head, *(label._asdict() for label in self.labels)]
        return "".join(f"{json.dumps(line)}\n" for line in lines)

    def write_copy(self, rows: Rows) -> str:
        """Write the ``rows`` of clips ``[n, T, ...]``, as learners see them; return the name of the file."""
        np.savez_compressed(content := io.BytesIO(), **rows)  # type: ignore[arg-type]
        name = _name_copy(content.getvalue())
        with disk_errors_as_run_error(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomic(self.folder / name, content.getvalue())
        return name

    def read_copy(self, name: str, columns: Collection[str]) -> Rows:
        """Return ``columns`` ``[n, T, ...]`` that ``write_copy`` has written; DataError if they cannot be read."""
        try:
            with reading(path := below(self.folder, name)):
                content = read_file(path, LARGEST_STATE)
            if name != (found := _name_copy(content)):
                raise DataError(f"{path}: changed, its checksum is that of {found}.")
            with open_npz(path, io.BytesIO(content)) as file:
                return {column: file[column] for column in columns if column in file.files}
        except ReverieError as error:
            raise DataError(f"{error} Restore this file, or remove its line in {self.path}.") from None

    def check(self, rows: IndexedRows) -> None:
        """Raise DataError if ``rows`` are not those that were labeled."""
        if self.data and self.fingerprint != rows.fingerprint:
            raise DataError(
                f"{self.path} has labels of {self.data}, with the checksum {self.fingerprint}, but "
                f"{rows.recorded.label} has {rows.fingerprint}. Pass the labeled data, or label these in another file."
            )


def _name_copy(content: bytes) -> str:
    """Return the name of a file of copied rows: its checksum."""
    return f"{hashlib.sha256(content).hexdigest()[:16]}.npz"


class IndexedRows:
    """The rows of a dataset by episode and row."""

    def __init__(self, recorded: RecordedEpisodes, *, keeps_rows: bool = False) -> None:
        """``keeps_rows``: keep all rows in memory. Otherwise each call of :meth:`read` reads the files."""
        self.recorded: RecordedEpisodes = recorded
        self._rows: list[Rows] | None = [*recorded.parts()] if keeps_rows else None
        sums: dict[str, int] = {}
        firsts: list[np.ndarray] = []
        for part in recorded.reader.parts():
            firsts.append(part["is_first"])
            for name in part.keys() - {"reward"}:
                sums[name] = crc32c(part[name], sums.get(name, 0))
        is_first = np.concatenate(firsts)
        self.starts: np.ndarray = np.flatnonzero(is_first)
        """Number of the first row of each episode."""
        self.lengths: np.ndarray = np.diff(self.starts, append=len(is_first))
        """Rows of each episode."""
        self.fingerprint: str = "-".join(f"{sums[name]:08x}" for name in sorted(sums))
        """Checksums of all columns but the rewards, in the order of their names."""

    def find(self, clips: Sequence[tuple[int, int]], steps: int) -> np.ndarray:
        """Return the numbers of the rows ``[n, steps + 1]`` of ``clips``; DataError if an episode is shorter."""
        for episode, row in clips:
            if not (0 <= episode < len(self.starts) and 0 <= row < self.lengths[episode] - steps):
                raise DataError(
                    f"episode {episode}, row {row} is not in {self.recorded.label}, of which "
                    f"{count_noun(len(self.starts), 'episode')} can be labeled. Pass the data that was labeled."
                )
        episodes, rows = np.asarray(clips, np.int64).reshape(-1, 2).T
        return (self.starts[episodes] + rows)[:, None] + np.arange(steps + 1)

    def read(self, numbers: np.ndarray) -> Rows:
        """Return the rows ``[n, T, ...]`` by column as learners see them, by their ``numbers`` ``[n, T]``."""
        ascending, inverse = np.unique(numbers, return_inverse=True)
        chunks = [*self._read_sorted(ascending)]
        columns = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
        return {name: values[inverse.reshape(numbers.shape)] for name, values in columns.items()}

    def _read_sorted(self, numbers: np.ndarray) -> Iterator[Rows]:
        first = 0
        for part in self.recorded.parts() if self._rows is None else self._rows:
            stop = first + len(part["is_first"])
            in_part = numbers[np.searchsorted(numbers, first) : np.searchsorted(numbers, stop)] - first
            yield {name: values[in_part] for name, values in part.items()}
            first = stop
