"""Reads Arrow, Parquet and CSV tables, and those in memory, with arbitrary column names, such as Hugging Face datasets.

The option ``columns`` gives each role its column: ``{obs: observation.state, action: action, reward: next.reward,
terminal: next.done, episode: episode_index}``. Several numeric columns can form one vector: ``obs: [cos, sin]``. Names
of folders such as ``episode=7`` are a column, too. A row of the table is a transition, or a whole episode if
observations, actions and rewards are lists.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from gymnasium import spaces

from reverie.core.documents import read_json
from reverie.core.errors import ConfigError, DataError, did_you_mean
from reverie.datasets.arrow import (
    TableChunk,
    TableColumn,
    add_partitions,
    join_columns,
    open_table,
    table_pieces,
    unify_numbers,
)
from reverie.datasets.arrow_values import declared_axes, has_own_lengths, is_list, to_tensors
from reverie.datasets.hdf5 import EPISODE_IDS, declared_fields
from reverie.datasets.imitation import NO_TRUNCATIONS
from reverie.datasets.nested_columns import add_nested, nested_names
from reverie.datasets.options import PROPENSITY
from reverie.datasets.reader import CLASSES, ColumnNames, DatasetInfo, Reader, ReadOptions, to_bool_column
from reverie.datasets.source import (
    TEXT_SUFFIXES,
    Source,
    import_pyarrow,
    missing_files,
    natural_sort_key,
    without_text,
)
from reverie.datasets.time_order import OUT_OF_ORDER, find_disorder, note_disorder
from reverie.datasets.transitions import (
    STEPLESS,
    LazyColumn,
    Transitions,
    TransitionsReader,
    reorder,
    time_limit_truncations,
)

if TYPE_CHECKING:
    import pyarrow as pa

MAGIC = (b"PAR1", b"ARRO", b"\xff\xff\xff\xff")
"""First bytes of Parquet files, Arrow files and Arrow streams."""
END_ROLES = ("terminal", "truncated", "end")
"""Roles of columns that mark where episodes end."""
ROLES = ("obs", "next_obs", "action", "reward", *END_ROLES, "episode", PROPENSITY)
REQUIRED_ROLES, NESTED_ROLES = ("obs", "action"), ("obs", "next_obs", "action")
COMMON_COLUMN_NAMES: dict[str, tuple[str, ...]] = {
    "obs": ("observation", "observations", "obs", "observation.state", "state", "states"),
    "next_obs": (
        "next_observation", "next_observations", "next_obs", "new_obs", "obs_next", "next.observation", "next_state",
        "next_states",
    ),
    "action": ("action", "actions", "act", "acts"),
    "reward": ("reward", "rewards", "next.reward", "rew", "rews"),
    "terminal": (
        "terminal", "terminals", "terminated", "terminateds", "terminations", "is_terminal", "next.terminated", "done",
        "dones", "next.done",
    ),
    "truncated": (
        "truncated", "truncateds", "truncations", "is_truncated", "next.truncated", "timeout", "timeouts", "time_limit",
    ),
    "episode": (
        "episode_index", "episode_id", "episode", "eps_id", "ep_id", "traj_id", "traj_ids", "trajectory_id",
    ),
}  # fmt: skip
"""Common column names of each role in lower case, for suggestions in error messages: as in Gymnasium, D4RL, RLlib,
TorchRL, Tianshou and Minari."""
SCHEMA_COLUMNS_KEY = b"reverie.columns"
"""Key in the schema of tables written by reverie: the column of each role."""
SCHEMA_DECLARED_KEY = b"reverie.declared"
"""Key in the same schema: the spaces, the environment and the names of elements, as far as they were declared."""
NO_ENDS = (
    "no column marks terminal steps: all episodes are treated as truncated, so values count rewards beyond their "
    "ends. Mark the last step of each terminated episode in a column and name this column for terminal"
)
EXACT_FLOAT = 2**53
"""Largest whole number up to which floats represent each one."""
ROUNDED_IDS = (
    "'{}' has ids that are floats above 2^53, where different ids become the same number: store them as text or as "
    "integers"
)
REPEATED_ID = "'{}' has the id {} in {} and in {}: {}"
SEPARATE = "these are read as different episodes, since no flag tells that the first one continues"
CONTINUED = "this is read as one episode, since no flag ends it in between"
CONTINUES = (
    "an episode continues from {} into {}, since no flag ends it in between: if a file is an episode, mark its last "
    "step, or add a column with the number of the episode and name it for episode"
)
IMITATION: dict[str, ColumnNames] = {"obs": "obs", "action": "acts", "reward": "rews", "terminal": "terminal"}
"""Columns of imitation 1 (``imitation/data/huggingface_utils.py``), whose rows are episodes, with pickled ``infos``."""
UNSEEN = (
    "no column marks truncations: an episode without a terminal end runs into the next one. If episodes have a time "
    "limit, pass --data.max-episode-steps; otherwise name a column for truncated, end or episode"
)


class TableReader(TransitionsReader):
    """See the top of this file."""

    format = "table"
    suffixes: ClassVar[tuple[str, ...]] = (
        ".arrow",
        ".arrows",
        ".feather",
        ".ipc",
        ".parquet",
        ".parq",
        ".pq",
        *TEXT_SUFFIXES,
    )
    has_final_steps: bool = False
    """See ``Transitions``."""
    task_column_name: str = ""
    """The column with the task of each step, if there are several; it is no observation alone."""

    @classmethod
    def matches(cls, source: Source) -> bool:
        return source.head in MAGIC or (source.path.suffix.lower() in TEXT_SUFFIXES and not source.is_folder)

    @classmethod
    def files_in(cls, folder: Source) -> list[Path]:
        return tables_in(folder.path)

    @classmethod
    def open(cls, path: Path, sources: Sequence[Source], options: ReadOptions) -> list[Reader]:
        files = [source.path for source in sources]
        splits = {file.relative_to(path).parts[0] for file in files if file.parent != path} if path.is_dir() else set()
        if {"train"} < splits and splits <= {"train", "test", "validation"}:
            raise ConfigError(
                f"{path} has the splits {', '.join(sorted(splits))}: pass the path of one, such as {path}/train."
            )
        return [cls(path, options, files)]

    def __init__(
        self, path: Path, options: ReadOptions, paths: Sequence[Path] = (), table: pa.Table | None = None
    ) -> None:
        """``paths``: its files, if ``path`` names several. ``table``: the Arrow table itself, if it is in memory."""
        super().__init__(path, options)
        self.paths: list[Path] = list(paths) or [path]
        numbers = [name for role, names in options.columns.items() if role != "episode" for name in _names(names)]
        ids = {*_names(options.columns.get("episode", ()))} - {*numbers}  # numbers would lose digits and zeros
        tables = {f: open_table(f, ids) if table is None else table_pieces(table, str(path)) for f in self.paths}
        add_partitions(tables)
        used = [name for names in options.columns.values() for name in _names(names)]
        add_nested(tables, used)
        unify_numbers(tables, used)
        self.pieces: list[TableChunk] = [piece for _, pieces in tables.values() for piece in pieces]
        self.ends: np.ndarray = np.cumsum([sum(piece.rows for piece in pieces) for _, pieces in tables.values()])
        """Number of rows up to the end of each file."""
        self.total: int = int(self.ends[-1])
        schemas = {file: schema for file, (schema, pieces) in tables.items() if pieces}
        if not schemas:
            names = ", ".join(map(str, tables[self.paths[0]][0].names)) or "none"
            raise DataError(f"{path} has no rows, only column names: {names}.")
        self.schemas: list[Any] = list(schemas.values())
        self.schema: Any = self.schemas[0]
        self._made: dict[str, TableColumn] = {}
        present = set(self.schema.names)
        self.is_imitation: bool = not options.columns and present >= {"obs", "acts", "infos", "terminal"}
        usual = {role: name for role, name in IMITATION.items() if name in present} if self.is_imitation else {}
        roles = options.columns or self._schema_entry(SCHEMA_COLUMNS_KEY) or usual
        self.roles: dict[str, ColumnNames] = {role: names for role, names in roles.items() if names}
        self.folder: Path | None = path if path.is_dir() else self.paths[0].parent if table is None else None
        present_names = [name for schema in self.schemas for name in [*map(str, schema.names), *nested_names(schema)]]
        _check_roles(self.roles, list(dict.fromkeys(present_names)), path, self.task_column_name)
        named = list(itertools.chain.from_iterable(map(_names, self.roles.values())))
        _check_schemas(schemas, named, path)
        self._check_declarations(schemas)
        missing = missing_files(self.paths)
        self.add_remark(missing, int(bool(missing) and path.is_dir()))
        self.action_classes: int | None = None
        """Number of classes of the action, as far as it is declared."""
        self._use_class_labels()

    def _use_class_labels(self) -> None:
        """Use the numbers of classes that Hugging Face's metadata declare, unless an option names others."""
        declared, *others = map(_label_names, self.schemas)
        names = {role: declared[str(name)] for role, name in self.roles.items() if str(name) in declared}
        for role in names:
            if any(labels.get(str(self.roles[role])) != names[role] for labels in others):
                raise DataError(
                    f"{self.path}: the files declare different classes of '{self.roles[role]}': expected one list."
                )
        self.labels: dict[str, str] = {f"{CLASSES}{_column(role)}": ", ".join(labels) for role, labels in names.items()}
        counts = {role: len(labels) for role, labels in names.items()}
        self.action_classes = counts.get("action")
        obs = {_column(role): count for role, count in counts.items() if _head(role) == "obs"}
        classes = {name.removeprefix("obs/") if "/" in name else "observation": count for name, count in obs.items()}
        self.options: ReadOptions = dataclasses.replace(self.options, classes={**classes, **self.options.classes})

    def _check_declarations(self, schemas: Mapping[Path, Any]) -> None:
        """Raise DataError if files that reverie wrote declare other columns or spaces: these are several datasets."""
        first, *files = schemas
        for file in files if not self.options.columns else ():
            for key in (SCHEMA_COLUMNS_KEY, SCHEMA_DECLARED_KEY):
                if (schemas[file].metadata or {}).get(key) != (schemas[first].metadata or {}).get(key):
                    problem = f"{file} declares other columns, spaces or environments than {first}"
                    raise DataError(f"{problem}: these are several datasets. Pass their paths as a list.")

    def _schema_entry(self, key: bytes) -> Any:
        """Return an entry of the schema of a table written by reverie; empty for other tables."""
        return json.loads((self.schema.metadata or {}).get(key, b"{}"))

    @cached_property
    def declared(self) -> dict[str, Any]:
        """Fields of ``DatasetInfo`` that a table written by reverie declares, of the columns that it names itself."""
        return {} if self.options.columns else declared_fields(self._schema_entry(SCHEMA_DECLARED_KEY), self.path)

    def env_id(self) -> str:
        return str(self.declared.get("env", ""))

    def supports_option(self, option: str) -> bool:
        end_roles = {"truncated", "end", "episode"} & self.roles.keys()
        declared = "observation" in self.declared
        limits = self.is_imitation or (not self.has_episode_rows and not end_roles)
        return {"columns": True, "classes": not declared, "max_episode_steps": limits}.get(option, False)

    @cached_property
    def has_episode_rows(self) -> bool:
        """Whether a row of the table is a whole episode: a list in each column of observations, actions and rewards.

        Without rewards, the lists must also have different lengths, or contain lists; a vector is a list too.
        """
        if self.is_imitation:
            return True
        heads = (*REQUIRED_ROLES, "reward")
        columns = [name for role in self.roles if _head(role) in heads for name in _names(self.roles[role])]
        if not all(map(self._is_list, columns)) or "reward" in self.roles:
            return all(map(self._is_list, columns))
        lengths = [TableColumn(self.pieces, name, f"{self.path}: '{name}'").lengths for name in columns]
        extra = np.max(lengths, axis=0) - np.min(lengths, axis=0)  # a final observation
        nested = any(is_list(import_pyarrow(), self.schema.field(name).type.value_type) for name in columns)
        return bool((extra <= 1).all()) and (nested or any(len(set(those.tolist())) > 1 for those in lengths))

    def _is_list(self, name: str) -> bool:
        return has_own_lengths(import_pyarrow(), self.schema.field(name).type)

    def columns(self, role: str) -> list[TableColumn]:
        """Return the columns of a role, with one value per step."""
        for name in _names(self.roles[role]):
            if name not in self._made:
                flat = self.has_episode_rows and self._is_list(name)
                self._made[name] = TableColumn(self.pieces, name, f"{self.path}: '{name}'", flat, self.folder)
        return [self._made[name] for name in _names(self.roles[role])]

    def column(self, role: str) -> LazyColumn:
        """Return the column of a role, or the several columns that form its vector."""
        columns, name = self.columns(role), self.roles[role]
        if not isinstance(name, str):
            return join_columns(columns)
        field = self.schema.field(name)
        axes = declared_axes(field.type.value_field if columns[0].flat else field)
        return columns[0].values if axes is None else to_tensors(columns[0].values, *axes, columns[0].label)

    def role_columns(self, head: str) -> dict[str, LazyColumn]:
        """Return all columns of a role such as obs, whose keys are ``obs`` or ``obs.camera``, by their new names."""
        return {_column(role): self.column(role) for role in self.roles if _head(role) == head}

    @cached_property
    def transitions(self) -> Transitions:
        if self.has_episode_rows:
            self._check_lengths()
        obs, next_obs, limit = self.role_columns("obs"), self.role_columns("next_obs"), self.options.max_episode_steps
        flags = {role: self._flag(role) for role in END_ROLES if role in self.roles}
        reward = self.column("reward") if "reward" in self.roles else None
        num_steps = int(self.steps.sum()) if self.has_episode_rows else self.total
        terminal = flags.get("terminal", np.zeros(num_steps, bool))
        self.add_remark(NO_ENDS, int("terminal" not in flags))
        if self.is_imitation:
            self.add_remark(NO_TRUNCATIONS, int(limit is None and terminal.any()))
            terminal &= np.repeat(self.steps != limit, self.steps)
        elif self.supports_option("max_episode_steps"):
            self.add_remark(UNSEEN, int(limit is None and not next_obs))
            flags["truncated"] = np.zeros_like(terminal) if limit is None else time_limit_truncations(terminal, limit)
        end = np.any([*flags.values(), terminal], axis=0)
        if self.has_episode_rows:
            end = self._last_steps(self.steps > 0)
            self._check_flags(flags, end)
            self.add_remark(STEPLESS, int(np.count_nonzero(self.steps == 0)))
            for role in filter(self._has_final, self.roles):
                extra = self.columns(role)[0].lengths - self.steps
                before = np.cumsum(extra) - extra  # final observations of earlier episodes
                index = np.arange(len(end)) + np.repeat(before, self.steps)
                obs[_column(role)] = reorder(self.column(role), index)
                next_obs[_column(role)] = reorder(self.column(role), index + 1)
        elif "episode" in self.roles:
            end = self._episode_ends(end, flags)
        elif len(self.paths) > 1 and not (next_obs or self.is_one_table):
            edges = self.ends[:-1]
            open_edges = edges[(edges > 0) & (edges < self.total) & ~end[edges - 1]]
            for edge in open_edges[:1]:
                files = (self.paths[np.searchsorted(self.ends, row, "right")].name for row in (edge - 1, edge))
                self.add_remark(CONTINUES.format(*files), len(open_edges))
        if not self.has_episode_rows:
            note_disorder(self, self._unused_names("obs"), self._times, end, bool(next_obs))
        has_truncations = not self.supports_option("max_episode_steps") or limit is not None
        return Transitions(
            obs=obs, next_obs=next_obs, action=self.role_columns("action"), reward=reward, end=end, terminal=terminal,
            propensity=self.column(PROPENSITY) if PROPENSITY in self.roles else None, reader=self,
            has_truncations=has_truncations, has_final_steps=self.has_final_steps, truncated=flags.get("truncated"),
        )  # fmt: skip

    def _unused_names(self, *heads: str) -> list[str]:
        """Return the names of the columns of all files that have no role, or one of these."""
        used = {name for role, names in self.roles.items() if _head(role) not in heads for name in _names(names)}
        named = itertools.chain.from_iterable(map(nested_names, self.schemas))
        return [name for name in dict.fromkeys(named) if name not in used]

    def _times(self, name: str) -> np.ndarray:
        """Return times or step numbers of a column ``[n]``; empty if only some files have it."""
        is_common = all(name in schema.names for schema in self.schemas)
        return TableColumn(self.pieces, name, f"{self.path}: '{name}'").times() if is_common else np.empty(0)

    def _flag(self, role: str) -> np.ndarray:
        column, is_of_episode = self.column(role), self.has_episode_rows and not self.columns(role)[0].flat
        format_row = "row {:,}".format if is_of_episode else self.position
        flags = to_bool_column(column.read(0, column.shape[0]), f"{self.path}: '{self.roles[role]}'", format_row)
        return self._last_steps(flags) if is_of_episode else flags

    def position(self, index: int) -> str:
        """Return the location of a step: its file and row, and its index in a list."""
        row = int(np.searchsorted(np.cumsum(self.steps), index, "right")) if self.has_episode_rows else index
        file = int(np.searchsorted(self.ends, row, "right"))
        item = f", item {index - int(self.steps[:row].sum()):,}" if self.has_episode_rows else ""
        name = f" of {self.paths[file].name}" if len(self.paths) > 1 else ""
        return f"row {row - int(np.append(0, self.ends)[file]):,}{item}{name}"

    def _episode_ends(self, end: np.ndarray, flags: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return where episodes end, by their ids or by flags ``end``, bool ``[n]``.

        Each file can have its own ids. An episode only continues in the next file if the files are one table, or if
        columns mark truncations, and none is marked there.
        """
        column = self.columns("episode")[0]
        number, ids = column.category_codes()
        if any(isinstance(episode, float) and abs(episode) > EXACT_FLOAT for episode in ids):
            self.add_remark(ROUNDED_IDS.format(column.name))
        files = np.searchsorted(self.ends, np.arange(self.total), "right")
        last = np.ones(self.total, bool)
        last[:-1] = number[1:] != number[:-1]
        edges = np.flatnonzero(files[1:] != files[:-1])
        shared = edges[~last[edges] & ~end[edges]]  # the same id on both sides, without a flag
        has_next = any(_head(role) == "next_obs" for role in self.roles)  # tell where an episode does not continue
        is_separate = not (self.is_one_table or has_next or {"truncated", "end"} & self.roles.keys())
        last[edges] |= end[edges]
        last[shared] |= is_separate
        stops, resumes = _find_split_episodes(number, end)
        if (same := (files[stops] == files[resumes]) | self.is_one_table).any():
            stop, resume = (int(rows[same][0]) for rows in (stops, resumes))
            raise DataError(
                f"{self.path}: the steps of episode {ids[number[resume]]} ('{column.name}') are not contiguous: they "
                f"stop after {self.position(stop)} and continue in {self.position(resume)}. Sort the table by this "
                "column, stably."
            )
        shared = shared[: 0 if self.is_one_table or has_next else None]
        groups = ((SEPARATE, stops, resumes), (SEPARATE if is_separate else CONTINUED, shared, shared + 1))
        for consequence, rows, others in groups:
            self._note_repeated_ids(files[rows], files[others], [ids[code] for code in number[rows]], consequence)
        self._check_flags(flags, last)
        return end | last

    def _note_repeated_ids(self, files: np.ndarray, others: np.ndarray, ids: Sequence[Any], consequence: str) -> None:
        """Add a remark if two ``files`` have the same id, which names the first; ``consequence``: how it is read."""
        for file, other, episode in list(zip(files, others, ids, strict=True))[:1]:
            names = self.paths[file].name, self.paths[other].name
            self.add_remark(REPEATED_ID.format(self.roles["episode"], episode, *names, consequence), len(ids))

    @property
    def is_one_table(self) -> bool:
        """Whether ids mean the same in all files, whose names count them, such as ``train-00000-of-00002``."""
        return all(re.search(r"-\d+-of-\d+", path.name) for path in self.paths)

    def _check_flags(self, flags: Mapping[str, np.ndarray], last: np.ndarray) -> None:
        """Raise DataError if one of ``flags`` ends an episode in another step than its ``last``, bool ``[n]``."""
        for role, flag in flags.items():
            if (early := flag & ~last).any():
                problem = f"'{self.roles[role]}' ends an episode in {self.position(int(early.argmax()))}"
                detail = f"the next step belongs to the episode too ({int(early.sum()):,} such steps)"
                disorder = find_disorder(self._unused_names("obs"), self._times, last)
                order = next((f"{OUT_OF_ORDER.format(name)}." for name in disorder if disorder[name].back), "")
                raise DataError(f"{self.path}: {problem}, but {detail}. {order or 'One of the columns is wrong.'}")

    @cached_property
    def steps(self) -> np.ndarray:
        """Number of steps of each row that is an episode, ``[rows]``."""
        return self.columns(self._step_role)[0].lengths

    @property
    def _step_role(self) -> str:
        """The role with one value per step: the reward, else an action."""
        return next(role for head in ("reward", "action") for role in self.roles if _head(role) == head)

    def _has_final(self, role: str) -> bool:
        """Return whether lists of observations are one longer than lists of rewards, with the final observation."""
        extra = (self.columns(role)[0].lengths - self.steps)[self.steps > 0] if _head(role) == "obs" else np.zeros(1)
        return bool(2 * np.count_nonzero(extra == 1) > len(extra))

    def _check_lengths(self) -> None:
        """Raise DataError unless the list lengths of each episode match.

        An episode without steps can lack observations.
        """
        if not self.steps.any():
            raise DataError(
                f"{self.path} has no steps: all lists of '{self.columns(self._step_role)[0].name}' are empty."
            )
        for role in self.roles:
            for column in self.columns(role) if role != "episode" else ():
                if not column.flat and role not in END_ROLES:
                    raise DataError(f"{self.path}: '{column.name}' has one value for an episode: expected a list.")
                if not column.flat:
                    continue
                lengths, first = column.lengths, self.columns(role)[0].lengths
                wrong = lengths != self.steps + self._has_final(role)
                wrong &= (self.steps > 0) | (lengths > (_head(role) == "obs"))
                if (wrong := wrong | (lengths != first)).any():
                    row = int(wrong.argmax())
                    steps = f"{self.steps[row]} {_head(self._step_role)}s"
                    raise DataError(
                        f"{self.path}: row {row} has {steps}, but {lengths[row]} values in "
                        f"'{column.name}': expected the same number (observations may have one more) in each row."
                    )

    def _last_steps(self, chosen: np.ndarray) -> np.ndarray:
        """Return the last steps, bool ``[n]``, of the ``chosen`` rows, bool ``[rows]``. Each row is an episode."""
        last = np.zeros(int(self.steps.sum()), bool)
        last[np.cumsum(self.steps)[chosen & (self.steps > 0)] - 1] = True
        return last

    # ------------------------------------------------------------------ all

    def note_unread(self) -> None:
        """Add a remark on the columns that have no role."""
        if unused := self._unused_names():
            self.add_remark(f"left out: {', '.join(unused)}")

    def info(self) -> DatasetInfo:
        declared = dict(self.declared)
        vectors = {
            _column(r): tuple(n) for r, n in self.roles.items() if _head(r) in REQUIRED_ROLES and not isinstance(n, str)
        }
        declared["element_names"] = declared.get("element_names", {}) | vectors
        if self.action_classes:
            declared.setdefault("action", spaces.Discrete(self.action_classes))
        self.note_unread()
        text = {"a row is": "an episode" if self.has_episode_rows else "a transition"} | self.labels
        return self.infer_info(text=text, **declared)


def _label_names(schema: pa.Schema) -> dict[str, list[str]]:
    """Return the names of the classes of each column that Hugging Face's metadata declare as class labels."""
    metadata = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    features = metadata.get("info", {}).get("features", {})
    labels = {name: kind.get("names") for name, kind in features.items() if isinstance(kind, Mapping)}
    return {name: names for name, names in labels.items() if names and features[name]["_type"] == "ClassLabel"}


def _head(role: str) -> str:
    return role.partition(".")[0]


def _column(role: str) -> str:
    return "/".join(filter(None, ("action" if _head(role) == "action" else "obs", role.partition(".")[2])))


def _names(named: ColumnNames) -> Sequence[str]:
    return [named] if isinstance(named, str) else named


def _find_split_episodes(episode: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find episodes whose number ``[n]`` occurs again after an interruption without an ``end``, bool ``[n]``.

    Returns the indices of the last transitions before interruptions, and of the first ones after them.
    """
    first = np.flatnonzero(np.append(True, episode[1:] != episode[:-1]))  # of each run of equal numbers
    last = np.append(first[1:], len(episode)) - 1
    order = np.argsort(episode[first], kind="stable")
    run, next_run = order[:-1], order[1:]
    broken = (episode[first[run]] == episode[first[next_run]]) & ~end[last[run]]
    return last[run[broken]], first[next_run[broken]]


def tables_in(path: Path) -> list[Path]:
    """Return the tables below a folder, sorted by number, except below names that begin with ".", "_" or "cache-"."""
    if (path / "_delta_log").is_dir():
        raise DataError(
            f"{path} is a Delta table, whose folder also has deleted rows. Pass the table in Python, such as "
            f'data=deltalake.DeltaTable("{path.name}").to_pyarrow_table(), or write it to a Parquet file.'
        )
    tables = [p for p in path.rglob("*") if p.suffix.lower() in TableReader.suffixes and not p.is_dir()]
    if (state := path / "state.json").is_file():  # Hugging Face's list of its files; earlier writes can leave others
        listed = {str(entry.get("filename")) for entry in read_json(state).get("_data_files") or ()}
        tables = [p for p in tables if p.name in listed or p.parent != path or not listed]
    visible = [p for p in tables if not any(n.startswith(("cache-", ".", "_")) for n in p.relative_to(path).parts)]
    return sorted(without_text(visible), key=natural_sort_key)


def _check_schemas(schemas: Mapping[Path, Any], names: Sequence[str], path: Path) -> None:
    """Check that all files of a table have the columns ``names``, each once and of one type."""
    first, schema = next(iter(schemas.items()))
    groups: dict[str, list[Path]] = {}
    for file, candidate in schemas.items():
        groups.setdefault(", ".join(map(str, candidate.names)), []).append(file)
    if any(name not in candidate.names for name in names for candidate in schemas.values()):
        listing = "; ".join(f"{len(files)} such as {files[0]} with {columns}" for columns, files in groups.items())
        raise DataError(f"{path} has tables of different columns: {listing}. Pass the path or a glob of one kind.")
    for file, candidate in schemas.items():
        for name in names:
            if (count := candidate.names.count(name)) > 1:
                raise DataError(f"{file} has {count} columns called '{name}': rename them.")
            if (kind := candidate.field(name).type) != (expected := schema.field(name).type):
                raise DataError(f"'{name}' is {kind} in {file}, but {expected} in {first}: expected one type.")


def _check_roles(roles: Mapping[str, ColumnNames], columns: Sequence[str], path: Path, task: str = "") -> None:
    """Check the assignment ``roles`` of a table's ``columns``; ``path`` and ``task``, a column, are for messages."""
    for role, named in roles.items():
        head, _, key = role.partition(".")
        if head not in (NESTED_ROLES if key or not isinstance(named, str) else ROLES):
            raise ConfigError(
                f"data.columns.{role} = {named}: expected one column for {', '.join(ROLES)}; only "
                f"{', '.join(NESTED_ROLES)} can have keys, such as obs.camera, or be vectors of several columns."
            )
        if key and head in roles:
            raise ConfigError(f"data.columns: both {head} and {role} are named. Expected one, or two keys.")
        for column in _names(named):
            if column not in columns:
                hint = did_you_mean(column, columns)
                raise ConfigError(f"data.columns: {path} has no column '{column}'.{hint} It has: {', '.join(columns)}.")
    if missing := [n for n in REQUIRED_ROLES if not any(role.partition(".")[0] == n for role in roles)]:
        raise ConfigError(
            f"{path} has the columns {', '.join(columns)}: no column is assigned to {', '.join(missing)}. Pass the "
            f"names, such as {_propose_columns(roles, columns, task)}; replace COLUMN by a name, or several: [a, b]."
        )


def _propose_columns(roles: Mapping[str, ColumnNames], columns: Sequence[str], task: str) -> str:
    """Return the option with the columns ``roles``, or with columns of common names; COLUMN if there is none.

    ``task``: another observation; "" if there is none.
    """
    named = {role: name if isinstance(name, str) else f"[{', '.join(name)}]" for role, name in roles.items()}
    heads = {role.partition(".")[0] for role in roles}
    by_lower_case = {name.lower(): name for name in reversed(columns)}
    for role, names in COMMON_COLUMN_NAMES.items():
        default = "COLUMN" if role in REQUIRED_ROLES else ""
        default = next(filter(EPISODE_IDS.search, columns), "") if role == "episode" else default
        column = next((by_lower_case[name] for name in names if name in by_lower_case), default)
        if column and role not in heads:
            named |= {f"obs.{column}": column, "obs.task": task} if role == "obs" and task else {role: column}
    return "--data.columns '{" + ", ".join(f"{role}: {name}" for role, name in named.items()) + "}'"
