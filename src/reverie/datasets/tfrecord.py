"""Reads TFRecord files without TensorFlow: the framing with its checksums, and the wire format of tf.Example.

A record is ``uint64 length, uint32 crc(length), bytes, uint32 crc(bytes)``, little-endian. The checksum is a *masked*
CRC32C (Castagnoli): rotated right by 15 bits, plus a constant (``tensorflow/core/lib/hash/crc32c.h``). tf.Example is a
protocol buffer: ``Example{1: Features}``, ``Features{1: map<string, Feature>}``, ``Feature{1: BytesList, 2: FloatList,
3: Int64List}``, each list ``{1: values}``.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from reverie.core.errors import DataError

MASK = 0xA282EAD8
GZIP = b"\x1f\x8b"
BROKEN = (EOFError, zlib.error, OSError)

Values = list[bytes] | np.ndarray


class CutOff(Exception):
    """A file ends in the middle of a record, or a checksum is wrong."""


def masked_crc(data: bytes) -> int:
    """Return the masked CRC32C of ``data``."""
    from google_crc32c import value

    checksum = int(value(data))
    return (((checksum >> 15) | (checksum << 17)) + MASK) & 0xFFFFFFFF


def has_crc(data: bytes, stored: bytes) -> bool:
    """Return whether ``stored`` is the masked CRC32C of ``data``."""
    return masked_crc(data) == int.from_bytes(stored, "little")


def _opened(plain: IO[bytes]) -> IO[bytes]:
    """Return the file, or its decompressed contents if it is compressed by gzip."""
    zipped = plain.read(2) == GZIP
    plain.seek(0)
    return gzip.GzipFile(fileobj=plain, mode="rb") if zipped else plain  # type: ignore[return-value]  # it has read()


def records(path: Path) -> Iterator[bytes]:
    """Yield the records of a file, which may be compressed by gzip; every checksum is verified.

    Raises:
        CutOff: after the records so far, the file is cut off or damaged.
    """
    with path.open("rb") as plain:
        file = _opened(plain)
        while True:
            try:
                head = file.read(12)
                if not head:
                    return
                if len(head) < 12 or not has_crc(head[:8], head[8:]):
                    raise CutOff("it ends within the length of a record, or this is damaged")
                size = struct.unpack("<Q", head[:8])[0] + 4
                body = file.read(size)
            except BROKEN as error:
                raise CutOff(str(error)) from None
            if len(body) < size:
                raise CutOff("it ends within a record")
            if not has_crc(body[:-4], body[-4:]):
                raise CutOff("the checksum of a record is wrong")
            yield body[:-4]


def looks_like_records(path: Path) -> bool:
    """Return True if the file begins with the length of a record and a matching checksum."""
    with path.open("rb") as plain:
        try:
            head = _opened(plain).read(12)
        except BROKEN:
            return False
    return len(head) == 12 and has_crc(head[:8], head[8:])


# ---------------------------------------------------------------- protocol buffers


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode the varint (seven bits per byte) at offset ``at``; return its value and the offset after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at
        shift += 7
        if shift > 63:
            raise DataError("a number in a record has more than 64 bits.")


def fields(data: bytes, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (number, wire type, start, stop) of each field of a message; for varints (wire type 0) start is the value.

    Raises:
        DataError: the bytes are not a valid message.
    """
    at = start
    while at < stop:
        key, at = varint(data, at)
        kind, begin = key & 7, at
        if kind == 0:
            begin, at = varint(data, at)
        elif kind == 2:
            size, begin = varint(data, at)
            at = begin + size
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise DataError(f"a record contains a field of wire type {kind}, which tf.Example does not use.")
        if at > stop:
            raise DataError("a field of a record is longer than the record.")
        yield key >> 3, kind, begin, at


def example(data: bytes) -> dict[str, Values]:
    """Return the features of a tf.Example by name: lists of bytes, float32 arrays or int64 arrays.

    Raises:
        DataError: the bytes are not a tf.Example.
    """
    out: dict[str, Values] = {}
    try:
        for number, _, start, stop in fields(data, 0, len(data)):
            for inner, _, low, high in fields(data, start, stop) if number == 1 else ():
                if inner == 1:
                    entry = {key: (begin, end) for key, _, begin, end in fields(data, low, high)}
                    name = data[slice(*entry.get(1, (0, 0)))].decode()
                    for kind, _, begin, end in fields(data, *entry.get(2, (0, 0))):
                        out[name] = _values(data, kind, begin, end)
    except (IndexError, UnicodeDecodeError):
        raise DataError("a record ends within a number: it is not a tf.Example.") from None
    return out


def _values(data: bytes, kind: int, start: int, stop: int) -> Values:
    """Decode a list; numbers are packed, or one value per field."""
    found = list(fields(data, start, stop))
    if kind != 3:
        parts = [data[low:high] for _, _, low, high in found]
        return parts if kind == 1 else np.frombuffer(b"".join(parts), "<f4")
    numbers: list[int] = []
    for _, wire, low, high in found:
        if wire == 0:
            numbers.append(low)
            continue
        while low < high:
            value, low = varint(data, low)
            numbers.append(value)
    return np.array(numbers, np.uint64).astype(np.int64)  # two's complement
