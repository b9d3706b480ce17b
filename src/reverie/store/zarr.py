"""The Zarr 3 format of a store: the metadata of groups and arrays, and the bytes of a chunk.

Chunks are encoded here and not by the Zarr library: many files must be synchronized together before the manifest counts
them, and replaced atomically, without an event loop. The codecs are Zarr's (Zstandard, then a CRC32C).
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import zstandard

from reverie.core.specs import ColumnSpec
from reverie.store.segment import FORMAT, META, Segment

ZSTD_LEVEL = 1
"""Compression level of Zstandard: the fastest of its standard levels."""
CHUNK_BYTES, BLOCK_BYTES, MAX_CHUNK_ROWS = 4 * 2**20, 256 * 2**20, 4096


def chunk_rows(columns: Iterable[ColumnSpec], streams: int) -> int:
    """Return the number of rows per chunk: a power of two up to ``MAX_CHUNK_ROWS``, 2 to 4 MiB of the largest column.

    Fewer if one chunk of all streams and columns would exceed ``BLOCK_BYTES`` in memory; at least 1.
    """
    sizes = [max(column.nbytes, 1) for column in columns]
    limit = min(MAX_CHUNK_ROWS, CHUNK_BYTES // max(sizes), BLOCK_BYTES // (sum(sizes) * streams))
    return 1 << max(0, limit.bit_length() - 1)


def chunk_name(segment: Segment, column: str, stream: int, number: int) -> str:
    """Return the file name of chunk ``number`` of one stream and column, such as ``0/obs/image/c.2.17.0.0.0``."""
    return f"{segment.name}/{column}/c.{stream}.{number}{'.0' * len(segment.columns[column].shape)}"


@functools.cache
def compressor() -> zstandard.ZstdCompressor:
    """Return the Zstandard compressor for writing: one call compresses many chunks, without holding the GIL."""
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL)


def encode_chunks(chunks: Sequence[np.ndarray]) -> list[tuple[memoryview, bytes]]:
    """Compress chunks of contiguous rows ``[R, *shape]``; return (compressed bytes, CRC32C as 4 bytes) for each."""
    import google_crc32c

    contents: list[Any] = [rows.reshape(-1).view(np.uint8) for rows in chunks]
    pieces: Any = compressor().multi_compress_to_buffer(contents)
    compressed = [memoryview(piece) for piece in pieces]
    return [(piece, struct.pack("<I", google_crc32c.value(bytes(piece)))) for piece in compressed]


def largest_chunk(size: int) -> int:
    """Return the maximum bytes of an encoded chunk of ``size`` bytes (``ZSTD_COMPRESSBOUND`` and the checksum)."""
    return size + size // 128 + 1024


def decode_chunk(data: bytes, out: np.ndarray) -> None:
    """Decode a chunk into the contiguous array ``out`` ``[R, *shape]``."""
    import google_crc32c

    content, checksum = data[:-4], data[-4:]
    if struct.pack("<I", google_crc32c.value(content)) != checksum:
        raise ValueError("does not match its CRC32C checksum")
    if zstandard.frame_content_size(content) != out.nbytes:
        raise ValueError("does not have the size that its zarr.json declares")
    out.reshape(-1).view(np.uint8)[:] = np.frombuffer(zstandard.decompress(content), np.uint8)


def _array_meta(segment: Segment, name: str) -> dict[str, Any]:
    """Return the ``zarr.json`` of a column. Its shape is the number of stored rows."""
    column = segment.columns[name]
    kind = np.dtype(column.dtype)
    grid = {"chunk_shape": [1, segment.chunk, *column.shape]}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [segment.streams, segment.rows - segment.first, *column.shape],
        "data_type": kind.name,
        "chunk_grid": {"name": "regular", "configuration": grid},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": kind.type(0).item(),
        "codecs": [
            {"name": "bytes", "configuration": {"endian": "little"}},
            {"name": "zstd", "configuration": {"level": ZSTD_LEVEL, "checksum": False}},
            {"name": "crc32c"},
        ],
        "attributes": segment.sealed(),
        "dimension_names": ["stream", "row", *(f"axis{i}" for i in range(len(column.shape)))],
    }


def _group_meta(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the ``zarr.json`` of a group."""
    return {"zarr_format": 3, "node_type": "group", "attributes": attributes}


ROOT = _group_meta({"reverie_store": FORMAT})
"""The ``zarr.json`` at the root of a store."""


def segment_metas(segment: Segment) -> dict[str, bytes]:
    """Return every ``zarr.json`` of a segment, by name: first of the group, then of the groups and columns in it."""
    metas = {f"{segment.name}/{META}": _group_meta(segment.sealed())}
    for name in segment.columns:
        parts = name.split("/")
        for depth in range(1, len(parts)):
            metas[f"{segment.name}/{'/'.join(parts[:depth])}/{META}"] = _group_meta({})
        metas[f"{segment.name}/{name}/{META}"] = _array_meta(segment, name)
    return {name: meta_bytes(meta) for name, meta in metas.items()}


def meta_bytes(meta: dict[str, Any]) -> bytes:
    """Return the bytes of a ``zarr.json``."""
    return json.dumps(meta, indent=1).encode()


def chunk_files(segment: Segment, numbers: range) -> Iterator[str]:
    """Yield the file names of the chunks ``numbers`` of every stream and column."""
    for number in numbers:
        for name in segment.columns:
            for stream in range(segment.streams):
                yield chunk_name(segment, name, stream, number)
