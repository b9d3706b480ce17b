"""A store's episodes in the formats of others: Minari's datasets and PyDreamer's files."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from reverie.core.errors import ConfigError, RunError
from reverie.core.signals import check_signals
from reverie.data.readers.minari import check_name, minari_root
from reverie.data.store.episodes import Episode
from reverie.data.store.manifest import Segment

Signature = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""What spec.json says: ``{"observation": {key: part}, "action": {key: part}}``."""


CACHED, ABOUT_EPISODE = 2**25, 2**14
"""Bytes that HDF5 has not written yet: so many at most, and roughly these about an episode."""


@dataclass
class Exported:
    """What was written."""

    path: Path
    episodes: int = 0
    steps: int = 0
    remarks: list[str] = field(default_factory=list)
    """What could not be written."""


def one_layout(segments: Iterable[Segment]) -> None:
    """All segments have the same columns.

    Raises:
        RunError: they do not, or there is nothing to export.
    """
    layouts = [dict(segment.columns) for segment in segments if segment.rows > segment.first]
    if not layouts:
        raise RunError("the store holds no rows: there is nothing to export.")
    if any(layout != layouts[0] for layout in layouts):
        raise RunError("the segments of the store have different columns: they cannot become one dataset.")


@contextlib.contextmanager
def staged_at(path: Path) -> Iterator[Path]:
    """A folder beside ``path`` to write to; it takes its place at the end, and is gone after an error.

    Raises:
        RunError: ``path`` exists, or the disk is full.
    """
    staged = fresh(path)
    try:
        yield staged
        check_signals()
        os.rename(staged, path)
    except BaseException as error:
        give_room(staged)
        shutil.rmtree(staged, ignore_errors=True)
        raise no_room(path, error) or error from None


def check_room(path: Path, wanted: int) -> None:
    """Refuse to go on where HDF5 would meet the end of a disk: it may end the process, which no error does.

    Raises:
        OSError: fewer bytes are left on the disk of ``path``, whose folder exists.
    """
    if shutil.disk_usage(path.parent).free < wanted:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def size_of(values: Any) -> int:
    """Bytes of arrays in dictionaries and tuples, and in others of these."""
    if isinstance(values, Mapping | tuple):
        return sum(map(size_of, values.values() if isinstance(values, Mapping) else values))
    return int(np.asarray(values).nbytes)


def give_room(staged: Path) -> None:
    """Empty the files of what was not finished: HDF5 goes on writing what it has of one until it is closed."""
    for path in [staged, *staged.rglob("*")]:
        if path.is_file():
            with contextlib.suppress(OSError):
                os.truncate(path, 0)


@contextlib.contextmanager
def emptied(staged: Path) -> Iterator[None]:
    """Within it a file of HDF5's is open, which is closed after an error without anything left to write."""
    try:
        yield
    except BaseException:
        give_room(staged)
        raise


def no_room(path: Path, error: BaseException) -> RunError | None:
    """An error that says that the disk of ``path`` is full, if that is what ``error`` means."""
    full = f"errno = {errno.ENOSPC}" in str(error) or getattr(error, "errno", None) == errno.ENOSPC
    why = f"cannot write {path}: too little space is left on that disk. Free some; what was begun has been removed."
    return RunError(why) if full else None


def fresh_enough(target: str) -> None:
    """Nothing is at ``target``, a path or minari:NAME: said before hours are spent on what would be written there.

    Raises:
        RunError: something is.
    """
    name = target.removeprefix("minari:")
    if name != target:
        check_name(name)
    path = Path(target).expanduser() if name == target else minari_root() / name
    if path.exists():
        raise RunError(f"{path} exists: choose another name, or delete it first.")


def fresh(path: Path) -> Path:
    """A folder beside ``path`` to write to, empty; moved into its place when all is there.

    Raises:
        RunError: ``path`` exists.
    """
    if path.exists():
        raise RunError(f"{path} exists: choose another name, or delete it first.")
    staged = path.with_name(f".{path.name}.part")
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    return staged


# ---------------------------------------------------------------- PyDreamer


def to_pydreamer(episodes: Iterable[Episode], folder: Path) -> Exported:
    """One npz an episode, ``ep000012_000012-r21-0500.npz``: number, return, steps.

    PyDreamer's row t holds the action that *led to* what was seen in t, zeros in the first row: ours moved on by one.
    The only image is called ``image_t`` and is ``[H, W, C, T]``, the only vector ``vecobs``.

    Raises:
        RunError: ``folder`` exists.
    """
    done = Exported(folder)
    with staged_at(folder) as staged:
        for episode in episodes:
            if episode.steps < 1:
                continue
            name = f"ep{done.episodes:06}_{done.episodes:06}-r{episode.score:.0f}-{episode.steps:04}.npz"
            with (staged / name).open("wb") as file:
                np.savez_compressed(file, **pydreamer_rows(episode.rows))
            done.episodes, done.steps = done.episodes + 1, done.steps + episode.steps
    return done


def pydreamer_rows(rows: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The rows of an episode under PyDreamer's names."""
    action = np.zeros_like(rows["action"])
    action[1:] = rows["action"][:-1]
    reset = np.zeros(len(action), bool)
    reset[0] = True
    out: dict[str, Any] = {"action": action, "reward": rows["reward"], "terminal": rows["is_terminal"], "reset": reset}
    obs = {name.removeprefix("obs/"): value for name, value in rows.items() if name.startswith("obs/")}
    images = [key for key, value in obs.items() if value.dtype == np.uint8 and value.ndim == 4]
    vectors = [key for key, value in obs.items() if value.dtype == np.float32 and value.ndim == 2]
    for key, value in obs.items():
        if [key] == images:
            out["image_t"] = value.transpose(1, 2, 3, 0)
        else:
            out["vecobs" if [key] == vectors else key.replace("/", "_")] = value
    return out


# ---------------------------------------------------------------- Minari


def to_minari(
    episodes: Iterable[Episode], name: str, segment: Segment, spec: Signature | None, algorithm: str = ""
) -> Exported:
    """A Minari dataset called ``name``, or in a folder if ``name`` is a path that begins with / or . or ~.

    Observations are those of the rows, the last one included; rewards and flags those of the row after each action. An
    episode without an end is marked as truncated. Actions are in Minari's own terms where ``spec`` says what they mean
    (class numbers in place of one-hot vectors), continuous ones in the policy's range of -1 to 1.

    Raises:
        ConfigError: the package minari is missing, or too old.
        RunError: the dataset exists.
    """
    is_path = name[:1] in "/.~"
    named = str(Path(name).expanduser()) if is_path else f"minari:{name}"
    spaces_ = observation_space(segment, spec), action_space(segment, spec)
    found = (minari_rows(episode, spec) for episode in episodes if episode.steps >= 1)
    return write_minari(found, named, spaces_, {"algorithm_name": algorithm} if algorithm else {})


def write_minari(
    episodes: Iterable[Mapping[str, Any]], target: str, both: tuple[Any, Any], about: Mapping[str, Any]
) -> Exported:
    """A Minari dataset at ``target``, a path or minari:NAME; it takes its place once it is whole.

    Args:
        episodes: the fields of Minari's ``EpisodeBuffer``, of one episode each.
        target: where to.
        both: the spaces of observations and of actions.
        about: what else to write into the metadata.

    Raises:
        ConfigError: the package minari is missing, or too old.
        RunError: the dataset exists.
    """
    try:
        import minari
        from minari.data_collector import EpisodeBuffer
        from minari.dataset.minari_storage import MinariStorage
    except ImportError as error:
        raise ConfigError(f"minari is needed ({error}): pip install 'reverie-rl[minari]'.") from None
    name = target.removeprefix("minari:")
    if name != target:
        check_name(name)
    path = (minari_root() / name if name != target else Path(target).expanduser()).absolute()  # Minari needs it
    done = Exported(path)

    def buffers() -> Iterator[Any]:
        for episode in episodes:
            done.episodes, done.steps = done.episodes + 1, done.steps + len(episode["rewards"])
            check_signals()
            check_room(path, 2 * size_of(episode) + min(CACHED, ABOUT_EPISODE * (done.episodes + 16)))
            yield EpisodeBuffer(**episode)

    with staged_at(path) as staged:
        storage = MinariStorage.new(
            staged / "data", observation_space=both[0], action_space=both[1], jpeg_encoding=False
        )
        said = {"dataset_id": path.name if name == target else name, "minari_version": minari.__version__}
        storage.update_metadata(said | dict(about))
        storage.update_episodes(buffers())
        if not done.episodes:
            raise RunError("there is no episode to be written.")
    return done


def minari_rows(episode: Episode, spec: Signature | None) -> dict[str, Any]:
    """The fields of a Minari episode of n steps: n + 1 observations, n of everything else."""
    rows = episode.rows
    obs = {name.removeprefix("obs/"): value for name, value in rows.items() if name.startswith("obs/")}
    last, terminal = rows["is_last"][1:].copy(), rows["is_terminal"][1:]
    last[-1] = True
    return {
        "observations": nested(obs),
        "actions": decoded_actions(rows["action"][:-1], spec),
        "rewards": rows["reward"][1:],
        "terminations": terminal,
        "truncations": last & ~terminal,
    }


def nested(values: Mapping[str, Any]) -> Any:
    """Keys such as ``arm/camera`` as dictionaries in dictionaries; a value alone as it is."""
    if len(values) == 1 and "/" not in next(iter(values)):
        return next(iter(values.values()))
    out: dict[str, Any] = {}
    for key, value in values.items():
        *parents, leaf = key.split("/")
        inside = out
        for parent in parents:
            inside = inside.setdefault(parent, {})
        inside[leaf] = value
    return out


def decoded_actions(actions: np.ndarray, spec: Signature | None) -> Any:
    """Flat actions ``[n, A]`` as values of ``action_space``."""
    if spec is None:
        return actions
    out, start = {}, 0
    for key in sorted(spec["action"]):
        part = spec["action"][key]
        classes, width = part["classes"], sum(part["classes"]) or part["size"]
        flat = actions[:, start : start + width]
        out[key] = class_numbers(flat, classes) if classes else flat
        start += width
    return nested(out)


def class_numbers(flat: np.ndarray, classes: Iterable[int]) -> np.ndarray:
    """One-hot vectors side by side as class numbers ``[n]``, or ``[n, choices]`` if there are several."""
    out, start = [], 0
    for count in classes:
        out.append(flat[:, start : start + count].argmax(axis=1))
        start += count
    return out[0] if len(out) == 1 else np.stack(out, axis=1)


def spaces_of(values: Mapping[str, Any]) -> Any:
    """``nested`` spaces as one."""
    from gymnasium import spaces

    def space(value: Any) -> Any:
        return spaces.Dict({key: space(inner) for key, inner in value.items()}) if isinstance(value, dict) else value

    return space(nested(values))


def observation_space(segment: Segment, spec: Signature | None) -> Any:
    """The space of a row's observations."""
    from gymnasium import spaces

    found = {}
    for name, column in segment.columns.items():
        if name.startswith("obs/"):
            key, kind = name.removeprefix("obs/"), np.dtype(column.dtype)
            part: Mapping[str, Any] = spec["observation"].get(key, {}) if spec else {}
            if part.get("kind") == "categorical":
                found[key] = categorical_space(part["classes"], column.shape)
                continue
            low: Any = -np.inf if kind.kind == "f" else np.iinfo(kind).min
            high: Any = np.inf if kind.kind == "f" else np.iinfo(kind).max
            if part.get("kind") == "image":
                low, high = part["low"], part["high"]
            low, high = np.full(column.shape, low, kind), np.broadcast_to(high, column.shape).astype(kind)
            found[key] = spaces.Box(low, high, column.shape, kind.type)
    return spaces_of(found)


def categorical_space(classes: Iterable[int], shape: tuple[int, ...]) -> Any:
    """The space of class numbers ``[*shape]``, of so many ``classes`` each, in flat order."""
    from gymnasium import spaces

    counts = np.reshape(list(classes), shape)
    return spaces.MultiDiscrete(counts) if shape else spaces.Discrete(int(counts))


def action_space(segment: Segment, spec: Signature | None) -> Any:
    """The space of ``decoded_actions``."""
    from gymnasium import spaces

    if spec is None:
        return spaces.Box(-np.inf, np.inf, segment.columns["action"].shape, np.float32)
    found: dict[str, Any] = {}
    for key, part in sorted(spec["action"].items()):
        classes = part["classes"]
        if not classes:
            found[key] = spaces.Box(-1.0, 1.0, (part["size"],), np.float32)
        else:
            found[key] = spaces.Discrete(classes[0]) if len(classes) == 1 else spaces.MultiDiscrete(classes)
    return spaces_of(found)
