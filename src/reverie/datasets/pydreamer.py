"""Reads PyDreamer's npz files.

Their row t contains the action *before* observation t; reverie's row t contains the action taken at t. A file contains
one episode, several consecutive episodes, or a piece of a long one; ``reset`` marks the first row of an episode. Files
written by reverie have spec.json and about.json next to them, which describe their rows.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError
from reverie.core.rows import Rows, iter_episodes
from reverie.core.specs import FLAGS, ActionPart, ActionSpec, ObsPart, ObsSpec
from reverie.datasets import pydreamer_minigrid as minigrid
from reverie.datasets.inferred_spaces import MeasuredAction, measured_action, seen_space
from reverie.datasets.npz import arrays_in, is_observation, open_npz
from reverie.datasets.options import PROPENSITY
from reverie.datasets.reader import DatasetInfo, FilesReader, Reader, ReadOptions, Space, to_bool_column
from reverie.datasets.replay_store import ABOUT, SPEC, SeenReader, as_tuples, guess_obs_leaves, read_json_or_yaml
from reverie.datasets.source import Source, reading

ROW_ARRAYS = {"action", "reward", "terminal", "reset"}
GENERATOR_ARRAYS = {"action_next", "policy_value", "policy_entropy", "action_prob"}
"""Arrays of PyDreamer that are not observations."""
ONE_HOT_PROBE_FILES = 8
"""Number of files with actions that are examined to distinguish one-hot from continuous actions."""
LOST_METADATA = "observations and actions are read as PyDreamer's, without their declared names and spaces"
EMPTY = "a file without rows is skipped"
FIRST_STEPS_MISSING = "a file begins within an episode whose first steps are missing: the episode starts with the file"


class PyDreamerReader(FilesReader):
    """Reads files in the order of the numbers in their names."""

    format = "PyDreamer npz"
    suffixes: ClassVar[tuple[str, ...]] = (".npz",)
    required_names: ClassVar[Sequence[str]] = tuple(sorted(ROW_ARRAYS))

    @classmethod
    def matches(cls, source: Source) -> bool:
        return len(ROW_ARRAYS & source.names) > 2

    @classmethod
    def open(cls, path: Path, sources: Sequence[Source], options: ReadOptions) -> list[Reader]:
        paths = [source.path for source in sources]
        reader = (OwnPyDreamerReader if _is_own(paths) else cls)(path, options, paths)
        lost = {name for name in (SPEC, ABOUT) for p in paths if not (p.parent / name).is_file()}
        reader.add_remark(f"{min(lost, default='')} is missing next to the files: {LOST_METADATA}", int(len(lost) == 1))
        return [reader]

    spec: ObsSpec = MappingProxyType({})

    def supports_option(self, option: str) -> bool:
        return option == "classes"

    def set_expected_spaces(self, observation: Space, spec: ObsSpec) -> None:
        """See :class:`Reader`; observations with PyDreamer's usual names are renamed as in ``spec``."""
        self.spec = spec

    @cached_property
    def _one_hot(self) -> bool:
        every = (_load_npz_arrays(path, "action", "reset") for path in self.paths)
        answers = (is_one_hot(arrays["action"], arrays["reset"]) for arrays in every)
        decided_files = list(
            itertools.islice((answer for answer in answers if answer is not None), ONE_HOT_PROBE_FILES)
        )
        return bool(decided_files) and all(decided_files)

    def info(self) -> DatasetInfo:
        """Return the description of the files: observations of the first file, and continuous actions of all files."""
        first = _load_npz_arrays(self.paths[0])
        columns, leaves = self._obs(first), guess_obs_leaves(self.spec)
        if is_minigrid := self._is_minigrid(self._columns(first)):
            leaves |= minigrid.class_spaces(columns)
        arrays = {name: (v.shape[1:], v.dtype) for name, v in columns.items()}
        observation = seen_space(arrays, self.options, leaves, self.path)
        if self._one_hot:
            action = MeasuredAction(spaces.Discrete(first["action"].shape[-1]), False, False)
        else:
            action = measured_action(self, self._actions)
        text = {"files": f"{len(self.paths):,}", "actions": "one-hot" if self._one_hot else "continuous"}
        space, measured, numbered = action
        return DatasetInfo(
            observation=observation, action=space, inferred=not (self.options.classes or is_minigrid),
            has_measured_bounds=measured, numbered=numbered, text=text, has_propensity=PROPENSITY in first,
        )  # fmt: skip

    def _actions(self) -> Iterator[np.ndarray]:
        return (_load_npz_arrays(path, "action")["action"] for path in self.paths)

    def rows(self) -> int:
        return sum(len(_load_npz_arrays(path, "reset")["reset"]) for path in self.paths)

    def parts(self) -> Iterator[Rows]:
        """Yield the rows of :meth:`flat`, with class indices instead of one-hot actions."""
        for rows in self.flat():
            yield rows | {"action": rows["action"].argmax(axis=1)} if self._one_hot else rows

    def flat(self) -> Iterator[Rows]:
        """Yield one file at a time. The action of its last row is in the next file, if the episode continues there."""
        inside, lost = False, 0
        files = itertools.chain(self._files(), [(None, Rows())])
        for (path, values), (next_path, next_rows) in itertools.pairwise(files):
            with reading(path or self.path):
                continues = (
                    next_path is not None and _is_next_piece(path, next_path) and not next_rows["reset"].reshape(-1)[0]
                )
                first, terminal = (to_bool_column(values[name], f"{path}: '{name}'") for name in ("reset", "terminal"))
                lost += int(not first[0] and not inside)
                first[0] |= not inside
                last = np.append(first[1:], not continues)
                next_actions = next_rows["action"][:1] if continues else np.zeros_like(values["action"][:1])
                action = np.concatenate([values["action"][1:], next_actions])
                action[last] = 0
                reward = values["reward"].reshape(-1).astype(np.float32)
                reward[first] = 0.0
                flags = {"is_first": first, "is_last": last, "is_terminal": terminal & last}
            if PROPENSITY in values:
                chances = [values[PROPENSITY][1:], next_rows[PROPENSITY][:1] if continues else np.ones(1)]
                flags[PROPENSITY] = np.where(last, 1.0, np.concatenate(chances))
            yield self._obs(values) | {"action": action, "reward": reward} | flags
            inside = continues
        self.add_remark(FIRST_STEPS_MISSING, lost)

    def _files(self) -> Iterator[tuple[Path | None, Rows]]:
        """Yield the files that have rows, with their arrays."""
        empty = 0
        for path in self.paths:
            values = _load_npz_arrays(path)
            empty += not values["reset"].size
            if values["reset"].size:
                yield path, values
        self.add_remark(EMPTY, empty)

    def _is_minigrid(self, columns: Rows) -> bool:
        """Return whether to read PyDreamer's cells of MiniGrid, rather than the arrays as they are."""
        is_map_view = not self.spec or "view" in self.spec
        return is_map_view and not self.options.classes and minigrid.is_minigrid(columns, minigrid.RECORDED)

    def _obs(self, values: Rows) -> Rows:
        """Return observations by column.

        They are renamed as in the environment; without one, a single ``vecobs`` becomes ``obs``.
        """
        columns = self.common_columns(self._columns(values))
        if self._is_minigrid(columns):
            self.add_remark(minigrid.CELLS_READ)
            self.add_remark(minigrid.LOST_CELLS, int((columns["obs/map"] == 0).any()))
            return minigrid.from_pydreamer(columns, self.path)
        if not self.spec:
            return {"obs": columns["obs/vecobs"]} if list(columns) == ["obs/vecobs"] else columns
        names = _columns_in_files(self.spec)
        return {name if names.get(name, name) in columns else names[name]: value for name, value in columns.items()}

    def _columns(self, values: Rows) -> Rows:
        """Return the observations as in the files. The last axis of ``image_t`` is time."""
        columns = {}
        for key, value in values.items():
            if key in ROW_ARRAYS or key in GENERATOR_ARRAYS or key == PROPENSITY:
                continue
            if not is_observation(key, value):
                self.add_remark(f"left out: {key}")
                continue
            value = np.moveaxis(value, -1, 0) if key.endswith("_t") and value.ndim == 4 else value
            if value.shape[:1] == (len(values["reset"]),):
                columns["obs/" + (key.removesuffix("_t") if value.ndim == 4 else key)] = value
            else:
                self.add_remark(f"left out: {key}, which has no value for each row")
        return columns


class OwnPyDreamerReader(SeenReader):
    """Reads PyDreamer files written by reverie: rows as learners see them."""

    format = "PyDreamer npz"

    def __init__(self, path: Path, options: ReadOptions, paths: Sequence[Path]) -> None:
        super().__init__(path, options)
        self.files: PyDreamerReader = PyDreamerReader(path, options, paths)
        folder = self.files.paths[0].parent
        spec = read_json_or_yaml(folder / SPEC)
        obs = {key: ObsPart(**as_tuples(part)) for key, part in spec["observation"].items()}
        actions = {key: ActionPart(**as_tuples(part)) for key, part in spec["action"].items()}
        self.files.set_expected_spaces(self.files.info().observation, obs)
        self.declare(read_json_or_yaml(folder / ABOUT), (obs, ActionSpec(parts=actions)))

    @property
    def has_propensity(self) -> bool:
        return self.files.info().has_propensity

    def rows(self) -> int:
        return self.files.rows()

    def episodes(self) -> Iterator[Rows]:
        dtypes = {f"obs/{key}": part.dtype for key, part in self.specs[0].items()}
        for rows in iter_episodes(self.files.flat()):
            if missing := ", ".join(sorted(dtypes.keys() - rows.keys())):
                raise DataError(f"{self.path}: {SPEC} next to the files declares {missing}, which one of them lacks.")
            observations = {name: rows[name].astype(dtype, copy=False) for name, dtype in dtypes.items()}
            names = ("action", "reward", *FLAGS, *({PROPENSITY} & rows.keys()))
            yield observations | {name: rows[name] for name in names}
        self.merge_remarks(self.files.notes)


def _is_own(paths: Sequence[Path]) -> bool:
    """Return whether files next to ``paths`` describe their rows."""
    folders = {path.parent for path in paths}
    return len(folders) == 1 and all((folder / name).is_file() for folder in folders for name in (SPEC, ABOUT))


def file_names(kinds: Mapping[str, tuple[str, int]]) -> dict[str, str]:
    """Return the names in files of observations by key; ``kinds``: their dtypes and numbers of axes.

    A single image is called ``image_t``, and a single vector ``vecobs``.
    """
    alone = {("uint8", 3): "image_t", ("float32", 1): "vecobs"}
    counts = Counter(kinds.values())
    return {key: alone[kind] if kind in alone and counts[kind] == 1 else key.replace("/", "_")
            for key, kind in kinds.items()}  # fmt: skip


def _columns_in_files(spec: ObsSpec) -> dict[str, str]:
    """Return the column of each observation of ``spec``, by its column in the files."""
    names = file_names({key: (part.dtype, len(part.shape)) for key, part in spec.items()})
    untimed = {key: name.removesuffix("_t") if len(spec[key].shape) == 3 else name for key, name in names.items()}
    return {f"obs/{name}": f"obs/{key}" for key, name in untimed.items()}


def _is_next_piece(before: Path | None, path: Path) -> bool:
    """Return whether ``path`` is the piece after ``before``: ``ep000003_000003-1-r5-1000`` follows ``...-0-...``."""
    pattern = r"ep(\d+)_(\d+)-(\d+)-r.*"
    a, b = (re.fullmatch(pattern, p.stem) if p is not None else None for p in (before, path))
    return bool(a and b and a[1] == b[1] and a[2] == b[2] and int(b[3]) == int(a[3]) + 1)


def is_one_hot(action: np.ndarray, reset: np.ndarray) -> bool | None:
    """Return whether all actions ``[n, A]`` are one-hot vectors; None if all rows are resets, without an action."""
    if action.ndim != 2 or action.shape[1] < 2 or len(action) != reset.size:
        return False
    actions = action[~reset.astype(bool).reshape(-1)]
    return bool(((actions == 0) | (actions == 1)).all() and (actions.sum(axis=1) == 1).all()) if len(actions) else None


def _load_npz_arrays(path: Path, *names: str) -> Rows:
    """Return the arrays ``names`` of a file; default: all except arrays of Python objects."""
    with open_npz(path) as file:
        if missing := sorted(ROW_ARRAYS - set(file.files)):
            error_prefix = f"has {', '.join(file.files)}, but no {', '.join(missing)}"
            raise DataError(f"{path} {error_prefix}: a PyDreamer file has {', '.join(sorted(ROW_ARRAYS))}.")
        return arrays_in(file, names or file.files)
