"""Converts Arrow arrays to NumPy arrays: numbers, nested lists, tensors and images."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reverie.core.errors import DataError
from reverie.core.files import check_expanded, read_file
from reverie.core.images import open_image
from reverie.datasets.source import import_optional, import_pyarrow
from reverie.datasets.transitions import LazyColumn

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


def is_list(arrow: Any, kind: Any) -> bool:
    """Return whether the values of an Arrow type are lists."""
    return has_own_lengths(arrow, kind) or bool(arrow.types.is_fixed_size_list(kind))


def has_own_lengths(arrow: Any, kind: Any) -> bool:
    """Return whether the values of an Arrow type are lists of any lengths."""
    types = arrow.types
    names = ("list", "large_list", "list_view", "large_list_view")
    return any(getattr(types, f"is_{name}")(kind) for name in names)


def to_plain(array: Any) -> Any:
    """Return an array in Arrow's plain layout: dictionaries, runs of equal values and views are only other layouts."""
    arrow = import_pyarrow()
    kind, types = array.type, arrow.types
    if types.is_dictionary(kind):
        return to_plain(array.dictionary).take(array.indices)
    if types.is_run_end_encoded(kind):
        return to_plain(import_optional("pyarrow.compute", "arrow").run_end_decode(array))
    if types.is_list_view(kind) or types.is_large_list_view(kind):  # Arrow 26 casts them with a wrong last offset
        lengths = import_optional("pyarrow.compute", "arrow").list_value_length(array).fill_null(0)
        offsets = np.append(0, np.cumsum(lengths.to_numpy(zero_copy_only=False)))
        return arrow.LargeListArray.from_arrays(arrow.array(offsets, arrow.int64()), array.flatten())
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return array.cast(arrow.large_string() if types.is_string_view(kind) else arrow.large_binary())
    return array


def arrow_to_numpy(arrow: Any, array: Any, label: str, row: int = 0, folder: Path | None = None) -> np.ndarray:
    """Convert an Arrow array to NumPy, ``[n, ...]``.

    Lists become dimensions; compressed images are decoded, and read if the table has only their paths in ``folder``.
    Only floats may be missing: they become NaN. ``label`` and ``row``, the number of the first one, are for messages.
    """
    if isinstance(array, arrow.ExtensionArray):
        return arrow_to_numpy(arrow, array.storage, label, row, folder)
    array = to_plain(array)
    if arrow.types.is_decimal(array.type):
        array = array.cast(arrow.float64())
    kind, types = array.type, arrow.types
    if array.null_count and not types.is_floating(kind):
        raise DataError(f"{label} has no value in some rows: expected one in each.")
    if (images := _images_in(arrow, array)) is not None:
        return decode_images([_image_bytes(image, label, folder) for image in images], label, row)
    if is_list(arrow, kind):
        if not types.is_fixed_size_list(kind):
            lengths = np.asarray(array.value_lengths().to_numpy(zero_copy_only=False))
            if len(lengths) and (lengths != lengths[0]).any():
                raise DataError(f"{label} has lists of different lengths: {lengths.min()} to {lengths.max()}.")
        inner = arrow_to_numpy(arrow, array.flatten(), label, folder=folder)
        return inner.reshape(len(array), len(inner) // max(1, len(array)), *inner.shape[1:])
    if types.is_struct(kind):
        names = ", ".join(field.name for field in kind)
        raise DataError(f"{label} is a struct with the fields {names}: expected one of them, by its name after a dot.")
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise DataError(
            f"{label} contains {kind}: expected numbers, lists of numbers, or images. Encode text as numbers first."
        )
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _images_in(arrow: Any, array: Any) -> list[Mapping[str, Any] | None] | None:
    """Return the content or the paths of images in an array, as Hugging Face names them; None if it has no images."""
    kind, types = array.type, arrow.types
    if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        images: list[Mapping[str, Any] | None] = array.to_pylist()
        return images
    if types.is_binary(kind) or types.is_large_binary(kind):
        return [{"bytes": content} for content in array.to_pylist()]
    is_text = types.is_string(kind) or types.is_large_string(kind)
    if is_text and len(array) and Path(array[0].as_py()).suffix.lower() in IMAGE_SUFFIXES:
        return [{"path": path} for path in array.to_pylist()]
    return None


def _image_bytes(image: Mapping[str, Any] | None, label: str, folder: Path | None) -> bytes:
    """Return the content of an image that a table contains, or whose path in ``folder`` it contains."""
    if image is None or not (image.get("bytes") or image.get("path")):
        raise DataError(f"{label} has neither the content nor the path of an image in some rows: expected one in each.")
    if image.get("bytes"):
        return bytes(image["bytes"])
    root = (folder or Path()).resolve()
    file = (root / str(image["path"])).resolve()
    if folder is None or not file.is_relative_to(root) or not file.is_file():
        raise DataError(
            f"{label} has the path of an image, {image['path']}, which is not in {root}. Copy the images there, or "
            "store their content in the table."
        )
    return read_file(file)


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


def declared_axes(field: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the stored shape of a field's tensors, and the order of its axes; None if it declares no tensors.

    The types are Arrow's ``fixed_shape_tensor`` and those of Ray Data, which pyarrow reads as lists if Ray is missing.
    """
    kind = field.type
    if isinstance(kind, import_pyarrow().FixedShapeTensorType):
        return tuple(kind.shape), tuple(kind.permutation or range(len(kind.shape)))
    metadata = field.metadata or {}
    if metadata.get(b"ARROW:extension:name") not in (b"ray.data.arrow_tensor", b"ray.data.arrow_tensor_v2"):
        return None
    shape = tuple(map(int, json.loads(metadata[b"ARROW:extension:metadata"])))
    return shape, tuple(range(len(shape)))


def to_tensors(column: LazyColumn, shape: tuple[int, ...], axes: tuple[int, ...], label: str) -> LazyColumn:
    """Return values ``[n, size]`` as tensors ``[n, ...]`` of a stored ``shape``, with their ``axes`` in this order."""
    if math.prod(shape) != math.prod(column.shape[1:]) or sorted(axes) != [*range(len(shape))]:
        raise DataError(f"{label} declares tensors of shape {list(shape)}, but has {list(column.shape[1:])}.")

    def read(start: int, stop: int) -> np.ndarray:
        tensors = column.read(start, stop).reshape(stop - start, *shape)
        return tensors.transpose(0, *(axis + 1 for axis in axes))

    return LazyColumn((column.shape[0], *(shape[axis] for axis in axes)), column.dtype, read)
