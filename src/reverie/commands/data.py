"""``reverie data``: the list of its commands, and those for replay stores. See ``commands/datasets.py`` as well."""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from reverie.commands.args import fail, parse, print_sections
from reverie.commands.datasets import (
    InfoCommand,
    Place,
    Reading,
    ValidateCommand,
    as_here,
    dataset_info,
    dataset_validate,
)
from reverie.commands.gather import convert_command, download_command, record_command, subsample_command
from reverie.core.errors import ConfigError, RunError, did_you_mean, warn
from reverie.core.words import Say, plural

if TYPE_CHECKING:  # these import torch, which --help does not need
    from reverie.store.manifest import Segment
    from reverie.store.store import Store


@dataclass(frozen=True, kw_only=True)
class ExportCommand:
    """Write the episodes of a replay store in another format."""

    path: Place
    """Run folder, or folder or URL of a replay store."""
    to: tuple[Literal["minari", "pydreamer"], str]
    """Format and target: minari and a dataset's name (a folder if it begins with / or .), or pydreamer and a folder."""


def data_command(args: list[str]) -> int:
    """Run one of the commands and return its exit code."""
    commands = {
        "info": info_command,
        "validate": validate_command,
        "convert": convert_command,
        "subsample": subsample_command,
        "record": record_command,
        "download": download_command,
        "export": export_command,
    }
    if not args or args[0] in ("-h", "--help"):
        print(OVERVIEW)
        return 0 if args else 2
    if args[0] not in commands:
        known = f"Available: {', '.join(commands)}."
        return fail(f"unknown command 'data {args[0]}'.{did_you_mean(args[0], commands)} {known}", 2)
    from reverie.run.signals import Stopped, stopping

    try:
        with stopping():
            return commands[args[0]]([as_here(word) for word in args[1:]])
    except Stopped as stopped:
        said = ". ".join([f"stopped by {stopped.number.name}", *getattr(stopped, "__notes__", [])])
        return fail(said, 128 + stopped.number)


OVERVIEW = """usage: reverie data {info,validate,convert,subsample,record,download,export} ...

  info       describe a dataset, a run or a replay store
  validate   report damage and impossible values; keep the good episodes
  convert    write a dataset as Minari, D4RL, Parquet, PyDreamer or a store
  subsample  write a random part of a dataset
  record     run a trained agent and write its episodes
  download   download a Minari dataset or shards of RL Unplugged
  export     write the episodes of a replay store (a folder or a URL)

A dataset is a file, folder or glob in the format of Minari, D4RL, Tianshou,
RL Unplugged, PyDreamer, Arrow or Parquet, or a run.
`reverie data COMMAND --help` lists the options of a command."""


def is_of_a_store(path: str) -> bool:
    """Return whether ``path`` is a run, or a store in a folder or behind a URL, and not a dataset of another format."""
    from reverie.datasets.own_store import is_store
    from reverie.store.manifest import BACKUP, MANIFEST

    folder = Path(path)
    if "://" in path or settings_in(folder) is not None or (folder / BACKUP).is_file():
        return True
    return (folder / MANIFEST).is_file() and is_store(folder)


def settings_in(folder: Path) -> dict[str, Any] | None:
    """Return the settings in the config.yaml of a run; None if ``folder`` is no run."""
    try:
        content = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return None
    found = content.get("experiment") if isinstance(content, dict) else None
    return found if isinstance(found, dict) else None


# ---------------------------------------------------------------- the place


def open_store(path: str, say: Say = warn) -> Store:
    """Open the store of a run, or at a folder or URL.

    Raises:
        RunError: there is none; the message says where one may be.
    """
    from reverie.store.store import Store

    store = Store(store_of(path), say=say)
    if not store.segments and not store.aside:
        raise RunError(f"there is no replay store in {path}.{_inside(path)}")
    return store


def store_of(path: str) -> str:
    """Return the folder or URL of a run's store; any other path unchanged."""
    settings = None if "://" in path else settings_in(Path(path))
    if settings is None:
        return path
    named = settings.get("replay", {}).get("store", "auto")
    if named == "none":
        raise RunError(f"the run {path} has no replay store: it was made with replay.store = none.")
    return str(Path(path) / "replay") if named == "auto" else str(named)


def _inside(path: str) -> str:
    folders = [] if "://" in path else sorted(p.parent for p in Path(path).glob("*/manifest.json"))
    return f" There is one in {folders[0]}." if folders else " Expected a run folder, or the path or URL of a store."


def signature_beside(path: str) -> dict[str, Any] | None:
    """Return the content of spec.json, if ``path`` is a run or a store in one."""
    for folder in () if "://" in path else (Path(path), Path(path).absolute().parent):
        if (folder / "spec.json").is_file():
            found: dict[str, Any] = json.loads((folder / "spec.json").read_text(encoding="utf-8"))
            return found
    return None


def check_no_effect(said: Reading, *names: str) -> None:
    """Raise ConfigError if an option was given that a store does not need, as it describes itself."""
    usual = {field.name: field.default for field in dataclasses.fields(said)} | {"columns": {}}
    for name in ("columns", "time_limit", "partial", *names):
        if (value := getattr(said, name)) != usual[name]:
            raise ConfigError(f"{name} = {value}: this option has no effect on a run or a replay store. Leave it out.")


# ---------------------------------------------------------------- info


def info_command(args: list[str]) -> int:
    """Print what a store or a dataset holds."""
    said = parse(InfoCommand, args, "data info")
    if said.reader or not is_of_a_store(said.path) or said.plot is not None:
        return dataset_info(said)
    check_no_effect(said)
    store = open_store(said.path)
    print_sections(sections(store))
    return 0


def sections(store: Store) -> dict[str, list[tuple[str, str]]]:
    """Return the lines of ``info`` by section."""
    columns = store.segments[-1].columns if store.segments else store.aside[-1].columns
    episodes, damage = episode_lines(store)
    return {
        "store": size_lines(store),
        "columns": [(name, f"{c.dtype} {list(c.shape) if c.shape else ''}") for name, c in columns.items()],
        "segments": [(segment.name, segment_words(segment)) for segment in store.segments],
        "episodes": episodes,
        "set aside": [(segment.name, aside_words(segment)) for segment in store.aside],
        "damaged": damage,
    }


def size_lines(store: Store) -> list[tuple[str, str]]:
    """Return path, rows and size of a store."""
    bytes_ = sum((s.rows - s.first) * s.streams * s.nbytes_of_row for s in (*store.segments, *store.aside))
    sizes = store.objects.sizes().values()
    known = [size for size in sizes if size is not None]
    stored = f"{sum(known) / 1e6:,.1f} MB stored" if len(known) == len(sizes) else "stored size unknown"
    return [
        ("path", store.objects.where),
        ("rows", f"{sum(s.own_rows for s in store.segments):,}"),
        ("size", f"{stored}, {bytes_ / 1e6:,.1f} MB in memory"),
    ]


def segment_words(segment: Segment) -> str:
    """Describe a segment: ``8 streams, rows 0 to 1023 of each, 256 per file``."""
    rows = f"rows {segment.first:,} to {segment.rows - 1:,}" if segment.rows > segment.first else "no rows"
    words = f"{segment.streams} streams, {rows} of each, {segment.chunk} per file"
    if segment.imported:
        words += f", the first {segment.imported:,} copied from older segments"
    return words


def aside_words(segment: Segment) -> str:
    """Describe rows set aside: ``rows 100 to 140 of segment 0, 8 streams``."""
    first, newest = segment.first + segment.offset, segment.rows + segment.offset - 1
    return f"rows {first:,} to {newest:,} of segment {segment.origin}, {segment.streams} streams"


def episode_lines(store: Store) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return number, lengths and returns of the episodes, and the damage found in the columns needed for that."""
    import numpy as np

    from reverie.store.episodes import episodes

    scores, lengths, parts = [], [], 0
    damage: list[tuple[str, str]] = []
    needed = ("reward", "is_first", "is_last")
    for episode in episodes(store, columns=needed, on_damage=lambda d: damage.append((d.file, d.reason))):
        if episode.complete:
            scores.append(episode.score)
            lengths.append(episode.steps)
        else:
            parts += 1
    lines = [("complete", f"{len(scores):,}"), ("incomplete", f"{parts:,}")]
    if scores:
        lines.append(("return", f"mean {np.mean(scores):.2f}, {min(scores):.2f} to {max(scores):.2f}"))
        lines.append(("steps", f"mean {np.mean(lengths):.1f}, {min(lengths):,} to {max(lengths):,}"))
    return lines, sorted(set(damage))


# ---------------------------------------------------------------- validate


def validate_command(args: list[str]) -> int:
    """Print what is damaged."""
    from reverie.store.check import validate

    said = parse(ValidateCommand, args, "data validate")
    if not is_of_a_store(said.path) or said.quarantine is not None:
        return dataset_validate(said)
    check_no_effect(said, "replay")
    manifests: list[str] = []  # damage of the manifests comes first
    store = open_store(said.path, manifests.append)
    report = validate(store)
    report.damaged[:0] = manifests
    for line in report.damaged:
        print(f"damaged  {line}")
    for line in report.broken:
        print(f"wrong    {line}")
    verdict = "sound" if report.sound else f"{len(report.damaged)} damaged, {len(report.broken)} wrong"
    print(f"{plural(report.rows, 'row')} in {plural(report.files, 'file')}: {verdict}")
    return 0 if report.sound else 1


# ---------------------------------------------------------------- export


def export_command(args: list[str]) -> int:
    """Write the episodes of a store in another format."""
    from reverie.core.files import writing
    from reverie.datasets.export import one_layout, to_minari, to_pydreamer
    from reverie.store.episodes import episodes

    said = parse(ExportCommand, args, "data export")
    kind, target = said.to
    store = open_store(said.path)
    one_layout(store.segments)
    left_out: list[str] = []
    found = episodes(store, on_damage=lambda damage: left_out.append(str(damage)))
    with writing(Path(target)):
        if kind == "pydreamer":
            done = to_pydreamer(found, Path(target))
        else:
            done = to_minari(found, target, store.segments[-1], signature_beside(said.path))
    for line in left_out:
        print(f"left out: {line}", file=sys.stderr)
    for remark in done.remarks:
        print(f"remark   {remark}", file=sys.stderr)
    print(f"{plural(done.episodes, 'episode')} with {plural(done.steps, 'step')}: {done.path}")
    return 0
