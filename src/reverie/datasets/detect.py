"""Detects the format of a file or folder by its contents. A file name that contradicts them is an error."""

from __future__ import annotations

import glob
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

from reverie.core.errors import ConfigError, DataError, did_you_mean
from reverie.datasets.concat import SeveralReader, by_number, files_of
from reverie.datasets.d4rl import NEEDED as OF_D4RL
from reverie.datasets.d4rl import D4RLReader
from reverie.datasets.hdf5 import damage, is_hdf5, open_hdf5
from reverie.datasets.minari import local_names, metadata_of, minari_path
from reverie.datasets.minari_arrow import minari_reader
from reverie.datasets.named import named_reader
from reverie.datasets.own_store import StoreReader, is_store
from reverie.datasets.pydreamer import PyDreamerReader
from reverie.datasets.reader import Reader, ReadOptions, format_of
from reverie.datasets.rl_unplugged import RLUnpluggedReader, shards_in
from reverie.datasets.table import TableReader
from reverie.datasets.table_files import FORMATS as OF_TABLES
from reverie.datasets.table_files import tables_in
from reverie.datasets.tfrecord import looks_like_records
from reverie.datasets.tianshou import TianshouReader

OF_A_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*(\(.*)?$")
"""Looks like ``module:Class``, with or without arguments."""
Opener = Callable[[Path, ReadOptions], Reader]

KNOWN = (
    "a Minari dataset (a folder, or minari:NAME), an HDF5 file of D4RL or of a Tianshou buffer, RL Unplugged's Atari "
    "shards, PyDreamer's npz files, a run folder or replay store, Arrow or Parquet tables, or a folder or glob of these"
)

TEXT = (".csv", ".tsv", ".txt")
"""Suffixes of text that may hold a table."""

ONLY_FOR = {
    "columns": "only tables have columns to name",
    "time_limit": "the ends of its episodes are known",
    "partial": "only RL Unplugged's shards can be read in part",
}
"""Why a dataset does not use an option of ``ReadOptions``."""


def open_reader(path: str, options: ReadOptions | None = None) -> Reader:
    """Return the reader of the dataset at ``path``: a file, a folder, a glob, or ``minari:NAME``.

    ``options.reader`` names a reader of one's own in place of the detected format.

    Raises:
        DataError: there is nothing, or nothing that can be read; the message says what was expected.
        ConfigError: an option does not fit or has no effect on this dataset, or a package is missing.
    """
    options = options or ReadOptions()
    reader = _found(path, options)
    for name, value in options.given.items():
        if not reader.uses(name):
            reader.close()
            raise ConfigError(
                f"data.{name} = {value}: this option has no effect on {path} ({reader.format}): {ONLY_FOR[name]}. "
                "Leave it out."
            )
    return reader


def _found(path: str, options: ReadOptions) -> Reader:
    if options.reader != "":
        return named_reader(path, options)
    if not path:
        raise DataError(f"the path of the dataset is empty. Expected {KNOWN}.")
    if path.startswith("minari:"):
        return minari_reader(minari_path(path.removeprefix("minari:")), options)
    if "://" in path:
        raise DataError(
            f"{path} is a URL: expected a dataset on this machine. reverie data info, validate and export read a store "
            "at a URL (export writes it to a folder), and replay.init begins a run with its rows."
        )
    place = Path(path).expanduser()
    if place.is_dir():
        return _folder(place, options)
    if place.is_file():
        return _file(place, options)
    found = [Path(p) for p in glob.glob(str(place), recursive=True)] if glob.has_magic(path) else []
    if not found:
        raise missing(path)
    return _several(place, sorted(found, key=by_number), options)


def missing(path: str) -> DataError:
    """Return the error for a path at which there is nothing."""
    place = Path(path).expanduser()
    beside = sorted(p.name for p in place.parent.iterdir()) if place.parent.is_dir() else []
    hint = did_you_mean(place.name, beside)
    where = f" {place.parent} contains: {', '.join(beside[:10])}{' ...' if len(beside) > 10 else ''}." if beside else ""
    if (names := local_names()) and path in names:
        hint = f" Did you mean 'minari:{path}'?"
    if OF_A_CLASS.match(path):
        hint = " To read with a class of your own, pass the path of the data here, and the class as data.reader."
    return DataError(
        f"there is no dataset at {path}.{hint}{where if not hint else ''} Expected {KNOWN}. "
        "See `reverie data download --help` to download one."
    )


def _folder(path: Path, options: ReadOptions) -> Reader:
    if metadata_of(path) is not None:
        return minari_reader(path, options)
    if is_store(path):
        return StoreReader(path, options)
    check_alike(path)
    if files_of(path, "npz"):
        return PyDreamerReader(path, options)
    if shards_in(path):
        return RLUnpluggedReader(path, options)
    if files := files_of(path, "HDF5"):
        return _several(path, files, options)
    folders = sorted((p for p in path.iterdir() if p.is_dir() and _is_dataset(p)), key=by_number)
    if folders:
        return _several(path, folders, options)
    if is_table_folder(path):
        return TableReader(path, options)
    inside = sorted(p.name for p in path.iterdir() if not p.name.startswith("."))
    datasets = [(path / name).as_posix() for name in local_names(path)]
    hint = f" There are datasets at {', '.join(datasets[:6])}." if datasets else ""
    raise DataError(f"{path} contains no dataset, only {', '.join(inside[:10]) or 'nothing'}.{hint} Expected {KNOWN}.")


def check_alike(path: Path) -> None:
    """Check that the datasets in a folder are of one format: of several, all but one would not be read.

    Raises:
        DataError: they are not.
    """
    found: dict[str, list[str]] = {}
    for inside in sorted(path.iterdir()):
        if inside.is_dir():
            kind = "Minari or a replay store" if _is_dataset(inside) else ""
        else:
            kind = "tables" if format_of(inside) in OF_TABLES else format_of(inside)
        if kind and not inside.name.startswith("."):
            found.setdefault(kind, []).append(inside.name)
    if len(found) > 1:
        listed = "; ".join(f"{kind}: {', '.join(names[:3])}" for kind, names in found.items())
        raise DataError(
            f"{path} contains datasets of several formats ({listed}). Pass one of them, or a glob such as '*.hdf5'."
        )


def _is_dataset(path: Path) -> bool:
    if path.name.startswith("."):  # still being downloaded or written
        return False
    return metadata_of(path) is not None or is_store(path)


def is_table_folder(path: Path) -> bool:
    """Return True if the folder holds tables, in itself or in folders below it."""
    return bool(tables_in(path))


def _several(path: Path, found: list[Path], options: ReadOptions) -> Reader:
    if len(found) == 1:
        return _folder(found[0], options) if found[0].is_dir() else _file(found[0], options)
    kinds = {format_of(p) if p.is_file() else "" for p in found}
    if kinds == {"npz"}:  # an episode may go on in the next file
        return PyDreamerReader(path, options, found)
    if kinds <= set(OF_TABLES):
        return TableReader(path, options, found)
    return SeveralReader(path, [_folder(p, options) if p.is_dir() else _file(p, options) for p in found], options)


def _file(path: Path, options: ReadOptions) -> Reader:
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty.")
    kind = content(path)
    named = format_of(path)
    if kind and named and kind != named:
        raise DataError(
            f"{path} has the suffix {path.suffix}, but its content is {kind}: rename it, or use the right file."
        )
    openers: dict[str, Opener] = {
        "HDF5": _hdf5,
        "npz": _npz,
        "TFRecord": RLUnpluggedReader,
        "Parquet": TableReader,
        "Arrow": TableReader,
    }
    if kind in openers:
        return openers[kind](path, options)
    with path.open("rb") as file:
        head = file.read(8)
    why = f"it has the suffix {path.suffix}, but its content is not {named}" if named else "its format is not known"
    table = (
        " A table in text becomes a Parquet file by pandas.read_csv(PATH).to_parquet(TARGET)."
        if path.suffix in TEXT
        else ""
    )
    raise DataError(f"{path} cannot be read: {why} (its first bytes are {head!r}). Expected {KNOWN}.{table}")


def content(path: Path) -> str:
    """Return the format that the first bytes of a file show, as ``format_of`` names it; "" if unknown."""
    with path.open("rb") as file:
        head = file.read(8)
    if is_hdf5(path):
        return "HDF5"
    if head[:4] == b"PK\x03\x04":
        return "npz"
    if head[:4] == b"PAR1":
        return "Parquet"
    if head[:6] == b"ARROW1" or head[:4] == b"\xff\xff\xff\xff":
        return "Arrow"
    return "TFRecord" if looks_like_records(path) else ""


def _hdf5(path: Path, options: ReadOptions) -> Reader:
    with open_hdf5(path) as file, damage(path):
        names = list(file)
    if "_meta" in names:
        return TianshouReader(path, options)
    if "episode_0" in names and metadata_of(path.parent) is not None:
        return minari_reader(path.parent, options)
    if any(name in names for name in OF_D4RL):
        return D4RLReader(path, options)
    if {"num_episodes", "observations_0"} <= set(names):
        raise DataError(f"{path} is a buffer saved by d3rlpy: convert it to D4RL's layout, see docs/datasets.md.")
    shown = ", ".join(names[:10]) or "nothing"
    raise DataError(
        f"{path} is an HDF5 file that contains {shown}: expected {', '.join(OF_D4RL)} (D4RL) or _meta (Tianshou)."
    )


def _npz(path: Path, options: ReadOptions) -> Reader:
    try:
        names = [name.removesuffix(".npy") for name in zipfile.ZipFile(path).namelist()]
    except zipfile.BadZipFile as error:
        raise DataError(f"{path} is damaged or incomplete: {error}.") from None
    if {"action", "reward", "reset", "terminal"} <= set(names):
        return PyDreamerReader(path, options)
    raise DataError(
        f"{path} contains the arrays {', '.join(names[:10])}: expected action, reward, terminal and reset (PyDreamer)."
    )
