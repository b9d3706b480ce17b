"""Settings of the dataset that a run learns from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from reverie.core.bounds import AtLeast
from reverie.datasets.data_path import DataLike, data_path, split_paths
from reverie.datasets.options import ReadOptions


@dataclass(frozen=True, kw_only=True)
class DatasetConfig(ReadOptions):
    """A dataset to learn from."""

    path: str | tuple[str, ...] = ""
    """File, folder or glob in any supported format, minari:NAME or ogbench:NAME; or several, with the same spaces. In
    Python also data in memory. Empty: no dataset."""
    estimate_updates: Annotated[int, AtLeast(0)] | None = None
    """Number of updates for each fitted Q evaluation, which estimates the policy's return if there is no evaluation
    environment. None: 5,000, but no more in all than updates of the agent. 0: no estimates."""
    storage: Literal["ram", "mmap"] = "ram"
    """Storage of the rows: ram, or mmap (memory-mapped files) for more rows than fit into memory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "path", data_path(self.path))

    @property
    def label(self) -> str:
        """The path, or the paths, for messages."""
        return ", ".join(split_paths(self.path))


def dataset_config(data: DataLike, storage: Literal["ram", "mmap"] = "ram") -> DatasetConfig:
    """Return the settings of ``data`` as a ``DatasetConfig``. A ``DatasetConfig`` keeps its own ``storage``."""
    return data if isinstance(data, DatasetConfig) else DatasetConfig(storage=storage).merge(dataset_settings(data))


def dataset_settings(data: DataLike) -> dict[str, Any]:
    """Return ``data`` as settings, such as ``{"path": PATH, "columns": {...}}``; else the settings with their path."""
    if isinstance(data, Mapping):
        names = {field.name for field in fields(DatasetConfig)}
        if not data or names & {str(key).partition(".")[0] for key in data}:
            return {**data, **({"path": data_path(data["path"])} if "path" in data else {})}
    return {"path": data_path(data)}
