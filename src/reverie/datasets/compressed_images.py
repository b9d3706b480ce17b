"""Compressed images in arrays: byte strings of any length, or rows of bytes that end with zeros."""

from __future__ import annotations

import io

import numpy as np

from reverie.core.errors import DataError
from reverie.core.files import check_expanded
from reverie.core.images import open_image
from reverie.datasets.transitions import LazyColumn

PADDED = (b"\x89PNG\r\n\x1a\n", *(b"\xff\xd8\xff" + marker for marker in (b"\xdb", b"\xe0", b"\xe1", b"\xee")))
"""First bytes of PNG and JPEG files, which rows of numbers do not have."""
SIGNATURES = (*PADDED, b"\xff\xd8\xff", b"RIFF", b"GIF8", b"BM", b"II*\0", b"MM\0*")
"""First bytes of these and of WebP, GIF, BMP and TIFF files."""


def decode_images(images: list[bytes], label: str, row: int = 0) -> np.ndarray:
    """Decode images to ``[n, H, W, C]``, or ``[n, H, W]`` if grayscale; ``label`` and ``row``: see ``arrow_to_numpy``.

    They are uint8, except gray images of more bits, such as depth: these keep their uint16, int32 or float32.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        sizes = [Image.open(io.BytesIO(image)).size for image in images]
        check_expanded(label, sum(map(len, images)), sum(width * height for width, height in sizes))
        pictures = [open_image(image) for image in images]
    except UnidentifiedImageError:
        raise DataError(
            f"{label} has bytes that are no image from row {row:,} on: expected files such as PNG or JPEG. Store "
            "arrays as lists of numbers."
        ) from None
    kinds = [f"{picture.mode} images of {picture.height} x {picture.width} pixels" for picture in pictures]
    if odd := next((index for index, kind in enumerate(kinds) if kind != kinds[0]), 0):
        raise DataError(f"{label} has {kinds[odd]} in row {row + odd:,}, but {kinds[0]} before: expected one kind.")
    return np.stack([np.asarray(picture) for picture in pictures])


def are_images(rows: np.ndarray) -> bool:
    """Return whether the first of some rows, ``[n]`` or padded ``[n, bytes]``, is a compressed image."""
    first = rows[0] if len(rows) else None
    if isinstance(first, np.ndarray):
        is_row = first.ndim == 1 and first.dtype == np.uint8
        return is_row and first.tobytes().startswith(PADDED if rows.ndim == 2 else SIGNATURES)
    return isinstance(first, bytes) and first.startswith(SIGNATURES)


def decode_rows(rows: np.ndarray, label: str, row: int = 0) -> np.ndarray:
    """Return rows of compressed images, see :func:`are_images`, as arrays."""
    return decode_images([bytes(image) for image in rows], label, row)


def decode_column(column: LazyColumn, label: str) -> LazyColumn:
    """Return a column of compressed images, see :func:`are_images`, as one of arrays; other columns as they are."""
    if not column.shape[0] or not are_images(first := column.read(0, 1)):
        return column
    sample = decode_rows(first, label)
    shape = (column.shape[0], *sample.shape[1:])
    return LazyColumn(shape, sample.dtype, lambda start, stop: decode_rows(column.read(start, stop), label, start))
