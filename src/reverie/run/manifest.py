"""The manifest of a checkpoint: the size and SHA-256 of every file; and the state as JSON and named tensors.

Decoding a state can only create plain data.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reverie.core.documents import read_json
from reverie.core.errors import RunError
from reverie.core.files import below

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 2
TENSORS, STATE, MANIFEST = "tensors.safetensors", "state.json", "manifest.json"
TENSOR, ARRAY, FLOAT, TUPLE, ITEMS = "__tensor__", "__array__", "__float__", "__tuple__", "__items__"
"""A JSON object with one of these as its only key encodes a type that JSON lacks."""


def checkpoint_step(path: Path) -> int:
    """Return the step at which the checkpoint at ``path`` was written, independent of the folder's name."""
    try:
        return int(read_manifest(path)["step"])
    except (ValueError, TypeError, KeyError) as error:
        raise RunError(f"checkpoint file {path / MANIFEST} is damaged ({error!r}).") from error


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of the checkpoint at ``path``, whose files are all in its folder."""
    manifest = read_json(path / MANIFEST, "Use another checkpoint.")
    for name in manifest.get("files") or ():
        below(path, name)
    return manifest


def checkpoint_problem(path: Path) -> str:
    """Describe the problem of the checkpoint at ``path`` briefly; "" if it is intact."""
    try:
        verify(path)
    except RunError as error:
        words = str(error).removeprefix("checkpoint ").replace(f"{path}{os.sep}", "").replace(f"{path} ", "")
        return words.removeprefix("file ").rstrip(".")
    return ""


def verify(path: Path) -> dict[str, Any]:
    """Return the manifest of the checkpoint at ``path`` after checking every file against it."""
    manifest_path = path / MANIFEST
    try:
        manifest = read_manifest(path)
        sealed, version, files = manifest.pop("seal"), int(manifest["format"]), dict(manifest["files"])
        if version <= FORMAT and sealed != _manifest_digest(manifest):
            raise ValueError("its contents do not match their checksum")
        names = dict.fromkeys((TENSORS, STATE, *files))
        expected = {name: (int(files[name]["bytes"]), str(files[name]["sha256"])) for name in names}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunError(f"checkpoint file {manifest_path} is damaged ({error!r}).") from error
    if version > FORMAT:
        raise RunError(f"checkpoint {path} has format {version}; this version reads up to {FORMAT}: upgrade reverie.")
    for name, (size, digest) in expected.items():
        _verify_file(path / name, size, digest)
    return manifest


def _verify_file(file: Path, size: int, digest: str) -> None:
    try:
        num_bytes = file.lstat().st_size if file.is_file() and not file.is_symlink() else -1
        if num_bytes == size and sha256(file) == digest:
            return
        problem = f"{num_bytes} bytes instead of {size}"
        if num_bytes in (-1, size):
            problem = (
                "its contents do not match their SHA-256" if num_bytes >= 0 else "it is missing, or not a regular file"
            )
    except OSError as error:
        problem = str(error.strerror)
    raise RunError(f"checkpoint file {file} is damaged: {problem}.")


def manifest_bytes(manifest: dict[str, Any]) -> bytes:
    """Return the contents of the manifest file, with its seal."""
    return json.dumps({**manifest, "seal": _manifest_digest(manifest)}).encode()


def _manifest_digest(manifest: dict[str, Any]) -> str:
    """Return the SHA-256 of the manifest without its seal."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def manifest_entry(path: Path, spare: bool = False) -> dict[str, Any]:
    """Return the manifest's entry for a file."""
    entry = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    return {**entry, "spare": True} if spare else entry


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def encode_state(value: object, path: str, tensors: dict[str, Tensor]) -> Any:
    """Return ``value`` as strict JSON; tensors and arrays in it are copied to ``tensors`` under their paths."""
    import torch  # takes long, and commands that only read do without it

    if isinstance(value, torch.Tensor):
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
        entries = [encode_state(v, f"{path}/{i}", tensors) for i, v in enumerate(value)]
        return {TUPLE: entries} if isinstance(value, tuple) else entries
    if isinstance(value, Mapping):
        return _encode_mapping(value, path, tensors)
    raise RunError(
        f"cannot save {path}: a checkpoint can contain tensors, arrays and plain data, but not {type(value).__name__}."
    )


def decode_state(value: object, tensor: Callable[[str], Tensor]) -> Any:
    """Return the value that ``encode_state`` was given; ``tensor`` returns a tensor by its name."""
    if isinstance(value, list):
        return [decode_state(v, tensor) for v in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (mark, content), *_ = value.items()
        if mark == TENSOR:
            return tensor(content).clone()  # aligned as before: see ``core/columns.py: aligned_copy``
        if mark == ARRAY:
            return tensor(content).numpy()
        if mark == FLOAT:
            return float(content)
        if mark == TUPLE:
            return tuple(decode_state(v, tensor) for v in content)
        if mark == ITEMS:
            return {decode_state(k, tensor): decode_state(v, tensor) for k, v in content}
    return {k: decode_state(v, tensor) for k, v in value.items()}


def _encode_mapping(value: Mapping[Any, Any], path: str, tensors: dict[str, Tensor]) -> Any:
    entries = {k: encode_state(v, f"{path}/{k}", tensors) for k, v in value.items()}
    marks = (TENSOR, ARRAY, FLOAT, TUPLE, ITEMS)
    if all(isinstance(k, str) and k not in marks for k in entries):
        return entries
    return {ITEMS: [[encode_state(k, f"{path} (a key)", tensors), v] for k, v in entries.items()]}


def _store(value: Tensor, path: str, tensors: dict[str, Tensor]) -> str:
    """Store ``value`` and return its name: ``path``, made unique, as ``{"a/b": x}`` and ``{"a": {"b": y}}`` collide."""
    name, number = path, 2
    while name in tensors:
        name, number = f"{path}~{number}", number + 1
    tensors[name] = value
    return name
