"""Checkpoints: folders that are complete or do not exist. Tensors in safetensors, the rest of the state in JSON.

``step-000012345/`` holds ``tensors.safetensors`` (every tensor and array, named by its path: part/key/key),
``state.json`` (everything else, with references to the tensors), a folder for each part that writes its own files
(``core/protocols.py: StatefulWithFiles``) and ``manifest.json`` (step, format version, size and SHA-256 of all other
files, and a SHA-256 of itself). Reading tensors and states runs no code. Snapshots of environments are pickles, in a
separate file (``environments.zip``), which only a resumed run reads.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

from safetensors import SafetensorError, safe_open

from reverie.core.errors import ReverieError, RunError, did_you_mean
from reverie.core.files import (
    LARGEST_STATE,
    below,
    delete_temporary_files,
    disk_error_advice,
    disk_errors_as_run_error,
    fsync_path,
    read_file,
    write_atomic,
)
from reverie.core.logger import logger
from reverie.run.manifest import (
    FORMAT,
    MANIFEST,
    STATE,
    TENSORS,
    checkpoint_problem,
    decode_state,
    encode_state,
    manifest_bytes,
    manifest_entry,
    read_manifest,
    verify,
)

if TYPE_CHECKING:  # torch takes long to import, and commands that only read do without it
    from torch import Tensor

    from reverie.core.protocols import Stateful

OLD_PREFIX = ".tmp-old-"

PRUNABLE_MIN_BYTES = 100_000_000
"""If the prunable files of a checkpoint have at least this many bytes, only the newest checkpoint keeps them."""


class MismatchError(RunError):
    """The state in a checkpoint does not fit the settings."""


class Checkpoints:
    """The checkpoints in ``folder``: the newest ``keep``, and the checkpoint marked best.

    Damaged checkpoints are left in place and do not count. Reading changes nothing on disk, so many processes can read
    while one writes.
    """

    def __init__(self, folder: Path | str, keep: int = 3) -> None:
        """Nothing is written before the first ``save``; each damaged checkpoint is logged."""
        self.folder: Path = Path(folder)
        self.keep = keep
        self._found: Path | None = None  # the checkpoint that ``latest`` has just verified
        self._problems: dict[str, str] = {}  # the problem of each verified checkpoint, "" if it is intact
        self._pruned: set[str] = set()  # names of checkpoints without large prunable files

    def save(self, step: int, parts: Mapping[str, Stateful], *, diverged: bool = False) -> Path:
        """Write a checkpoint, ``<folder>/step-<step>``, from the state of ``parts``; delete old ones; return its path.

        A ``diverged`` state goes to ``diverged-<step>`` instead, for inspection only: ``latest`` ignores it. If the
        disk is full or not writable, this raises RunError and earlier checkpoints are untouched.
        """
        self._found = None
        final = self.folder / checkpoint_name(step, "diverged" if diverged else "step")
        staged = _incomplete(final)
        try:
            self.recover()
            write_checkpoint(staged, step, parts)
            _move(staged, final)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(staged, ignore_errors=True)
            raise RunError(f"cannot write checkpoint {final}: {error}. {disk_error_advice(error)}") from error
        self._problems[final.name] = ""
        self._pruned.discard(final.name)
        self._prune(final)
        return final

    def load(self, path: Path | str, parts: Mapping[str, Stateful]) -> None:
        """Load the state of each of ``parts`` from the checkpoint at ``path``; other parts in it are not read."""
        from reverie.core.protocols import StatefulWithFiles

        path = Path(path)
        try:
            states = read_checkpoint(path, parts, verified=path == self._found)
            written = read_manifest(path)["files"]  # files that are not listed are being deleted
            for name, stateful in parts.items():
                stateful.load_state_dict(states[name])
                if isinstance(stateful, StatefulWithFiles):
                    listed = any(file.startswith(f"{name}/") for file in written)
                    stateful.load_files(path / name if listed else path / f"no {name}")
        except ReverieError:
            raise
        except (RuntimeError, LookupError, ValueError, TypeError, AttributeError, BadZipFile) as error:
            reason = " ".join(line.strip() for line in str(error).strip().splitlines()[:3]).rstrip(".")
            reason = f"it contains no {reason}" if isinstance(error, KeyError) else reason
            raise MismatchError(
                f"{path} does not fit these settings: {reason}. It was written by a learner with different parts "
                "(networks, targets, normalizers, optimizers) or in another environment. Use the settings of its run "
                "(--config <run>/config.yaml), or choose another run."
            ) from error

    def paths(self) -> list[Path]:
        """Return all checkpoints ``step-*``, oldest first, intact or damaged."""
        return sorted((p for p in self.folder.glob("step-*") if re.fullmatch(r"step-\d+", p.name)), key=step_from_name)

    def find_damaged(self) -> dict[str, str]:
        """Return the names of unusable checkpoints, oldest first, with the problem of each. Reads all files."""
        wrong = {path.name: checkpoint_problem(path) for path in self.paths()}
        return {name: problem for name, problem in wrong.items() if problem}

    def latest(self) -> Path | None:
        """Return the newest intact checkpoint, or None if there are no checkpoints.

        Log which ones it skips, and why.
        """
        wrong: dict[Path, str] = {}
        for path in reversed([*self._moved_aside(), *self.paths()]):
            problem = self._problems[path.name] = checkpoint_problem(path)
            if not problem:
                for bad, why in wrong.items():
                    logger.warning(f"checkpoint {bad.name} cannot be used ({why}): using {path.name} instead")
                self._found = path
                return path
            wrong[path] = problem
        if not wrong:
            return None
        listed = "; ".join(f"{path.name} ({why})" for path, why in reversed(wrong.items()))
        raise RunError(
            f"no checkpoint in {self.folder} can be used: {listed}. Nothing was overwritten. Restore them from a "
            "backup, move them away to start over, or choose another run folder."
        )

    def select(self, name: Path | str | int | None) -> Path:
        """Return the checkpoint called ``name``, as :meth:`find` does; None: the newest intact checkpoint."""
        path = self.find(name) if name is not None else self.latest()
        if path is None:
            raise RunError(f"{self.folder.parent} has no checkpoint yet. Train until the first one is saved.")
        return path

    def find(self, name: Path | str | int) -> Path:
        """Return the checkpoint called ``name`` in this folder, at that path, or at that step; ``best``: the best one.

        A name alone is never looked up in the working directory, where another run's checkpoint may be called the same.
        """
        name = checkpoint_name(name) if isinstance(name, int) else name
        names = sorted(path.name for path in self.folder.glob("*-*") if path.is_dir() and path.name[0] != ".")
        listed = f" Available: {', '.join(names)}." if names else " The folder has no checkpoints yet."
        if str(name) == "best" and (best := self.best()) is not None:
            return best
        other_paths = [Path(name)] if len(Path(name).parts) > 1 else []
        for path in (self.folder / name, *other_paths):
            if path.is_dir():
                return path
        raise RunError(f"no checkpoint '{name}' in {self.folder}.{did_you_mean(Path(name).name, names)}{listed}")

    def kept_paths(self) -> list[Path]:
        """Return the newest checkpoints, which are kept. The checkpoint marked best is kept in addition."""
        return self.paths()[-self.keep :]

    def mark_best(self, path: Path) -> None:
        """Mark ``path`` as the best checkpoint, which is kept until another checkpoint is marked."""
        with disk_errors_as_run_error(self.folder / "best"):
            _replace_file(self.folder / "best", path.name.encode())

    def best(self) -> Path | None:
        """Return the checkpoint marked best; None if there is none."""
        mark = self.folder / "best"
        name = read_file(mark).decode(errors="replace") if mark.exists() else ""
        return next((path for path in self.paths() if path.name == name), None)

    def recover(self) -> None:
        """Restore checkpoints that were moved aside for one that was never completed, and delete incomplete ones.

        Only for the process that writes: the half-written checkpoint of another process looks the same.
        """
        for aside in self._moved_aside():
            os.rename(aside, self.folder / aside.name.removeprefix(OLD_PREFIX))
        for path in self.folder.glob(".tmp-*"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
        delete_temporary_files(self.folder)

    def _prune(self, written: Path) -> None:
        """Prune the newest and the best of all intact checkpoints but ``written``, and delete the others."""
        paths = self.paths()
        for path in paths:
            if path.name not in self._problems:
                self._problems[path.name] = checkpoint_problem(path)
        intact = [path for path in paths if not self._problems[path.name]]
        newest = {path.name for path in intact[-self.keep :]}
        for path in (path for path in intact if path != written):
            try:
                if path.name not in newest and path != self.best():
                    _delete(path)
                elif path.name not in self._pruned:
                    prune_checkpoint(path)
                    self._pruned.add(path.name)
            except OSError as error:
                logger.warning(f"cannot delete {path.name}: {error}. The run continues, and tries again later")

    def _moved_aside(self) -> list[Path]:
        """Return the checkpoints that were moved aside and whose replacement is missing, oldest first."""
        paths = sorted(self.folder.glob(f"{OLD_PREFIX}step-*"), key=step_from_name)
        return [path for path in paths if not (self.folder / path.name.removeprefix(OLD_PREFIX)).exists()]


def read_checkpoint(
    path: Path | str,
    parts: Iterable[str],
    *,
    verified: bool = False,
    instead: Mapping[str, Tensor] = MappingProxyType({}),
) -> dict[str, dict[str, Any]]:
    """Return the states of ``parts`` in the checkpoint at ``path``, tensors on the CPU.

    ``verified``: all of its files have just been verified. ``instead``: tensors by name, which replace tensors of the
    checkpoint.
    """
    path = Path(path)
    if not verified:
        verify(path)
    try:
        state = json.loads(read_file(path / STATE, LARGEST_STATE))
        with contextlib.ExitStack() as stack:

            @functools.cache
            def stored() -> Any:
                return stack.enter_context(safe_open(path / TENSORS, framework="pt"))  # imports torch

            def tensor(name: str) -> Tensor:
                value: Tensor = instead[name] if name in instead else stored().get_tensor(name)
                return value

            return {name: decode_state(state[name], tensor) for name in parts}
    except (SafetensorError, RecursionError, ValueError, TypeError, AttributeError) as error:
        why = "its values are nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RunError(f"checkpoint {path} is damaged: {why}. Use another checkpoint, or a backup.") from error


def longest_episode(path: Path) -> int:
    """Return the env steps of the longest training episode before the checkpoint at ``path``; 0: not recorded."""
    with contextlib.suppress(ValueError, TypeError, AttributeError, OverflowError, RecursionError):  # damaged
        state = json.loads(read_file(path / STATE, LARGEST_STATE))
        return int(state.get("clock", {}).get("longest_episode", 0))
    return 0


def step_from_name(path: Path) -> int:
    """Return the env step in the name of a checkpoint. As text, names of more than nine digits would sort wrongly."""
    return int(path.name.rpartition("-")[2])


def checkpoint_name(step: int, kind: str = "step") -> str:
    """Return the name of the checkpoint at ``step``."""
    return f"{kind}-{step:09d}"


def prune_checkpoint(path: Path) -> None:
    """Delete the prunable files of the checkpoint at ``path`` if they are large; it stays intact throughout."""
    manifest = read_manifest(path)
    spare = [name for name, entry in manifest["files"].items() if entry.get("spare")]
    if sum(manifest["files"][name]["bytes"] for name in spare) < PRUNABLE_MIN_BYTES:
        return
    files = {name: entry for name, entry in manifest["files"].items() if name not in spare}
    del manifest["seal"]
    _replace_file(path / MANIFEST, manifest_bytes({**manifest, "files": files}))
    for name in spare:
        below(path, name).unlink(missing_ok=True)


def export_checkpoint(path: Path, to: Path, spare: bool) -> None:
    """Copy the checkpoint at ``path`` to the folder ``to``, by hard links where possible.

    Without ``spare``, its prunable files are omitted if they are large.
    """

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)

    shutil.copytree(path, to, copy_function=link)
    if not spare:
        prune_checkpoint(to)


def write_checkpoint(staged: Path, step: int, parts: Mapping[str, Stateful]) -> None:
    """Write a checkpoint, the state of ``parts`` and its manifest, to the empty or new folder ``staged``."""
    from safetensors.torch import save_file

    from reverie.core.protocols import StatefulWithFiles

    tensors: dict[str, Tensor] = {}
    state = {part: encode_state(stateful.state_dict(), part, tensors) for part, stateful in parts.items()}
    staged.mkdir(parents=True, exist_ok=True)
    save_file(tensors, staged / TENSORS)
    (staged / STATE).write_text(json.dumps(state, allow_nan=False))
    mode = (staged / STATE).stat().st_mode & 0o777
    (staged / TENSORS).chmod(mode)  # safetensors makes the file unreadable for other users
    files = {name: manifest_entry(staged / name) for name in (TENSORS, STATE)}
    for name, part in parts.items():
        if isinstance(part, StatefulWithFiles):
            (staged / name).mkdir()
            part.save_files(staged / name)
            written = sorted(file for file in (staged / name).rglob("*") if file.is_file())
            files |= {file.relative_to(staged).as_posix(): manifest_entry(file, part.prunable) for file in written}
    for name in files:
        fsync_path(staged / name)
    (staged / MANIFEST).write_bytes(
        manifest_bytes({"format": FORMAT, "step": step, "parts": sorted(state), "files": files})
    )
    fsync_path(staged / MANIFEST)
    for folder in (staged, *(folder for folder in staged.rglob("*") if folder.is_dir())):
        fsync_path(folder)


def _move(staged: Path, final: Path) -> None:
    """Rename ``staged`` to ``final``.

    A folder cannot be replaced atomically, so an existing folder is moved aside first.
    """
    aside = final.with_name(OLD_PREFIX + final.name)
    if final.exists():
        os.rename(final, aside)
    os.rename(staged, final)
    fsync_path(final.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _incomplete(path: Path) -> Path:
    """Return the name under which this process writes and deletes the checkpoint at ``path``."""
    return path.with_name(f".tmp-{path.name}-{os.getpid()}")


def _delete(path: Path) -> None:
    """Delete a checkpoint.

    If the process is killed, the rest does not count as a damaged checkpoint, and ``recover`` deletes it.
    """
    leaving = _incomplete(path)
    os.rename(path, leaving)
    shutil.rmtree(leaving, ignore_errors=True)


def _replace_file(path: Path, data: bytes) -> None:
    write_atomic(path, data)
    fsync_path(path.parent)
