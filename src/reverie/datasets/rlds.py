"""Reads RLDS datasets as TensorFlow Datasets stores them: ``features.json`` and TFRecord shards, without TensorFlow.

A record is one episode. A step has the reward and the discount that followed its action, so they belong to the next
row. The last step has the final observation alone::

    RLDS                              row
    steps/observation[/...]           obs[/...]       numbers, decoded if stored as bytes or images
    steps/action[/...]                action[/...]    zeros in the last row
    ClassLabel, Sequence(length=n)    Discrete, and vectors or stacks; texts and others are left out, with a remark
    steps/reward                      reward          of the next row; without it, there are no rewards
    steps/is_terminal                 is_terminal     of the last row
    the last step has a reward        its observation is repeated as the final one: many robot datasets end so

The reward of the last step may be undefined: 0 and NaN count as none.

Source: github.com/google-research/rlds, "Dataset format"; github.com/tensorflow/datasets, core/example_serializer.py,
core/features/tensor_feature.py, image_feature.py and sequence_feature.py.
"""

from __future__ import annotations

import io
import json
import math
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reverie.core.documents import read_json
from reverie.core.errors import DataError
from reverie.core.files import read_file
from reverie.core.images import plain_mode
from reverie.core.rows import Rows, pad_episode
from reverie.core.specs import FLAGS
from reverie.datasets.inferred_spaces import (
    MeasuredAction,
    classes_space,
    infer_obs_space,
    measured_action,
    nested_space,
)
from reverie.datasets.reader import DatasetInfo, Reader, ReadOptions, Space
from reverie.datasets.source import COPY_ADVICE, Source, missing_files, reading
from reverie.datasets.tfrecord import TruncatedFileError, Values, iter_tfrecords, looks_like_records, parse_tf_example
from reverie.datasets.transitions import UNMARKED

FEATURES, INFO = "features.json", "dataset_info.json"
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Pillow's mode for a number of 8-bit channels."""
FLAT = "ragged_flat_values"
"""Name in the records of the values of a sequence in a step."""
EARLY_FLAGS = "a record has {} before its last step: it is read as one episode, without this flag"
REWARDED_END = "the last step of an episode has a reward: its observation is repeated as the final one"


class Feature(NamedTuple):
    """A feature of a step that consists of numbers or is an image."""

    key: str
    shape: tuple[int, ...]  # -1: varies
    dtype: np.dtype[Any]
    encoding: str  # of the value of a step: "none" (numbers), "bytes", "zlib" or "image"
    classes: int = 0  # number of classes of each element; 0 if it is no class
    lengths: tuple[int, ...] = ()  # of the sequences around the value: the first dimensions of a step


class RLDSReader(Reader):
    """Reads the shards of one split; of a folder with several splits, those of ``train``."""

    format = "RLDS (TFRecord)"

    @classmethod
    def matches(cls, source: Source) -> bool:
        folder = source.path if source.is_folder else source.path.parent
        return (folder / FEATURES).is_file() and (source.is_folder or looks_like_records(source.path))

    def __init__(self, path: Path, options: ReadOptions) -> None:
        super().__init__(path, options)
        description = (path if path.is_dir() else path.parent) / FEATURES
        top = json.loads(read_file(description))["featuresDict"]["features"]
        features = dict(_iter_features(top.get("steps", {}).get("sequence", {}).get("feature", {}), "steps"))
        self.features: dict[str, Feature] = {_column_name(key): f for key, f in features.items() if f}
        unused = [name for name in map(_column_name, features) if not (name in self.features and _is_read(name))]
        unused += [name for name in top if name != "steps"]
        self.add_remark(f"left out: {', '.join(unused)}", bool(unused))
        self.declared: int | None = None
        """Number of episodes that the description of the split declares."""
        self.shards: list[Path] = self._split_shards() if path.is_dir() else [path]
        for root, name in (("obs", "observation"), ("action", "action")):
            if not self._names(root):
                steps_text = ", ".join(features) or "nothing"
                raise DataError(f"{description}: expected 'steps/{name}' of numbers or images, not {steps_text}.")

    def _split_shards(self) -> list[Path]:
        shards: dict[str, list[Path]] = {}
        for shard in sorted(self.path.glob("*.tfrecord*")):
            shards.setdefault(shard.name.partition(".tfrecord")[0].rpartition("-")[2], []).append(shard)
        split = "train" if "train" in shards else next(iter(shards), "")
        if len(shards) > 1:
            self.add_remark(f"only the split '{split}' is read, not {', '.join(shards.keys() - {split})}")
        self.declared = _declared_episodes(self.path / INFO, split)
        missing = missing_files(shards.get(split, ()))
        self.add_remark(missing, int(bool(missing)))
        if not shards:
            file_names = ", ".join(sorted({p.name for p in self.path.glob("*-of-*")})[:3])
            advice = "Write them with file_format='tfrecord'." if file_names else COPY_ADVICE
            raise DataError(
                f"{self.path} has no TFRecord shards, but {FEATURES}{', ' * bool(file_names)}{file_names}. {advice}"
            )
        return shards[split]

    def _note_episodes(self, count: int) -> None:
        """Add a remark if the split has another number of episodes than its description declares."""
        declared = self.declared or count
        remark = f"{INFO} declares {declared:,} episodes, but there are {count:,}: copy the shards again"
        self.add_remark(remark, int(count != declared))

    def _names(self, root: str) -> list[str]:
        return [name for name in self.features if name.partition("/")[0] == root]

    def info(self) -> DatasetInfo:
        leaves: dict[str, Space] = {}
        for name in self._names("obs"):
            feature = self.features[name]
            shape = (*feature.lengths, *feature.shape)
            if -1 in shape:
                shape = next(self._episodes([name]))[name].shape[1:]
            leaves[name] = _feature_space(feature) or infer_obs_space(shape, feature.dtype)
        actions = {name: self._action(name) for name in self._names("action")}
        return DatasetInfo(
            observation=nested_space(leaves, "obs"),
            action=nested_space({name: action.space for name, action in actions.items()}, "action"),
            inferred=True,
            numbered=any(action.numbered for action in actions.values()),
            has_measured_bounds=any(action.measured for action in actions.values()),
            has_rewards="reward" in self.features,
            text={"shards": f"{len(self.shards):,}", "episodes": f"{len(self._lengths):,}"},
        )

    def _action(self, name: str) -> MeasuredAction:
        declared = _feature_space(self.features[name])
        return (
            MeasuredAction(declared, False, False) if declared else measured_action(self, partial(self._actions, name))
        )

    def _actions(self, name: str) -> Iterator[np.ndarray]:
        """Yield the actions of each episode."""
        for episode in self._episodes([name, "reward"]):
            yield episode[name][: num_steps(episode)]

    @cached_property
    def _lengths(self) -> list[int]:
        """Number of rows of each episode."""
        return [num_steps(episode) + 1 for episode in self._episodes(["reward"])]

    def rows(self) -> int:
        return sum(self._lengths)

    def _episodes(self, names: Sequence[str]) -> Iterator[Rows]:
        """Yield the columns ``names``, ``reward`` and ``is_terminal`` of the steps of each episode, ``[n, ...]``."""
        for shard in self.shards:
            try:
                for number, record in enumerate(iter_tfrecords(shard)):
                    yield self._decode(parse_tf_example(record), names, f"{shard}, episode {number:,}")
            except TruncatedFileError as reason:
                raise DataError(f"{shard} is incomplete: {reason}. {COPY_ADVICE}") from None

    def _decode(self, values: Mapping[str, Values], names: Sequence[str], label: str) -> Rows:
        marks = (values.get(f"steps/{name}") for name in ("is_last", "is_first", "reward"))
        count = next((len(column) for column in marks if column is not None), 0)
        episode: Rows = {"reward": np.zeros(count, np.float32), "is_terminal": np.zeros(count, bool)}
        for name in {*names, "reward", "is_terminal"} & self.features.keys():
            feature = self.features[name]
            key, shape, dtype, encoding, _, lengths = feature
            items, count_per_step = values.get(key, ()), math.prod(lengths)
            if encoding != "image" and min(shape, default=0) < 0:
                raise DataError(f"{label}: {key} is declared with the shape {list(shape)}: expected fixed sizes.")
            if not count or len(items) != count * count_per_step * (math.prod(shape) if encoding == "none" else 1):
                sizes = [*lengths, *shape]
                raise DataError(f"{label}: {key} has {len(items):,} values for {count:,} steps of shape {sizes}.")
            with reading(f"{label}: {key}"):
                if encoding == "none":
                    array = np.asarray(items).reshape(count * count_per_step, *shape)
                else:
                    decode = _decode_image if encoding == "image" else _decode_tensor
                    array = np.stack([decode(item, feature) for item in items])
                episode[name] = array.astype(dtype, copy=False).reshape(count, *lengths, *array.shape[1:])
        return episode

    def parts(self) -> Iterator[Rows]:
        obs_names, action_names, rewarded = self._names("obs"), self._names("action"), 0
        early, count = Counter[str](), 0
        for episode in self._episodes([*obs_names, *action_names, *FLAGS]):
            count += 1
            early["is_last"] += int(np.count_nonzero(episode.get("is_last", np.zeros(1))[:-1]))
            early["is_terminal"] += int(np.count_nonzero(episode["is_terminal"][:-1]))
            steps = num_steps(episode)
            repeats = steps == len(episode["reward"])
            rewarded += repeats
            source = np.minimum(np.arange(steps + 1), len(episode["reward"]) - 1)
            obs = {name: episode[name].take(source, axis=0) for name in obs_names}
            actions = {name: episode[name][:steps] for name in action_names}
            reward = episode["reward"][:steps].astype(np.float32)
            yield pad_episode(obs, actions, reward, terminal=episode["is_terminal"][-1])
        self._note_episodes(count)
        self.add_remark(REWARDED_END, rewarded)
        self.add_remark(UNMARKED, int("is_terminal" not in self.features))
        for name, count in early.items():
            self.add_remark(EARLY_FLAGS.format(name), count)


def _declared_episodes(file: Path, split: str) -> int | None:
    """Return the number of episodes of a split in TFDS's description; None if it is unknown."""
    splits = read_json(file).get("splits", []) if file.is_file() else []
    lengths = next((part.get("shardLengths") for part in splits if part.get("name") == split), None)
    return sum(map(int, lengths)) if lengths else None


def num_steps(episode: Rows) -> int:
    """Return the number of actions of an episode: one fewer than its steps, unless the last one has a reward."""
    last = episode["reward"][-1]
    return len(episode["reward"]) - bool(last == 0 or np.isnan(last))


def _column_name(key: str) -> str:
    """Return the name of the rows' column for a feature: ``obs/image`` for ``steps/observation/image``."""
    name = key.removeprefix("steps/")
    return f"obs{name.removeprefix('observation')}" if name.partition("/")[0] == "observation" else name


def _is_read(name: str) -> bool:
    """Return whether a column of this name becomes part of the rows."""
    return name.partition("/")[0] in ("obs", "action") or name in ("reward", *FLAGS)


def _feature_space(feature: Feature) -> Space | None:
    """Return the space of class labels; None for numbers and images."""
    shape = (*feature.lengths, *feature.shape)
    return classes_space([feature.classes] * math.prod(shape), shape) if feature.classes else None


def _iter_features(
    description: Mapping[str, Any], key: str, lengths: tuple[int, ...] = ()
) -> Iterator[tuple[str, Feature | None]]:
    """Yield the features in an entry of ``features.json`` by name; None for those that are not read, such as texts."""
    inner = description.get("sequence", {})
    if "featuresDict" in description:
        for name, part in description["featuresDict"]["features"].items():
            yield from _iter_features(part, f"{key}/{name}", lengths)
    elif inner and (length := int(inner.get("length", -1))) > 0:
        yield from _iter_features(inner.get("feature", {}), key, (*lengths, length))
    else:
        yield key, _leaf(description, f"{key}/{FLAT}" if lengths else key, lengths)


def _leaf(description: Mapping[str, Any], key: str, lengths: tuple[int, ...]) -> Feature | None:
    if (label := description.get("classLabel")) is not None:
        return Feature(key, (), np.dtype(np.int64), "none", int(label.get("numClasses", 0)), lengths)
    kind = "image" if "image" in description else "tensor"
    declared = description.get(kind)
    if not declared or declared.get("dtype", "uint8") in ("string", "object"):
        return None
    shape = tuple(int(size) for size in declared.get("shape", {}).get("dimensions", ()))
    encoding = "image" if kind == "image" else declared.get("encoding") or "none"
    return Feature(key, shape, np.dtype(declared.get("dtype", "uint8")), encoding, lengths=lengths)


def _decode_tensor(data: bytes, feature: Feature) -> np.ndarray:
    """Decode the bytes of a tensor to its declared shape and dtype; ValueError if their number differs."""
    if feature.encoding == "zlib":
        size = math.prod(feature.shape) * feature.dtype.itemsize
        data = zlib.decompressobj().decompress(data, size + 1)  # a few bytes of a stranger can become gigabytes
    return np.frombuffer(data, feature.dtype).reshape(feature.shape)


def _decode_image(data: bytes, feature: Feature) -> np.ndarray:
    """Decode a PNG or JPEG file to ``[H, W, C]``; 8-bit images are converted to the declared number of channels.

    The four bytes of a pixel of a float32 image are stored as RGBA.
    """
    from PIL import Image

    image: Image.Image = Image.open(io.BytesIO(data))
    if feature.dtype == np.uint8:
        if image.mode[0] == "I":  # Pillow would clip the values, and NumPy wrap them
            raise ValueError("the image has 16 bits, not 8 as declared")
        mode = MODES.get(feature.shape[-1])
        image = image.convert(mode) if mode else plain_mode(image)
    pixels = np.asarray(image)
    pixels = pixels if pixels.ndim == 3 else pixels[..., None]
    return pixels.view(np.float32) if feature.dtype == np.float32 else pixels
