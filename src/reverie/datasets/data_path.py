"""The path of a dataset, by which settings name it; data in memory have one too, which carries them.

The path of an object is ``object:TYPE``, a string that carries the object. A settings file contains only the string, so
a resumed run needs the object again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reverie.core.errors import ConfigError, short_repr
from reverie.datasets.options import OPTIONAL_COLUMNS, REQUIRED_COLUMNS
from reverie.datasets.source import import_pyarrow

OBJECT = "object:"
"""Prefix of the path of an object in memory; `memory://` is a location of stores."""
LOADERS = ("collect", "compute", "to_table", "toPandas", "to_pandas")
"""Methods that return a table in memory, of Polars' LazyFrame, Dask, PyArrow's datasets, Spark and others."""
DataLike = Any
"""Arguments accepted as data: a path, ``minari:NAME``, ``DatasetConfig``, a dictionary of arrays under D4RL's names, a
table (pandas, Polars, pyarrow, or any object with Arrow export), a ``minari.MinariDataset``, or a list of these."""


class InMemoryPath(str):
    """The path of an object in memory, with the object itself: a dictionary of arrays, or an Arrow table."""

    content: Any

    def __new__(cls, content: object, kind: str) -> InMemoryPath:
        """``kind``: name of the object's original type."""
        path = super().__new__(cls, OBJECT + kind)
        path.content = content
        return path

    def __reduce__(self) -> Any:
        return str, (str(self),)  # settings go to other processes, which do not read the data


def data_path(data: DataLike) -> str | tuple[str, ...]:
    """Return the path of ``data``, or a list of paths; for objects in memory, an ``InMemoryPath``."""
    kind = type(data).__name__
    if isinstance(data, str | Path):
        return data if isinstance(data, str) else str(data)
    if isinstance(data, list | tuple):
        paths = tuple(path for item in data for path in split_paths(data_path(item)))
        return paths if len(paths) > 1 else (*paths, "")[0]
    if isinstance(data, Mapping) and set(REQUIRED_COLUMNS) <= data.keys():
        return InMemoryPath({str(name): np.asarray(values) for name, values in data.items()}, kind)
    if (storage := getattr(data, "storage", None)) is not None and hasattr(storage, "data_path"):
        if (some := len(data.episode_indices)) != storage.total_episodes:
            raise ConfigError(
                f"data = {kind} with {some} of the {storage.total_episodes} episodes of {storage.data_path}: only "
                "whole datasets are read. Write the part as a dataset: minari.split_dataset, reverie data subsample."
            )
        return str(Path(storage.data_path).parent)
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "columns"):
        arrow = import_pyarrow()
        try:  # Polars' own export uses types that every version of pyarrow supports
            return InMemoryPath(data.to_arrow() if hasattr(data, "to_arrow") else arrow.table(data), kind)
        except (TypeError, ValueError, arrow.ArrowException) as error:
            load = next((f"data.{name}()" for name in LOADERS if hasattr(data, name)), "a table in memory")
            detail = " ".join(str(error).split())
            raise ConfigError(f"data = {kind}: it is no table in memory ({detail}). Pass {load}.") from error
    has = f" with {', '.join(map(str, data))}" if isinstance(data, Mapping) else ""
    raise ConfigError(
        f"data = {short_repr(data)} ({kind}{has}): expected a path, minari:NAME, a DatasetConfig or its settings, a "
        f"dictionary of the arrays {', '.join(REQUIRED_COLUMNS)}, perhaps {', '.join(OPTIONAL_COLUMNS)}, a table, a "
        "Minari dataset, or a list of these. Stack the steps of a PyTorch dataset to these arrays, or write them to a "
        "table with a column of episode numbers."
    )


def split_paths(path: str | Sequence[str]) -> tuple[str, ...]:
    """Return one path, or several, as a list; empty for ""."""
    if isinstance(path, str):
        return (path,) if path else ()
    return tuple(path)
