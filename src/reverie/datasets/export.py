"""Export of a store's episodes to other formats: Minari's datasets and PyDreamer's files."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reverie.core.errors import ConfigError, RunError
from reverie.core.signals import check_signals
from reverie.core.words import repeated
from reverie.datasets.minari import MAIN, minari_root
from reverie.datasets.output import Exported, check_distinct, check_room, check_target, hdf5_file, size_of, staged_at
from reverie.datasets.pydreamer import OF_GENERATOR
from reverie.datasets.spaces import tree_of
from reverie.store.episodes import Episode
from reverie.store.manifest import Segment

Signature = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""The content of spec.json: ``{"observation": {key: part}, "action": {key: part}}``."""


CHUNK, LEVEL = 2**20, 1
"""Bytes of images, at least one, that are compressed together, and the level of their compression."""
CACHED, ABOUT_EPISODE = 2**25, 2**14
"""Bytes that HDF5 may not have written yet: at most in all, and roughly per episode for its metadata."""


def one_layout(segments: Iterable[Segment]) -> None:
    """Raise RunError unless all segments that hold rows have the same columns.

    Raises:
        RunError: they differ, or there are no rows.
    """
    layouts = [dict(segment.columns) for segment in segments if segment.rows > segment.first]
    if not layouts:
        raise RunError("the store contains no rows to export.")
    if any(layout != layouts[0] for layout in layouts):
        raise RunError("the segments of the store have different columns: they cannot be exported as one dataset.")


def usable(episodes: Iterable[Episode], remarks: list[str]) -> Iterator[Episode]:
    """Yield the episodes that have their first row and a step; in the end, add remarks on those left out."""
    left_out: Counter[str] = Counter()
    for episode in episodes:
        if episode.unusable:
            left_out[episode.unusable] += 1
        else:
            yield episode
    remarks += [repeated(what, times) for what, times in left_out.items()]


# ---------------------------------------------------------------- PyDreamer


PYDREAMER = {"action": "action", "reward": "reward", "is_terminal": "terminal", "is_first": "reset"}
"""PyDreamer's names of the columns that are no observations."""


def to_pydreamer(episodes: Iterable[Episode], folder: Path) -> Exported:
    """Write one npz file per episode, ``ep000012_000012-r21-0500.npz``: number, return, steps.

    PyDreamer's row t holds the action that *led to* observation t (zeros in the first row): our actions shifted by one.
    A single image is called ``image_t`` and is ``[H, W, C, T]``, as is every image whose name ends with ``_t``; a
    single vector is ``vecobs``.

    Raises:
        ConfigError: the name of ``folder`` is that of another format, or two columns would get the same name.
        RunError: ``folder`` exists, or there is no episode.
    """
    check_target(str(folder), "pydreamer")
    done = Exported(folder)
    with staged_at(folder) as staged:
        for episode in usable(episodes, done.remarks):
            name = f"ep{done.episodes:06}_{done.episodes:06}-r{episode.score:.0f}-{episode.steps:04}.npz"
            write_npz(staged / name, pydreamer_rows(episode.rows))
            done.episodes, done.steps = done.episodes + 1, done.steps + episode.steps
        if not done.episodes:
            raise RunError("the dataset contains no episodes to write.")
    return done


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a compressed npz file. In ``numpy.savez_compressed`` an array cannot be called ``file``."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)


def pydreamer_rows(rows: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the rows of an episode under PyDreamer's names.

    Raises:
        ConfigError: two columns would get the same name.
    """
    action = np.zeros_like(rows["action"])
    action[1:] = rows["action"][:-1]
    reset = np.zeros(len(action), bool)
    reset[0] = True
    obs = {name: value for name, value in rows.items() if name.startswith("obs/")}
    names = pydreamer_names(obs)
    check_distinct(PYDREAMER | {name: name for name in OF_GENERATOR} | names, "PyDreamer's files")
    out = {"action": action, "reward": rows["reward"], "terminal": rows["is_terminal"], "reset": reset}
    for column, value in obs.items():
        last = names[column].endswith("_t") and value.ndim == 4
        out[names[column]] = value.transpose(1, 2, 3, 0) if last else value
    return out


def pydreamer_names(obs: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Return PyDreamer's names of the observations by column, ``obs/KEY``."""
    images = [column for column, value in obs.items() if value.dtype == np.uint8 and value.ndim == 4]
    vectors = [column for column, value in obs.items() if value.dtype == np.float32 and value.ndim == 2]
    usual = {images[0]: "image_t"} if len(images) == 1 else {}
    usual |= {vectors[0]: "vecobs"} if len(vectors) == 1 else {}
    return {column: usual.get(column, column.removeprefix("obs/").replace("/", "_")) for column in obs}


# ---------------------------------------------------------------- Minari


def to_minari(episodes: Iterable[Episode], name: str, segment: Segment, spec: Signature | None) -> Exported:
    """Write a Minari dataset called ``name``, or to a folder if ``name`` is a path that begins with /, . or ~.

    Observations are those of all rows, the last one included; rewards and flags are those of the row after each action.
    An episode without an end is marked as truncated. If ``spec`` is given, one-hot actions become class indices.
    Continuous actions stay in the policy's range [-1, 1].

    Raises:
        ConfigError: the package minari is missing, or too old.
        RunError: the dataset exists, or there is no episode.
    """
    is_path = name[:1] in "/.~"
    named = str(Path(name).expanduser()) if is_path else f"minari:{name}"
    spaces_ = observation_space(segment, spec), action_space(segment, spec)
    remarks: list[str] = []
    found = (minari_rows(episode, spec) for episode in usable(episodes, remarks))
    done = write_minari(found, named, spaces_, {})
    done.remarks += remarks
    return done


def write_minari(
    episodes: Iterable[Mapping[str, Any]], target: str, both: tuple[Any, Any], about: Mapping[str, Any]
) -> Exported:
    """Write a Minari dataset to ``target``, a path or minari:NAME; it is moved there when complete.

    Args:
        episodes: for each episode, the fields of Minari's ``EpisodeBuffer``.
        target: path, or minari:NAME for Minari's own folder.
        both: the observation space and the action space.
        about: further metadata.

    Raises:
        ConfigError: the package minari is missing, or too old, or Minari refuses the name.
        RunError: the dataset exists, the disk is full, or there is no episode.
    """
    try:
        import minari
        from minari.data_collector import EpisodeBuffer
        from minari.dataset.minari_storage import MinariStorage
    except ImportError as error:
        raise ConfigError(f"minari is needed ({error}): pip install 'reverie-rl[minari]'.") from None
    check_target(target, "minari")
    name = target.removeprefix("minari:")
    path = (minari_root() / name if name != target else Path(target).expanduser()).absolute()  # Minari needs it
    done = Exported(path)

    def buffers() -> Iterator[Any]:
        for episode in episodes:
            done.episodes, done.steps = done.episodes + 1, done.steps + len(episode["rewards"])
            check_signals()
            check_room(path, 2 * size_of(episode) + min(CACHED, ABOUT_EPISODE * (done.episodes + 16)))
            group = file.create_group(f"episode_{done.episodes - 1}")
            make_compressed(group, "observations", episode["observations"])
            yield EpisodeBuffer(id=done.episodes - 1, **episode)
        file.flush()  # Minari measures its size next

    with staged_at(path) as staged:
        storage = MinariStorage.new(
            staged / "data", observation_space=both[0], action_space=both[1], jpeg_encoding=False
        )
        versioned = path.name if re.search(r"-v\d+$", path.name) else f"{path.name}-v0"  # Minari reads no other names
        named = re.sub(r"[^\w-]", "-", versioned) if name == target else name
        said = {"dataset_id": named, "minari_version": minari.__version__}
        storage.update_metadata(said | dict(about))
        with hdf5_file(staged / "data" / MAIN) as file:
            storage.update_episodes(buffers())
        if not done.episodes:
            raise RunError("the dataset contains no episodes to write.")
    return done


def make_compressed(group: Any, name: str, values: Any) -> None:
    """Make empty, compressed datasets of the images in ``values``, to which Minari's library adds as it finds them.

    Level 1 of gzip, which every HDF5 library reads, makes Atari's frames 100 times smaller.
    """
    if isinstance(values, Mapping | tuple):
        named = values if isinstance(values, Mapping) else {f"_index_{i}": value for i, value in enumerate(values)}
        for key, inner in named.items():
            make_compressed(group.require_group(name), key, inner)
    elif is_images(values):
        shape, rows = values.shape[1:], max(1, CHUNK * len(values) // max(1, values.nbytes))
        like: dict[str, Any] = {"maxshape": (None, *shape), "chunks": (rows, *shape), "dtype": values.dtype}
        group.create_dataset(name, (0, *shape), compression="gzip", compression_opts=LEVEL, **like)


def size_written(values: Any) -> int:
    """Return roughly how many bytes ``values``, of which images are compressed, take in a file."""
    if isinstance(values, Mapping | tuple):
        return sum(map(size_written, values.values() if isinstance(values, Mapping) else values))
    array = np.asarray(values)
    return len(zlib.compress(array.tobytes(), LEVEL)) if is_images(array) else array.nbytes


def is_images(values: object) -> bool:
    """Return whether ``values`` are images ``[n, H, W]`` or ``[n, H, W, C]``."""
    return isinstance(values, np.ndarray) and values.dtype == np.uint8 and values.ndim > 2


def minari_rows(episode: Episode, spec: Signature | None) -> dict[str, Any]:
    """Return the fields of a Minari episode of n steps: n + 1 observations, n of everything else."""
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
    """Return values with keys such as ``arm/camera`` as nested dictionaries; a single value without ``/`` as it is."""
    if len(values) == 1 and "/" not in next(iter(values)):
        return next(iter(values.values()))
    return tree_of(values)


def decoded_actions(actions: np.ndarray, spec: Signature | None) -> Any:
    """Return flat actions ``[n, A]`` as values of ``action_space``."""
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
    """Return concatenated one-hot vectors as class indices: ``[n]``, or ``[n, choices]`` if there are several."""
    out, start = [], 0
    for count in classes:
        out.append(flat[:, start : start + count].argmax(axis=1))
        start += count
    return out[0] if len(out) == 1 else np.stack(out, axis=1)


def spaces_of(values: Mapping[str, Any]) -> Any:
    """Return spaces by key as one space, nested as by ``nested``."""
    from gymnasium import spaces

    def space(value: Any) -> Any:
        return spaces.Dict({key: space(inner) for key, inner in value.items()}) if isinstance(value, dict) else value

    return space(nested(values))


def observation_space(segment: Segment, spec: Signature | None) -> Any:
    """Return the space of a row's observations."""
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
    """Return the space of class indices ``[*shape]``; ``classes`` has the number of classes of each, in flat order."""
    from gymnasium import spaces

    counts = np.reshape(list(classes), shape)
    return spaces.MultiDiscrete(counts) if shape else spaces.Discrete(int(counts))


def action_space(segment: Segment, spec: Signature | None) -> Any:
    """Return the space of ``decoded_actions``."""
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
