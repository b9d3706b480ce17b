"""TensorFlow's record files without TensorFlow: the framing with its checksums, and the wire format of tf.Example.

A record is ``uint64 length, uint32 crc(length), bytes, uint32 crc(bytes)``, little-endian. The checksum is CRC32C
(Castagnoli), turned right by 15 bits and moved on by a constant, so that a checksum of data with checksums in it does
not come out alike (``tensorflow/core/lib/hash/crc32c.h``). tf.Example is a protocol buffer: ``Example{1: Features}``,
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
    """A file ends, or stops making sense, in the middle of a record."""


def crc32c() -> Callable[[bytes], int]:
    """The checksum, from whichever package has a fast one.

    Raises:
        ConfigError: none has.
    """
    try:
        from google_crc32c import value
    except ImportError as error:
        raise ConfigError(f"google-crc32c is needed for checksums ({error}): pip install google-crc32c.") from None
    found: Callable[[bytes], int] = value
    return found


def masked(checksum: int) -> int:
    """The checksum as files have it."""
    return (((checksum >> 15) | (checksum << 17)) + MASK) & 0xFFFFFFFF


def records(path: Path) -> Iterator[bytes]:
    """The records of a file, compressed by gzip or not; every checksum is compared.

    Raises:
        CutOff: what follows the records so far is not whole: the file was cut, or its bytes are not what they were.
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
                    raise CutOff("it ends within the length of a record")
                length, check = struct.unpack("<QI", head)
                if masked(value(head[:8])) != check:
                    raise CutOff("the checksum of a length is wrong")
                body = file.read(length + 4)
            except (EOFError, zlib.error, OSError) as error:
                raise CutOff(str(error)) from None
            if len(body) < length + 4:
                raise CutOff("it ends within a record")
            if masked(value(body[:-4])) != struct.unpack("<I", body[-4:])[0]:
                raise CutOff("the checksum of a record is wrong")
            yield body[:-4]


def unzipped(plain: BinaryIO) -> BinaryIO:
    """What is inside of a file that gzip has compressed; it is closed with ``plain``."""
    return gzip.GzipFile(fileobj=plain, mode="rb")  # type: ignore[return-value]  # it reads as one does


def looks_like_records(path: Path) -> bool:
    """Whether the file begins with the length of a record and its right checksum."""
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
    """The number that begins at ``at``, seven bits a byte, and where it ends."""
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
    """The fields of a message: ``(number, wire type, start, stop)`` of each; numbers are ``(.., 0, value, end)``.

    Raises:
        DataError: it is no message.
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
            raise DataError(f"a record holds a field of wire type {kind}, which tf.Example has not.")
        if end > stop:
            raise DataError("a field of a record is longer than the record.")
        yield key >> 3, kind, at, end
        at = end


def example(data: bytes) -> dict[str, Values]:
    """The features of a tf.Example: lists of bytes, float32 or int64 arrays.

    Raises:
        DataError: it is none.
    """
    out: dict[str, Values] = {}
    try:
        for number, _, start, stop in fields(data):
            if number == 1:
                for inner, _, low, high in fields(data, start, stop):
                    if inner == 1:
                        _entry(data, low, high, out)
    except IndexError:
        raise DataError("a record ends within a number: it is no tf.Example.") from None
    return out


def _entry(data: bytes, start: int, stop: int, out: dict[str, Values]) -> None:
    """One entry of the map: ``{1: key, 2: Feature}``."""
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
    """Packed, or one by one."""
    parts = [data[low:high] for _, _, low, high in fields(data, start, stop)]
    return np.frombuffer(b"".join(parts), "<f4")


def _ints(data: bytes, start: int, stop: int) -> Values:
    """Packed, or one by one; two's complement of 64 bits."""
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
