"""The manifest of a checkpoint: every file must have the size and the SHA-256 that it says."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from reverie.core.errors import RunError

FORMAT = 2
TENSORS, STATE, MANIFEST = "tensors.safetensors", "state.json", "manifest.json"


def step_of(path: Path) -> int:
    """Return the step at which the checkpoint at ``path`` was written, whatever the folder's name."""
    return int(json.loads((path / MANIFEST).read_text())["step"])


def problem_of(path: Path) -> str:
    """Return the problem of the checkpoint at ``path`` in a few words; "" if it is whole."""
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
        manifest: dict[str, Any] = json.loads(manifest_path.read_text())
        sealed, version, files = manifest.pop("seal"), int(manifest["format"]), dict(manifest["files"])
        if version <= FORMAT and sealed != seal(manifest):
            raise ValueError("its contents do not match their checksum")
        names = dict.fromkeys((TENSORS, STATE, *files))
        expected = {name: (int(files[name]["bytes"]), str(files[name]["sha256"])) for name in names}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunError(f"checkpoint file {manifest_path} is damaged ({error!r}).") from error
    if version > FORMAT:
        raise RunError(f"checkpoint {path} has format {version}; this version reads up to {FORMAT}: upgrade reverie.")
    for name, (size, digest) in expected.items():
        _verify_file(path / name, size, digest)
    return manifest


def _verify_file(file: Path, size: int, digest: str) -> None:
    try:
        found = file.stat().st_size
        if found == size and sha256(file) == digest:
            return
        what = "its contents do not match their SHA-256" if found == size else f"{found} bytes instead of {size}"
    except OSError as error:
        what = str(error.strerror)
    raise RunError(f"checkpoint file {file} is damaged: {what}.")


def sealed(manifest: dict[str, Any]) -> bytes:
    """Return the contents of the manifest file, with its seal."""
    return json.dumps({**manifest, "seal": seal(manifest)}).encode()


def seal(manifest: dict[str, Any]) -> str:
    """Return the SHA-256 of the manifest without its seal."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def entry_of(path: Path, spare: bool = False) -> dict[str, Any]:
    """Return the manifest's entry for a file."""
    entry = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    return {**entry, "spare": True} if spare else entry


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
