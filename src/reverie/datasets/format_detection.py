"""Opens data: detects the format of a file or folder by its contents, and joins several datasets."""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from reverie.core.config import parse_call
from reverie.core.errors import ConfigError, DataError, did_you_mean
from reverie.core.files import check_links
from reverie.core.registry import find
from reverie.datasets import concat
from reverie.datasets.data_path import OBJECT, DataLike, InMemoryPath, data_path, split_paths
from reverie.datasets.formats import format_names, formats
from reverie.datasets.minari import local_names, minari_path
from reverie.datasets.npz import ArraysReader
from reverie.datasets.ogbench import OGBENCH_PREFIX, ogbench_path
from reverie.datasets.options import REQUIRED_COLUMNS
from reverie.datasets.reader import Reader, ReadOptions
from reverie.datasets.source import Source, natural_sort_key, reading, without_text
from reverie.datasets.table import TableReader


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
        return _open_in_memory(path, options)
    with reading(path):
        if "://" in path and not options.reader:
            return _find("runs and stores")(path, options)
        sources = [Source(file) for file in _matching_paths(path)]
        for source in filter(lambda source: source.is_folder, sources):
            check_links(source.path, ())
    location = sources[0].path if len(sources) == 1 else Path(path)
    if options.reader:
        readers = _open_with(options.reader, location, sources, options)
    else:
        with reading(location):
            readers = _open_sources(location, sources, options)
    return _join(location, readers, options)


def _open_in_memory(path: str, options: ReadOptions) -> Reader:
    """Return the reader of the object that ``path`` carries; DataError if the object is missing."""
    if not isinstance(path, InMemoryPath):
        raise DataError(
            f"the data were passed in memory ({path.removeprefix(OBJECT)}) and are not stored in a file. Pass them "
            "again in Python, data=..., or write them to a file and pass its path."
        )
    if isinstance(path.content, dict):
        return ArraysReader(Path(path), options, path.content)
    return TableReader(Path(path), options, table=path.content)


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
    if source.names:
        kinds = [kind for kind in map(_find, formats()) if source.path.suffix.lower() in kind.suffixes]
        named = [f"{', '.join(kind.required_names)} ({kind.format})" for kind in kinds if kind.required_names]
        expected = f": expected {'; '.join(named)}." if named else f". {_expected()}"
        return DataError(f"{source.path} contains {', '.join(sorted(source.names)[:10])}{expected}")
    size = source.path.stat().st_size
    return DataError(f"{source.path} ({size:,} bytes) cannot be read: its format is unknown. {_expected()}")


def _expected() -> str:
    return (
        f"Expected a file, folder or glob in one of these formats: {format_names()}. Convert other files: tables with "
        f"pandas (to_parquet), arrays with numpy.savez under the names {', '.join(REQUIRED_COLUMNS)}; expand archives."
    )
