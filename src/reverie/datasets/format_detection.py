"""Opens data: detects the format of a file or folder by its contents, and joins several datasets."""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from reverie.core.config import parse_call
from reverie.core.errors import ConfigError, DataError, did_you_mean
from reverie.core.registry import find
from reverie.datasets import concat
from reverie.datasets.data_path import OBJECT, DataLike, data_path, split_paths
from reverie.datasets.formats import format_names, formats
from reverie.datasets.in_memory import open_in_memory
from reverie.datasets.minari import local_names, minari_path
from reverie.datasets.ogbench import OGBENCH_PREFIX, ogbench_path
from reverie.datasets.reader import Reader, ReadOptions
from reverie.datasets.source import GZIP, UTF_16, Source, natural_sort_key, reading, without_text

CONVERT = "Convert it, and pass the copy: "
JSON_LINES = (
    "JSON lines",
    CONVERT + "python -c 'import pyarrow.json, pyarrow.parquet as p; "
    'p.write_table(pyarrow.json.read_json("{}"), "{}")\'',
)
SQLITE = (
    "an SQLite database",
    CONVERT + "python -c 'import pandas, sqlite3; "
    'pandas.read_sql("select * from TABLE order by EPISODE, STEP", sqlite3.connect("{}")).to_parquet("{}")\'',
)
AS_ARRAYS = (
    "Write its arrays with numpy.savez under the names observations, actions, rewards, terminals and timeouts, one "
    "value for each step, and pass this file"
)
CONVERSIONS: dict[str, tuple[str, str]] = {
    **dict.fromkeys((".jsonl", ".ndjson"), JSON_LINES),
    **dict.fromkeys((".sqlite", ".sqlite3", ".db"), SQLITE),
    ".json": ("JSON", CONVERT + 'python -c \'import pandas; pandas.read_json("{}").to_parquet("{}")\''),
    ".xlsx": ("an Excel file", CONVERT + 'python -c \'import pandas; pandas.read_excel("{}").to_parquet("{}")\''),
    **dict.fromkeys((".pkl", ".pickle", ".joblib"), ("a pickle, which can run any code", AS_ARRAYS)),
    **dict.fromkeys((".pt", ".pth"), ("a file of PyTorch, which can run any code", AS_ARRAYS)),
    ".npy": ("a single array", AS_ARRAYS),
    ".mat": ("a file of MATLAB", AS_ARRAYS),
    ".zip": ("a zip archive", "Extract it, and pass the folder: unzip {}"),
}
"""What files are that are not read, and how to convert one, by suffix."""
HEADS: dict[bytes, tuple[str, str]] = {
    b"SQLi": SQLITE,
    GZIP: ("compressed with gzip", "Expand it, and pass the copy: zcat {0} > {plain}"),
    UTF_16: ("text in UTF-16", CONVERT + "iconv -f UTF-16 -t UTF-8 {0} > utf8-{0}"),
}
"""The same by the first bytes of a file."""


def open_reader(data: DataLike, options: ReadOptions | None = None) -> Reader:
    """Return the reader of ``data``: a path, ``minari:NAME``, ``ogbench:NAME``, an object in memory, or several."""
    options, paths = options or ReadOptions(), split_paths(data_path(data))
    reader = _join(Path(", ".join(paths)), [_open_path(path, options) for path in paths], options)
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
    with reading(path):
        if "://" in path and not options.reader:
            return _find("runs and stores")(path, options)
        sources = [Source(file) for file in _matching_paths(path)]
    location = sources[0].path if len(sources) == 1 else Path(path)
    if options.reader:
        readers = _open_with(options.reader, location, sources, options)
    else:
        with reading(location):
            readers = _open_sources(location, sources, options)
    return _join(location, readers, options)


def _join(path: Path, readers: Sequence[Reader], options: ReadOptions) -> Reader:
    return readers[0] if len(readers) == 1 else concat.ConcatReader(path, readers, options)


def _open_with(name: str, path: Path, sources: Sequence[Source], options: ReadOptions) -> list[Reader]:
    """Return the readers that ``name`` chooses, a name of a format or ``module:Class``, perhaps with settings."""
    name, bracket, arguments = name.partition("(")
    kind = _find(name)
    parts = [part for source in sources for part in _parts_for(kind, source)]
    if not bracket:
        return kind.open(path, parts, options)
    call = parse_call(f"f({arguments}", f"data.reader = '{options.reader}'")
    return [kind(part.path, options, *call.args, **call.kwargs) for part in parts]


def _parts_for(kind: type[Reader], source: Source) -> list[Source]:
    """Return the files in a folder that ``kind`` reads one by one; the file or folder itself if there are none."""
    files = kind.files_in(source) if source.is_folder and not kind.matches(source) else []
    return [Source(file) for file in files] or [source]


def _matching_paths(path: str) -> list[Path]:
    """Return the file or folder at ``path``, or the matches of the glob ``path``, sorted by number."""
    if path.startswith("minari:"):
        return [minari_path(path.removeprefix("minari:"))]
    if path.startswith(OGBENCH_PREFIX):
        return [ogbench_path(path.removeprefix(OGBENCH_PREFIX))]
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
        f"there is no dataset at {path}.{hint or contents} {_expected()} See `reverie data download --help` to "
        "download one."
    )


def _check_reached_once(roots: Sequence[str]) -> None:
    """Raise DataError if links lead to a folder below ``roots`` twice: files would be read twice, or without end."""
    visited: set[str] = set()
    for folder, _, _ in itertools.chain.from_iterable(os.walk(root, followlinks=True) for root in roots):
        if (target := os.path.realpath(folder)) in visited:
            raise DataError(f"{folder} leads to {target}, which another path reaches, too. Remove the link.")
        visited.add(target)


def _open_sources(path: Path, sources: Sequence[Source], options: ReadOptions) -> list[Reader]:
    """Return the readers of files and folders, which are in one format; those of a single folder are one dataset."""
    parts = {source: _parts(source) if source.is_folder and not _detect(source) else [source] for source in sources}
    kind = _only_format(path, [part for group in parts.values() for part in group])
    direct = [source for source in sources if parts[source] == [source]]
    groups = {path: direct} if direct else {}
    groups |= {source.path: group for source, group in parts.items() if group != [source]}
    return [reader for name, group in groups.items() for reader in kind.open(name, group, options)]


def _find(name: str) -> type[Reader]:
    """Return the reader called ``name`` in ``formats.py`` or by an installed package, or the class ``module:Class``."""
    return find(formats(), name, Reader, "reader")


def _detect(source: Source) -> type[Reader] | None:
    """Return the first reader that reads ``source``; None if there is none."""
    with reading(source.path):
        return next((kind for kind in map(_find, formats()) if kind.matches(source)), None)


def _parts(folder: Source) -> list[Source]:
    """Return the datasets in a folder: folders, and files that a reader may read. DataError if there are none."""
    folders = [path for path in folder.children if path.is_dir() and _detect(Source(path))]
    files = {path for kind in map(_find, formats()) for path in kind.files_in(folder)}
    if folders:  # files below them are theirs
        files = {path for path in files if path.parent == folder.path}
    paths = without_text([*folders, *sorted(files, key=natural_sort_key)])
    if not paths and {"config.yaml", "spec.json"} <= {path.name for path in folder.children}:
        raise DataError(
            f"{folder.path} is a run without stored rows, as those of on-policy learners are by default. Start it with "
            f"--replay.store-path FOLDER to store them, or record new episodes: reverie data record {folder.path}."
        )
    if not paths:
        datasets = ", ".join((folder.path / name).as_posix() for name in local_names(folder.path)[:6])
        hint = f" There are datasets at {datasets}." if datasets else ""
        names = ", ".join(path.name for path in folder.children[:10]) or "nothing"
        if advice := _conversion_advice(folder.children):
            raise DataError(f"{folder.path} contains no dataset, only {names}{advice}")
        raise DataError(f"{folder.path} contains no dataset, only {names}.{hint} {_expected()}")
    return [Source(path) for path in paths]


def _only_format(path: Path, sources: Sequence[Source]) -> type[Reader]:
    """Return the reader of all ``sources``; DataError if there are several, since only some would be read."""
    named: dict[type[Reader], str] = {}
    for source in sources:
        if (kind := _detect(source)) is None:
            raise _unknown_format(source)
        named.setdefault(kind, source.path.name)
    if len(named) > 1:
        listing = "; ".join(f"{kind.format} (such as {name})" for kind, name in named.items())
        raise DataError(f"{path} contains several formats: {listing}. Pass a path or glob of one format, or a list.")
    return next(iter(named))


def _unknown_format(source: Source) -> DataError:
    if advice := _conversion_advice([source.path]):
        return DataError(f"{source.path} cannot be read{advice}")
    if source.names:
        kinds = [kind for kind in map(_find, formats()) if source.path.suffix.lower() in kind.suffixes]
        named = [f"{', '.join(kind.required_names)} ({kind.format})" for kind in kinds if kind.required_names]
        expected = f": expected {'; '.join(named)}." if named else f". {_expected()}"
        return DataError(f"{source.path} contains {', '.join(sorted(source.names)[:10])}{expected}")
    size = source.path.stat().st_size
    return DataError(f"{source.path} ({size:,} bytes) cannot be read: its format is unknown. {_expected()}")


def _conversion_advice(paths: Sequence[Path]) -> str:
    """Return how to convert the first of ``paths`` in a known format that is not read; "" if none is."""
    for path in filter(Path.is_file, paths):
        head = Source(path).head
        by_head = next((entry for beginning, entry in HEADS.items() if head.startswith(beginning)), None)
        is_metadata = path.suffix.lower() == ".json" and not head.startswith(b"[")  # a table is a list of records
        if entry := by_head or (None if is_metadata else CONVERSIONS.get(path.suffix.lower())):
            kind, advice = entry
            plain = path.stem if path.suffix == ".gz" else f"plain-{path.name}"
            return f": it is {kind}. {advice.format(path.name, path.with_suffix('.parquet').name, plain=plain)}."
    return ""


def _expected() -> str:
    return f"Expected a file, folder or glob in one of these formats: {format_names()}."
