"""Writes Minari datasets, D4RL's HDF5 file, Parquet tables, PyDreamer's npz files, stores or Tianshou buffers.

All writers raise RunError if the target exists, the disk is full or there is no episode, and ConfigError if a package
is missing or the format cannot hold a column. After an error nothing is left: output appears at its path only once it
is complete.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from reverie.core.action_codec import ActionCodec
from reverie.core.errors import ConfigError, DataError
from reverie.core.rows import Rows
from reverie.core.signals import check_signals
from reverie.core.space_json import space_to_json
from reverie.core.spaces import columns_in
from reverie.core.specs import IS_INTERVENTION, LATE_COLUMNS, ColumnSpec
from reverie.datasets import pydreamer_minigrid as minigrid
from reverie.datasets.minari import HAS_TAGS_KEY, MAIN, minari_root
from reverie.datasets.options import PROPENSITY
from reverie.datasets.output import WriteReport, check_room, staged_file, total_bytes
from reverie.datasets.pydreamer import GENERATOR_ARRAYS, file_names
from reverie.datasets.reader import TRUNCATED_COLUMN, DatasetInfo, Space
from reverie.datasets.source import import_optional, import_pyarrow
from reverie.datasets.table import SCHEMA_COLUMNS_KEY, SCHEMA_DECLARED_KEY
from reverie.datasets.tianshou import is_bounded
from reverie.store.store import ReplayStore

if TYPE_CHECKING:
    import h5py

BUFFERED = 1 << 20
"""Bytes of transitions that are buffered before they are written."""
TABLE_STEPS = 1 << 20
"""Number of transitions after which a new table is started."""
CHUNK_BYTES, COMPRESSION_LEVEL = 2**20, 1
"""Bytes of images that are compressed together (at least one image), and the compression level."""
CACHE_BYTES, EPISODE_METADATA_BYTES = 2**25, 2**14
"""Bytes that HDF5 has possibly not written yet: the maximum in total, and the approximate metadata per episode."""
MAX_ATTRIBUTE_CHARS = 60_000
"""Maximum characters in an HDF5 attribute, with room for others."""
MINARI_ADVICE = "Use Minari's format, which can store everything (--format minari)"


@contextlib.contextmanager
def hdf5_file(staged: Path) -> Iterator[Any]:
    """Create or replace the HDF5 file ``staged``, and yield it. Code that opens it again shares it."""
    # Without a chunk cache, HDF5 writes values when they are set. Otherwise it would write cached values when their
    # dataset is closed, which h5py does in a destructor: an error would be lost, and HDF5 would crash when the file is
    # closed.
    with import_optional("h5py", "hdf5").File(staged, "w", rdcc_nbytes=0) as file:
        try:
            yield file
            file.flush()
        except BaseException:
            with contextlib.suppress(OSError):
                os.truncate(staged, 0)  # frees its space, which HDF5 needs to close it
            raise


def check_distinct(names: Mapping[str, str], label: str) -> None:
    """Raise ConfigError if ``label`` would give two columns of ``names`` the same name."""
    owners: dict[str, str] = {}
    for column, name in names.items():
        if (owner := owners.setdefault(name, column)) != column:
            raise ConfigError(f"{label} would call both {owner} and {column} '{name}'. {MINARI_ADVICE}.")


def check_one_action(names: Iterable[str], label: str) -> None:
    """Raise ConfigError if the actions have several parts."""
    if parts := [name for name in names if name.startswith("action/")]:
        raise ConfigError(f"{label} can only store one array of actions, not {', '.join(parts)}. {MINARI_ADVICE}.")


# ---------------------------------------------------------------- Minari


def write_minari(
    episodes: Iterable[Mapping[str, Any]],
    path: Path,
    obs_space: Space,
    action_space: Space,
    metadata: Mapping[str, Any],
) -> WriteReport:
    """Write a Minari dataset to ``path``; in Minari's folder, its name is its path there.

    ``episodes`` are the fields of ``EpisodeBuffer``.
    """
    minari = import_optional("minari", "minari")
    episode_buffer = import_optional("minari.data_collector", "minari").EpisodeBuffer
    storages = import_optional("minari.dataset.minari_storage", "minari").MinariStorage
    path, root = path.absolute(), minari_root().absolute()  # required by Minari
    report, has_tags = WriteReport(path), [False]

    def buffers() -> Iterator[Any]:
        for episode in episodes:
            report.add(len(episode["rewards"]))
            check_signals()
            has_tags[0] |= IS_INTERVENTION in episode.get("infos", ())
            check_room(
                path, 2 * total_bytes(episode) + min(CACHE_BYTES, EPISODE_METADATA_BYTES * (report.episodes + 16))
            )
            number = report.episodes - 1
            _make_compressed(file.create_group(f"episode_{number}"), "observations", episode["observations"])
            yield episode_buffer(id=number, **episode)
        file.flush()  # Minari measures its size next

    with staged_file(path, folder=True) as staged:
        storage = storages.new(
            staged / "data", observation_space=obs_space, action_space=action_space, jpeg_encoding=False
        )
        name = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
        name = re.sub(r"[^\w/-]", "-", name if re.search(r"-v\d+$", name) else f"{name}-v0")  # Minari reads only these
        storage.update_metadata({"dataset_id": name, "minari_version": minari.__version__, **metadata})
        with hdf5_file(staged / "data" / MAIN) as file:
            storage.update_episodes(buffers())
        if has_tags[0]:  # only some episodes may have them
            storage.update_metadata({HAS_TAGS_KEY: True})
        report.check()
    return report


def _make_compressed(group: h5py.Group, name: str, values: Any) -> None:
    """Create empty gzip-compressed datasets for the images in ``values``, to which Minari's library appends them."""
    if isinstance(values, Mapping | tuple):
        named = values if isinstance(values, Mapping) else {f"_index_{i}": value for i, value in enumerate(values)}
        for key, inner in named.items():
            _make_compressed(group.require_group(name), key, inner)
    elif is_images(values):
        shape, rows = values.shape[1:], max(1, CHUNK_BYTES * len(values) // max(1, values.nbytes))
        like: dict[str, Any] = {"maxshape": (None, *shape), "chunks": (rows, *shape), "dtype": values.dtype}
        group.create_dataset(name, (0, *shape), compression="gzip", compression_opts=COMPRESSION_LEVEL, **like)


def estimated_file_size(values: object) -> int:
    """Estimate the bytes of ``values`` in a file with compressed images."""
    if isinstance(values, Mapping | tuple):
        return sum(map(estimated_file_size, values.values() if isinstance(values, Mapping) else values))
    array = np.asarray(values)
    return len(zlib.compress(array.tobytes(), COMPRESSION_LEVEL)) if is_images(array) else array.nbytes


def is_images(values: object) -> bool:
    """Return whether ``values`` are images ``[n, H, W]`` or ``[n, H, W, C]``."""
    return isinstance(values, np.ndarray) and values.dtype == np.uint8 and values.ndim > 2


# ---------------------------------------------------------------- transitions: D4RL and Parquet


def transitions_of(rows: Rows) -> Rows:
    """Return an episode of n + 1 rows as n transitions, ``[n, ...]`` by column; ``next_obs`` follows each action."""
    terminal, recorded = rows["is_terminal"][1:], ("obs", "action", PROPENSITY)
    truncated = rows["is_last"] & ~rows["is_terminal"] | rows.get(TRUNCATED_COLUMN, False)
    out: Rows = {name: values[:-1] for name, values in rows.items() if name.partition("/")[0] in recorded}
    out |= {f"next_{name}": values[1:] for name, values in rows.items() if name.partition("/")[0] == "obs"}
    return out | {"reward": rows["reward"][1:], "terminal": terminal, "truncated": truncated[1:]}


def _blocks_of(episodes: Iterable[Rows], report: WriteReport, check: Callable[[Rows], None]) -> Iterator[Rows]:
    """Yield the transitions of ``episodes`` in large blocks, with a column ``episode``; count them in ``report``.

    ``check`` is called with the transitions of each episode.
    """
    dtypes: dict[str, np.dtype[Any]] = {}
    pending: list[Rows] = []

    def block() -> Rows:
        out = {name: np.concatenate([rows[name] for rows in pending]) for name in pending[0]}
        pending.clear()
        return cast_to_first(out, dtypes)

    for rows in episodes:
        if (steps := len(rows["reward"]) - 1) < 1:
            continue
        pending.append(transitions_of(rows) | {"episode": np.full(steps, report.episodes, np.int64)})
        check(pending[-1])
        report.add(steps)
        if sum(map(total_bytes, pending)) >= BUFFERED:
            yield block()
    if pending:
        yield block()
    report.check()


def cast_to_first(rows: Rows, dtypes: dict[str, np.dtype[Any]]) -> Rows:
    """Return ``rows`` in the dtypes of the first ones, which are added to ``dtypes``; DataError of another kind."""
    for name, values in rows.items():
        if not np.can_cast(values.dtype, dtype := dtypes.setdefault(name, values.dtype), "same_kind"):
            raise DataError(
                f"'{name}' is {dtype} in the first episodes, but {values.dtype} in later ones. {MINARI_ADVICE}."
            )
    return {name: values.astype(dtypes[name], copy=False) for name, values in rows.items()}


def check_plain(block: Rows, label: str, expected: str, max_dims: int, nested: bool) -> None:
    """Raise ConfigError unless all columns are numbers of at most ``max_dims`` dimensions.

    ``nested``: allow nested columns.
    """
    wrong = [
        f"{name} (shape {list(values.shape[1:])}, {values.dtype})"
        for name, values in block.items()
        if name.partition("/")[0] in ("obs", "action")
        and (values.dtype == object or not values.size or values.ndim > max_dims or ("/" in name and not nested))
    ]
    if wrong:
        raise ConfigError(
            f"{label} can only store {expected}, not {', '.join(wrong)} of this dataset. {MINARI_ADVICE}."
        )


D4RL_NAMES = {
    "obs": "observations", "action": "actions", "reward": "rewards", "terminal": "terminals", "truncated": "timeouts",
    "next_obs": "next_observations", PROPENSITY: PROPENSITY,
}  # fmt: skip
FINAL_IMAGES = (
    "images are stored once, without next_observations: an episode that was truncated loses its last step, a terminal "
    f"one its last image. {MINARI_ADVICE}"
)


def write_d4rl(episodes: Iterable[Rows], target: Path, info: DatasetInfo) -> WriteReport:
    """Write one HDF5 file in D4RL's format.

    Attributes contain the environment and the action space, which the format lacks. Images are compressed, and not
    repeated as next observations.
    """
    report = WriteReport(target)

    def check(block: Rows) -> None:
        check_plain(block, "D4RL files", "one array of observations and one of actions", 99, nested=False)

    if isinstance(info.observation, spaces.Dict) and len(names := columns_in(info.observation, "obs")) == 1:
        ((name, leaf),) = names
        report.remarks, info = [f"the only observation loses its name, {name}"], replace(info, observation=leaf)
        episodes = ({"obs" if column == name else column: v for column, v in rows.items()} for rows in episodes)
    with staged_file(target) as staged, hdf5_file(staged) as file:
        for block in _blocks_of(episodes, report, check):
            check_room(target, 2 * total_bytes(block) + BUFFERED)
            if is_images(block["obs"]):
                report.remarks += [] if FINAL_IMAGES in report.remarks else [FINAL_IMAGES]
                del block["next_obs"]
            if not info.has_rewards:
                del block["reward"]
            for name in block.keys() & D4RL_NAMES.keys():
                append_to_hdf5(file, D4RL_NAMES[name], block[name])
        declare(file, info, report)
    return report


def declarations(info: DatasetInfo) -> dict[str, Any]:
    """Return what files in other formats declare: the environment and the spaces, as far as they are known."""
    out: dict[str, Any] = {} if info.has_measured_bounds else {"action_space": space_to_json(info.action)}
    if not info.inferred:
        out["observation_space"] = space_to_json(info.observation, short=True)
    out |= {"element_names": json.dumps(info.element_names)} if info.element_names else {}
    if info.env:
        out |= {"env_id": info.env, "env_kwargs": json.dumps(info.env_kwargs)}
        out |= {} if info.max_episode_steps is None else {"max_episode_steps": info.max_episode_steps}
    return out


def declare(file: h5py.Group, info: DatasetInfo, report: WriteReport) -> None:
    """Write the declarations as attributes of an HDF5 file; those that are too large become a remark."""
    for name, value in declarations(info).items():
        if len(str(value)) > MAX_ATTRIBUTE_CHARS:
            report.remarks.append(f"{name} is too large for an HDF5 attribute: the file does not declare it")
        else:
            file.attrs[name] = value


def append_to_hdf5(file: h5py.Group, name: str, values: np.ndarray) -> None:
    """Append ``values`` ``[n, ...]`` to the file's dataset ``name``, made if missing. Images are compressed."""
    if name not in file:
        rows = min(len(values), max(1, BUFFERED // values[:1].nbytes))  # HDF5 allocates whole chunks
        how: dict[str, Any] = {"maxshape": (None, *values.shape[1:]), "chunks": (rows, *values.shape[1:])}
        how |= {"compression": "gzip", "compression_opts": COMPRESSION_LEVEL} if is_images(values) else {}
        file.create_dataset(name, data=values, **how)
        return
    data = file[name]
    data.resize(data.shape[0] + len(values), axis=0)
    data[-len(values) :] = values


def write_parquet(episodes: Iterable[Rows], target: Path, info: DatasetInfo) -> WriteReport:
    """Write a folder of Parquet tables, a row for each transition; the schema's metadata describe each column."""
    arrow = import_pyarrow()
    report = WriteReport(target)
    with staged_file(target, folder=True) as staged, contextlib.ExitStack() as stack:
        writer, written = None, 0

        def check(block: Rows) -> None:
            check_plain(block, "tables", "numbers and vectors", 2, nested=True)

        for block in _blocks_of(episodes, report, check):
            if not info.has_rewards:
                del block["reward"]
            named = {name: _table_column_name(name) for name in block}
            check_distinct(named, "tables")
            table = arrow.table({column: to_arrow(arrow, block[name]) for name, column in named.items()})
            roles = {name.replace("/", ".", 1): column for name, column in named.items()}
            metadata = {SCHEMA_COLUMNS_KEY: roles, SCHEMA_DECLARED_KEY: declarations(info)}
            table = table.replace_schema_metadata({key: json.dumps(value).encode() for key, value in metadata.items()})
            if writer is None or written >= TABLE_STEPS:
                stack.close()
                path = staged / f"data-{len(list(staged.iterdir())):05d}.parquet"
                writer, written = stack.enter_context(arrow.parquet.ParquetWriter(path, table.schema)), 0
            writer.write_table(table)
            written += table.num_rows
    return report


def _table_column_name(name: str) -> str:
    """Return a column's name in a table: ``observation.camera.depth`` for ``obs/camera/depth``."""
    root, *below = name.split("/")
    usual = {"obs": "observation", "next_obs": "next_observation", "episode": "episode_index"}
    return ".".join([usual.get(root, root), *below])


def to_arrow(arrow: ModuleType, values: np.ndarray) -> Any:
    """Return ``values`` ``[n, ...]`` as an Arrow column of numbers, or of nested lists of fixed size."""
    column = arrow.array(values.reshape(-1))
    for size in reversed(values.shape[1:]):
        column = arrow.FixedSizeListArray.from_arrays(column, size)
    return column


# ---------------------------------------------------------------- rows: PyDreamer and our store

PYDREAMER = {"action": "action", "reward": "reward", "is_terminal": "terminal", "is_first": "reset"}
"""PyDreamer's names of the columns that are not observations."""


def write_pydreamer(
    episodes: Iterable[Rows], folder: Path, columns: Mapping[str, ColumnSpec], files: Mapping[str, Mapping[str, Any]]
) -> WriteReport:
    """Write one npz file per episode, ``ep000012_000012-r21-0500.npz``: number, return, steps.

    JSON ``files`` are written next to them. PyDreamer's row t contains the action *before* observation t (zeros in the
    first row): reverie's actions shifted by one. A single image is called ``image_t`` and is ``[H, W, C, T]``, as is
    every image whose name ends with ``_t``; a single vector is ``vecobs``. Observations of ``MapView`` are written
    as PyDreamer's MiniGrid observes them.
    """
    report = WriteReport(folder)
    with staged_file(folder, folder=True) as staged:
        for rows in episodes:
            if minigrid.is_minigrid(rows, minigrid.MAP_VIEW):
                rows = minigrid.to_pydreamer(rows)
                report.remarks = [minigrid.LOST_CELLS] if (rows["obs/map"] == 0).any() else report.remarks
            steps, score = len(rows["reward"]) - 1, rows["reward"].sum(dtype=np.float64)
            path = staged / f"ep{report.episodes:06}_{report.episodes:06}-r{score:.0f}-{steps:04}.npz"
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:  # np.savez does not support all names
                for name, array in _pydreamer_rows(rows).items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                        np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)
            report.add(steps)
        report.check()
        write_json_files(staged, files)
    return report


def write_json_files(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Write ``files``, the content of each by its name."""
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _pydreamer_rows(rows: Rows) -> Rows:
    """Return the rows of an episode under PyDreamer's names."""
    obs = {name: values for name, values in rows.items() if name.startswith("obs/")}
    kinds = {name.removeprefix("obs/"): (str(values.dtype), values.ndim - 1) for name, values in obs.items()}
    names = {f"obs/{key}": name for key, name in file_names(kinds).items()}
    check_distinct(
        PYDREAMER | {PROPENSITY: PROPENSITY} | {name: name for name in GENERATOR_ARRAYS} | names, "PyDreamer's files"
    )
    action, reset = np.zeros_like(rows["action"]), np.zeros(len(rows["action"]), bool)
    action[1:], reset[0] = rows["action"][:-1], True
    out = {"action": action, "reward": rows["reward"], "terminal": rows["is_terminal"], "reset": reset}
    if PROPENSITY in rows:
        out[PROPENSITY] = np.append(1.0, rows[PROPENSITY][:-1])
    for column, values in obs.items():
        last = names[column].endswith("_t") and values.ndim == 4
        out[names[column]] = values.transpose(1, 2, 3, 0) if last else values
    return out


def write_store(
    episodes: Iterable[Rows], folder: Path, columns: Mapping[str, ColumnSpec], files: Mapping[str, Mapping[str, Any]]
) -> WriteReport:
    """Write a replay store with one stream, and ``files`` next to it, by name, as JSON."""
    report = WriteReport(folder)
    with staged_file(folder, folder=True) as staged:
        store = ReplayStore(staged, waits=False)
        store.begin(columns, 1)
        try:
            for rows in episodes:
                if late := rows.keys() - columns.keys():
                    columns = {**columns, **{name: LATE_COLUMNS[name] for name in late}}
                    store.change_columns(columns)
                rows = {name: np.zeros(len(rows["reward"]), bool) for name in columns.keys() & LATE_COLUMNS} | rows
                store.extend({name: values[None] for name, values in rows.items()})
                report.add(len(rows["reward"]) - 1)
        finally:
            store.close(None)  # the writer thread must end before the files are deleted
        report.check()
        write_json_files(staged, files)
    return report


# ---------------------------------------------------------------- Tianshou

TIANSHOU_NAMES = {"obs": "obs", "next_obs": "obs_next", "action": "act", "reward": "rew", "terminal": "terminated",
        "truncated": "truncated", "done": "done", PROPENSITY: f"info/{PROPENSITY}"}  # fmt: skip
TIANSHOU_COUNTERS: dict[str, bool | int | float] = {
    "stack_num": 1, "_save_obs_next": True, "_save_only_last_obs": False, "_sample_avail": False, "_ep_return": 0.0,
    "_ep_len": 0, "_ep_start_idx": 0,
}  # fmt: skip
"""Attributes of a buffer of single frames that also stores next observations."""
TIANSHOU_OPTIONS: dict[str, bool | int] = {
    "stack_num": 1,
    "ignore_obs_next": False,
    "save_only_last_obs": False,
    "sample_avail": False,
}
AS_RECORDED = "the action space is not declared: actions are as recorded, but Tianshou expects them in [-1, 1]"
NO_REWARDS = "there are no rewards: those in the buffer are 0"


def write_tianshou(episodes: Iterable[Rows], target: Path, info: DatasetInfo) -> WriteReport:
    """Write one HDF5 file that Tianshou's ``ReplayBuffer.load_hdf5`` opens; attributes declare environment and spaces.

    Continuous actions are scaled from their bounds to [-1, 1], as Tianshou stores the output of policies. The ring has
    room for one more transition: it never was full, so no episode has lost its beginning.
    """
    report = WriteReport(target)
    scale = ActionCodec(info.action) if is_bounded(info.action) and not info.has_measured_bounds else None
    if scale is None and isinstance(info.action, spaces.Box):
        report.remarks.append(AS_RECORDED)
    if not info.has_rewards:
        report.remarks.append(NO_REWARDS)

    def check(block: Rows) -> None:
        check_plain(block, "Tianshou's buffers", "arrays of numbers", 99, nested=True)
        check_one_action(block, "Tianshou's buffers")

    with staged_file(target) as staged, hdf5_file(staged) as file:
        for block in _blocks_of(episodes, report, check):
            check_room(target, 2 * total_bytes(block) + BUFFERED)
            del block["episode"]
            block["done"] = block["terminal"] | block["truncated"]
            if scale is not None:
                rows = {"action": block["action"], "is_last": np.zeros(len(block["done"]), bool)}
                block["action"] = scale.flatten(rows).reshape(block["action"].shape)
            for name, values in block.items():
                root, _, key = name.partition("/")
                append_to_hdf5(file, f"_meta/{TIANSHOU_NAMES[root]}/{key}".rstrip("/"), values)
        for item in _arrays_in(file["_meta"]):
            item.resize(report.steps + 1, axis=0)  # the free place
        _write_counters(file, report.steps)
        declare(file, info, report)
    return report


def _arrays_in(group: h5py.Group) -> list[Any]:
    """Return all arrays below ``group``, and mark arrays and groups with the types that Tianshou reads."""
    arrays = []

    def visit(_: str, item: h5py.Group | h5py.Dataset) -> None:
        is_array = hasattr(item, "dtype")
        item.attrs["__data_type__"] = "ndarray" if is_array else "Batch"
        arrays.extend([item] * is_array)

    group.visititems(visit)
    return arrays


def _write_counters(file: h5py.Group, steps: int) -> None:
    """Write what a buffer holds beside transitions: its size, where the next one goes, and its settings."""
    meta = file["_meta"]
    meta.attrs["__data_type__"] = "Batch"
    for name in ("info", "policy"):
        meta.require_group(name).attrs["__data_type__"] = "Batch"
    for name, value in {"_indices": np.arange(steps + 1), "last_index": np.array([steps - 1])}.items():
        file.create_dataset(name, data=value).attrs["__data_type__"] = "ndarray"
    file.attrs.update({**TIANSHOU_COUNTERS, "maxsize": steps + 1, "_size": steps, "_insertion_idx": steps})
    file.create_group("options").attrs.update(TIANSHOU_OPTIONS)
