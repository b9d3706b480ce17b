"""Reads our own replay stores, stream by stream."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from reverie.core.columns import Column
from reverie.core.documents import read_json, read_yaml
from reverie.core.errors import DataError, EnvError, brief
from reverie.core.rows import Rows, packed
from reverie.core.space_json import space_of
from reverie.core.spaces import ActionCodec, ObsCodec
from reverie.core.specs import VERSION, ActionPart, ActionSpec, ObsPart, ObsSpec, differences, signature
from reverie.datasets.reader import PART_BYTES, About, Reader, ReadOptions, Space, nested_space
from reverie.store import segment as segments
from reverie.store.segment import META
from reverie.store.store import Store, episodes

ABOUT = "about.json"
"""File in a store that was converted from other data: what those declared about their environment and spaces."""
NAMELESS = "the environment's action space is not known: actions stay as stored, and copies do not name it ({})"
OBJECT = "the environment was a Python object, {}, which a file cannot hold: the data do not name it"
OPEN = "an episode was still running, or its environment failed: it is treated as truncated"


class StoreReader(Reader):
    """Reads the store of a run, or the store in a folder or at a URL."""

    format = "reverie store"

    def __init__(self, path: Path | str, options: ReadOptions) -> None:
        super().__init__(path, options)
        self.place: Path | str = store_in(path)
        self.store: Store = Store(self.place)
        layout = next((dict(s.columns) for s in self.store.segments if s.rows > s.kept), None)
        if layout is None:
            raise DataError(f"the store in {path} contains no rows.")
        self.columns: dict[str, Column] = {name: column for name, column in layout.items() if name != VERSION}
        self.beside: dict[str, Any] = self._beside()
        self.specs: tuple[ObsSpec, ActionSpec] = self._specs()
        self.env: dict[Any, Any] = dict(self.beside.get("env") or {})
        both = (self.beside.get(f"{name}_space") for name in ("observation", "action"))
        observation, action = (space_of(text, str(path)) if text else None for text in both)
        self.learn_spaces(observation, action)

    def learn_spaces(self, observation: Space | None, action: Space | None, why: str = "") -> None:
        """Take the environment's spaces, if the rows fit them. If not, ``as_recorded`` yields actions as stored.

        ``why`` they are not known: copies then do not name the environment, whose actions these may not be.
        """
        self.observation: Space = guessed_obs(self.specs[0])
        self.action: Space = guessed_action(self.specs[1])
        self._obs, self._actions = None, ActionCodec(self.action)
        self.knows_actions: bool = False
        with contextlib.suppress(EnvError, ValueError):  # observations may be resized, stacked or left out
            if observation is not None:
                channels = self.beside.get("env_settings", {}).get("channels", "auto")
                obs = ObsCodec(observation, lambda key: key in self.specs[0], channels)
                if obs.spec == dict(self.specs[0]):
                    self.observation, self._obs = obs.kept_space(), obs
        if action is not None:
            actions, both = ActionCodec(action), ("the rows", "the environment")
            why = "; ".join(differences(signature({}, self.specs[1]), signature({}, actions.spec), both))
            if not why:
                self.action, self._actions, self.knows_actions = action, actions, True
        if why:
            self.note(NAMELESS.format(why.rstrip(".")))
            self.env, self.beside["env_spec"] = {}, {}

    def _beside(self) -> dict[str, Any]:
        """Return what files of the run, or of a converted store, declare.

        A converted store is no part of the run in whose folder it may lie.
        """
        own, found = (self.path if isinstance(self.place, str) else self.place).absolute(), dict[str, Any]()
        for folder in (own,) if (own / ABOUT).is_file() else (own, own.parent):
            spec, about, config = (content_of(folder / name) for name in ("spec.json", ABOUT, "config.yaml"))
            found |= ({"spec": spec} if spec else {}) | about
            if config:
                settings = mapping_in(mapping_in(config, "experiment", folder), "env", folder)
                mapping_in(settings, "kwargs", folder)
                if "env" in mapping_in(config, "custom", folder):
                    self.note(OBJECT.format(settings.pop("id", "")))  # another may be registered under this id
                found |= {"env": settings, "env_settings": settings, "algorithm": str(config.get("algorithm", ""))}
        return found

    def _specs(self) -> tuple[ObsSpec, ActionSpec]:
        """Return observations and actions as spec.json declares them, or else as the columns look."""
        declared = self.beside.get("spec") or {"observation": {}, "action": {}}
        width = self.columns["action"].shape[0]
        seen = {name.removeprefix("obs/"): column for name, column in self.columns.items() if name.startswith("obs/")}
        try:
            obs = {key: part_of(declared["observation"].get(key, {}), column) for key, column in seen.items()}
            parts = {key: ActionPart(**_tuples(part)) for key, part in declared["action"].items()}
        except (LookupError, TypeError, AttributeError) as error:
            raise DataError(
                f"the spec.json of {self.path} is damaged ({error!r}). Restore it, or delete it."
            ) from error
        return obs, ActionSpec(parts=parts or {"action": ActionPart(kind="continuous", size=width)})

    def env_id(self) -> str:
        return str(self.env.get("id", ""))

    def about(self) -> About:
        beside, measured = self.beside, bool(self.beside.get("measured"))
        return About(
            observation=self.observation, action=self.action, measured=measured, specs=None if measured else self.specs,
            env=self.env_id(), env_settings=dict(beside.get("env_settings", {})), time_limit=self.env.get("time_limit"),
            env_kwargs=dict(self.env.get("kwargs", {})), env_spec=dict(beside.get("env_spec", {})),
            text={"algorithm": beside["algorithm"]} if beside.get("algorithm") else {},
        )  # fmt: skip

    def rows(self) -> int:
        flags = episodes(self.store, columns=("reward", "is_first", "is_last"))
        return sum(len(episode) for episode in flags if not episode.unusable_reason)

    def parts(self) -> Iterator[Rows]:
        """Yield rows as stored; as recorded if action bounds were only measured, as the user may know the true ones."""
        return self.as_recorded() if self.beside.get("measured") else packed(self._episodes(), PART_BYTES)

    def _episodes(self) -> Iterator[Rows]:
        met: Counter[str] = Counter()

        def damaged(damage: object) -> None:
            met[f"damaged and left out: {damage}"] += 1

        for episode in episodes(self.store, columns=list(self.columns), on_damage=damaged):
            if episode.unusable_reason:
                met[episode.unusable_reason] += 1
                continue
            rows = dict(episode.rows)
            if not episode.has_last_row:
                met[OPEN] += 1
                rows["is_last"], rows["action"] = rows["is_last"].copy(), rows["action"].copy()
                rows["is_last"][-1] = True
                rows["action"][-1] = 0
            yield rows
        self.note_all(met)

    def as_recorded(self) -> Iterator[Rows]:
        """Yield rows with the values of the environment's spaces as far as these are known, else with class numbers."""
        alone = [name for name in self.columns if name.startswith("obs/")]
        for part in packed(self._episodes(), PART_BYTES):
            flat = part.pop("action")
            if self._obs is not None:
                part = self._obs.decode(part)
            elif len(alone) == 1 and alone[0].count("/") == 1:  # what is alone has no name in a space
                part["obs"] = part.pop(alone[0])
            yield part | self._actions.decode(flat, part["is_last"])


def content_of(file: Path) -> dict[str, Any]:
    """Return the content of a JSON or YAML file that lies beside a store; empty if there is none."""
    if not file.is_file():
        return {}
    return read_yaml(file) if file.suffix == ".yaml" else read_json(file)


def mapping_in(values: Mapping[str, Any], name: str, folder: Path) -> dict[str, Any]:
    """Return what a config.yaml in ``folder`` has as ``name``: settings, {} if there are none; DataError if not."""
    if not isinstance(value := values.get(name) or {}, Mapping):
        raise DataError(f"{folder / 'config.yaml'}: {name} = {brief(value)}: expected a mapping. Restore the file.")
    return dict(value)


def store_in(path: Path | str) -> Path | str:
    """Return the folder or the URL of the store at ``path``, or of the store of the run at ``path``."""
    if "://" in str(path):
        return str(path)
    path = Path(path)
    if holds_store(path) or not (path / "config.yaml").is_file():
        return path if holds_store(path) else path / "replay"
    named = "auto"
    with contextlib.suppress(AttributeError, DataError):  # a file of somebody else may have this name
        settings = content_of(path / "config.yaml").get("experiment") or {}
        named = str((settings.get("replay") or {}).get("store", "auto"))
    return path / "replay" if named in ("auto", "none") else named if "://" in named else Path(named)


def is_store(path: Path) -> bool:
    """Return whether there is a store at ``path``, or a run with one."""
    place = store_in(path)
    return isinstance(place, str) or holds_store(place)


def holds_store(folder: Path) -> bool:
    """Return True if ``folder`` itself is a store."""
    return (folder / META).is_file() and segments.is_store_root((folder / META).read_bytes())


def part_of(declared: Mapping[str, Any], column: Any) -> ObsPart:
    """Return the observation of a stored column, as spec.json declares it or, without that, as it looks."""
    looks = {("uint8", 3): "image"}.get((column.dtype, len(column.shape)))
    kind: Any = declared.get("kind") or looks or ("categorical" if column.dtype == "int64" else "vector")
    if kind == "categorical" and not declared.get("classes"):
        raise DataError("the number of classes of an observation is not known: copy the run's spec.json to the store.")
    known = {name: value for name, value in _tuples(declared).items() if name in ("classes", "low", "high")}
    return ObsPart(kind=kind, shape=tuple(column.shape), dtype=column.dtype, **known)


def _tuples(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in part.items()}


def guessed_obs(spec: ObsSpec) -> Space:
    """Return a space of the observations of ``spec``."""
    found: dict[str, Space] = {}
    for key, part in spec.items():
        dtype = np.dtype(part.dtype).type
        low, high = (part.low, part.high) if part.kind == "image" else (-np.inf, np.inf)
        space = classes_space(part.classes, part.shape) if part.classes else None
        if part.kind == "mask":
            space = spaces.MultiBinary(part.shape[0])
        space = spaces.Box(low, high, part.shape, dtype) if space is None else space
        found["obs" if len(spec) == 1 and "/" not in key else f"obs/{key}"] = space
    return nested_space(found, "obs")


def guessed_action(spec: ActionSpec) -> Space:
    """Return a space of the actions of ``spec``, continuous ones in [-1, 1]."""
    found: dict[str, Space] = {}
    for key, part in spec.parts.items():
        name, shape = "action" if key == "action" else f"action/{key}", (len(part.classes),)
        box = spaces.Box(-1.0, 1.0, (part.size,), np.float32)
        found[name] = classes_space(part.classes, () if shape == (1,) else shape) if part.classes else box
    return nested_space(found, "action")


def classes_space(classes: Sequence[int], shape: tuple[int, ...]) -> Space:
    """Return the space of class numbers ``[*shape]``; ``classes`` has the number of classes of each, in flat order."""
    counts = np.reshape(list(classes), shape)
    return spaces.MultiDiscrete(counts) if shape else spaces.Discrete(int(counts))
