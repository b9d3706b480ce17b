"""Files of a run at a tracker: upload of checkpoints and rows, and download of runs and agents."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from reverie.core.documents import read_json
from reverie.core.errors import ConfigError, ReverieError, RunError
from reverie.core.files import LARGEST_STATE, LARGEST_WEIGHTS, below, check_links, open_file, read_file, write_json
from reverie.store.local_objects import LocalObjects, open_objects

Upload = Literal["metrics", "checkpoints", "rows"]
"""Uploads to a tracker; each value includes the previous ones."""
UPLOADED_FILES = ("config.yaml", "spec.json", "metrics.jsonl", "episodes.jsonl", "curve.png", "eval.json",
                  "estimate.json", "provenance.json")  # fmt: skip
"""Small files of a run folder that are uploaded to a tracker."""
UPLOAD_FOLDER = ".upload"
"""Folder in a run folder with copies of the checkpoints being sent: the run can delete the originals during the
upload."""
AGENT_FILE = "agent.json"
"""File that describes a shared agent (``agent/sharing.py``)."""
AGENT_FILES = (AGENT_FILE, "config.yaml", "spec.json", "eval.json", "provenance.json", "README.md", "*.png",
         "checkpoints/*.json", "checkpoints/*.safetensors")  # fmt: skip
"""Files of a shared agent. Other files are not downloaded, such as pickles of environments."""
HUB_PATTERN = re.compile(r"hf://(?P<name>[\w.-]+/[\w.-]+)(@(?P<revision>[^@]+))?")
_REFERENCE = re.compile(r"(?P<kind>runs|models|wandb):/*(?P<rest>.+)")
_VERSION = re.compile(r"(?P<name>[^@]+?)(/(?P<version>\d+|latest)|@(?P<alias>.+))")

Export = Callable[[Path, Path, bool], None]
"""Copies a checkpoint to a new folder; with its large files, such as latents, if the last argument is True."""


class Uploads:
    """Sends the files of one run to a tracker; a checkpoint follows the rows that it needs."""

    def __init__(
        self, run: Path, upload: Upload, export: Export, upload_file: Callable[[Path, str], None],
        delete_folder: Callable[[str], None],
    ) -> None:  # fmt: skip
        """``upload_file(file, folder)`` sends one file; ``delete_folder(folder)`` deletes one, if the tracker can."""
        self.run: Path = run
        self.upload: Upload = upload
        self.export: Export = export
        self.upload_file: Callable[[Path, str], None] = upload_file
        self.delete_folder: Callable[[str], None] = delete_folder
        self.uploaded: set[str] = set()  # names of the checkpoints at the tracker
        self._complete: set[str] = set()  # checkpoints that this process has sent
        self._seen: dict[Path, tuple[int, int]] = {}  # files as they were sent: time of the last change, and size
        self._begun = False

    def sync(self, *, end: bool = False) -> None:
        """Send new files. Between checkpoints there are none, except at the ``end`` of the run."""
        names = self._checkpoint_names()
        if self._begun and not end and names <= self._complete:
            return
        shutil.rmtree(self.run / UPLOAD_FOLDER, ignore_errors=True)
        staged = [folder for name in sorted(names - self._complete) if (folder := self._stage(name)) is not None]
        if self.upload == "rows":
            self._send_rows()
        for folder in staged:
            self.uploaded.add(folder.name)
            for file in sorted(file for file in folder.rglob("*") if file.is_file()):
                self.upload_file(file, f"checkpoints/{file.parent.relative_to(folder.parent).as_posix()}")
            self._complete.add(folder.name)
        shutil.rmtree(self.run / UPLOAD_FOLDER, ignore_errors=True)
        files = [self.run / name for name in UPLOADED_FILES]
        self._send_changed(files + [self.run / "checkpoints" / "best"] * bool(names))
        for name in self.uploaded - names if names else ():
            with contextlib.suppress(Exception):  # not every artifact store supports deletion
                self.delete_folder(f"checkpoints/{name}")
        self.uploaded, self._begun = set(names), True

    def _checkpoint_names(self) -> set[str]:
        """Return the names of the newest checkpoint and of the best one."""
        folder = self.run / "checkpoints"
        names = [path.parent.name for path in folder.glob("step-*/manifest.json")]
        if self.upload == "metrics" or not names:
            return set()
        best = folder / "best"
        best_name = read_file(best).decode(errors="replace") if best.is_file() else ""
        return {max(names, key=lambda name: int(name.rpartition("-")[2])), *({best_name} & {*names})}

    def _stage(self, name: str) -> Path | None:
        """Return a copy of a checkpoint; None if it has just been deleted because of a newer one."""
        staged = self.run / UPLOAD_FOLDER / name
        try:
            self.export(self.run / "checkpoints" / name, staged, self.upload == "rows")
        except (FileNotFoundError, shutil.Error):
            return None
        return staged

    def _send_rows(self) -> None:
        """Send the store of the run. Files that list the rows are copied before the rows and sent after them."""
        store = self.run / "replay"
        lists = [store / "zarr.json", *store.glob("*/zarr.json")]
        copy_folder = self.run / UPLOAD_FOLDER / "replay"
        copies = [(file, copy_folder / file.relative_to(store)) for file in lists if file.is_file()]
        for file, copy in copies:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, copy)
        self._send_changed(file for file in sorted(store.rglob("*")) if file.is_file() and file not in lists)
        for file, copy in copies:
            self._send_if_changed(copy, file)

    def _send_changed(self, files: Iterable[Path]) -> None:
        for file in files:
            if not file.name.startswith("."):  # a file being written
                self._send_if_changed(file, file)

    def _send_if_changed(self, file: Path, name: Path) -> None:
        """Send ``file`` as the file ``name`` of the run, unless it was sent in this state."""
        with contextlib.suppress(FileNotFoundError):
            stat = file.stat()
            state = stat.st_mtime_ns, stat.st_size
            if self._seen.get(name) != state:
                self.upload_file(file, name.parent.relative_to(self.run).as_posix().removeprefix("."))
                self._seen[name] = state


# ---------------------------------------------------------------- downloads


def download_run(location: Path | str) -> Path | str:
    """Return ``location``; for a tracker's location, download it once and return the folder under ``runs/``.

    ``runs:/ID`` or ``models:/NAME/3`` (``@alias``, ``/latest``) of MLflow, ``wandb:ENTITY/PROJECT/ARTIFACT:v3`` of W&B,
    ``hf://USER/NAME`` (``@REVISION``) of the Hugging Face Hub.

    Raises:
        ReverieError: it does not exist, it is not a reverie run, or the tracker cannot be reached.
    """
    return download_agent(location) if "://" not in str(location) or str(location).startswith("hf://") else location


def download_agent(location: Path | str, to: Path | None = None) -> Path | str:
    """Do the same as :func:`download_run`, also for an agent in storage such as ``s3://BUCKET/NAME``, into ``to``."""
    if str(location).startswith("hf://"):
        return _download_from_hub(str(location), to)
    if isinstance(location, str) and "://" in location:
        return _download_from_storage(location, to)
    if isinstance(location, str | os.PathLike) and os.path.isfile(location) and zipfile.is_zipfile(location):
        return _unpack(Path(location))  # a pipe would wait
    match = _REFERENCE.fullmatch(str(location)) if isinstance(location, str | os.PathLike) else None
    if match is None or ("/" not in str(location) and match["kind"] != "wandb"):
        return location
    get = {"runs": _download_run, "models": _download_model, "wandb": _download_from_wandb}[match["kind"]]
    with tracker_module("wandb" if match["kind"] == "wandb" else "mlflow", str(location)) as tracker:
        return get(tracker, match["rest"], to)


_EXTRAS = {"huggingface_hub": "hub", "onnx": "export", "onnxscript": "export", "onnxruntime": "export"}


def missing_package_error(name: str, error_prefix: str) -> ConfigError:
    """Return the error about a package that is not installed. ``error_prefix``: what needs it."""
    extra = _EXTRAS.get(name, name)
    return ConfigError(
        f"{error_prefix}: the package {name} is not installed. Install it: pip install 'reverie-rl[{extra}]'."
    )


@contextlib.contextmanager
def tracker_module(name: str, error_prefix: str) -> Iterator[Any]:
    """Yield the module of a tracker; errors inside become RunError."""
    try:
        tracker = importlib.import_module(name)
    except ImportError as error:
        raise missing_package_error(name, error_prefix) from error
    try:
        yield tracker
    except ReverieError:
        raise
    except Exception as error:  # many types: from the tracker, its store and the network
        title = {"mlflow": "MLflow", "wandb": "Weights & Biases", "huggingface_hub": "the Hugging Face Hub"}[name]
        set_it = ""
        if name == "mlflow":
            title = f"MLflow at {tracker.get_tracking_uri()}"
            set_it = " Set MLFLOW_TRACKING_URI to its server."
        elif name == "huggingface_hub":
            set_it = " Its name is USER/NAME; `hf auth login`, or HF_TOKEN, gives access to private agents."
        message = " ".join([line.strip() for line in str(error).splitlines() if line.strip()][:2])  # without its advice
        raise RunError(f"{error_prefix}: {title}: {message.rstrip('.')}.{set_it}") from error


def _download_run(mlflow: ModuleType, ident: str, to: Path | None) -> Path:
    client = mlflow.MlflowClient()
    title = client.get_run(ident).info.run_name
    names = {file.path for file in client.list_artifacts(ident)}
    if not {"config.yaml", "checkpoints"} <= names:
        raise RunError(
            f"runs:/{ident} ({title}) has no reverie checkpoint: it was logged with --upload metrics, ended before its "
            "first checkpoint, or was not created by reverie."
        )
    folder = to or Path("runs") / f"mlflow-{ident}"
    steps = [Path(file.path).name for file in client.list_artifacts(ident, "checkpoints")]
    newest = max((name for name in steps if name.startswith("step-")), default="")
    newest_local = max((path.name for path in folder.glob("checkpoints/step-*")), default="")
    if folder.is_dir() and not (folder / "checkpoints" / newest).is_dir() and newest_local < newest:
        raise RunError(f"{folder} is older than runs:/{ident}, which has {newest}. Move it away to download that one.")

    def fill(to: Path) -> None:
        mlflow.artifacts.download_artifacts(run_id=ident, dst_path=str(to))
        write_json(to / "tracked.json", {"mlflow": ident})

    return _download_once(folder, fill)


def _download_model(mlflow: ModuleType, rest: str, to: Path | None) -> Path:
    match = _VERSION.fullmatch(rest)
    if match is None:
        raise ConfigError(f"models:/{rest}: expected models:/NAME/VERSION, models:/NAME/latest or models:/NAME@ALIAS.")
    client, name, version = mlflow.MlflowClient(), match["name"], match["version"]
    if match["alias"]:
        version = client.get_model_version_by_alias(name, match["alias"]).version
    elif version == "latest":
        client.get_registered_model(name)
        version = max(int(v.version) for v in client.search_model_versions(f"name='{name}'"))
    uri = f"models:/{name}/{version}"
    folder = to or Path("runs") / f"{name}-v{version}"
    return _download_once(folder, lambda to: mlflow.artifacts.download_artifacts(uri, dst_path=str(to)))


def _download_from_wandb(wandb: ModuleType, rest: str, to: Path | None) -> Path:
    artifact = wandb.Api().artifact(rest)
    folder = to or Path("runs") / f"{artifact.name.partition(':')[0]}-{artifact.version}"
    return _download_once(folder, lambda to: artifact.download(root=str(to)))


def _download_from_hub(location: str, to: Path | None) -> Path:
    match = HUB_PATTERN.fullmatch(location)
    if match is None:
        raise ConfigError(f"{location}: expected hf://USER/NAME, or hf://USER/NAME@REVISION.")
    with tracker_module("huggingface_hub", location) as hub:
        commit = hub.HfApi().model_info(match["name"], revision=match["revision"]).sha
        folder = to or Path("runs") / f"{match['name'].rpartition('/')[2]}-{commit[:7]}"

        def fill(to: Path) -> None:
            hub.snapshot_download(match["name"], revision=commit, local_dir=to, allow_patterns=list(AGENT_FILES))
            shutil.rmtree(to / ".cache", ignore_errors=True)  # the Hub's notes about the download

        return _download_once(folder, fill)


def _download_from_storage(url: str, to: Path | None) -> Path:
    objects = open_objects(url)
    if isinstance(objects, LocalObjects) and to is None:
        return objects.folder
    if isinstance(objects, LocalObjects):
        check_links(objects.folder)
    try:
        manifest = objects.get(AGENT_FILE)
        plain = (name for name in objects.sizes() if ".." not in name)
        names = [name for name in plain if any(fnmatchcase(name, part) for part in AGENT_FILES)]
        name = url.rstrip("/").rpartition("/")[2]
        folder = to or Path("runs") / f"{name}-{hashlib.sha256(manifest).hexdigest()[:7]}"

        def fill(to: Path) -> None:
            for name in names:
                (to / name).parent.mkdir(parents=True, exist_ok=True)
                limit = LARGEST_WEIGHTS if name.endswith(".safetensors") else LARGEST_STATE
                (to / name).write_bytes(objects.get(name, limit))

        return _download_once(folder, fill)
    except FileNotFoundError as error:
        raise RunError(f"{url} contains no agent: it has no {AGENT_FILE}, which reverie push writes.") from error
    except ReverieError:
        raise
    except objects.exceptions as error:
        raise objects.error(error) from error


_unpacked: dict[tuple[str, int, int], tempfile.TemporaryDirectory[str]] = {}
"""Folders of agents that were files, by their paths, times and sizes. They are deleted when the process ends."""


def _unpack(path: Path) -> Path:
    """Return the folder of an agent that ``Agent.save`` has written to a file."""
    status = path.stat()
    key = str(path.resolve()), status.st_mtime_ns, status.st_size
    if key not in _unpacked:
        _unpacked[key] = folder = tempfile.TemporaryDirectory(prefix="reverie-agent-")
        with open_file(path, sys.maxsize) as file, zipfile.ZipFile(file) as archive:
            _check_agent_file(path, archive, status.st_size)
            for info in archive.infolist():
                target = below(Path(folder.name), info.filename)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(info))
    return Path(_unpacked[key].name)


def is_unpacked(folder: Path) -> bool:
    """Return whether a folder has the files of an agent that was one file, and is deleted at the end."""
    return any(str(folder) == unpacked.name for unpacked in _unpacked.values())


def _check_agent_file(path: Path, archive: zipfile.ZipFile, size: int) -> None:
    """Raise RunError unless ``Agent.save`` has written this file of ``size`` bytes."""
    names = archive.namelist()
    if "policy.pth" in names:
        raise RunError(
            f"{path} is an agent of Stable-Baselines3: reverie.import_sb3('{path}', env) imports it, or `reverie "
            f"import sb3 {path} --env ENV`."
        )
    expanded = sum(info.file_size for info in archive.infolist())
    foreign = [name for name in names if not any(fnmatchcase(name, part) for part in AGENT_FILES)]
    if AGENT_FILE not in names or foreign or expanded > size:
        raise RunError(f"{path} is not an agent that Agent.save has written: expected such a file, or a run folder.")


def _download_once(folder: Path, fill: Callable[[Path], object]) -> Path:
    """Return ``folder``, which ``fill`` fills if it does not exist; an incomplete download leaves no folder."""
    if folder.is_dir():
        return folder
    staged = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    staged.mkdir(parents=True)
    try:
        fill(staged)
        if not (staged / "config.yaml").is_file():
            raise RunError(f"{folder.name}: the download is not a reverie run: it has no config.yaml.")
        os.replace(staged, folder)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return folder


def tracker_ids(run: Path) -> dict[str, str]:
    """Return the ids of a run at its trackers, by the tracker's name."""
    file = run / "tracked.json"
    return read_json(file) if file.exists() else {}
