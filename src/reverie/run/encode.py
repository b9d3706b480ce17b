"""State dictionaries to JSON with references to named tensors, and back. Decoding can only create plain data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.core.errors import RunError

TENSOR, ARRAY, FLOAT, TUPLE, ITEMS = "__tensor__", "__array__", "__float__", "__tuple__", "__items__"
"""A JSON object with one of these as its only key encodes a type that JSON does not have."""


def encode(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Return ``value`` as strict JSON; tensors and arrays in it are copied to ``tensors`` under their paths."""
    if isinstance(value, Tensor):
        return {TENSOR: _store(value.detach().to("cpu", copy=True).contiguous(), path, tensors)}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        native = np.array(value, dtype=value.dtype.newbyteorder("="), order="C")
        return {ARRAY: _store(torch.from_numpy(native), path, tensors)}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {FLOAT: repr(value)}
    if isinstance(value, list | tuple):
        entries = [encode(v, f"{path}/{i}", tensors) for i, v in enumerate(value)]
        return {TUPLE: entries} if isinstance(value, tuple) else entries
    if isinstance(value, Mapping):
        return _encode_mapping(value, path, tensors)
    raise RunError(
        f"cannot save {path}: a checkpoint can hold tensors, arrays and plain data, but not {type(value).__name__}."
    )


def decode(value: Any, tensor: Callable[[str], Tensor]) -> Any:
    """Return the value that ``encode`` was given; ``tensor`` returns a tensor by its name."""
    if isinstance(value, list):
        return [decode(v, tensor) for v in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (mark, content), *_ = value.items()
        if mark == TENSOR:
            return tensor(content)
        if mark == ARRAY:
            return tensor(content).numpy()
        if mark == FLOAT:
            return float(content)
        if mark == TUPLE:
            return tuple(decode(v, tensor) for v in content)
        if mark == ITEMS:
            return {decode(k, tensor): decode(v, tensor) for k, v in content}
    return {k: decode(v, tensor) for k, v in value.items()}


def _encode_mapping(value: Mapping[Any, Any], path: str, tensors: dict[str, Tensor]) -> Any:
    entries = {k: encode(v, f"{path}/{k}", tensors) for k, v in value.items()}
    marks = (TENSOR, ARRAY, FLOAT, TUPLE, ITEMS)
    if all(isinstance(k, str) and k not in marks for k in entries):
        return entries
    return {ITEMS: [[encode(k, f"{path} (a key)", tensors), v] for k, v in entries.items()]}


def _store(value: Tensor, path: str, tensors: dict[str, Tensor]) -> str:
    """Store ``value`` and return its name: ``path``, made unique, as ``{"a/b": x}`` and ``{"a": {"b": y}}`` collide."""
    name, number = path, 2
    while name in tensors:
        name, number = f"{path}~{number}", number + 1
    tensors[name] = value
    return name
