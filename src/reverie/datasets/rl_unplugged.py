"""Reads RL Unplugged's Atari shards: TFRecord files of transitions, with four PNG frames before and after each action.

``d_t`` is a discount: 0 when the game is over. The format neither marks truncations nor guarantees an order. Therefore
an episode continues if the next record begins with exactly the final frames of this record. Otherwise it is truncated.
"""

from __future__ import annotations

import gzip
import io
import itertools
import re
import zlib
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError
from reverie.core.rows import Rows
from reverie.core.types import FLAGS
from reverie.datasets.reader import DatasetInfo, Reader, ReadOptions, list_files

MASK = 0xA282EAD8
GZIP = b"\x1f\x8b"
BROKEN = (EOFError, zlib.error, OSError)

Values = list[bytes] | np.ndarray
REQUIRED_FEATURES = ("o_t", "o_tp1", "a_t", "r_t", "d_t")
BLOCK = 512
"""Number of rows in one part: 14 MB of frames."""
SHARD = re.compile(r"run_\d+-\d{5}-of-\d{5}")
Decode = Callable[[bytes], np.ndarray]


class Record(NamedTuple):
    """One transition; its frames are still compressed."""

    before: list[bytes]
    after: list[bytes]
    action: int
    reward: float
    terminal: bool
    episode: int

    @classmethod
    def from_features(cls, values: dict[str, Values], label: str) -> Record:
        """Make a record from the features of a tf.Example; ``label`` is for messages."""
        if missing := [name for name in REQUIRED_FEATURES if name not in values or not len(values[name])]:
            raise DataError(f"{label} has no {', '.join(missing)}: expected transitions of RL Unplugged's Atari.")
        before, after = list(values["o_t"]), list(values["o_tp1"])
        episode = values.get("episode_id", [0])
        action, reward, discount = (values[name][0] for name in ("a_t", "r_t", "d_t"))
        return cls(before, after, int(action), float(reward), float(discount) == 0.0, int(episode[0]))

    def leads_to(self, record: Record) -> bool:
        """Return whether ``record`` continues the episode: it begins with the final frames of this record."""
        return not self.terminal and self.episode == record.episode and self.after == record.before


class ShardSummary(NamedTuple):
    """Result of one pass over all records: their number, the largest action plus 1, ``shape`` ``[H, W, frames]``."""

    transitions: int
    episodes: int
    actions: int
    shape: tuple[int, ...]


class RLUnpluggedReader(Reader):
    """Reads one shard, or all shards of a folder."""

    format = "RL Unplugged Atari (TFRecord)"

    def __init__(self, path: Path, options: ReadOptions) -> None:
        super().__init__(path, options)
        self.paths: list[Path] = shards_in(path) if path.is_dir() else [path]

    def supports_option(self, option: str) -> bool:
        return option == "partial"

    def info(self) -> DatasetInfo:
        scan, game = self._scan, self.paths[0].parent.name
        text = {"shards": f"{len(self.paths):,}", "transitions": f"{scan.transitions:,}"}
        text |= {"game": game} if game else {}
        observation, action = spaces.Box(0, 255, scan.shape, np.uint8), spaces.Discrete(max(2, scan.actions))
        return DatasetInfo(observation=observation, action=action, has_measured_bounds=True, text=text)

    def rows(self) -> int:
        return self._scan.transitions + self._scan.episodes

    @cached_property
    def _scan(self) -> ShardSummary:
        transitions = ends = actions = 0
        shape: tuple[int, ...] = ()
        for record, end in self._with_ends():
            shape = shape or decode_frame_stack(record.before, decode_gray_png).shape
            transitions, ends, actions = transitions + 1, ends + end, max(actions, record.action + 1)
        return ShardSummary(transitions, ends, actions, shape)

    def _records(self) -> Iterator[Record]:
        for path in self.paths:
            count = 0
            try:
                for record in iter_tfrecords(path):
                    yield Record.from_features(parse_tf_example(record), f"{path}, record {count}")
                    count += 1
            except TruncatedFileError as reason:
                problem = f"{path} is incomplete: {reason}. Only {count:,} transitions can be read"
                if not self.options.partial:
                    advice = "Download the shard again, or pass --data.partial to use these."
                    raise DataError(f"{problem}. {advice}") from None
                self.add_remark(problem)

    def _with_ends(self) -> Iterator[tuple[Record, bool]]:
        """Yield every record, and whether its episode ends with it."""
        previous: Record | None = None
        for record in self._records():
            if previous is not None:
                yield previous, not previous.leads_to(record)
            previous = record
        if previous is not None:
            yield previous, True

    def parts(self) -> Iterator[Rows]:
        rows = self._rows()
        decode = lru_cache(64)(decode_gray_png)  # a frame is in several neighboring stacks
        while chunk := list(itertools.islice(rows, BLOCK)):
            stacks, action, reward, *flags = zip(*chunk, strict=True)
            block: dict[str, np.ndarray] = {name: np.array(flag) for name, flag in zip(FLAGS, flags, strict=True)}
            block["obs"] = np.stack([decode_frame_stack(stack, decode) for stack in stacks])
            block["action"], block["reward"] = np.array(action, np.int64), np.array(reward, np.float32)
            yield block

    def _rows(self) -> Iterator[tuple[list[bytes], int, float, bool, bool, bool]]:
        """Yield the compressed frames of each row, its action, its reward and its flags."""
        reward, first = 0.0, True
        for record, end in self._with_ends():
            yield record.before, record.action, reward, first, False, False
            reward, first = record.reward, False
            if end:
                yield record.after, 0, reward, False, True, record.terminal
                reward, first = 0.0, True


def decode_frame_stack(pictures: list[bytes], decode: Decode) -> np.ndarray:
    """Return decoded frames as ``[H, W, frames]``, oldest first."""
    return np.stack([decode(picture) for picture in pictures], axis=-1)


def decode_gray_png(picture: bytes) -> np.ndarray:
    """Decode an image to grayscale, uint8 ``[H, W]``."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(picture)).convert("L"), np.uint8)


def shards_in(path: Path) -> list[Path]:
    """Return the shards in a folder, sorted by name."""
    return sorted({*list_files(path, "TFRecord"), *(p for p in path.iterdir() if SHARD.fullmatch(p.name))})


# ---------------------------------------------------------------- TFRecord files and tf.Example

# A record is ``uint64 length, uint32 crc(length), bytes, uint32 crc(bytes)``, little-endian. The checksum is a *masked*
# CRC32C (Castagnoli): rotated right by 15 bits, plus a constant (``tensorflow/core/lib/hash/crc32c.h``). tf.Example is
# a protocol buffer: ``Example{1: Features}``, ``Features{1: map<string, Feature>}``, ``Feature{1: BytesList, 2:
# FloatList, 3: Int64List}``, each list ``{1: values}``.


class TruncatedFileError(Exception):
    """A file ends in the middle of a record, or a checksum is wrong."""


def has_crc(data: bytes, stored: bytes) -> bool:
    """Return whether ``stored`` is the masked CRC32C of ``data``."""
    from google_crc32c import value

    checksum = int(value(data))
    masked = (((checksum >> 15) | (checksum << 17)) + MASK) & 0xFFFFFFFF
    return masked == int.from_bytes(stored, "little")


def _decompress(plain: IO[bytes]) -> IO[bytes]:
    """Return the file, or its decompressed contents if it is compressed with gzip."""
    zipped = plain.read(2) == GZIP
    plain.seek(0)
    return gzip.GzipFile(fileobj=plain, mode="rb") if zipped else plain  # type: ignore[return-value]  # it has read()


def iter_tfrecords(path: Path) -> Iterator[bytes]:
    """Yield the records of a file, optionally compressed with gzip; every checksum is verified."""
    with path.open("rb") as plain:
        file = _decompress(plain)
        while True:
            try:
                head = file.read(12)
                if not head:
                    return
                size = int.from_bytes(head[:8], "little") + 4
                body = file.read(size) if has_crc(head[:8], head[8:]) else b""
            except BROKEN as error:
                raise TruncatedFileError(str(error)) from None
            if not has_crc(body[:-4], body[-4:]):
                raise TruncatedFileError("it ends within a record, or a checksum is wrong")
            yield body[:-4]


def looks_like_records(path: Path) -> bool:
    """Return whether the file begins with the length of a record and a matching checksum."""
    with path.open("rb") as plain:
        head = _decompress(plain).read(12)
    return len(head) == 12 and has_crc(head[:8], head[8:])


def decode_varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode the varint (seven bits per byte) at offset ``at``; return its value and the offset after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at
        shift += 7


def iter_protobuf_fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (number, value) of each field of a message: bytes, or the value of a varint."""
    at = 0
    while at < len(data):
        key, at = decode_varint(data, at)
        if key & 7 == 0:
            value: int | bytes
            value, at = decode_varint(data, at)
        else:
            size, at = decode_varint(data, at) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], at)
            value, at = data[at : at + size], at + size
        yield key >> 3, value


def parse_tf_example(data: bytes) -> dict[str, Values]:
    """Return the features of a tf.Example by name: lists of bytes, float32 arrays or int64 arrays."""
    out: dict[str, Values] = {}
    for features in (value for number, value in iter_protobuf_fields(data) if number == 1):
        for entry in (value for number, value in iter_protobuf_fields(features) if number == 1):
            feature = dict(iter_protobuf_fields(entry))
            for kind, values in iter_protobuf_fields(feature.get(2, b"")):
                out[feature.get(1, b"").decode()] = _values(kind, [value for _, value in iter_protobuf_fields(values)])
    return out


def _values(kind: int, items: list[Any]) -> Values:
    """Return a list of bytes (kind 1), floats (2) or integers (3); numbers are packed, or one value per field."""
    if kind == 1:
        return items
    if kind == 2:
        return np.frombuffer(b"".join(items), "<f4")
    numbers: list[int] = []
    for value in items:
        at = 0
        while isinstance(value, bytes) and at < len(value):
            number, at = decode_varint(value, at)
            numbers.append(number)
        numbers += [value] if isinstance(value, int) else []
    return np.array(numbers, np.uint64).astype(np.int64)  # two's complement
