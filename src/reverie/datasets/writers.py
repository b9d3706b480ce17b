"""Export of episodes as columns of transitions: D4RL's HDF5 file, or Parquet tables."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reverie.core.errors import ConfigError, DataError, RunError
from reverie.core.space_json import text_of
from reverie.datasets.output import Exported, check_distinct, check_room, hdf5_file, size_of, staged_at, staged_file
from reverie.datasets.reader import About, Rows, needs
from reverie.datasets.table import ACTIONS_OF_OURS, COLUMNS_OF_OURS

BUFFERED = 1 << 20
"""Bytes of transitions that are collected before they are written."""
TABLE_STEPS = 1 << 20
"""Number of transitions after which a new table is begun."""


def transitions_of(rows: Rows) -> Rows:
    """Return an episode of n + 1 rows as n transitions, ``[n, ...]`` by column; ``next_obs`` follows each action."""
    terminal = rows["is_terminal"][1:]
    out: Rows = {name: values[:-1] for name, values in rows.items() if name.partition("/")[0] in ("obs", "action")}
    for name, values in rows.items():
        if name.partition("/")[0] == "obs":
            out[f"next_{name}"] = values[1:]
    return out | {"reward": rows["reward"][1:], "terminal": terminal, "truncated": rows["is_last"][1:] & ~terminal}


def blocks_of(episodes: Iterable[Rows], done: Exported) -> Iterator[Rows]:
    """Yield the transitions of ``episodes`` in large blocks, with a column ``episode``; count them in ``done``.

    Raises:
        RunError: no episode has a step.
        DataError: the numbers of a column are integers in the first block, and floats in a later one.
    """
    held: list[Rows] = []
    size = 0
    kinds: dict[str, np.dtype[Any]] = {}

    def block() -> Rows:
        joined = {name: np.concatenate([each[name] for each in held]) for name in held[0]}
        kinds.update({name: values.dtype for name, values in joined.items() if name not in kinds})
        return {name: as_before(name, values, kinds[name]) for name, values in joined.items()}

    for rows in episodes:
        steps = len(rows["reward"]) - 1
        if steps < 1:
            continue
        held.append(transitions_of(rows) | {"episode": np.full(steps, done.episodes, np.int64)})
        size += sum(values.nbytes for values in held[-1].values())
        done.episodes, done.steps = done.episodes + 1, done.steps + steps
        if size >= BUFFERED:
            yield block()
            held, size = [], 0
    if held:
        yield block()
    if not done.episodes:
        raise RunError("the dataset contains no episodes to write.")


def as_before(name: str, values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Return the values of a column as ``dtype``, that of the values that are written already.

    Raises:
        DataError: that would change them, as of floats to integers.
    """
    if not np.can_cast(values.dtype, dtype, "same_kind"):
        raise DataError(
            f"'{name}' is {dtype} in the first episodes, but {values.dtype} in later ones: a column has one type. "
            "Use Minari's format, which stores each episode by itself (--to minari)."
        )
    return values.astype(dtype, copy=False)


# ---------------------------------------------------------------- D4RL

OF_D4RL = {
    "obs": "observations",
    "action": "actions",
    "reward": "rewards",
    "terminal": "terminals",
    "truncated": "timeouts",
    "next_obs": "next_observations",
}


def write_d4rl(episodes: Iterable[Rows], target: Path, about: About) -> Exported:
    """Write one HDF5 file in D4RL's format, with ``timeouts`` and ``next_observations``.

    Attributes, which other readers ignore, hold what the format lacks: the environment and the action space.

    Args:
        episodes: rows as they were recorded, with one array of observations and one of actions.
        target: path of the file, which is moved there when complete.
        about: description of the data.

    Raises:
        ConfigError: there are several observations or actions, or text; h5py is missing.
        RunError: ``target`` exists, the disk is full, or there is no episode.
    """
    done = Exported(target)
    with staged_file(target) as staged, hdf5_file(staged) as file:
        for block in blocks_of(episodes, done):
            check_room(target, 2 * size_of(block) + BUFFERED)
            check_plain(block, "D4RL files", "one array of observations and one of actions", several=False)
            for name, called in OF_D4RL.items():
                append(file, called, block[name])
        file.attrs.update(declared(about))
    return done


def append(file: Any, name: str, values: np.ndarray) -> None:
    """Append ``values`` ``[n, ...]`` to the file's dataset ``name``, which is created if missing."""
    if name not in file:
        rows = min(len(values), max(1, BUFFERED // values[:1].nbytes))  # HDF5 allocates whole chunks
        file.create_dataset(name, data=values, maxshape=(None, *values.shape[1:]), chunks=(rows, *values.shape[1:]))
        return
    data = file[name]
    before = data.shape[0]
    data.resize(before + len(values), axis=0)
    data[before:] = values


def declared(about: About) -> dict[str, Any]:
    """Return attributes for the environment and the action space, as far as they are known."""
    from gymnasium import spaces

    out: dict[str, Any] = {"env_id": about.env, "env_kwargs": json.dumps(about.env_kwargs)} if about.env else {}
    if about.env and about.time_limit is not None:
        out["time_limit"] = about.time_limit
    if not about.measured:
        out["action_space"] = text_of(about.action)
        if isinstance(about.action, spaces.Box):  # for programs that cannot parse the text of a space
            out |= {"action_low": about.action.low, "action_high": about.action.high}
    return out


# ---------------------------------------------------------------- Parquet


def write_parquet(episodes: Iterable[Rows], target: Path, about: About) -> Exported:
    """Write a folder of Parquet tables with one row for each transition, as on Hugging Face.

    Observations are ``observation`` or ``observation.camera.depth``. The schema's metadata holds the meaning of each
    column, and the action space if ``about`` declares one.

    Raises:
        ConfigError: there are images or text, or two columns would get the same name; pyarrow is missing.
        RunError: ``target`` exists, the disk is full, or there is no episode.
    """
    try:
        import pyarrow as arrow
        import pyarrow.parquet
    except ImportError as error:
        raise needs("pyarrow", "arrow", error) from None
    done = Exported(target)
    with staged_at(target) as staged, contextlib.ExitStack() as stack:
        writer, written = None, 0
        for block in blocks_of(episodes, done):
            check_plain(block, "tables", "numbers and vectors", several=True)
            check_distinct({name: column_of(name) for name in block}, "tables")
            roles = {role_of(name): column_of(name) for name in block}
            table = arrow.table({column_of(name): arrow_of(arrow, values) for name, values in block.items()})
            said = {COLUMNS_OF_OURS: json.dumps(roles).encode()}
            if not about.measured:
                said[ACTIONS_OF_OURS] = text_of(about.action).encode()
            table = table.replace_schema_metadata(said)
            if writer is None or written >= TABLE_STEPS:
                stack.close()
                path = staged / f"data-{len(list(staged.iterdir())):05d}.parquet"
                writer, written = stack.enter_context(pyarrow.parquet.ParquetWriter(path, table.schema)), 0
            writer.write_table(table)
            written += table.num_rows
    return done


def role_of(name: str) -> str:
    """Return a column's name in the reading option ``columns``: ``obs.camera/depth`` for ``obs/camera/depth``."""
    return name.replace("/", ".", 1)


def column_of(name: str) -> str:
    """Return a column's name in a table: ``observation.camera.depth`` for ``obs/camera/depth``."""
    root, *below = name.split("/")
    usual = {"obs": "observation", "next_obs": "next_observation", "episode": "episode_index"}
    return ".".join([usual.get(root, root), *below])


def arrow_of(arrow: Any, values: np.ndarray) -> Any:
    """Return ``values`` ``[n]`` or ``[n, d]`` as an Arrow column of numbers or of fixed-size lists."""
    if values.ndim == 1:
        return arrow.array(values)
    return arrow.FixedSizeListArray.from_arrays(arrow.array(values.reshape(-1)), values.shape[1])


# ---------------------------------------------------------------- both


def check_plain(block: Mapping[str, np.ndarray], what: str, expected: str, *, several: bool) -> None:
    """Raise ConfigError unless all columns can be written to such files.

    With ``several``, nested observations and actions are allowed, but at most one dimension each; without, any
    number of dimensions, but no nesting. Text and arrays without numbers are never allowed.

    Raises:
        ConfigError: a column cannot be written.
    """
    parts = [name for name in block if name.partition("/")[0] in ("obs", "action")]
    nested = [name for name in parts if "/" in name]
    odd = [n for n in parts if block[n].dtype == object or not block[n].size or (several and block[n].ndim > 2)]
    wrong = odd if several else odd or nested
    if wrong:
        found = [f"{name} (shape {list(block[name].shape[1:])}, {block[name].dtype})" for name in wrong]
        raise ConfigError(
            f"{what} can only store {expected}, not {', '.join(found)} of this dataset. Use Minari's format, which can "
            "store everything (--to minari)."
        )
