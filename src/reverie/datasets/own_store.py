"""Reads our own replay stores, stream by stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from reverie.core.errors import DataError
from reverie.core.space_json import space_of
from reverie.core.spaces import ActionCodec
from reverie.core.specs import ActionPart, ActionSpec, ObsKind, ObsPart, ObsSpec
from reverie.datasets.export import action_space, decoded_actions, observation_space
from reverie.datasets.reader import PART_BYTES, About, Reader, ReadOptions, Rows, Space
from reverie.store.episodes import Episode, episodes
from reverie.store.manifest import MANIFEST, Damage
from reverie.store.store import Store

ABOUT = "about.json"
"""File in a store that was converted from other data: what those declared about their environment and actions."""
NAMELESS = "the environment's action space is not known: actions stay as stored, and the environment is not named"
OBJECT = "the environment was a Python object, {}, which a file cannot hold: the data do not name it"
OPEN = "an episode was still running, or its environment failed: it is treated as truncated"


class StoreReader(Reader):
    """Reads the store of a run, or the store in a folder."""

    format = "reverie store"

    def __init__(self, path: Path, options: ReadOptions) -> None:
        super().__init__(path, options)
        self.folder = store_in(path)
        self.store = Store(self.folder, say=lambda text: self.note(text))
        layouts = [dict(s.columns) for s in self.store.segments if s.rows > s.first]
        if not layouts:
            raise DataError(f"the store in {path} contains no rows.")
        if any(layout != layouts[0] for layout in layouts):
            raise DataError(f"the segments of the store in {path} have different columns: they are not one dataset.")
        self.columns = layouts[0]
        said, self.measured = self._settings.get("actions"), bool(self._settings.get("measured"))
        self.units: Space | None = space_of(said, str(path)) if said else None
        """The environment's action space, whose actions are stored in [-1, 1] or one-hot; None if it is not known."""
        self.nameless = False
        if "object" in self._settings:
            self.note(OBJECT.format(self._settings["object"]))

    def ask(self, answer: Callable[[About], tuple[Space | None, str]]) -> None:
        """See ``Reader``. If ``answer`` finds no space, ``about`` names no environment: its actions may not fit it."""
        if self.units is not None:
            return
        self.units, why = answer(self.about())
        if self.units is None:
            self.nameless = True
            self.note(f"{NAMELESS} in the copy ({why.rstrip('.')})")

    def files(self) -> Sequence[Path]:
        """See ``Reader``: the manifest. It says how many rows each file holds, and has a checksum of its own."""
        return [self.folder / MANIFEST]

    @cached_property
    def _settings(self) -> dict[str, Any]:
        """What files of the run, or of a converted store, declare; empty if there are none.

        A converted store is no part of the run in whose folder it may lie.
        """
        found: dict[str, Any] = {}
        own = self.folder.absolute()
        for folder in (own,) if (own / ABOUT).is_file() else (own, own.parent):
            if (folder / "spec.json").is_file():
                found["spec"] = said_in(folder / "spec.json", needed=("observation", "action"))
            if (folder / ABOUT).is_file():
                about = said_in(folder / ABOUT)
                found |= {"said": about.get("env", {}), "actions": about.get("action_space")}
                found["measured"], found["env"] = about.get("measured", False), about.get("env_settings", {})
                found["env_spec"] = about.get("env_spec", {})
            if (folder / "config.yaml").is_file():
                content = said_in(folder / "config.yaml")
                found["env"] = dict((content.get("experiment") or {}).get("env") or {})
                if "env" in content.get("custom", {}):
                    found["object"] = found["env"].pop("id", "")  # another may be registered under this id
                found["algorithm"] = content.get("algorithm", "")
        return found

    def env_id(self) -> str:
        """See ``Reader``."""
        return str((self._settings.get("env") or self._settings.get("said", {})).get("id", ""))

    def about(self) -> About:
        """See ``Reader``. Observations and actions are those of spec.json, or else guessed from the columns.

        Raises:
            DataError: spec.json is damaged, or does not fit the columns.
        """
        spec, env, said = self._settings.get("spec"), self._settings.get("env", {}), self._settings.get("said", {})
        text = {"algorithm": self._settings["algorithm"]} if self._settings.get("algorithm") else {}
        segment = next(s for s in self.store.segments if s.rows > s.first)
        try:
            specs = (obs_of(self.columns, spec), action_of(self.columns, spec))
            observed, stored = observation_space(segment, spec), action_space(segment, spec)
        except DataError:
            raise
        except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"the spec.json of {self.path} is damaged: {error!r}. The rows are not: restore the file from a backup."
            ) from None
        return About(
            observation=observed,
            action=stored if self.units is None else self.units,
            env="" if self.nameless else self.env_id(),
            env_settings=dict(env),
            env_kwargs=dict(said.get("kwargs", {})),
            env_spec={} if self.nameless else dict(self._settings.get("env_spec", {})),
            time_limit=said.get("time_limit"),
            measured=self.measured,
            specs=None if self.measured else specs,
            text=text,
        )

    def rows(self) -> int:
        """See ``Reader``. Counted by reading the flags; episodes without a beginning or a step do not count."""
        flags = episodes(self.store, columns=("reward", "is_first", "is_last"))
        return sum(len(episode) for episode in flags if not episode.unusable)

    def parts(self) -> Iterator[Rows]:
        """Yield rows as stored; as recorded if action bounds were only measured, as the user may know the true ones."""
        return self.as_recorded() if self.measured else self._stored()

    def _stored(self) -> Iterator[Rows]:
        """Yield whole episodes, several together if they are small."""
        self.met.clear()
        kept: list[Rows] = []
        size = 0
        for episode in episodes(self.store, on_damage=self._damaged):
            if episode.unusable:
                self.meet(episode.unusable)
                continue
            kept.append(self._closed(episode))
            size += sum(values.nbytes for values in kept[-1].values())
            if size >= PART_BYTES:
                yield {name: np.concatenate([rows[name] for rows in kept]) for name in kept[0]}
                kept, size = [], 0
        if kept:
            yield {name: np.concatenate([rows[name] for rows in kept]) for name in kept[0]}

    def as_recorded(self) -> Iterator[Rows]:
        """Yield rows with indices instead of one-hot vectors, and actions in the environment's units if known."""
        spec, seen = self._settings.get("spec"), [name for name in self.columns if name.startswith("obs/")]
        for part in self._stored():
            rows = {name: values for name, values in part.items() if name != "action"}
            if len(seen) == 1 and seen[0].count("/") == 1:  # what is alone has no name in a space
                rows["obs"] = rows.pop(seen[0])
            if self.units is None:
                yield rows | flat_columns(decoded_actions(part["action"], spec), "action")
            else:
                yield rows | ActionCodec(self.units).decode(part["action"], part["is_last"])

    def _damaged(self, damage: Damage) -> None:
        self.meet(f"damaged and left out: {damage}")

    def _closed(self, episode: Episode) -> Rows:
        rows = dict(episode.rows)
        if not episode.ended:
            self.meet(OPEN)
            rows["is_last"], rows["action"] = rows["is_last"].copy(), rows["action"].copy()
            rows["is_last"][-1] = True
            rows["action"][-1] = 0
        return rows


def said_in(file: Path, needed: Sequence[str] = ()) -> dict[str, Any]:
    """Read a JSON or YAML file that lies beside a store.

    Raises:
        DataError: it is damaged, or one of the sections ``needed`` is missing.
    """
    try:
        text = file.read_text(encoding="utf-8")
        found = (yaml.safe_load(text) or {}) if file.suffix == ".yaml" else json.loads(text)
    except (ValueError, yaml.YAMLError) as error:
        raise DataError(f"{file} is damaged: {error}. The rows are not: restore the file from a backup.") from None
    if not isinstance(found, dict) or not all(isinstance(found.get(name), dict) for name in needed):
        expected = f"a mapping with {' and '.join(needed)}" if needed else "a mapping"
        raise DataError(f"{file} is damaged: it contains {str(found)[:80]!r}; expected {expected}.")
    return found


def flat_columns(values: Any, root: str) -> Rows:
    """Flatten nested dictionaries of arrays to columns with names such as ``action/grip``."""
    if not isinstance(values, dict):
        return {root: values}
    return {
        name: column for key, inner in values.items() for name, column in flat_columns(inner, f"{root}/{key}").items()
    }


def store_in(path: Path) -> Path:
    """Return the folder of the store at ``path``, or of the store of the run at ``path``."""
    return path if (path / MANIFEST).is_file() else path / "replay"


def is_store(path: Path) -> bool:
    """Return True if there is a store at ``path``, or a run with one."""
    manifest = store_in(path) / MANIFEST
    if not manifest.is_file():
        return False
    with manifest.open("rb") as file:
        return b"segments" in file.read(1 << 20)


def obs_of(columns: Any, spec: Any) -> ObsSpec:
    """Return the observations of stored columns, as spec.json declares them or as guessed.

    Raises:
        DataError: a categorical observation whose number of classes is not declared.
    """
    said = (spec or {}).get("observation", {})
    out = {}
    for name, column in columns.items():
        if name.startswith("obs/"):
            key = name.removeprefix("obs/")
            part = said.get(key, {})
            kind: ObsKind = part.get("kind") or kind_of(column.shape, column.dtype)
            classes = tuple(part.get("classes", ()))
            low, high = part.get("low", 0.0), part.get("high", 255.0)
            out[key] = ObsPart(kind=kind, shape=column.shape, dtype=column.dtype, classes=classes, low=low, high=high)
            if kind == "categorical" and not classes:
                raise DataError(
                    f"observation '{key}' is categorical, but no spec.json beside the store declares its classes."
                )
    return out


def kind_of(shape: tuple[int, ...], dtype: str) -> ObsKind:
    """Guess the kind of an observation: uint8 of 3 dimensions is an image, int64 categorical, all else a vector."""
    if dtype == "uint8" and len(shape) == 3:
        return "image"
    return "categorical" if dtype == "int64" else "vector"


def action_of(columns: Any, spec: Any) -> ActionSpec:
    """Return the actions that spec.json declares, or else a single continuous one.

    Raises:
        DataError: spec.json does not fit the stored column.
    """
    width = columns["action"].shape[0]
    said = (spec or {}).get("action")
    if not said:
        return ActionSpec(parts={"action": ActionPart(kind="continuous", size=width)})
    parts = {
        key: ActionPart(
            kind=part["kind"],
            classes=tuple(part.get("classes", ())),
            size=part.get("size", 0),
            low=tuple(part.get("low", ())),
            high=tuple(part.get("high", ())),
        )
        for key, part in said.items()
    }
    found = ActionSpec(parts=parts)
    if found.width != width:
        raise DataError(f"spec.json declares actions of {found.width} numbers, but the store has {width}.")
    return found
