"""Our own replay stores: rows as they were lived, stream by stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from reverie.core.errors import DataError
from reverie.core.specs import ActionPart, ActionSpec, ObsKind, ObsPart, ObsSpec
from reverie.data.export import action_space, decoded_actions, observation_space
from reverie.data.readers.base import PART_BYTES, About, Reader, ReadOptions, Rows, Space
from reverie.data.readers.spaces import in_units, space_of
from reverie.data.store.episodes import Episode, episodes
from reverie.data.store.manifest import MANIFEST, Damage
from reverie.data.store.store import Store

ABOUT = "about.json"
"""Beside a store that was made of other data: what they said of their environment and their actions."""
NAMELESS = "what its actions of -1 to 1 and its class numbers stand for is not known: its environment is not named"
LOST = "an episode whose beginning is not stored is left out"
OPEN = "an episode was still going on, or its environment failed: it is taken as cut off by time"


class StoreReader(Reader):
    """The store of a run, or one at a folder."""

    format = "reverie store"

    def __init__(self, path: Path, options: ReadOptions) -> None:
        super().__init__(path, options)
        self.folder = store_in(path)
        self.store = Store(self.folder, say=lambda text: self.note(text))
        layouts = [dict(s.columns) for s in self.store.segments if s.rows > s.first]
        if not layouts:
            raise DataError(f"the store in {path} holds no rows.")
        if any(layout != layouts[0] for layout in layouts):
            raise DataError(f"the segments of the store in {path} have different columns: they are no single dataset.")
        self.columns = layouts[0]
        said, self.measured = self._settings.get("actions"), bool(self._settings.get("measured"))
        self.units: Space | None = space_of(said, str(path)) if said else None
        """What the stored actions, in [-1, 1] and one-hot, are actions of; None where that is not known."""
        self.nameless = False

    def ask(self, answer: Callable[[About], tuple[Space | None, str]]) -> None:
        """See ``Reader``. An environment that does not answer is not named any more: it takes other actions."""
        if self.units is not None or not self.env_id():
            return
        self.units, why = answer(self.about())
        if self.units is None:
            self.nameless = True
            self.note(f"{NAMELESS} in the copy ({why.rstrip('.')})")

    def files(self) -> Sequence[Path]:
        """The manifest: it says of each file how many rows count, and is sealed."""
        return [self.folder / MANIFEST]

    @cached_property
    def _settings(self) -> dict[str, Any]:
        """What the run that it belongs to says of itself; nothing if there is none."""
        found: dict[str, Any] = {}
        for folder in (self.folder.absolute(), self.folder.absolute().parent, self.path):
            if (folder / "spec.json").is_file():
                found["spec"] = said_in(folder / "spec.json", needed=("observation", "action"))
            if (folder / ABOUT).is_file():
                about = said_in(folder / ABOUT)
                found |= {"said": about.get("env", {}), "actions": about.get("action_space")}
                found["measured"] = about.get("measured", False)
            if (folder / "config.yaml").is_file():
                content = said_in(folder / "config.yaml")
                found["env"] = (content.get("experiment") or {}).get("env", {})
                found["algorithm"] = content.get("algorithm", "")
        return found

    def env_id(self) -> str:
        """See ``Reader``."""
        return str((self._settings.get("env") or self._settings.get("said", {})).get("id", ""))

    def about(self) -> About:
        """The parts are those of spec.json; where it is not there, what the columns look like."""
        spec, env, said = self._settings.get("spec"), self._settings.get("env", {}), self._settings.get("said", {})
        specs = (obs_of(self.columns, spec), action_of(self.columns, spec))
        text = {"algorithm": self._settings["algorithm"]} if self._settings.get("algorithm") else {}
        segment = next(s for s in self.store.segments if s.rows > s.first)
        return About(
            observation=observation_space(segment, spec),
            action=action_space(segment, spec) if self.units is None else self.units,
            env="" if self.nameless else self.env_id(),
            env_settings=dict(env),
            env_kwargs=dict(said.get("kwargs", {})),
            time_limit=said.get("time_limit"),
            measured=self.measured,
            specs=None if self.measured else specs,
            text=text,
        )

    def rows(self) -> int:
        """Counted by the flags, which are read for that: rows before a first one do not count."""
        flags = episodes(self.store, columns=("reward", "is_first", "is_last"))
        return sum(len(episode) for episode in flags if usable(episode))

    def parts(self) -> Iterator[Rows]:
        """As stored; as recorded where bounds of actions were only measured, since whoever reads may know better."""
        return self.as_recorded() if self.measured else self._stored()

    def _stored(self) -> Iterator[Rows]:
        """Whole episodes, several of them together if they are small."""
        self.met.clear()
        kept: list[Rows] = []
        size = 0
        for episode in episodes(self.store, on_damage=self._damaged):
            if not usable(episode):
                self.meet(LOST)
                continue
            kept.append(self._closed(episode))
            size += sum(values.nbytes for values in kept[-1].values())
            if size >= PART_BYTES:
                yield {name: np.concatenate([rows[name] for rows in kept]) for name in kept[0]}
                kept, size = [], 0
        if kept:
            yield {name: np.concatenate([rows[name] for rows in kept]) for name in kept[0]}

    def as_recorded(self) -> Iterator[Rows]:
        """Class numbers in place of one-hot vectors, and actions in their own units where these are known."""
        spec, seen = self._settings.get("spec"), [name for name in self.columns if name.startswith("obs/")]
        for part in self._stored():
            rows = {name: values for name, values in part.items() if name != "action"}
            if len(seen) == 1 and seen[0].count("/") == 1:  # what is alone has no name in a space
                rows["obs"] = rows.pop(seen[0])
            actions = flat_columns(decoded_actions(part["action"], spec), "action")
            yield rows | (actions if self.units is None else in_units(actions, self.units, part["is_last"]))

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
    """What a file beside a store says, in JSON or YAML, ``needed`` at least.

    Raises:
        DataError: it is damaged.
    """
    try:
        text = file.read_text(encoding="utf-8")
        found = (yaml.safe_load(text) or {}) if file.suffix == ".yaml" else json.loads(text)
    except (ValueError, yaml.YAMLError) as error:
        raise DataError(f"{file} is damaged: {error}. Its rows are not: put the file of a copy in its place.") from None
    if not isinstance(found, dict) or not all(isinstance(found.get(name), dict) for name in needed):
        expected = f"{' and '.join(needed) or 'names and values'} are expected"
        raise DataError(f"{file} is damaged: it holds {str(found)[:80]!r}, where {expected}.")
    return found


def flat_columns(values: Any, root: str) -> Rows:
    """Arrays in nested dictionaries as columns."""
    if not isinstance(values, dict):
        return {root: values}
    return {
        name: column for key, inner in values.items() for name, column in flat_columns(inner, f"{root}/{key}").items()
    }


def usable(episode: Episode) -> bool:
    """Whether its beginning is there and something was done in it."""
    return episode.begun and episode.steps > 0


def store_in(path: Path) -> Path:
    """The folder of the store at ``path`` or of the run there."""
    return path if (path / MANIFEST).is_file() else path / "replay"


def is_store(path: Path) -> bool:
    """Whether there is a store, or a run with one."""
    manifest = store_in(path) / MANIFEST
    if not manifest.is_file():
        return False
    with manifest.open("rb") as file:
        return b"segments" in file.read(1 << 20)


def obs_of(columns: Any, spec: Any) -> ObsSpec:
    """The observation parts of stored columns."""
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
                raise DataError(f"observation '{key}' is of classes, and no spec.json beside the store says how many.")
    return out


def kind_of(shape: tuple[int, ...], dtype: str) -> ObsKind:
    """What a column must be, by the convention of rows."""
    if dtype == "uint8" and len(shape) == 3:
        return "image"
    return "categorical" if dtype == "int64" else "vector"


def action_of(columns: Any, spec: Any) -> ActionSpec:
    """The action parts; one continuous part where nothing says more."""
    width = columns["action"].shape[0]
    said = (spec or {}).get("action")
    if not said:
        return ActionSpec(parts={"action": ActionPart(kind="continuous", size=width)})
    parts = {
        key: ActionPart(kind=part["kind"], classes=tuple(part.get("classes", ())), size=part.get("size", 0))
        for key, part in said.items()
    }
    found = ActionSpec(parts=parts)
    if found.width != width:
        raise DataError(f"spec.json says actions of {found.width} numbers, the store has {width}.")
    return found
