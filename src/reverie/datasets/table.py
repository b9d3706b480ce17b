"""Reads Arrow and Parquet tables with arbitrary column names, such as Hugging Face datasets.

The option ``columns`` gives each role its column: ``{obs: observation.state, action: action, reward: next.reward,
terminal: next.done, episode: episode_index}``. Several numeric columns can form one vector: ``obs: [cos, sin]``. A row
of the table is a transition, or a whole episode if observations, actions and rewards are lists.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from reverie.core.errors import DataError
from reverie.core.space_json import space_of
from reverie.datasets.arrow import Piece, RowGroup, SideBySide, TableColumn
from reverie.datasets.reader import (
    About,
    Named,
    Reader,
    ReadOptions,
    Rows,
    Space,
    action_space,
    as_flags,
    needs,
    observed_space,
)
from reverie.datasets.spaces import nested_spaces
from reverie.datasets.table_ends import Ends, EpisodeIds, Tables, ends_of
from reverie.datasets.table_files import FORMATS, check_alike, dtype_of, is_parquet, tables_in
from reverie.datasets.table_roles import END_ROLES, NEEDED, check_roles
from reverie.datasets.transitions import STEPLESS, ArrayColumn, Column, Transitions, limited

TRUNCATIONS = {"truncated", "end", "episode"}
"""Roles that show where episodes are truncated."""
COLUMNS_OF_OURS = b"reverie.columns"
"""Key in the schema of tables written by this package: the column of each role."""
ACTIONS_OF_OURS = b"reverie.action_space"
"""Key in the same schema: the action space, if it was declared."""
MOST_OPEN = 8
"""Number of Parquet files that stay open: columns are read at about the same pace."""
CLOSED = "the last row of an episode has no action: it is the final observation"
NO_ENDS = (
    "no column marks terminal steps: all episodes are treated as truncated, so values count rewards beyond their ends. "
    "Where an episode ended for good, mark its last step in a column and name that one for terminal"
)
UNSEEN = (
    "no column marks truncations: an episode without a terminal end runs into the next one. If episodes have a time "
    "limit, pass --data.time-limit; otherwise name a column for truncated, end or episode"
)


class TableReader(Reader):
    """See the top of this file."""

    format = "table (Arrow or Parquet)"

    def __init__(self, path: Path, options: ReadOptions, paths: Sequence[Path] = ()) -> None:
        super().__init__(path, options)
        self.paths = list(paths) or (tables_in(path) if path.is_dir() else [path])
        if not self.paths:
            raise DataError(f"{path} contains no tables ({' or '.join(FORMATS)}).")
        try:
            import pyarrow.compute
            import pyarrow.ipc
            import pyarrow.parquet
        except ImportError as error:
            raise needs("pyarrow", "arrow", error) from None
        self.arrow: Any = pyarrow
        self._parquet = lru_cache(MOST_OPEN)(pyarrow.parquet.ParquetFile)
        found = [[piece for piece in self._pieces(file) if piece.rows] for file in self.paths]
        self.pieces = [piece for pieces in found for piece in pieces]
        self.tables = Tables(path, self.paths, np.cumsum([sum(piece.rows for piece in pieces) for pieces in found]))
        self.total = int(self.tables.ends[-1])
        if not self.total:
            raise DataError(f"{path} contains no rows.")
        said = self.options.columns or self._own()
        self.roles: dict[str, Named] = {role: named for role, named in said.items() if named}
        check_roles(self.roles, self.names, path)
        schemas = [(file, pieces[0].schema) for file, pieces in zip(self.paths, found, strict=True) if pieces]
        named = ([name] if isinstance(name, str) else name for name in self.roles.values())
        self.schemas = [schema for _, schema in schemas]
        check_alike(pyarrow, schemas, dict.fromkeys(itertools.chain.from_iterable(named)))

    def files(self) -> Sequence[Path]:
        """See ``Reader``: the tables in their order."""
        return self.paths

    def uses(self, option: str) -> bool:
        """See ``Reader``. A time limit is needed only where no truncations are marked."""
        return option == "columns" or (option == "time_limit" and not self.whole and not TRUNCATIONS & {*self.roles})

    # ------------------------------------------------------------------ files

    def _pieces(self, file: Path) -> Iterator[Piece]:
        arrow = self.arrow
        try:
            if is_parquet(file):
                table = self._parquet(file)
                schema = table.schema_arrow
                list(schema.names)  # an error if they are not UTF-8
                for group in range(table.num_row_groups):
                    rows = table.metadata.row_group(group).num_rows
                    yield Piece(rows, RowGroup(partial(self._parquet, file), group, schema))
                return
            mapped = arrow.memory_map(str(file))
            try:
                table = arrow.ipc.open_stream(mapped).read_all()
            except arrow.ArrowInvalid:
                mapped.seek(0)
                table = arrow.ipc.open_file(mapped).read_all()
            list(table.schema.names)
            table.validate()  # Arrow ends the process where a column is shorter than its table
            for batch in table.to_batches():
                yield Piece(batch.num_rows, batch)
        except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(f"{file} is damaged, incomplete or of another format: {error}.") from None

    @cached_property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [str(name) for name in self.pieces[0].schema.names]

    def _own(self, key: bytes = COLUMNS_OF_OURS) -> Any:
        """Return an entry of the schema of a table written by this package; empty for other tables.

        Raises:
            DataError: it is damaged.
        """
        try:
            return dict(json.loads((self.pieces[0].schema.metadata or {}).get(key, b"{}")))
        except (TypeError, ValueError) as error:  # a UnicodeDecodeError is a ValueError, too
            raise DataError(
                f"{self.path} is damaged: its entry {key.decode()} cannot be read ({error}). Download or copy the "
                "table again, or pass --data.columns."
            ) from None

    def column(self, role: str) -> TableColumn | SideBySide:
        """Return the column of a role, or the several columns that form its vector."""
        named = self.roles[role]
        names = [named] if isinstance(named, str) else named
        found = [self._one(name) for name in names]
        return found[0] if isinstance(named, str) else SideBySide(found)

    def _one(self, name: str) -> TableColumn:
        return TableColumn(self.arrow, self.pieces, name, f"{self.path}: '{name}'")

    def group(self, role: str, root: str) -> dict[str, Column]:
        """Return all columns of a role such as obs, whose keys are ``obs`` or ``obs.camera``, by their new names."""
        out: dict[str, Column] = {}
        for given in self.roles:
            head, _, key = given.partition(".")
            if head == role:
                out[f"{root}/{key}" if key else root] = self.column(given)
        return out

    def _dtypes(self, name: str) -> set[np.dtype[Any]]:
        """Return the types that the values of an observation, ``obs`` or ``obs/key``, have in some table."""
        named = self.roles[name.replace("/", ".", 1)]
        names = [named] if isinstance(named, str) else named
        return {dtype_of(self.arrow, schema.field(each).type) for schema in self.schemas for each in names}

    # ------------------------------------------------------------------ rows

    @cached_property
    def whole(self) -> bool:
        """True if a row of the table is a whole episode, that is a list of each of the columns that are needed."""
        return all(self.column(role).is_list for role in self.roles if role.partition(".")[0] in NEEDED)

    @cached_property
    def _transitions(self) -> Transitions:
        ends = self._ends()
        return Transitions(
            obs=self.group("obs", "obs"),
            next_obs=self.group("next_obs", "obs"),
            action=self.group("action", "action"),
            reward=self.column("reward"),
            end=ends.end,
            terminal=ends.terminal,
            closing=ends.closing,
            note=self.note,
            where=str(self.path),
            ends_told=not self.uses("time_limit") or self.options.time_limit is not None,
        )

    def _ends(self) -> Ends:
        flags = {role: self._flag(role) for role in END_ROLES if role in self.roles}
        if "terminal" not in flags:
            self.note(NO_ENDS)
        named = {role: str(self.roles[role]) for role in flags}
        if self.uses("time_limit"):
            flags["truncated"] = self._limited(flags.get("terminal", np.zeros(self.total, bool)))
        ids = None
        if "episode" in self.roles:
            column = self._one(str(self.roles["episode"]))
            ids = EpisodeIds(column.name, *column.codes())
        ends = ends_of(flags, named, ids, self.tables, self._lacking)
        self.note(CLOSED, int(np.count_nonzero(ends.closing)))
        return ends

    def _limited(self, terminal: np.ndarray) -> np.ndarray:
        """Return where the option ``time_limit`` truncates episodes, bool ``[n]``."""
        if self.options.time_limit is not None:
            return limited(terminal, self.options.time_limit)
        self.note(UNSEEN, int(not self.group("next_obs", "obs")))
        return np.zeros_like(terminal)

    def _lacking(self, rows: np.ndarray) -> np.ndarray:
        """Return which of these rows lack an action, bool ``[rows]``; none if next observations were recorded."""
        out = np.full(len(rows), not self.group("next_obs", "obs"))
        for action in self.group("action", "action").values():
            if out.any():  # reading no rows is impossible, and many are slow
                out &= np.isnan(action.at(rows)).reshape(len(rows), -1).all(axis=1)
        return out

    def _flag(self, role: str) -> np.ndarray:
        """Return a column of true and false, bool ``[n]``."""
        return as_flags(self.column(role).read(0, self.total).reshape(self.total), f"{self.path}: '{self.roles[role]}'")

    def episodes(self, meet: Callable[[str, int], None] = lambda what, times: None) -> Iterator[Transitions]:
        """Yield each episode of a table whose rows are episodes; ``meet`` gets what was assumed and how often."""
        columns = {role: self.column(role) for role in self.roles if role != "episode"}  # a row is one
        for row in range(self.total):
            values = {role: column.episode(row) for role, column in columns.items()}
            if steps := len(values["reward"]):
                yield self._episode(values, steps, row, meet)
            else:
                meet(STEPLESS, 1)

    def _episode(
        self, values: dict[str, np.ndarray], steps: int, row: int, meet: Callable[[str, int], None]
    ) -> Transitions:
        obs: dict[str, np.ndarray] = {}
        after: dict[str, np.ndarray] = {}
        action: dict[str, np.ndarray] = {}
        for role, found in values.items():
            head, _, key = role.partition(".")
            name = f"{head}/{key}" if key else head
            if head == "obs" and len(found) == steps + 1:
                obs[name], after[name] = found[:-1], found[1:]
            elif len(found) != steps:
                expected = f"{steps} or {steps + 1}" if head == "obs" else f"{steps}"
                raise DataError(
                    f"{self.path}: row {row} has {steps} rewards, but {len(found)} values in '{self.roles[role]}': "
                    f"expected {expected}. If a row is a step, its reward must be a number, not a list."
                )
            elif head in ("obs", "action"):
                (obs if head == "obs" else action)[name] = found
            elif head == "next_obs":
                after[name.replace("next_obs", "obs", 1)] = found
        flags = {role: self._flag_of(role, values[role], row) for role in END_ROLES if role in values}
        end = np.zeros(steps, bool)
        end[-1] = True
        return Transitions(
            obs=arrays(obs),
            next_obs=arrays(after),
            action=arrays(action),
            reward=ArrayColumn(values["reward"]),
            end=end,
            terminal=flags.get("terminal", np.zeros(steps, bool)),
            note=meet,
            where=f"{self.path}, row {row}",
        )

    def disordered(self) -> np.ndarray:
        """See ``Reader``. Where rows are whole episodes, a remark tells of them."""
        return super().disordered() if self.whole else self._transitions.disordered()

    def _flag_of(self, role: str, values: np.ndarray, row: int) -> np.ndarray:
        """Return the flags of an episode, the list in ``row``, as bool ``[steps]``.

        Raises:
            DataError: one is set before the last step.
        """
        where = f"{self.path}: the list in row {row} of '{self.roles[role]}'"
        flag = as_flags(values, where)
        if flag[:-1].any():
            raise DataError(
                f"{where} ends the episode in step {int(flag.argmax())}, but its steps are 0 to {len(flag) - 1}: "
                "expected true in the last one only. Correct the table, or do not name this column."
            )
        return flag

    def rows(self) -> int:
        """See ``Reader``. Counted from the flags of the transitions."""
        return sum(e.rows for e in self.episodes()) if self.whole else self._transitions.rows

    def parts(self) -> Iterator[Rows]:
        """See ``Reader``. A part is about ``PART_BYTES`` large, or at most one episode if rows are episodes."""
        if not self.whole:
            return self._transitions.parts()
        self.met.clear()
        return (part for episode in self.episodes(self.meet) for part in episode.parts())

    def about(self) -> About:
        """See ``Reader``. Spaces are derived from the arrays; if rows are episodes, observations from the first one.

        Raises:
            DataError: no episode has a step.
        """
        first = next(self.episodes(), None) if self.whole else self._transitions
        if first is None:
            raise DataError(
                f"{self.path} contains no episode with a step: all lists of '{self.roles['reward']}' are empty."
            )

        def actions(name: str) -> tuple[Space, bool]:
            if self.whole:
                return action_space(lambda: (e.action[name].read(0, len(e.end)) for e in self.episodes()), self.path)
            column = first.action[name]
            starts = range(0, self.total, 4096)
            return action_space(lambda: (column.read(i, min(i + 4096, self.total)) for i in starts), self.path)

        seen = {name: observed_space(c.shape[1:], c.dtype, *self._dtypes(name)) for name, c in first.obs.items()}
        # A declared action space is that of the columns that the table itself names.
        own = {} if self.options.columns else self._own(ACTIONS_OF_OURS)
        done = {} if own else {name: actions(name) for name in first.action}
        return About(
            observation=seen["obs"] if "obs" in seen else nested_spaces(seen, "obs"),
            action=space_of(own, str(self.path)) if own else done["action"][0] if "action" in done else nested_spaces(
                {name: space for name, (space, _) in done.items()}, "action"
            ),
            measured=any(measured for _, measured in done.values()),
            text={"a row is": "an episode" if self.whole else "a transition"},
        )  # fmt: skip


def arrays(values: dict[str, np.ndarray]) -> dict[str, Column]:
    """Wrap arrays as columns."""
    return {name: ArrayColumn(value) for name, value in values.items()}
