"""Opens data: detects the format of a file or folder by its contents, and joins several datasets."""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from reverie.core.config import parse_call
from reverie.core.errors import ConfigError, DataError, did_you_mean
from reverie.core.imports import entry_points_in, import_object
from reverie.datasets.concat import ConcatReader
from reverie.datasets.d3rlpy import NUM_EPISODES, D3rlpyReader
from reverie.datasets.hdf5 import D4RL, D4RLReader, open_hdf5
from reverie.datasets.imitation import ARRAYS as OF_IMITATION
from reverie.datasets.imitation import ImitationReader
from reverie.datasets.in_memory import OBJECT, ArraysReader, DataLike, data_path, open_in_memory, split_paths
from reverie.datasets.lerobot import LeRobotReader
from reverie.datasets.lerobot_metadata import is_lerobot
from reverie.datasets.minari import METADATA, local_names, metadata_of, minari_path, minari_reader
from reverie.datasets.npz import array_names, layout_of
from reverie.datasets.open_bandit import ITEMS, OpenBanditReader, is_open_bandit
from reverie.datasets.pydreamer import ROW_ARRAYS as OF_PYDREAMER
from reverie.datasets.pydreamer import OwnPyDreamerReader, PyDreamerReader, is_own
from reverie.datasets.reader import (
    Reader,
    ReadOptions,
    format_from_suffix,
    list_files,
    natural_sort_key,
    open_data,
    reading,
)
from reverie.datasets.replay_store import StoreReader, is_store
from reverie.datasets.rl_unplugged import RLUnpluggedReader, shards_in
from reverie.datasets.rlds import FEATURES, RLDSReader
from reverie.datasets.robomimic import RobomimicReader
from reverie.datasets.table import FORMATS as OF_TABLES
from reverie.datasets.table import TableReader, tables_in
from reverie.datasets.tfrecord import looks_like_records
from reverie.datasets.tianshou import TianshouReader

GROUP = "reverie.readers"
"""Entry point group in which packages register short names of readers."""
KNOWN_FORMATS = (
    "a Minari dataset (a folder, or minari:NAME), a LeRobot dataset, an HDF5 or npz file with D4RL's arrays, npz "
    "files of OGBench, imitation, Stable-Baselines 2 or PyDreamer, HDF5 files of robomimic, d3rlpy 2 or a Tianshou "
    "buffer, RL Unplugged's Atari shards, a folder of RLDS shards, Open Bandit CSV files, a run folder or replay "
    "store, Arrow, Parquet or CSV tables, or a folder or glob of these"
)


def open_reader(data: DataLike, options: ReadOptions | None = None) -> Reader:
    """Return the reader of ``data``: a file, a folder, a glob, ``minari:NAME``, an object in memory, or several."""
    options, location = options or ReadOptions(), data_path(data)
    readers = [_open_path(path, options) for path in split_paths(location)]
    reader = ConcatReader(Path(", ".join(location)), readers, options) if isinstance(location, tuple) else readers[0]
    for name in () if options.reader else ("columns", "classes", "max_episode_steps", "partial"):
        if (value := getattr(options, name)) and not reader.supports_option(name):
            reader.close()
            raise ConfigError(
                f"data.{name} = {value} has no effect on {reader.path} ({reader.format}): remove this option."
            )
    return reader


def _open_path(path: str, options: ReadOptions) -> Reader:
    if path.startswith(OBJECT):
        return open_in_memory(path, options)
    if options.reader:
        return _custom_reader(path, options)
    if path.startswith("minari:"):
        with reading(path):
            return minari_reader(minari_path(path.removeprefix("minari:")), options)
    with reading(path):
        return StoreReader(path, options) if "://" in path else _open_all(Path(path), _matching_paths(path), options)


def _custom_reader(path: str, options: ReadOptions) -> Reader:
    """Return the custom reader that ``options`` name: ``module:Class(setting=value)``, or an entry point."""
    setting_name = f"data.reader = '{options.reader}'"
    name, bracket, arguments = options.reader.partition("(")
    points = {point.name: point for point in entry_points_in(GROUP)}
    kind = points[name].load() if name in points else import_object(name, what=setting_name, base=Reader)
    _, args, settings = parse_call(f"f({arguments}" if bracket else "f()", setting_name)
    readers: list[Reader] = [kind(file, options, *args, **settings) for file in _matching_paths(path)]
    return readers[0] if len(readers) == 1 else ConcatReader(Path(path), readers, options)


def _matching_paths(path: str) -> list[Path]:
    """Return the file or folder at ``path``, or the matches of the glob ``path``, sorted by number."""
    location = Path(path).expanduser()
    if location.exists():  # a name can contain brackets
        return [location]
    if "**" in path:
        _check_reached_once(glob.glob(str(location).partition("**")[0]) or ["."])
    if matches := [Path(p) for p in glob.glob(str(location), recursive=True)] if glob.has_magic(path) else []:
        return sorted(matches, key=natural_sort_key)
    siblings = sorted(p.name for p in location.parent.iterdir() if p != location) if location.parent.is_dir() else []
    hint = f" Did you mean 'minari:{path}'?" if path in local_names() else did_you_mean(location.name, siblings)
    listing = ", ".join(siblings[:10]) + (" ..." if len(siblings) > 10 else "")
    contents = f" {location.parent} contains: {listing}." if siblings else ""
    raise DataError(
        f"there is no dataset at {path}.{hint or contents} Expected {KNOWN_FORMATS}. "
        "See `reverie data download --help` to download one."
    )


def _check_reached_once(roots: Sequence[str]) -> None:
    """Raise DataError if links lead to a folder below ``roots`` twice: files would be read twice, or without end."""
    met: set[str] = set()
    for folder, _, _ in itertools.chain.from_iterable(os.walk(root, followlinks=True) for root in roots):
        if (place := os.path.realpath(folder)) in met:
            raise DataError(f"{folder} leads to {place}, which another path reaches, too. Remove the link.")
        met.add(place)


def _open_all(path: Path, paths: list[Path], options: ReadOptions) -> Reader:
    if len(paths) == 1:
        with reading(paths[0]):
            return _open_folder(paths[0], options) if paths[0].is_dir() else _open_file(paths[0], options)
    kinds = {format_from_suffix(p) if p.is_file() else "" for p in paths}
    if kinds == {"npz"}:
        return _open_npz(path, options, paths)
    if kinds <= set(OF_TABLES):
        return TableReader(path, options, paths)
    readers = [_open_all(p, [p], options) for p in paths]
    if len(named := {reader.format: reader.path.name for reader in readers}) > 1:
        listing = "; ".join(f"{kind} (such as {name})" for kind, name in named.items())
        raise DataError(f"{path} contains several formats: {listing}. Pass a path or glob of one format, or a list.")
    return ConcatReader(path, readers, options)


def _open_npz(path: Path, options: ReadOptions, paths: Sequence[Path] = ()) -> Reader:
    files = paths or (list_files(path, "npz") if path.is_dir() else [path])
    names = set(array_names(files[0]))
    if len(OF_PYDREAMER & names) > 2:  # an episode can continue in the next file
        return (OwnPyDreamerReader if is_own(files) else PyDreamerReader)(path, options, paths)
    if names.issuperset(OF_IMITATION):
        readers: list[Reader] = [ImitationReader(file, options) for file in files]
    elif names.intersection((layout := layout_of(names)).arrays.values()):
        readers = [ArraysReader(file, options, layout=layout) for file in files]
    else:
        raise DataError(
            f"{files[0]} contains {', '.join(sorted(names)) or 'nothing'}: expected "
            f"{', '.join(D4RL.required)} (arrays of D4RL's names), or "
            f"{', '.join(sorted(OF_PYDREAMER))} and observations (PyDreamer)."
        )
    return readers[0] if len(readers) == 1 else ConcatReader(path, readers, options)


def _open_folder(path: Path, options: ReadOptions) -> Reader:
    if metadata_of(path) is not None:
        return minari_reader(path, options)
    if is_store(path):
        return StoreReader(path, options)
    if is_lerobot(path):
        return LeRobotReader(path, options)
    if (path / FEATURES).is_file():
        return RLDSReader(path, options)
    if (path / ITEMS).is_file() and (bandit := [p for p in list_files(path, "CSV") if is_open_bandit(p)]):
        return _open_file(bandit[0], options)
    inside = [p for p in sorted(path.iterdir(), key=natural_sort_key) if not p.name.startswith(".")]  # or being written
    candidates = {
        "npz": list_files(path, "npz"),
        "TFRecord": shards_in(path),
        "HDF5": list_files(path, "HDF5"),
        "folders of datasets": [p for p in inside if p.is_dir() and _is_dataset(p)],
    }
    has_others = any(candidates.values())  # CSV files next to them are logs or notes
    candidates["tables"] = [] if candidates["folders of datasets"] else tables_in(path, with_text=not has_others)
    kinds = [kind for kind, those in candidates.items() if those]
    if len(kinds) > 1:  # only one of them would be read
        raise DataError(f"{path} contains datasets of several formats ({', '.join(kinds)}). Pass one, or a glob.")
    if not kinds:
        datasets = ", ".join((path / name).as_posix() for name in local_names(path)[:6])
        hint = f" There are datasets at {datasets}." if datasets else ""
        names = ", ".join(p.name for p in inside[:10]) or "nothing"
        raise DataError(f"{path} contains no dataset, only {names}.{hint} Expected {KNOWN_FORMATS}.")
    openers: dict[str, Callable[[Path, ReadOptions], Reader]] = {
        "npz": _open_npz, "TFRecord": RLUnpluggedReader, "tables": TableReader,
    }  # fmt: skip
    kind = kinds[0]
    return openers[kind](path, options) if kind in openers else _open_all(path, candidates[kind], options)


def _is_dataset(path: Path) -> bool:
    """Return whether a folder is a dataset of several files."""
    return metadata_of(path) is not None or is_store(path) or (path / FEATURES).is_file()


def _open_shard(path: Path, options: ReadOptions) -> Reader:
    return (RLDSReader if (path.parent / FEATURES).is_file() else RLUnpluggedReader)(path, options)


def _open_file(path: Path, options: ReadOptions) -> Reader:
    kind = _detect_content(path)
    if kind == "CSV" and not options.columns and is_open_bandit(path):
        return OpenBanditReader(path, options)
    openers: dict[str, Callable[[Path, ReadOptions], Reader]] = {
        "HDF5": _open_hdf5, "npz": _open_npz, "TFRecord": _open_shard, **dict.fromkeys(OF_TABLES, TableReader),
    }  # fmt: skip
    if kind not in openers:
        error_prefix = f"{path} ({path.stat().st_size:,} bytes) cannot be read: its format is unknown"
        raise DataError(f"{error_prefix}. Expected {KNOWN_FORMATS}.")
    return openers[kind](path, options)


def _detect_content(path: Path) -> str:
    """Detect the format of a file from its first bytes, named as by ``format_from_suffix``; "" if unknown."""
    with open_data(path) as file:
        head = file.read(4)
    begins = {
        b"\x89HDF": "HDF5", b"PK\x03\x04": "npz", b"PAR1": "Parquet", b"ARRO": "Arrow", b"\xff\xff\xff\xff": "Arrow",
    }  # fmt: skip
    text = "CSV" if format_from_suffix(path) == "CSV" else ""
    return begins.get(head) or ("TFRecord" if looks_like_records(path) else text)


def _open_hdf5(path: Path, options: ReadOptions) -> Reader:
    with open_hdf5(path) as file:
        names, data = list(file), file.get("data", file)
        is_robomimic = hasattr(data, "keys") and any(name.startswith("demo") for name in data)
    if "_meta" in names:
        return TianshouReader(path, options)
    if "episode_0" in names and metadata_of(path.parent) is not None:
        return minari_reader(path.parent, options)
    if NUM_EPISODES in names and "actions_0" in names:
        return D3rlpyReader(path, options)
    if is_robomimic:
        return RobomimicReader(path, options)
    if D4RL.arrays.keys() & set(names):
        return D4RLReader(path, options)
    if "episode_0" in names:
        raise DataError(f"{path} is a part of a Minari dataset, whose {METADATA} is missing next to it. Copy it too.")
    raise DataError(
        f"{path} is an HDF5 file that contains {', '.join(names[:10]) or 'nothing'}: expected "
        f"{', '.join(D4RL.required)} (D4RL), data/demo_0 (robomimic) or _meta (Tianshou)."
    )
