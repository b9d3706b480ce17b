"""TFRecord files and the tf.Example messages in them, without TensorFlow.

A record is ``uint64 length, uint32 crc(length), bytes, uint32 crc(bytes)``, little-endian. The checksum is a *masked*
CRC32C (Castagnoli): rotated right by 15 bits, plus a constant (``tensorflow/core/lib/hash/crc32c.h``). tf.Example is
a protocol buffer: ``Example{1: Features}``, ``Features{1: map<string, Feature>}``, ``Feature{1: BytesList, 2:
FloatList, 3: Int64List}``, each list ``{1: values}``.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from reverie.core.files import check_expanded
from reverie.datasets.source import GZIP, open_data

MASK = 0xA282EAD8
BROKEN = (EOFError, zlib.error, OSError)
Values = list[bytes] | np.ndarray


class TruncatedFileError(Exception):
    """A file ends in the middle of a record, or a checksum is wrong."""


def _has_crc(data: bytes, stored: bytes) -> bool:
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
    stored, expanded = path.stat().st_size, 0
    with open_data(path) as plain:
        file = _decompress(plain)
        while True:
            try:
                head = file.read(12)
                if not head:
                    return
                size = int.from_bytes(head[:8], "little") + 4 if _has_crc(head[:8], head[8:]) else 0
                expanded += size
                check_expanded(path, stored, expanded)
                body = file.read(size)
            except BROKEN as error:
                raise TruncatedFileError(str(error)) from None
            if not _has_crc(body[:-4], body[-4:]):
                raise TruncatedFileError("it ends within a record, or a checksum is wrong")
            yield body[:-4]


def looks_like_records(path: Path) -> bool:
    """Return whether the file begins with the length of a record and a matching checksum."""
    with open_data(path) as plain:
        head = _decompress(plain).read(12)
    return len(head) == 12 and _has_crc(head[:8], head[8:])


def _decode_varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode the varint (seven bits per byte) at offset ``at``; return its value and the offset after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at
        shift += 7


def _iter_protobuf_fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (number, value) of each field of a message: bytes, or the value of a varint."""
    at = 0
    while at < len(data):
        key, at = _decode_varint(data, at)
        if key & 7 == 0:
            value: int | bytes
            value, at = _decode_varint(data, at)
        else:
            size, at = _decode_varint(data, at) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], at)
            value, at = data[at : at + size], at + size
        yield key >> 3, value


def parse_tf_example(data: bytes) -> dict[str, Values]:
    """Return the features of a tf.Example by name: lists of bytes, float32 arrays or int64 arrays."""
    out: dict[str, Values] = {}
    for features in (value for number, value in _iter_protobuf_fields(data) if number == 1):
        for entry in (value for number, value in _iter_protobuf_fields(features) if number == 1):
            feature = dict(_iter_protobuf_fields(entry))
            for kind, values in _iter_protobuf_fields(feature.get(2, b"")):
                out[feature.get(1, b"").decode()] = _values(kind, [value for _, value in _iter_protobuf_fields(values)])
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
            number, at = _decode_varint(value, at)
            numbers.append(number)
        numbers += [value] if isinstance(value, int) else []
    return np.array(numbers, np.uint64).astype(np.int64)  # two's complement
