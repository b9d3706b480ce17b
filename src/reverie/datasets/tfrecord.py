"""TFRecord files and the tf.Example messages in them, without TensorFlow.

A record is ``uint64 length, uint32 crc(length), bytes, uint32 crc(bytes)``, little-endian. The checksum is a *masked*
CRC32C (Castagnoli): rotated right by 15 bits, plus a constant (``tensorflow/core/lib/hash/crc32c.h``). tf.Example is
a protocol buffer, which Google's ``protobuf`` parses in C: a parser in Python takes minutes for a record of zeros.
"""

from __future__ import annotations

import functools
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
LISTS: dict[str, tuple[str, Any]] = {
    "bytes_list": ("TYPE_BYTES", bytes),
    "float_list": ("TYPE_FLOAT", np.float32),
    "int64_list": ("TYPE_INT64", np.int64),
}
"""The lists that a feature may hold, in the order of their numbers, with the types of protobuf and of NumPy."""
RECORD_COST, VALUE_COST = 1_000, 16
"""Bytes of memory that a record takes besides its own, and that a value of two bytes takes."""


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
                expanded += size + RECORD_COST
                check_expanded(path, stored, max(expanded, size * VALUE_COST // 2))
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


def parse_tf_example(data: bytes) -> dict[str, Values]:
    """Return the features of a tf.Example by name: lists of bytes, float32 arrays or int64 arrays."""
    from google.protobuf.message import DecodeError

    try:
        features = _example_class().FromString(data).features.feature
    except DecodeError as error:
        raise TruncatedFileError(f"a record is not a tf.Example ({error})") from None
    return {name: _values(feature) for name, feature in features.items() if feature.WhichOneof("kind")}


def _values(feature: Any) -> Values:
    """Return the values of a feature."""
    kind = feature.WhichOneof("kind")
    values = getattr(feature, kind).value
    return list(values) if kind == "bytes_list" else np.fromiter(values, LISTS[kind][1], len(values))


@functools.cache
def _example_class() -> Any:
    """Return the class of tf.Example, from its definition (``tensorflow/core/example/*.proto``)."""
    from google.protobuf import message_factory
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool

    file = FileDescriptorProto(name="example.proto", package="tf", syntax="proto3")
    example, features, feature = (file.message_type.add(name=name) for name in ("Example", "Features", "Feature"))
    optional, repeated = Field.LABEL_OPTIONAL, Field.LABEL_REPEATED
    example.field.add(name="features", number=1, label=optional, type=Field.TYPE_MESSAGE, type_name=".tf.Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=optional, type=Field.TYPE_STRING)
    entry.field.add(name="value", number=2, label=optional, type=Field.TYPE_MESSAGE, type_name=".tf.Feature")
    features.field.add(
        name="feature", number=1, label=repeated, type=Field.TYPE_MESSAGE, type_name=".tf.Features.FeatureEntry"
    )
    feature.oneof_decl.add(name="kind")
    for number, (name, (kind, _)) in enumerate(LISTS.items(), 1):
        file.message_type.add(name=name).field.add(name="value", number=1, label=repeated, type=getattr(Field, kind))
        feature.field.add(
            name=name, number=number, label=optional, type=Field.TYPE_MESSAGE, type_name=f".tf.{name}", oneof_index=0
        )
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tf.Example"))
