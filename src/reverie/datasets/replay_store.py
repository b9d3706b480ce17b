"""Reads replay stores, stream by stream, and other files with rows as learners see them."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from reverie.core.action_codec import ActionCodec
from reverie.core.documents import read_json, read_yaml
from reverie.core.errors import DataError, EnvError, short_repr
from reverie.core.files import read_file
from reverie.core.locations import check_location
from reverie.core.obs_codec import ObsCodec
from reverie.core.rows import Rows, group_episodes
from reverie.core.space_json import space_from_json
from reverie.core.specs import (
    IS_INTERVENTION,
    LATE_COLUMNS,
    ActionPart,
    ActionSpec,
    ColumnSpec,
    ObsPart,
    ObsSpec,
    diff_specs,
    spec_to_dict,
)
from reverie.datasets.inferred_spaces import classes_space, nested_space
from reverie.datasets.options import PROPENSITY
from reverie.datasets.reader import PART_BYTES, DatasetInfo, Reader, ReadOptions, Space
from reverie.datasets.source import Source
from reverie.store import segment as segments
from reverie.store.segment import META
from reverie.store.store import ReplayStore, iter_store_episodes

SPEC, ABOUT = "spec.json", "about.json"
"""Files next to converted rows: their specs, and the dataset's metadata about environment and spaces."""
UNKNOWN_ACTION_SPACE = (
    "the environment's action space is unknown: actions stay as stored, and copies do not name the environment ({})"
)
OBJECT = "the environment was a Python object, {}, which cannot be stored: the dataset does not name it"
NO_METADATA = (
    "neither about.json nor config.yaml describes the store: its spaces are guessed, with continuous actions in [-1, 1]"
)
OPEN_EPISODE = "an episode was still running, or its environment failed: it is treated as truncated"


class SeenReader(Reader):
    """Reads rows as learners see them.

    The content of files next to them, ``declared``, can declare specs, environment and spaces.
    """

    def declare(self, declared: Mapping[str, Any], specs: tuple[ObsSpec, ActionSpec]) -> None:
        """Set what the files next to the rows declare; readers call this first."""
        self.declared: dict[str, Any] = dict(declared)
        self.specs: tuple[ObsSpec, ActionSpec] = specs
        self.env: dict[Any, Any] = dict(self.declared.get("env") or {})
        texts = (self.declared.get(f"{name}_space") for name in ("observation", "action"))
        observation, action = (space_from_json(text, str(self.path)) if text else None for text in texts)
        self.set_spaces(observation, action)

    def set_spaces(self, observation: Space | None, action: Space | None, reason: str = "") -> None:
        """Set the environment's spaces, if the rows match them.

        If not, ``as_recorded`` yields actions as stored. ``reason``: why the spaces are unknown; copies then do not
        name the environment, which might not accept these actions.
        """
        self.observation: Space = guess_obs_space(self.specs[0])
        self.action: Space = _guess_action_space(self.specs[1])
        self._obs, self._actions = None, ActionCodec(self.action)
        self.knows_actions: bool = False
        with contextlib.suppress(EnvError, ValueError):  # observations can be resized, stacked or excluded
            if observation is not None:
                channel_axis = self.declared.get("env_settings", {}).get("channel_axis", "auto")
                obs = ObsCodec(observation, lambda key: key in self.specs[0], channel_axis)
                if obs.spec == dict(self.specs[0]):
                    self.observation, self._obs = obs.filtered_space(), obs
        if action is not None:
            actions, owners = ActionCodec(action), ("the rows", "the environment")
            reason = "; ".join(diff_specs(spec_to_dict({}, self.specs[1]), spec_to_dict({}, actions.spec), owners))
            if not reason:
                self.action, self._actions, self.knows_actions = action, actions, True
        if reason:
            self.add_remark(UNKNOWN_ACTION_SPACE.format(reason.rstrip(".")))
            self.env, self.declared["env_spec"] = {}, {}

    @abstractmethod
    def episodes(self) -> Iterator[Rows]:
        """Yield the rows of each episode, with the columns of ``specs``."""

    @property
    def has_propensity(self) -> bool:
        """Whether the rows have propensities."""
        return False

    @property
    def has_interventions(self) -> bool:
        """Whether the rows have tags of takeovers."""
        return False

    def env_id(self) -> str:
        return str(self.env.get("id", ""))

    def info(self) -> DatasetInfo:
        declared, measured = self.declared, bool(self.declared.get("measured"))
        return DatasetInfo(
            observation=self.observation, action=self.action, has_measured_bounds=measured,
            has_rewards=bool(declared.get("has_rewards", True)), env=self.env_id(),
            specs=None if measured else self.specs,
            max_episode_steps=self.env.get("max_episode_steps"), env_settings=dict(declared.get("env_settings", {})),
            env_kwargs=dict(self.env.get("kwargs", {})),
            env_spec=dict(declared.get("env_spec", {})), has_propensity=self.has_propensity,
            has_interventions=self.has_interventions,
            element_names={name: tuple(names) for name, names in declared.get("element_names", {}).items()},
            text={"algorithm": declared["algorithm"]} if declared.get("algorithm") else {},
        )  # fmt: skip

    def parts(self) -> Iterator[Rows]:
        """Yield rows as stored.

        As recorded if action bounds were only measured, since the user may know the true bounds.
        """
        return self.as_recorded() if self.declared.get("measured") else group_episodes(self.episodes(), PART_BYTES)

    def as_recorded(self) -> Iterator[Rows]:
        """Yield rows with values in the environment's spaces as far as these are known, else with class indices."""
        for part in group_episodes(self.episodes(), PART_BYTES):
            flat = part.pop("action")
            if self._obs is not None:
                part = self._obs.decode(part)
            elif not isinstance(self.observation, spaces.Dict):
                part["obs"] = part.pop(f"obs/{next(iter(self.specs[0]))}")
            yield part | self._actions.unflatten(flat, part["is_last"])


class StoreReader(SeenReader):
    """Reads the store of a run, or the store in a folder or at a URL."""

    format = "reverie store"

    @classmethod
    def matches(cls, source: Source) -> bool:
        location = _locate_store(source.path) if source.is_folder else None
        return isinstance(location, str) or (location is not None and _is_store_folder(location))

    def __init__(self, path: Path | str, options: ReadOptions) -> None:
        super().__init__(path, options)
        self.location: Path | str = _locate_store(path)
        self.store: ReplayStore = ReplayStore(self.location)
        layout = next((dict(s.columns) for s in self.store.segments if s.rows > s.first_kept), None)
        if layout is None:
            raise DataError(f"the store in {path} contains no rows.")
        self.columns: dict[str, ColumnSpec] = {
            name: column for name, column in layout.items() if name not in LATE_COLUMNS
        }
        if any(IS_INTERVENTION in segment.columns for segment in self.store.segments):
            self.columns[IS_INTERVENTION] = LATE_COLUMNS[IS_INTERVENTION]
        declared = self._read_declared()
        self.add_remark(NO_METADATA, int(not declared.keys() - {"spec"}))
        self.declare(declared, self._specs(declared.get("spec") or {"observation": {}, "action": {}}))

    @property
    def has_propensity(self) -> bool:
        return PROPENSITY in self.columns

    @property
    def has_interventions(self) -> bool:
        return IS_INTERVENTION in self.columns

    def _read_declared(self) -> dict[str, Any]:
        """Return the metadata in files of the run, or of a converted store.

        A converted store does not belong to a run in whose folder it happens to be.
        """
        declared, folder = dict[str, Any](), self.path.absolute()
        store = folder if isinstance(self.location, str) else self.location.absolute()
        folders = [store, store.parent] if store.is_relative_to(folder) else [folder]  # elsewhere: replay.store_path
        for folder in folders[:1] if (store / ABOUT).is_file() else folders:
            spec, metadata, config = (read_json_or_yaml(folder / name) for name in (SPEC, ABOUT, "config.yaml"))
            declared |= ({"spec": spec} if spec else {}) | metadata
            if config:
                settings = _mapping_in(_mapping_in(config, "experiment", folder), "env", folder)
                _mapping_in(settings, "kwargs", folder)
                if "env" in _mapping_in(config, "custom", folder):
                    # another environment can be registered under this id
                    self.add_remark(OBJECT.format(settings.pop("id", "")))
                declared |= {"env": settings, "env_settings": settings, "algorithm": str(config.get("algorithm", ""))}
        return declared

    def _specs(self, declared: Mapping[str, Any]) -> tuple[ObsSpec, ActionSpec]:
        """Return observations and actions as declared in spec.json, or else as inferred from the columns."""
        width = self.columns["action"].shape[0]
        visible = {name.removeprefix("obs/"): c for name, c in self.columns.items() if name.startswith("obs/")}
        try:
            obs = {
                key: _column_obs_part(declared["observation"].get(key, {}), column) for key, column in visible.items()
            }
            parts = {key: ActionPart(**as_tuples(part)) for key, part in declared["action"].items()}
        except (LookupError, TypeError, AttributeError) as error:
            raise DataError(
                f"the spec.json of {self.path} is damaged ({error!r}). Restore it, or delete it."
            ) from error
        return obs, ActionSpec(parts=parts or {"action": ActionPart(kind="continuous", size=width)})

    def rows(self) -> int:
        flags = iter_store_episodes(self.store, columns=("reward", "is_first", "is_last"))
        return sum(len(episode) for episode in flags if not episode.unusable_reason)

    def episodes(self) -> Iterator[Rows]:
        met: Counter[str] = Counter()

        def on_damage(damage: object) -> None:
            met[f"damaged and skipped: {damage}"] += 1

        for episode in iter_store_episodes(self.store, columns=list(self.columns), on_damage=on_damage):
            if episode.unusable_reason:
                met[episode.unusable_reason] += 1
                continue
            rows = dict(episode.rows)
            if not episode.has_last_row:
                met[OPEN_EPISODE] += 1
                rows["is_last"], rows["action"] = rows["is_last"].copy(), rows["action"].copy()
                rows["is_last"][-1] = True
                rows["action"][-1] = 0
            yield rows
        self.merge_remarks(met)


def read_json_or_yaml(file: Path) -> dict[str, Any]:
    """Return the content of a JSON or YAML file next to a store; empty if there is none."""
    if not file.is_file():
        return {}
    return read_yaml(file) if file.suffix == ".yaml" else read_json(file)


def _mapping_in(values: Mapping[str, Any], name: str, folder: Path) -> dict[str, Any]:
    """Return the mapping ``name`` in the config.yaml of ``folder``, {} if missing; DataError if it is not a mapping."""
    if not isinstance(value := values.get(name) or {}, Mapping):
        raise DataError(
            f"{folder / 'config.yaml'}: {name} = {short_repr(value)}: expected a mapping. Restore the file."
        )
    return dict(value)


def _locate_store(path: Path | str) -> Path | str:
    """Return the folder or the URL of the store at ``path``, or of the store of the run at ``path``."""
    if "://" in str(path):
        return str(path)
    path = Path(path)
    if _is_store_folder(path):
        return path
    file, named = path / "config.yaml", "auto"
    with contextlib.suppress(AttributeError, DataError):  # another program's file can have this name
        if file.is_file():
            settings = read_json_or_yaml(file).get("experiment") or {}
            named = str((settings.get("replay") or {}).get("store_path", "auto"))
        else:  # of a Collector
            file = path / ABOUT
            named = str(read_json_or_yaml(file).get("store_path", "auto"))
    check_location(named, file)
    return path / "replay" if named in ("auto", "none") else named if "://" in named else Path(named)


def _is_store_folder(folder: Path) -> bool:
    """Return whether ``folder`` itself is a store."""
    return (folder / META).is_file() and segments.is_store_root(read_file(folder / META))


def _column_obs_part(declared: Mapping[str, Any], column: ColumnSpec) -> ObsPart:
    """Return the observation of a stored column, as declared in spec.json or else inferred."""
    looks = {("uint8", 3): "image"}.get((column.dtype, len(column.shape)))
    kind: Any = declared.get("kind") or looks or ("categorical" if column.dtype == "int64" else "vector")
    if kind == "categorical" and not declared.get("classes"):
        raise DataError("the number of classes of an observation is unknown: copy the run's spec.json to the store.")
    fields = {name: value for name, value in as_tuples(declared).items() if name in ("classes", "low", "high")}
    return ObsPart(kind=kind, shape=tuple(column.shape), dtype=column.dtype, **fields)


def as_tuples(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a spec part read from JSON, with lists converted to tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in part.items()}


def guess_obs_space(spec: ObsSpec) -> Space:
    """Return a space for the observations of ``spec``; one with the usual name of its kind is not in a dictionary."""
    leaves = guess_obs_leaves(spec)
    is_single = [*spec] in (["observation"], ["image"])  # ``ObsCodec`` names them
    return next(iter(leaves.values())) if is_single else nested_space(leaves, "obs")


def guess_obs_leaves(spec: ObsSpec) -> dict[str, Space]:
    """Return a space for each observation of ``spec``, by column."""
    leaves: dict[str, Space] = {}
    for key, part in spec.items():
        dtype = np.dtype(part.dtype).type
        low, high = (part.low, part.high) if part.kind == "image" else (-np.inf, np.inf)
        space = classes_space(part.classes, part.shape) if part.classes else None
        if part.kind == "mask":
            space = spaces.MultiBinary(part.shape[0])
        space = spaces.Box(low, high, part.shape, dtype) if space is None else space
        leaves[f"obs/{key}"] = space
    return leaves


def _guess_action_space(spec: ActionSpec) -> Space:
    """Return a space of the actions of ``spec``, continuous ones in [-1, 1]."""
    leaves: dict[str, Space] = {}
    for key, part in spec.parts.items():
        name, shape = "action" if key == "action" else f"action/{key}", (len(part.classes),)
        box = spaces.Box(-1.0, 1.0, (part.size,), np.float32)
        leaves[name] = classes_space(part.classes, () if shape == (1,) else shape) if part.classes else box
    return nested_space(leaves, "action")
