"""Reads npz files. Nothing is unpickled."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from reverie.core.rows import Rows
from reverie.datasets.reader import reading


@contextlib.contextmanager
def open_npz(path: Path) -> Iterator[Any]:
    """Open a file; errors while it is open name it."""
    with reading(path), np.load(path, allow_pickle=False) as file:
        yield file


def array_names(path: Path) -> list[str]:
    """Return the names of the arrays in a file."""
    with open_npz(path) as file:
        return list(file.files)


def arrays_in(file: Any, names: Iterable[str]) -> Rows:
    """Return arrays of an open file by name. Arrays of Python objects are omitted, since they are pickled."""
    arrays: Rows = {}
    for name in names:
        try:
            arrays[name] = file[name]
        except ValueError as error:
            if "allow_pickle" not in str(error):
                raise
    return arrays
