"""Files of a run at a tracker: checkpoints and rows that it gets, and runs and agents that are fetched from there."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from reverie.core.errors import ConfigError, ReverieError, RunError
from reverie.core.files import write_json
from reverie.store.places import LocalObjects, open_objects

Upload = Literal["metrics", "checkpoints", "rows"]
"""How much a tracker gets, each with what comes before it."""
FILES = ("config.yaml", "spec.json", "metrics.jsonl", "curve.png", "eval.json", "estimate.json")
"""Small files of a run folder that a tracker gets."""
STAGED = ".upload"
"""Folder inside of a run folder with the checkpoints that are being sent: the run may delete its own meanwhile."""
AGENT = "agent.json"
"""File of an agent that was passed on (``agent/sharing.py``): what it is."""
PARTS = (AGENT, "config.yaml", "spec.json", "eval.json", "README.md", "*.png", "checkpoints/*.json",
         "checkpoints/*.safetensors")  # fmt: skip
"""Files of an agent that was passed on. Others are not downloaded, such as pickles of environments."""
HUB = re.compile(r"hf://(?P<name>[\w.-]+/[\w.-]+)(@(?P<revision>[^@]+))?")
_REFERENCE = re.compile(r"(?P<kind>runs|models|wandb):/*(?P<rest>.+)")
_VERSION = re.compile(r"(?P<name>[^@]+?)(/(?P<version>\d+|latest)|@(?P<alias>.+))")

Export = Callable[[Path, Path, bool], None]
"""Copies a checkpoint to a new folder; with its large files, such as latents, if the last argument is True."""


class Uploads:
    """Sends the files of one run to a tracker, checkpoints only when all rows that they need are there."""

    def __init__(
        self, run: Path, upload: Upload, export: Export, put: Callable[[Path, str], None], drop: Callable[[str], None]
    ) -> None:
        """``put(file, folder)`` sends one file; ``drop(folder)`` deletes a folder there, if the tracker can."""
        self.run: Path = run
        self.upload: Upload = upload
        self.export: Export = export
        self.put: Callable[[Path, str], None] = put
        self.drop: Callable[[str], None] = drop
        self.there: set[str] = set()  # names of the checkpoints at the tracker
        self._whole: set[str] = set()  # of those the ones that this process has sent
        self._seen: dict[Path, tuple[int, int]] = {}  # files as they were sent: time of the last change, and size
        self._begun = False

    def sync(self, *, end: bool = False) -> None:
        """Send what is new. Between checkpoints nothing is, except at the ``end`` of the run."""
        wanted = self._wanted()
        if self._begun and not end and wanted <= self._whole:
            return
        shutil.rmtree(self.run / STAGED, ignore_errors=True)
        staged = [folder for name in sorted(wanted - self._whole) if (folder := self._stage(name)) is not None]
        if self.upload == "rows":
            self._send_rows()
        for folder in staged:
            self.there.add(folder.name)
            for file in sorted(file for file in folder.rglob("*") if file.is_file()):
                self.put(file, f"checkpoints/{file.parent.relative_to(folder.parent).as_posix()}")
            self._whole.add(folder.name)
        shutil.rmtree(self.run / STAGED, ignore_errors=True)
        self._send_changed([self.run / name for name in FILES] + [self.run / "checkpoints" / "best"] * bool(wanted))
        for name in self.there - wanted if wanted else ():
            with contextlib.suppress(Exception):  # not every place of artifacts can delete
                self.drop(f"checkpoints/{name}")
        self.there, self._begun = set(wanted), True

    def _wanted(self) -> set[str]:
        """Return the names of the newest checkpoint and of the best one."""
        folder = self.run / "checkpoints"
        names = [path.parent.name for path in folder.glob("step-*/manifest.json")]
        if self.upload == "metrics" or not names:
            return set()
        best = folder / "best"
        marked = best.read_text(encoding="utf-8") if best.is_file() else ""
        return {max(names, key=lambda name: int(name.rpartition("-")[2])), *({marked} & {*names})}

    def _stage(self, name: str) -> Path | None:
        """Return a copy of a checkpoint; None if it has just been deleted, as a newer one is there."""
        staged = self.run / STAGED / name
        try:
            self.export(self.run / "checkpoints" / name, staged, self.upload == "rows")
        except (FileNotFoundError, shutil.Error):
            return None
        return staged

    def _send_rows(self) -> None:
        """Send the store of the run. What lists the rows is copied before them and sent after them."""
        store = self.run / "replay"
        lists = [store / "zarr.json", *store.glob("*/zarr.json")]
        kept = self.run / STAGED / "replay"
        copies = [(file, kept / file.relative_to(store)) for file in lists if file.is_file()]
        for file, copy in copies:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, copy)
        self._send_changed(file for file in sorted(store.rglob("*")) if file.is_file() and file not in lists)
        for file, copy in copies:
            self._send_if_changed(copy, file)

    def _send_changed(self, files: Iterable[Path]) -> None:
        for file in files:
            if not file.name.startswith("."):  # one that is being written
                self._send_if_changed(file, file)

    def _send_if_changed(self, file: Path, name: Path) -> None:
        """Send ``file`` as the file ``name`` of the run, unless it was sent as it is."""
        with contextlib.suppress(FileNotFoundError):
            about = file.stat()
            state = about.st_mtime_ns, about.st_size
            if self._seen.get(name) != state:
                self.put(file, name.parent.relative_to(self.run).as_posix().removeprefix("."))
                self._seen[name] = state


# ---------------------------------------------------------------- from there


def local(place: Path | str) -> Path | str:
    """Return ``place``; if it is of a tracker, the folder below ``runs/`` into which it is downloaded, once.

    ``runs:/ID`` or ``models:/NAME/3`` (``@alias``, ``/latest``) of MLflow, ``wandb:ENTITY/PROJECT/ARTIFACT:v3`` of W&B,
    ``hf://USER/NAME`` (``@REVISION``) of the Hugging Face Hub.

    Raises:
        ReverieError: it is not there, it is no run of this library, or the tracker cannot be reached.
    """
    return fetched(place) if "://" not in str(place) or str(place).startswith("hf://") else place


def fetched(place: Path | str, to: Path | None = None) -> Path | str:
    """Do :func:`local`, also of an agent in storage, such as ``s3://BUCKET/NAME``. ``to``: a new folder."""
    if str(place).startswith("hf://"):
        return _of_hub(str(place), to)
    if isinstance(place, str) and "://" in place:
        return _of_storage(place, to)
    found = _REFERENCE.fullmatch(str(place)) if isinstance(place, str | os.PathLike) else None
    if found is None or ("/" not in str(place) and found["kind"] != "wandb"):
        return place
    get = {"runs": _run, "models": _model, "wandb": _of_wandb}[found["kind"]]
    with reached("wandb" if found["kind"] == "wandb" else "mlflow", str(place)) as tracker:
        return get(tracker, found["rest"], to)


_EXTRAS = {"huggingface_hub": "hub", "onnx": "export", "onnxscript": "export", "onnxruntime": "export"}


def missing(name: str, what: str) -> ConfigError:
    """Return the error of a package that is not installed; ``what``: what needs it."""
    extra = _EXTRAS.get(name, name)
    return ConfigError(f"{what}: the package {name} is not installed. Install it: pip install 'reverie-rl[{extra}]'.")


@contextlib.contextmanager
def reached(name: str, what: str) -> Iterator[Any]:
    """Yield the module of a tracker; errors inside become RunError."""
    try:
        tracker = importlib.import_module(name)
    except ImportError as error:
        raise missing(name, what) from error
    try:
        yield tracker
    except ReverieError:
        raise
    except Exception as error:  # of many kinds: its own, those of its store and of the network
        where = {"mlflow": "MLflow", "wandb": "Weights & Biases", "huggingface_hub": "the Hugging Face Hub"}[name]
        set_it = ""
        if name == "mlflow":
            where = f"MLflow at {tracker.get_tracking_uri()}"
            set_it = " Set MLFLOW_TRACKING_URI to the server that has it."
        elif name == "huggingface_hub":
            set_it = " Its name is USER/NAME; `hf auth login`, or HF_TOKEN, gives access to what is private."
        said = " ".join([line.strip() for line in str(error).splitlines() if line.strip()][:2])  # then advice follows
        raise RunError(f"{what}: {where}: {said.rstrip('.')}.{set_it}") from error


def _run(mlflow: Any, ident: str, to: Path | None) -> Path:
    client = mlflow.MlflowClient()
    title = client.get_run(ident).info.run_name
    names = {file.path for file in client.list_artifacts(ident)}
    if not {"config.yaml", "checkpoints"} <= names:
        raise RunError(
            f"runs:/{ident} ({title}) holds no checkpoint of a run: it was logged with --upload metrics, or it ended "
            "before its first checkpoint, or it is not of this library."
        )
    folder = to or Path("runs") / f"mlflow-{ident}"
    steps = [Path(file.path).name for file in client.list_artifacts(ident, "checkpoints")]
    newest = max((name for name in steps if name.startswith("step-")), default="")
    held = max((path.name for path in folder.glob("checkpoints/step-*")), default="")
    if folder.is_dir() and not (folder / "checkpoints" / newest).is_dir() and held < newest:
        raise RunError(f"{folder} is older than runs:/{ident}, which has {newest}. Move it away to download that one.")

    def fill(to: Path) -> None:
        mlflow.artifacts.download_artifacts(run_id=ident, dst_path=str(to))
        write_json(to / "tracked.json", {"mlflow": ident})

    return _downloaded(folder, fill)


def _model(mlflow: Any, rest: str, to: Path | None) -> Path:
    found = _VERSION.fullmatch(rest)
    if found is None:
        raise ConfigError(f"models:/{rest}: expected models:/NAME/VERSION, models:/NAME/latest or models:/NAME@ALIAS.")
    client, name, version = mlflow.MlflowClient(), found["name"], found["version"]
    if found["alias"]:
        version = client.get_model_version_by_alias(name, found["alias"]).version
    elif version == "latest":
        client.get_registered_model(name)
        version = max(int(one.version) for one in client.search_model_versions(f"name='{name}'"))
    uri = f"models:/{name}/{version}"
    folder = to or Path("runs") / f"{name}-v{version}"
    return _downloaded(folder, lambda to: mlflow.artifacts.download_artifacts(uri, dst_path=str(to)))


def _of_wandb(wandb: Any, rest: str, to: Path | None) -> Path:
    artifact = wandb.Api().artifact(rest)
    folder = to or Path("runs") / f"{artifact.name.partition(':')[0]}-{artifact.version}"
    return _downloaded(folder, lambda to: artifact.download(root=str(to)))


def _of_hub(place: str, to: Path | None) -> Path:
    found = HUB.fullmatch(place)
    if found is None:
        raise ConfigError(f"{place}: expected hf://USER/NAME, or hf://USER/NAME@REVISION.")
    with reached("huggingface_hub", place) as hub:
        commit = hub.HfApi().model_info(found["name"], revision=found["revision"]).sha
        folder = to or Path("runs") / f"{found['name'].rpartition('/')[2]}-{commit[:7]}"

        def fill(to: Path) -> None:
            hub.snapshot_download(found["name"], revision=commit, local_dir=to, allow_patterns=list(PARTS))
            shutil.rmtree(to / ".cache", ignore_errors=True)  # the Hub's notes about the download

        return _downloaded(folder, fill)


def _of_storage(url: str, to: Path | None) -> Path:
    objects = open_objects(url)
    if isinstance(objects, LocalObjects) and to is None:
        return objects.folder
    try:
        about = objects.get(AGENT)
        plain = (name for name in objects.sizes() if ".." not in name)
        names = [name for name in plain if any(fnmatchcase(name, part) for part in PARTS)]
        name = url.rstrip("/").rpartition("/")[2]
        folder = to or Path("runs") / f"{name}-{hashlib.sha256(about).hexdigest()[:7]}"

        def fill(to: Path) -> None:
            for name in names:
                (to / name).parent.mkdir(parents=True, exist_ok=True)
                (to / name).write_bytes(objects.get(name))

        return _downloaded(folder, fill)
    except FileNotFoundError as error:
        raise RunError(f"{url} holds no agent: it has no {AGENT}, which reverie push writes.") from error
    except ReverieError:
        raise
    except objects.failures as error:
        raise objects.error(error) from error


def _downloaded(folder: Path, fill: Callable[[Path], object]) -> Path:
    """Return ``folder``, which ``fill`` fills if it is not there; it is whole or does not exist."""
    if folder.is_dir():
        return folder
    staged = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    staged.mkdir(parents=True)
    try:
        fill(staged)
        if not (staged / "config.yaml").is_file():
            raise RunError(f"{folder.name}: what was downloaded is no run of this library: it has no config.yaml.")
        os.replace(staged, folder)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return folder


def known_ids(run: Path) -> dict[str, str]:
    """Return the ids of a run at its trackers, by the tracker's name."""
    file = run / "tracked.json"
    ids: dict[str, str] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return ids
