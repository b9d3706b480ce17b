"""Reads Minari datasets without the Minari library: episodes of T actions and T + 1 observations.

As each episode has one more observation than actions, concatenating the observations and the actions of all episodes
would pair them wrongly from the second episode on. So each episode is converted to rows by itself.
"""

from __future__ import annotations

import json
import os
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from reverie.core.errors import ConfigError, DataError, did_you_mean
from reverie.core.importing import check_module
from reverie.core.space_json import space_of
from reverie.core.spaces import column, leaves_of, with_leaves
from reverie.datasets.reader import BOTH, PART_BYTES, SEED, About, Reader, ReadOptions, Rows, Space, action_space
from reverie.datasets.spaces import is_open
from reverie.datasets.transitions import OPEN, STEPLESS

METADATA, MAIN = "metadata.json", "main_data.hdf5"
MEASURED_KEY = "reverie_action_space_measured"
"""Key in the metadata of datasets written by this package: the original did not declare its action space."""
ENV_ID = "reverie_env_id"
"""Key in the same metadata: an environment's id with the module that registers it, which an env_spec cannot hold."""
ENV_SETTINGS = "reverie_env_settings"
"""Key in the same metadata: settings of the environment as JSON, such as ``action_repeat``."""
EARLY = "terminated or truncated is set before the last step of an episode: ignored"


def minari_root() -> Path:
    """Return the folder in which Minari keeps its datasets."""
    return Path(os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets")


def check_name(name: str) -> None:
    """Check that Minari accepts ``name`` as the name of a dataset.

    Raises:
        ConfigError: it does not.
    """
    if not re.fullmatch(r"(?!.*//)([\w-][\w/-]*[\w-]/)?[\w-]+-v\d+", name):
        raise ConfigError(
            f"minari:{name}: expected a name with a version, such as D4RL/door/human-v2, of letters, digits, - and _. "
            "What is before the last / must have two characters or more."
        )


def local_names(root: Path | None = None) -> list[str]:
    """Return the names of the datasets in ``root``, by default Minari's folder; not of those still being written."""
    root = root or minari_root()
    found = [path.parents[1].relative_to(root) for path in root.glob(f"**/data/{METADATA}")]
    return sorted(path.as_posix() for path in found if not any(part.startswith(".") for part in path.parts))


def minari_path(name: str) -> Path:
    """Return the folder of the local dataset called ``name``.

    Raises:
        DataError: there is none; the message says what there is and how to get it.
    """
    root = minari_root()
    if name and (root / name / "data" / METADATA).is_file():
        return root / name
    known = local_names(root)
    there = (
        f"Available: {', '.join(known[:12])}{' ...' if len(known) > 12 else ''}." if known else "There are none yet."
    )
    raise DataError(
        f"there is no Minari dataset '{name}' in {root} (MINARI_DATASETS_PATH).{did_you_mean(name, known)} {there} "
        f"Download it with `reverie data download minari:{name}`."
    )


def metadata_of(path: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the data folder and its metadata if ``path`` is a Minari dataset or its ``data`` folder; else None.

    Raises:
        DataError: the metadata are damaged.
    """
    for folder in (path / "data", path):
        file = folder / METADATA
        if file.is_file():
            content = json_in(file)
            if isinstance(content, dict) and "data_format" in content:
                return folder, content
    return None


def json_in(file: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        DataError: it is damaged.
    """
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # a UnicodeDecodeError is one, too
        raise DataError(f"{file} is damaged: {error}.") from None


@dataclass(frozen=True)
class Leaf:
    """One array of an episode: the name of its column, its path in the file, and its space."""

    column: str
    path: tuple[str, ...]
    space: Space

    @property
    def is_action(self) -> bool:
        """True if it is an action: an episode has one fewer of these than of observations."""
        return self.column.startswith("action")


def _place(root: str, way: tuple[Any, ...]) -> tuple[str, ...]:
    """Return the path of a leaf in Minari's files."""
    return (root, *(f"_index_{part}" if isinstance(part, int) else str(part) for part in way))


class MinariReader(Reader):
    """What all storage formats of Minari have in common."""

    format = "Minari"

    def __init__(self, path: Path, options: ReadOptions) -> None:
        super().__init__(path, options)
        found = metadata_of(path)
        if found is None:
            raise DataError(f"{path} is not a Minari dataset: it has no data/{METADATA}.")
        self.folder, self.metadata = found
        self.observation, self.action = self._space("observation_space"), self._space("action_space")
        self.leaves = [
            *(Leaf(column("obs", way), _place("observations", way), leaf) for way, leaf in leaves_of(self.observation)),
            *(Leaf(column("action", way), _place("actions", way), leaf) for way, leaf in leaves_of(self.action)),
        ]
        self.jpeg = bool(self.metadata.get("jpeg_encoding", True))

    @cached_property
    def count(self) -> int:
        """Number of episodes according to the metadata."""
        return self._number("total_episodes")

    @cached_property
    def steps(self) -> int:
        """Number of steps in all episodes according to the metadata."""
        return self._number("total_steps")

    def _number(self, name: str) -> int:
        value = self.metadata.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != int(value):
            said = "is missing" if value is None else f"= {value!r}"
            raise DataError(
                f"{self.folder / METADATA}: {name} {said}: expected a whole number, 0 or more. Correct it, or write "
                "the dataset again with Minari."
            )
        return int(value)

    @property
    def env_spec(self) -> dict[str, Any]:
        """The environment's specification as Gymnasium serialises it; empty if there is none."""
        return self._described("env_spec")

    def _described(self, key: str) -> dict[str, Any]:
        """Return what the metadata hold as JSON under ``key``; empty if there is nothing."""
        said = self.metadata.get(key)
        try:
            found = json.loads(said) if isinstance(said, str) and said.strip() not in ("", "None") else {}
        except ValueError as error:
            raise DataError(f"{self.folder / METADATA} is damaged: its {key} cannot be read ({error}).") from None
        return found if isinstance(found, dict) else {}

    def _space(self, name: str) -> Space:
        if name in self.metadata:
            return space_of(self.metadata[name], str(self.path))
        env = self.env_spec.get("id", "")
        try:
            import gymnasium

            check_module(env, self.path)
            made = gymnasium.make(env, **(self.env_spec.get("kwargs") or {}))
        except Exception as error:
            raise DataError(
                f"{self.path} declares no {name}, and its environment '{env}' could not be created: {error}."
            ) from None
        space: Space = getattr(made, name)
        made.close()
        return space

    def env_id(self) -> str:
        """See ``Reader``."""
        return str(self.metadata.get(ENV_ID) or self.env_spec.get("id", ""))

    def about(self) -> About:
        """See ``Reader``. Actions without declared bounds get those of the recorded ones."""
        spec, settings = self.env_spec, self._described(ENV_SETTINGS)
        known = ("dataset_id", "algorithm_name", "author", "minari_version", "code_permalink", "description")
        text = {name: str(self.metadata[name]) for name in known if self.metadata.get(name)}
        unknown = bool(self.metadata.get(MEASURED_KEY))
        infinite = any(leaf.is_action and is_open(leaf.space) for leaf in self.leaves)
        return About(
            observation=self.observation,
            action=self._bounded,
            env=self.env_id(),
            env_kwargs=dict(spec.get("kwargs") or {}),
            env_settings=settings and {"id": self.env_id(), **settings},
            env_spec=spec,
            time_limit=spec.get("max_episode_steps"),
            episodes=self.count,
            measured=unknown or infinite,
            declared=self.action if infinite and not unknown else None,
            text=text,
        )

    @cached_property
    def _bounded(self) -> Space:
        """The action space, with bounds measured over all episodes where none are declared."""
        leaves = {leaf.column: leaf for leaf in self.leaves}

        def bounded(column: str, space: Space) -> Space:
            if not is_open(space):
                return space
            own, dtype = leaves[column], space.dtype
            return action_space(lambda: (self.values(i, own).astype(dtype) for i in range(self.count)), self.path)[0]

        return with_leaves(self.action, "action", bounded)

    def seeds(self) -> list[int | None]:
        """Return the seed of each episode's environment; None where it was not stored."""
        return [None] * self.count

    def rows(self) -> int:
        """See ``Reader``. Computed from the metadata: each episode has one row more than steps."""
        return self.steps + self.count

    def parts(self) -> Iterator[Rows]:
        """Yield the rows of ``as_recorded`` without the columns ``BOTH`` and ``SEED``."""
        return ({name: values for name, values in part.items() if name != BOTH} for part in self._parts())

    def as_recorded(self) -> Iterator[Rows]:
        """Yield whole episodes, several together if they are small, with the columns ``BOTH`` and ``SEED``."""
        return self._parts(self.seeds())

    def _parts(self, seeds: Sequence[int | None] = ()) -> Iterator[Rows]:
        """Yield whole episodes with the column ``BOTH``, and ``SEED`` if the seed of each episode is given."""
        self.met.clear()
        kept: list[Rows] = []
        size = found = 0
        for index in range(self.count):
            episode = self._rows(index)
            if episode is None:
                continue
            found += len(episode["reward"]) - 1
            if found > self.steps:
                break
            if seeds:
                episode[SEED] = np.full(len(episode["reward"]), None, object)
                episode[SEED][0] = seeds[index]
            kept.append(episode)
            size += sum(values.nbytes for values in episode.values())
            if size >= PART_BYTES // 2:  # half, as concatenating needs the memory twice
                yield taken(kept)
                size = 0
        if found > self.steps:
            raise DataError(
                f"{self.folder / METADATA} says total_steps = {self.steps:,}, but the episodes have more steps. "
                "Correct this number, or download or copy the dataset again."
            )
        self.meet(f"{METADATA} says {self.steps:,} steps, but the episodes have {found:,}", int(found < self.steps))
        if kept:
            yield taken(kept)

    @abstractmethod
    def values(self, index: int, leaf: Leaf) -> np.ndarray:
        """Return one array of an episode, ``[T + 1, ...]`` if it is an observation, else ``[T, ...]``."""

    @abstractmethod
    def episode(self, index: int) -> tuple[dict[str, Any], np.ndarray, np.ndarray, np.ndarray]:
        """Return the arrays of an episode: observations and actions by column; rewards, terminations, truncations."""

    def _rows(self, index: int) -> Rows | None:
        values, rewards, terminations, truncations = self.episode(index)
        steps = len(rewards)
        rows: Rows = {}
        for leaf in self.leaves:
            found, wanted = len(values[leaf.column]), steps + (not leaf.is_action)
            if found != wanted or not len(terminations) == len(truncations) == steps:
                raise DataError(
                    f"{self.path}: episode {index} has {steps} rewards, {len(terminations)} terminations, "
                    f"{len(truncations)} truncations and {found} of {'/'.join(leaf.path)}; expected {wanted} of these."
                )
            declared = as_declared(values[leaf.column], leaf.space)
            rows[leaf.column] = padded(declared) if leaf.is_action else declared
        if not steps:
            self.meet(STEPLESS)
            return None
        reward = np.zeros(steps + 1, np.float32)
        reward[1:] = rewards
        first, last, terminal = (np.zeros(steps + 1, bool) for _ in range(3))
        first[0] = last[-1] = True
        terminal[-1] = terminations[-1]
        both = last & np.bool_(terminations[-1] and truncations[-1])
        self.meet(OPEN, int(not (terminations[-1] or truncations[-1])))
        if steps > 1:
            self.meet(EARLY, int(np.count_nonzero(terminations[:-1]) + np.count_nonzero(truncations[:-1])))
        return rows | {"reward": reward, "is_first": first, "is_last": last, "is_terminal": terminal, BOTH: both}


def as_declared(values: np.ndarray, space: Space) -> np.ndarray:
    """Return integers of a space of floats as floats: an episode of whole numbers may have been stored as integers."""
    is_float = isinstance(space, spaces.Box) and space.dtype.kind == "f"
    return values.astype(space.dtype) if is_float and values.dtype.kind in "biu" else values


def padded(actions: np.ndarray) -> np.ndarray:
    """Append a row of zeros, as no action is taken after the last observation."""
    out = np.zeros((len(actions) + 1, *actions.shape[1:]), actions.dtype)
    out[:-1] = actions
    return out


def taken(episodes: list[Rows]) -> Rows:
    """Concatenate episodes and empty the list, so that not both stay in memory."""
    joined = {name: np.concatenate([rows[name] for rows in episodes]) for name in episodes[0]}
    episodes.clear()
    return joined
