"""Reads Minari datasets without the Minari library: episodes of T actions and T + 1 observations.

Each episode is converted to rows separately: concatenated observations and actions would not align.
"""

from __future__ import annotations

import json
import os
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from reverie.core.documents import read_json
from reverie.core.errors import ConfigError, DataError, did_you_mean
from reverie.core.rows import Rows, group_episodes, pad_episode
from reverie.core.space_json import space_from_json
from reverie.core.spaces import column, iter_leaves, map_leaves
from reverie.core.specs import IS_INTERVENTION
from reverie.datasets.arrow import read_table
from reverie.datasets.arrow_values import arrow_to_numpy
from reverie.datasets.compressed_images import decode_images
from reverie.datasets.hdf5 import check_storage
from reverie.datasets.inferred_spaces import infer_action_space
from reverie.datasets.options import PROPENSITY
from reverie.datasets.reader import (
    PART_BYTES,
    SEED,
    TRUNCATED_COLUMN,
    DatasetInfo,
    Reader,
    ReadOptions,
    Space,
)
from reverie.datasets.source import COPY_ADVICE, Source, import_pyarrow, open_hdf5, reading
from reverie.datasets.transitions import EARLY_END_REMARK, OPEN, STEPLESS

if TYPE_CHECKING:
    from h5py import h5d

METADATA, MAIN = "metadata.json", "main_data.hdf5"
# Keys in the metadata of datasets written by reverie: whether the original did not declare its action space; an
# environment's id with the module that registers it, which an env_spec cannot contain; and its settings as JSON.
MEASURED_KEY, ENV_ID, ENV_SETTINGS = "reverie_action_space_measured", "reverie_env_id", "reverie_env_settings"
ELEMENT_NAMES = "reverie_element_names"
"""Key in the metadata of datasets written by reverie: the names of elements as JSON, see ``DatasetInfo``."""
HAS_TAGS_KEY = "reverie_has_interventions"
"""Key in the metadata of datasets written by reverie: True if some episodes have ``is_intervention`` in their infos."""
HAS_REWARDS_KEY = "reverie_has_rewards"
"""Key in the metadata of datasets written by reverie: False if the original has no rewards."""


def minari_root() -> Path:
    """Return the folder in which Minari keeps its datasets."""
    return Path(os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets")


def check_name(name: str) -> None:
    """Raise ConfigError unless Minari accepts ``name`` as the name of a dataset."""
    if not re.fullmatch(r"(?!.*//)([\w-][\w/-]*[\w-]/)?[\w-]+-v\d+", name):
        expected = "expected a name with a version, such as D4RL/door/human-v2, of [A-Za-z0-9_-]"
        raise ConfigError(f"minari:{name}: {expected}.")


def local_names(root: Path | None = None) -> list[str]:
    """Return the names of the datasets in ``root``, by default Minari's folder; not of datasets still being written."""
    root = root or minari_root()
    paths = [path.parents[1].relative_to(root) for path in root.glob(f"**/data/{METADATA}")]
    return sorted(path.as_posix() for path in paths if not any(part.startswith(".") for part in path.parts))


def minari_path(name: str) -> Path:
    """Return the folder of the local dataset called ``name``."""
    root = minari_root()
    if name and (root / name / "data" / METADATA).is_file():
        return root / name
    names = local_names(root)
    listing = ", ".join(names[:12]) + (" ..." if len(names) > 12 else "")
    available = f"Available: {listing}" if names else "There are none yet"
    raise DataError(
        f"there is no Minari dataset '{name}' in {root} (MINARI_DATASETS_PATH).{did_you_mean(name, names)} "
        f"{available}. Download it with `reverie data download minari:{name}`."
    )


def _read_metadata(path: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the data folder and its metadata if ``path`` is a Minari dataset or its ``data`` folder; else None."""
    for file in (path / "data" / METADATA, path / METADATA):
        if file.is_file():
            content = read_json(file)
            if "data_format" in content:
                return file.parent, content
    return None


@dataclass(frozen=True)
class ArrayLeaf:
    """One array of an episode: the name of its column, its path in the file, and its space."""

    column: str
    path: tuple[str, ...]
    space: Space

    @property
    def is_action(self) -> bool:
        """Whether it is an action: an episode has one action fewer than observations."""
        return self.column.startswith("action")


def _array_leaves(space: Space, root: str, group: str) -> list[ArrayLeaf]:
    """Return the arrays of a space; Minari calls the parts of a tuple ``_index_0``, ``_index_1``."""
    return [
        ArrayLeaf(column(root, keys), (group, *(f"_index_{k}" if isinstance(k, int) else str(k) for k in keys)), leaf)
        for keys, leaf in iter_leaves(space)
    ]


class MinariReader(Reader):
    """Base class for all storage formats of Minari."""

    format = "Minari"

    @classmethod
    def matches(cls, source: Source) -> bool:
        return _read_metadata(source.path) is not None if source.is_folder else "episode_0" in source.names

    @classmethod
    def open(cls, path: Path, sources: Sequence[Source], options: ReadOptions) -> list[Reader]:
        readers: list[Reader] = []
        for source in sources:
            folder = source.path if source.is_folder else source.path.parent
            if (located := _read_metadata(folder)) is None:
                raise DataError(f"{source.path} is a part of a Minari dataset, whose {METADATA} is missing next to it.")
            is_hdf5 = located[1]["data_format"] == "hdf5"
            readers.append((MinariHdf5Reader if is_hdf5 else MinariArrowReader)(folder, options))
        return readers

    def __init__(self, path: Path, options: ReadOptions) -> None:
        super().__init__(path, options)
        located = _read_metadata(path)
        if located is None:
            raise DataError(f"{path} is not a Minari dataset: its data/{METADATA} names no data_format.")
        self.folder: Path
        self.metadata: dict[str, Any]
        self.folder, self.metadata = located
        with reading(self.folder / METADATA):
            self.observation: Space = space_from_json(self.metadata["observation_space"], str(path))
            self.action: Space = space_from_json(self.metadata["action_space"], str(path))
            self.count: int = int(self.metadata["total_episodes"])
            self.steps: int = int(self.metadata["total_steps"])
        self.leaves: list[ArrayLeaf] = _array_leaves(self.observation, "obs", "observations")
        self.leaves += _array_leaves(self.action, "action", "actions")
        self.jpeg: bool = bool(self.metadata.get("jpeg_encoding", True))

    def _metadata_json(self, key: str) -> dict[str, Any]:
        """Return the JSON content of the metadata under ``key``; empty if there is none."""
        text = self.metadata.get(key)
        content: dict[str, Any] = json.loads(text) if isinstance(text, str) and text.strip() not in ("", "None") else {}
        return content

    def env_id(self) -> str:
        return str(self.metadata.get(ENV_ID) or self._metadata_json("env_spec").get("id", ""))

    @cached_property
    def has_propensity(self) -> bool:
        """Whether the infos have propensities, as reverie writes them; all other infos are left out, with a remark."""
        names = self.info_names()
        if unused := sorted({*names} - {PROPENSITY, IS_INTERVENTION}):
            self.add_remark(f"left out: infos/{', infos/'.join(unused)}")
        return PROPENSITY in names

    @property
    def has_interventions(self) -> bool:
        """Whether the infos of some episodes tell takeovers, as reverie writes them."""
        return bool(self.metadata.get(HAS_TAGS_KEY))

    def info(self) -> DatasetInfo:
        spec, settings = self._metadata_json("env_spec"), self._metadata_json(ENV_SETTINGS)
        titles = ("dataset_id", "algorithm_name", "author", "minari_version", "code_permalink", "description")
        unknown = bool(self.metadata.get(MEASURED_KEY))
        infinite = any(leaf.is_action and _is_unbounded(leaf.space) for leaf in self.leaves)
        return DatasetInfo(
            observation=self.observation,
            action=self._bounded_action,
            env=self.env_id(),
            env_kwargs=dict(spec.get("kwargs") or {}),
            env_settings=settings and {"id": self.env_id(), **settings},
            env_spec=spec,
            max_episode_steps=spec.get("max_episode_steps"),
            has_rewards=bool(self.metadata.get(HAS_REWARDS_KEY, True)),
            has_propensity=self.has_propensity,
            has_interventions=self.has_interventions,
            has_measured_bounds=unknown or infinite,
            declared_action_space=self.action if infinite and not unknown else None,
            element_names={name: tuple(names) for name, names in self._metadata_json(ELEMENT_NAMES).items()},
            text={name: str(self.metadata[name]) for name in titles if self.metadata.get(name)},
        )

    @cached_property
    def _bounded_action(self) -> Space:
        """The action space, with bounds measured over all episodes if none are declared."""
        by_column = {leaf.column: leaf for leaf in self.leaves}

        def measured_space(name: str, space: Space) -> Space:
            if not _is_unbounded(space):
                return space
            episodes = range(self.count)
            leaf = by_column[name]
            return infer_action_space(lambda: (self.values(i, leaf).astype(space.dtype) for i in episodes), self.path)[
                0
            ]

        return map_leaves(self.action, "action", measured_space)

    def rows(self) -> int:
        return self.steps + self.count

    def parts(self) -> Iterator[Rows]:
        return group_episodes(self._episodes(with_seeds=False), PART_BYTES // 2)  # concatenation needs twice the memory

    def as_recorded(self) -> Iterator[Rows]:
        return group_episodes(self._episodes(with_seeds=True), PART_BYTES // 2)

    def _episodes(self, with_seeds: bool) -> Iterator[Rows]:
        met: Counter[str] = Counter()
        num_rows = 0
        for index in range(self.count):
            with reading(f"{self.folder}: episode {index}"):
                rows = self._rows(index, met)
            if rows is None:
                continue
            if with_seeds:
                rows[SEED] = np.full(len(rows["reward"]), None, object)
                rows[SEED][0] = self.seed(index)
            else:
                del rows[TRUNCATED_COLUMN]
            num_rows += len(rows["reward"])
            yield rows
        self.merge_remarks(met)
        steps = num_rows - (self.count - met[STEPLESS])
        remark = f"{METADATA} declares total_steps = {self.steps:,}, but there are {steps:,}"
        self.add_remark(remark, int(steps != self.steps))

    @abstractmethod
    def values(self, index: int, leaf: ArrayLeaf) -> np.ndarray:
        """Return one array of an episode, ``[T + 1, ...]`` if it is an observation, else ``[T, ...]``."""

    @abstractmethod
    def read_array(self, index: int, name: str) -> np.ndarray:
        """Return a numeric array of a Minari episode, such as ``rewards`` ``[T]``."""

    @abstractmethod
    def info_names(self) -> list[str]:
        """Return the names of what the first episode has in ``infos``."""

    @abstractmethod
    def seed(self, index: int) -> int | None:
        """Return the seed of an episode's environment; None if it was not stored."""

    def _rows(self, index: int, met: Counter[str]) -> Rows | None:
        names = ("rewards", "terminations", "truncations")
        rewards, terminations, truncations = (self.read_array(index, name) for name in names)
        columns: tuple[Rows, Rows] = {}, {}  # observations and actions
        for leaf in self.leaves:
            values = self.values(index, leaf)
            if isinstance(leaf.space, spaces.Box) and leaf.space.dtype.kind == "f" and values.dtype.kind in "biu":
                values = values.astype(leaf.space.dtype)  # an episode of whole numbers can be stored as integers
            columns[leaf.is_action][leaf.column] = values
        if not len(rewards):
            met[STEPLESS] += 1
            return None
        met[OPEN] += int(not (terminations[-1] or truncations[-1]))
        met[EARLY_END_REMARK] += int(np.count_nonzero(terminations[:-1]) + np.count_nonzero(truncations[:-1]))
        rows = pad_episode(*columns, rewards.astype(np.float32), terminal=terminations[-1])
        if self.has_propensity:
            rows[PROPENSITY] = self.read_array(index, f"infos/{PROPENSITY}")
        if self.has_interventions:
            rows[IS_INTERVENTION] = self._tags(index, len(rows["reward"]))
        return rows | {TRUNCATED_COLUMN: rows["is_last"] & bool(terminations[-1] and truncations[-1])}

    def _tags(self, index: int, num_rows: int) -> np.ndarray:
        """Return where a person took over, ``[n + 1]``; nowhere if the episode has no such infos."""
        try:
            return self.read_array(index, f"infos/{IS_INTERVENTION}")
        except KeyError:
            return np.zeros(num_rows, bool)


def _is_unbounded(space: Space) -> bool:
    """Return whether ``space`` is a Box with an infinite bound."""
    return isinstance(space, spaces.Box) and not bool(np.isfinite(space.low).all() and np.isfinite(space.high).all())


def _is_image_space(space: Space) -> bool:
    """Return whether Minari compresses values of this space as images: uint8 from 0 to 255, at least 32 x 32."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) not in (2, 3):
        return False
    return min(space.shape[:2]) >= 32 and not space.low.any() and bool((space.high == 255).all())


class MinariHdf5Reader(MinariReader):
    """Reads ``data/main_data.hdf5``, which has a group for each episode."""

    format = "Minari (HDF5)"

    def __init__(self, path: Path, options: ReadOptions) -> None:
        super().__init__(path, options)
        self.file: Any = open_hdf5(self.folder / MAIN)
        self.kinds: dict[str, tuple[Any, np.dtype[Any]]] = {}
        if len(self.file) != self.count:
            counts = f"{METADATA} says total_episodes = {self.count:,}, but {MAIN} has {len(self.file):,}"
            raise DataError(f"{self.folder}: {counts}. {COPY_ADVICE}")

    def close(self) -> None:
        self.file.close()

    def info_names(self) -> list[str]:
        return list(self.file.get("episode_0/infos", ()))

    def seed(self, index: int) -> int | None:
        seed = self.file[f"episode_{index}"].attrs.get("seed")
        return None if seed is None else int(seed)

    def values(self, index: int, leaf: ArrayLeaf) -> np.ndarray:
        name = "/".join(leaf.path)
        is_text, is_image = isinstance(leaf.space, spaces.Text), self.jpeg and _is_image_space(leaf.space)
        if not (is_text or is_image):
            return self.read_array(index, name)
        dataset = self.file[f"episode_{index}/{name}"]
        check_storage(dataset, self.folder / MAIN)
        stored = dataset[()]
        if is_image:
            if stored.ndim > 2:  # pixels: Minari before 0.5.3 did not compress, and its metadata do not say so
                return np.asarray(stored)
            return decode_images([bytes(image) for image in stored], f"{self.folder}: {name} of episode {index}")
        return np.array([text.decode() if isinstance(text, bytes) else str(text) for text in stored], object)

    def read_array(self, index: int, name: str) -> np.ndarray:
        """Read a numeric dataset with h5py's low-level API, since there are thousands of them."""
        from h5py import Dataset, h5d, h5s

        dataset = h5d.open(self.file.id, f"episode_{index}/{name}".encode())
        if dataset.get_offset() is None:
            check_storage(Dataset(dataset), self.folder / MAIN)
        out = np.empty(dataset.shape, self._dtype(dataset, name))
        dataset.read(h5s.ALL, h5s.ALL, out)
        return out

    def _dtype(self, dataset: h5d.DatasetID, name: str) -> np.dtype[Any]:
        """Return the dtype of a dataset; the latest of each name is cached, since comparing HDF5 types is faster."""
        type_ = dataset.get_type()
        if name not in self.kinds or not self.kinds[name][0].equal(type_):
            self.kinds[name] = type_, type_.dtype
        return self.kinds[name][1]


class MinariArrowReader(MinariReader):
    """Reads a folder for each episode, with a table of T + 1 rows in Arrow's or Parquet's format."""

    format = "Minari (Arrow)"

    def __init__(self, path: Path, options: ReadOptions) -> None:
        super().__init__(path, options)
        self.arrow: Any = import_pyarrow()
        self._table = lru_cache(1)(self._read)

    def info_names(self) -> list[str]:
        kind = (
            self._table(0).schema.field("infos").type if self.count and "infos" in self._table(0).schema.names else ()
        )
        return [field.name for field in kind]

    def seed(self, index: int) -> int | None:
        file = self.folder / str(index) / METADATA
        seed: int | None = read_json(file).get("seed") if file.is_file() else None
        return seed

    def _read(self, index: int) -> Any:
        folder = self.folder / str(index)
        files = sorted(p for p in folder.glob("*") if p.suffix in (".arrow", ".parquet"))
        if not files:
            raise DataError(
                f"{folder} contains no episode, but {METADATA} says there are {self.count:,}. {COPY_ADVICE}"
            )
        return self.arrow.concat_tables([read_table(file) for file in files])

    def read_array(self, index: int, name: str) -> np.ndarray:
        return np.asarray(self._column(index, (name,)).to_numpy(zero_copy_only=False)[:-1])

    def _column(self, index: int, path: tuple[str, ...]) -> Any:
        array = self._table(index).column(path[0]).combine_chunks()
        for name in path[1:]:
            array = array.field(name.removeprefix("_index_"))
        return array

    def values(self, index: int, leaf: ArrayLeaf) -> np.ndarray:
        array = self._column(index, leaf.path)
        array = array[:-1] if leaf.is_action else array
        if isinstance(leaf.space, spaces.Text):
            return np.array([text or "" for text in array.to_pylist()], object)
        values = arrow_to_numpy(self.arrow, array, f"{self.path}: {'/'.join(leaf.path)} of episode {index}")
        return values.reshape(len(array), *(leaf.space.shape or ()))
