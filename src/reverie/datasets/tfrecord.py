"""Reads TFRecord files without TensorFlow: the framing with its checksums, and the wire format of tf.Example.

A record is ``uint64 length, uint32 crc(length), bytes, uint32 crc(bytes)``, little-endian. The checksum is a *masked*
CRC32C (Castagnoli): rotated right by 15 bits, plus a constant, because the CRC of data that contains its own CRC has
poor properties (``tensorflow/core/lib/hash/crc32c.h``). tf.Example is a protocol buffer: ``Example{1: Features}``,
``Features{1: map<string, Feature>}``, ``Feature{1: BytesList, 2: FloatList, 3: Int64List}``, each list ``{1: values}``.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from reverie.core.errors import ConfigError, DataError

MASK = 0xA282EAD8
GZIP = b"\x1f\x8b"

Values = list[bytes] | np.ndarray


class CutOff(Exception):
    """A file ends in the middle of a record, or a checksum is wrong."""


def crc32c() -> Callable[[bytes], int]:
    """Return the function that computes a CRC32C, from the package google-crc32c.

    Raises:
        ConfigError: the package is not installed.
    """
    try:
        from google_crc32c import value
    except ImportError as error:
        raise ConfigError(f"google-crc32c is needed for checksums ({error}): pip install google-crc32c.") from None
    found: Callable[[bytes], int] = value
    return found


def masked(checksum: int) -> int:
    """Return the masked form of a CRC32C."""
    return (((checksum >> 15) | (checksum << 17)) + MASK) & 0xFFFFFFFF


def records(path: Path) -> Iterator[bytes]:
    """Yield the records of a file, which may be compressed by gzip; every checksum is verified.

    Raises:
        CutOff: after the records so far, the file is cut off or damaged.
    """
    value = crc32c()
    with path.open("rb") as plain:
        zipped = plain.read(2) == GZIP
        plain.seek(0)
        file: BinaryIO = unzipped(plain) if zipped else plain
        while True:
            try:
                head = file.read(12)
                if not head:
                    return
                if len(head) < 12:
                    raise CutOff("it ends within the length field of a record")
                length, check = struct.unpack("<QI", head)
                if masked(value(head[:8])) != check:
                    raise CutOff("the checksum of a record's length is wrong")
                body = file.read(length + 4)
            except (EOFError, zlib.error, OSError) as error:
                raise CutOff(str(error)) from None
            if len(body) < length + 4:
                raise CutOff("it ends within a record")
            if masked(value(body[:-4])) != struct.unpack("<I", body[-4:])[0]:
                raise CutOff("the checksum of a record is wrong")
            yield body[:-4]


def unzipped(plain: BinaryIO) -> BinaryIO:
    """Return the decompressed contents of a gzip file, as a file; closed together with ``plain``."""
    return gzip.GzipFile(fileobj=plain, mode="rb")  # type: ignore[return-value]  # it has the methods used here


def looks_like_records(path: Path) -> bool:
    """Return True if the file begins with the length of a record and a matching checksum."""
    with path.open("rb") as plain:
        zipped = plain.read(2) == GZIP
        plain.seek(0)
        try:
            head = (unzipped(plain) if zipped else plain).read(12)
        except (OSError, EOFError, zlib.error):
            return False
    return len(head) == 12 and masked(crc32c()(head[:8])) == struct.unpack("<I", head[8:])[0]


# ---------------------------------------------------------------- protocol buffers


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode the varint (seven bits per byte) at offset ``at``; return its value and the offset after it.

    Raises:
        DataError: it has more than 64 bits.
    """
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


def fields(data: bytes, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, int, int, int]]:
    """Yield (number, wire type, start, stop) of each field of a message; for varints (wire type 0) start is the value.

    Raises:
        DataError: the bytes are not a valid message.
    """
    at, stop = start, len(data) if stop is None else stop
    while at < stop:
        key, at = varint(data, at)
        kind = key & 7
        if kind == 2:
            size, at = varint(data, at)
            end = at + size
        elif kind == 0:
            value, end = varint(data, at)
            yield key >> 3, kind, value, end
            at = end
            continue
        elif kind in (1, 5):
            end = at + (8 if kind == 1 else 4)
        else:
            raise DataError(f"a record contains a field of wire type {kind}, which tf.Example does not use.")
        if end > stop:
            raise DataError("a field of a record is longer than the record.")
        yield key >> 3, kind, at, end
        at = end


def example(data: bytes) -> dict[str, Values]:
    """Return the features of a tf.Example by name: lists of bytes, float32 arrays or int64 arrays.

    Raises:
        DataError: the bytes are not a tf.Example.
    """
    out: dict[str, Values] = {}
    try:
        for number, _, start, stop in fields(data):
            if number == 1:
                for inner, _, low, high in fields(data, start, stop):
                    if inner == 1:
                        _entry(data, low, high, out)
    except IndexError:
        raise DataError("a record ends within a number: it is not a tf.Example.") from None
    return out


def _entry(data: bytes, start: int, stop: int, out: dict[str, Values]) -> None:
    """Add one entry of the map, ``{1: key, 2: Feature}``, to ``out``."""
    name, feature = "", None
    for number, _, low, high in fields(data, start, stop):
        if number == 1:
            name = data[low:high].decode()
        elif number == 2:
            feature = (low, high)
    if feature is None:
        return
    for kind, _, low, high in fields(data, *feature):
        out[name] = LISTS[kind](data, low, high) if kind in LISTS else []


def _bytes(data: bytes, start: int, stop: int) -> Values:
    return [data[low:high] for _, _, low, high in fields(data, start, stop)]


def _floats(data: bytes, start: int, stop: int) -> Values:
    """Decode a FloatList, packed or one value per field."""
    parts = [data[low:high] for _, _, low, high in fields(data, start, stop)]
    return np.frombuffer(b"".join(parts), "<f4")


def _ints(data: bytes, start: int, stop: int) -> Values:
    """Decode an Int64List, packed or one value per field; 64-bit two's complement."""
    found: list[int] = []
    for _, kind, low, high in fields(data, start, stop):
        if kind == 0:
            found.append(low)
            continue
        while low < high:
            value, low = varint(data, low)
            found.append(value)
    return np.array(found, np.uint64).astype(np.int64)


LISTS: dict[int, Callable[[bytes, int, int], Values]] = {1: _bytes, 2: _floats, 3: _ints}
