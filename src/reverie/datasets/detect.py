"""Opens data: detects the format of a file or folder by its contents, and joins several datasets."""

from __future__ import annotations

import glob
from collections.abc import Callable, Sequence
from pathlib import Path

from reverie.core.config import call_in
from reverie.core.errors import ConfigError, DataError, did_you_mean
from reverie.core.importing import imported, points_of
from reverie.datasets.concat import ConcatReader
from reverie.datasets.hdf5 import NEEDED as OF_D4RL
from reverie.datasets.hdf5 import D4RLReader, open_hdf5
from reverie.datasets.memory import OBJECT, ArraysReader, DataLike, open_held, path_of, paths_in
from reverie.datasets.minari import METADATA, local_names, metadata_of, minari_path, minari_reader
from reverie.datasets.npz import names_in
from reverie.datasets.own_store import StoreReader, is_store
from reverie.datasets.pydreamer import OF_ROWS as OF_PYDREAMER
from reverie.datasets.pydreamer import OwnPyDreamerReader, PyDreamerReader, is_own
from reverie.datasets.reader import Reader, ReadOptions, by_number, files_of, format_of, reading
from reverie.datasets.rl_unplugged import RLUnpluggedReader, looks_like_records, shards_in
from reverie.datasets.table import FORMATS as OF_TABLES
from reverie.datasets.table import TableReader, tables_in
from reverie.datasets.tianshou import TianshouReader

GROUP = "reverie.readers"
"""Group of the entry points by which packages give their readers short names."""
KNOWN = (
    "a Minari dataset (a folder, or minari:NAME), an HDF5 or npz file with D4RL's arrays, an HDF5 file of a Tianshou "
    "buffer, RL Unplugged's Atari shards, PyDreamer's npz files, a run folder or replay store, Arrow, Parquet or CSV "
    "tables, or a folder or glob of these"
)


def open_reader(data: DataLike, options: ReadOptions | None = None) -> Reader:
    """Return the reader of ``data``: a file, a folder, a glob, ``minari:NAME``, an object in memory, or several."""
    options, where = options or ReadOptions(), path_of(data)
    readers = [_opened(path, options) for path in paths_in(where)]
    reader = ConcatReader(Path(", ".join(where)), readers, options) if isinstance(where, tuple) else readers[0]
    for name in () if options.reader else ("columns", "classes", "time_limit", "partial"):
        if (value := getattr(options, name)) and not reader.uses(name):
            reader.close()
            raise ConfigError(f"data.{name} = {value} has no effect on {reader.path} ({reader.format}): leave it out.")
    return reader


def _opened(path: str, options: ReadOptions) -> Reader:
    if path.startswith(OBJECT):
        return open_held(path, options)
    if options.reader:
        return own_reader(path, options)
    if path.startswith("minari:"):
        with reading(path):
            return minari_reader(minari_path(path.removeprefix("minari:")), options)
    with reading(path):
        return StoreReader(path, options) if "://" in path else _several(Path(path), _places(path), options)


def own_reader(path: str, options: ReadOptions) -> Reader:
    """Return the user's reader that ``options`` name: ``module:Class(setting=value)``, or that of an entry point."""
    what = f"data.reader = '{options.reader}'"
    name, bracket, arguments = options.reader.partition("(")
    points = {point.name: point for point in points_of(GROUP)}
    kind = points[name].load() if name in points else imported(name, what=what, base=Reader)
    _, given, settings = call_in(f"f({arguments}" if bracket else "f()")
    readers: list[Reader] = [kind(place, options, *given, **settings) for place in _places(path)]
    return readers[0] if len(readers) == 1 else ConcatReader(Path(path), readers, options)


def _places(path: str) -> list[Path]:
    """Return the file or folder at ``path``, or what the glob ``path`` matches, by number."""
    place = Path(path).expanduser()
    if place.exists():  # a name may contain brackets
        return [place]
    if found := [Path(p) for p in glob.glob(str(place), recursive=True)] if glob.has_magic(path) else []:
        return sorted(found, key=by_number)
    beside = sorted(p.name for p in place.parent.iterdir()) if place.parent.is_dir() else []
    hint = f" Did you mean 'minari:{path}'?" if path in local_names() else did_you_mean(place.name, beside)
    where = f" {place.parent} contains: {', '.join(beside[:10])}{' ...' if len(beside) > 10 else ''}." if beside else ""
    raise DataError(
        f"there is no dataset at {path}.{hint or where} Expected {KNOWN}. "
        "See `reverie data download --help` to download one."
    )


def _several(path: Path, found: list[Path], options: ReadOptions) -> Reader:
    if len(found) == 1:
        with reading(found[0]):
            return _folder(found[0], options) if found[0].is_dir() else _file(found[0], options)
    kinds = {format_of(p) if p.is_file() else "" for p in found}
    if kinds == {"npz"}:
        return _npz(path, options, found)
    if kinds <= set(OF_TABLES):
        return TableReader(path, options, found)
    readers = [_several(p, [p], options) for p in found]
    if len(named := {reader.format: reader.path.name for reader in readers}) > 1:
        what = "; ".join(f"{kind} (such as {name})" for kind, name in named.items())
        raise DataError(f"{path} contains several formats: {what}. Pass a path or glob of one format, or a list.")
    return ConcatReader(path, readers, options)


def _npz(path: Path, options: ReadOptions, found: Sequence[Path] = ()) -> Reader:
    files = found or (files_of(path, "npz") if path.is_dir() else [path])
    names = set(names_in(files[0]))
    if len(OF_PYDREAMER & names) > 1:  # an episode may go on in the next file
        return (OwnPyDreamerReader if is_own(files) else PyDreamerReader)(path, options, found)
    if not names.intersection(OF_D4RL):
        raise DataError(
            f"{files[0]} contains {', '.join(sorted(names)) or 'nothing'}: expected {', '.join(OF_D4RL)} (arrays of "
            f"D4RL's names), or {', '.join(sorted(OF_PYDREAMER))} and observations (PyDreamer)."
        )
    readers = [ArraysReader(file, options) for file in files]
    return readers[0] if len(readers) == 1 else ConcatReader(path, readers, options)


def _folder(path: Path, options: ReadOptions) -> Reader:
    if metadata_of(path) is not None:
        return minari_reader(path, options)
    if is_store(path):
        return StoreReader(path, options)
    if (path / "meta").is_dir() and next((path / "data").rglob("*.parquet"), None) is not None:
        raise DataError(
            f"{path} is a dataset of LeRobot: its steps are the tables in {path / 'data'}. Pass that folder, with "
            "--data.columns '{obs: observation.state, action: action, reward: next.reward, terminal: next.done, "
            "episode: episode_index}' or its other columns. Its videos are not read."
        )
    inside = [p for p in sorted(path.iterdir(), key=by_number) if not p.name.startswith(".")]  # or being written
    found = {
        "npz": files_of(path, "npz"),
        "TFRecord": shards_in(path),
        "HDF5": files_of(path, "HDF5"),
        "folders of datasets": [p for p in inside if p.is_dir() and (metadata_of(p) is not None or is_store(p))],
    }
    others = any(found.values())  # beside which CSV files are logs or notes
    found["tables"] = [] if found["folders of datasets"] else tables_in(path, with_text=not others)
    kinds = [kind for kind, those in found.items() if those]
    if len(kinds) > 1:  # all but one would not be read
        raise DataError(f"{path} contains datasets of several formats ({', '.join(kinds)}). Pass one, or a glob.")
    if not kinds:
        datasets = ", ".join((path / name).as_posix() for name in local_names(path)[:6])
        hint = f" There are datasets at {datasets}." if datasets else ""
        names = ", ".join(p.name for p in inside[:10]) or "nothing"
        raise DataError(f"{path} contains no dataset, only {names}.{hint} Expected {KNOWN}.")
    whole: dict[str, Callable[[Path, ReadOptions], Reader]] = {
        "npz": _npz, "TFRecord": RLUnpluggedReader, "tables": TableReader,
    }  # fmt: skip
    return whole[kinds[0]](path, options) if kinds[0] in whole else _several(path, found[kinds[0]], options)


def _file(path: Path, options: ReadOptions) -> Reader:
    kind = content(path)
    openers: dict[str, Callable[[Path, ReadOptions], Reader]] = {
        "HDF5": _hdf5, "npz": _npz, "TFRecord": RLUnpluggedReader, **dict.fromkeys(OF_TABLES, TableReader),
    }  # fmt: skip
    if kind not in openers:
        what = f"{path} ({path.stat().st_size:,} bytes) cannot be read: its format is not known"
        raise DataError(f"{what}. Expected {KNOWN}.")
    return openers[kind](path, options)


def content(path: Path) -> str:
    """Return the format that the first bytes of a file show, as ``format_of`` names it; "" if unknown."""
    with path.open("rb") as file:
        head = file.read(4)
    begins = {
        b"\x89HDF": "HDF5", b"PK\x03\x04": "npz", b"PAR1": "Parquet", b"ARRO": "Arrow", b"\xff\xff\xff\xff": "Arrow",
    }  # fmt: skip
    text = "CSV" if format_of(path) == "CSV" else ""
    return begins.get(head) or ("TFRecord" if looks_like_records(path) else text)


def _hdf5(path: Path, options: ReadOptions) -> Reader:
    with open_hdf5(path) as file:
        names = list(file)
    if "_meta" in names:
        return TianshouReader(path, options)
    if "episode_0" in names and metadata_of(path.parent) is not None:
        return minari_reader(path.parent, options)
    if set(names) & set(OF_D4RL):
        return D4RLReader(path, options)
    if "episode_0" in names:
        raise DataError(f"{path} is a part of a Minari dataset, whose {METADATA} is missing beside it. Copy it, too.")
    raise DataError(
        f"{path} is an HDF5 file that contains {', '.join(names[:10]) or 'nothing'}: expected {', '.join(OF_D4RL)} "
        "(D4RL) or _meta (Tianshou). How to convert d3rlpy 2's buffers: docs/datasets.md."
    )
