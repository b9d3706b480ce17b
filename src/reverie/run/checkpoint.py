"""Checkpoints: folders that are either whole or not there. Tensors in safetensors, the rest in JSON, no pickle.

``step-000012345/`` holds ``tensors.safetensors`` (every tensor and array, named by its path: part/key/key),
``state.json`` (everything else, with references to the tensors) and ``manifest.json`` (step, format version, size and
SHA-256 of the other two, and a SHA-256 of itself).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from reverie.core.errors import ConfigError, RunError
from reverie.core.protocols import Stateful
from reverie.run.encode import decode, encode

FORMAT = 1
TENSORS, STATE, MANIFEST = "tensors.safetensors", "state.json", "manifest.json"
ASIDE = ".tmp-old-"


class Checkpoints:
    """The checkpoints in ``folder``: the newest ``keep`` of them, and the one marked best."""

    def __init__(self, folder: Path | str, keep: int = 3) -> None:
        """Nothing is written before the first ``save``.

        Raises:
            ConfigError: ``keep`` is not at least 1.
        """
        if keep < 1:
            raise ConfigError(f"keep = {keep}: expected to keep at least 1 checkpoint.")
        self.folder, self.keep = Path(folder), keep

    def save(self, step: int, parts: Mapping[str, Stateful], *, diverged: bool = False) -> Path:
        """Write ``<folder>/step-<step>`` from the state of ``parts`` and delete what is no longer kept.

        A ``diverged`` state goes to ``diverged-<step>`` instead, which is there to be looked at: ``latest`` passes
        over it.

        Raises:
            RunError: the disk is full or not writable; earlier checkpoints are untouched.
        """
        name = f"{'diverged' if diverged else 'step'}-{step:09d}"
        final, staged = self.folder / name, self.folder / f".tmp-{name}-{os.getpid()}"
        tensors: dict[str, Tensor] = {}
        state = {part: encode(stateful.state_dict(), part, tensors) for part, stateful in parts.items()}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._recover()
            staged.mkdir()
            _write(staged, step, tensors, state)
            _move(staged, final)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(staged, ignore_errors=True)
            raise RunError(f"cannot write checkpoint {final}: {error}. Free space or choose another folder.") from error
        self._prune()
        return final

    def load(self, path: Path | str, parts: Mapping[str, Stateful]) -> None:
        """Give each of ``parts`` its state from the checkpoint at ``path``; other parts in it are not read.

        Raises:
            RunError: the checkpoint is damaged, from a newer version, or lacks one of ``parts``.
        """
        states = read(path, parts)
        for name, stateful in parts.items():
            stateful.load_state_dict(states[name])

    def all(self) -> list[Path]:
        """The checkpoints to continue from, oldest first, whole or damaged."""
        return sorted(p for p in self.folder.glob("step-*") if re.fullmatch(r"step-\d+", p.name))

    def latest(self) -> Path | None:
        """The newest checkpoint that is whole, or None; warns of each newer one that is damaged."""
        self._recover()
        for path in reversed(self.all()):
            try:
                verify(path)
            except RunError as error:
                warnings.warn(f"{error} Using the one before it.", stacklevel=2)
            else:
                return path
        return None

    def mark_best(self, path: Path) -> None:
        """Keep ``path`` until another is marked."""
        staged = self.folder / ".tmp-best"
        _write_file(staged, path.name.encode())
        os.replace(staged, self.folder / "best")
        _sync_folder(self.folder)

    def best(self) -> Path | None:
        """The checkpoint marked best, or None."""
        try:
            path = self.folder / (self.folder / "best").read_text()
        except FileNotFoundError:
            return None
        return path if path.is_dir() else None

    def _prune(self) -> None:
        for path in self.all()[: -self.keep]:
            if path != self.best():
                shutil.rmtree(path, ignore_errors=True)

    def _recover(self) -> None:
        """Put back what stepped aside for a checkpoint that then never came, and delete what is half-written."""
        for aside in self.folder.glob(f"{ASIDE}*"):
            final = self.folder / aside.name.removeprefix(ASIDE)
            if not final.exists():
                os.rename(aside, final)
        for path in self.folder.glob(".tmp-*"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)


def read(path: Path | str, parts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The states of ``parts`` in the checkpoint at ``path``, tensors on the CPU.

    Raises:
        RunError: the checkpoint is damaged, from a newer version, or lacks one of ``parts``.
    """
    path = Path(path)
    verify(path)
    state = json.loads((path / STATE).read_text())
    wanted = list(parts)
    for name in wanted:
        if name not in state:
            raise RunError(f"checkpoint {path} has no part '{name}'; it holds {', '.join(sorted(state))}.")
    with safe_open(path / TENSORS, framework="pt") as tensors:
        return {name: decode(state[name], tensors.get_tensor) for name in wanted}


def verify(path: Path) -> dict[str, Any]:
    """The manifest of the checkpoint at ``path``, if every file is what it says.

    Raises:
        RunError: a file is missing, cut short or changed, or the format is newer than this version can read.
    """
    manifest_path = path / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(manifest_path.read_text())
        seal, version, files = manifest.pop("seal"), int(manifest["format"]), dict(manifest["files"])
        if version <= FORMAT and seal != _seal(manifest):
            raise ValueError("its contents do not match their seal")
        expected = {name: (int(files[name]["bytes"]), str(files[name]["sha256"])) for name in (TENSORS, STATE)}
    except FileNotFoundError:
        raise RunError(f"checkpoint file {manifest_path} is missing.") from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunError(f"checkpoint file {manifest_path} is damaged ({error!r}).") from error
    if version > FORMAT:
        raise RunError(f"checkpoint {path} has format {version}; this version reads up to {FORMAT}: upgrade reverie.")
    for name, (size, digest) in expected.items():
        file = path / name
        if not file.is_file():
            raise RunError(f"checkpoint file {file} is missing.")
        if file.stat().st_size != size:
            raise RunError(f"checkpoint file {file} is damaged: {file.stat().st_size} bytes instead of {size}.")
        if _sha256(file) != digest:
            raise RunError(f"checkpoint file {file} is damaged: its contents do not match their SHA-256.")
    return manifest


def _write(staged: Path, step: int, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    save_file(tensors, staged / TENSORS)
    _sync_file(staged / TENSORS)
    _write_file(staged / STATE, json.dumps(state, allow_nan=False).encode())
    files = {n: {"bytes": (staged / n).stat().st_size, "sha256": _sha256(staged / n)} for n in (TENSORS, STATE)}
    manifest = {"format": FORMAT, "step": step, "parts": sorted(state), "files": files}
    _write_file(staged / MANIFEST, json.dumps({**manifest, "seal": _seal(manifest)}).encode())
    _sync_folder(staged)


def _move(staged: Path, final: Path) -> None:
    """Put ``staged`` in the place of ``final``. A folder cannot be replaced in one go, so an old one steps aside."""
    aside = final.with_name(ASIDE + final.name)
    if final.exists():
        os.rename(final, aside)
    os.rename(staged, final)
    _sync_folder(final.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _write_file(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_file(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _seal(manifest: dict[str, Any]) -> str:
    """SHA-256 of what the manifest itself says."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
