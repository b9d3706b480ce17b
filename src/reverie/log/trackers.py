"""Experiment trackers: Weights & Biases and MLflow. Neither is imported before it is used."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import secrets
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from reverie.core import wall_clock
from reverie.core.errors import RunError
from reverie.core.logger import logger
from reverie.log.artifacts import Export, Uploads, missing_package_error
from reverie.log.jsonl import Values, scalars
from reverie.log.video import media_path

PROJECT = "reverie"
"""Name of the project or experiment, unless WANDB_PROJECT or MLFLOW_EXPERIMENT_NAME is set."""


def check_installed(names: Mapping[str, bool]) -> None:
    """Raise ConfigError if an enabled package is missing; ``names`` maps packages to whether they are enabled."""
    for name, is_enabled in names.items():
        if is_enabled and importlib.util.find_spec(name) is None:
            raise missing_package_error(name, f"{name} = True")


def mlflow_experiment_id(client: Any) -> str:
    """Return the id of MLflow's experiment, which is created if it does not exist."""
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
    experiment = client.get_experiment_by_name(name)
    return str(experiment.experiment_id if experiment else client.create_experiment(name))


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """The information about a run, with folder ``path``, that a tracker needs."""

    path: Path
    title: str
    """The algorithm and the environment: the same for all seeds."""
    settings: Mapping[str, Any]
    """All settings of the run as plain values."""
    export: Export
    """Copies a checkpoint, for the trackers."""


class WandbSink:
    """Logs to Weights & Biases: scalars under their names over ``env_step``, and videos.

    A process of W&B sends them, now or later (WANDB_MODE=offline).

    Raises:
        RunError: the run cannot be started, for example without a login.
    """

    def __init__(self, run: TrackedRun, ident: str | None) -> None:
        """``ident``: id of the W&B run to resume; None starts a new one."""
        import wandb  # optional

        self.ident: str = ident or secrets.token_hex(4)
        self._run_at, self._wandb = run, wandb
        try:
            self._run: Any = wandb.init(
                id=self.ident, resume="allow", name=str(run.path), dir=str(run.path), config=dict(run.settings),
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                group=os.environ.get("WANDB_RUN_GROUP", run.title),
                settings=wandb.Settings(silent=True, console="off"),
            )  # fmt: skip
        except Exception as error:  # many types, some of them private
            raise RunError(
                f"Weights & Biases: {error} Log in with 'wandb login', or set WANDB_MODE=offline to upload it later."
            ) from error
        self._run.define_metric("env_step")
        self._run.define_metric("*", step_metric="env_step")

    @property
    def location(self) -> str:
        """Return the URL of the run, or how to send it later if offline, or that nothing is sent."""
        if self._run.offline:
            return f"offline; to upload the run, use wandb sync {Path(self._run.dir).parent}"
        return str(self._run.url or "nothing is sent: W&B is disabled (WANDB_MODE)")

    def write(self, values: Values, step: int) -> None:
        """Hand over scalars that are finite, texts, images and videos."""
        row: dict[str, Any] = _finite(values)
        for name, path in _media(self._run_at.path, values, step):
            if isinstance(text := values[name], str):
                row[name] = text
            else:
                is_image = path.suffix == ".png"
                row[name] = self._wandb.Image(str(path)) if is_image else self._wandb.Video(str(path), format="mp4")
        if row:
            self._run.log({"env_step": step, **row})

    def close(self) -> None:
        """Add the run's files as an artifact, and finish; unsent entries are sent, or stay on disk."""
        try:
            if self._run_at.settings["upload"] != "metrics":
                self._log_files()
        finally:
            self._run.finish()

    def _log_files(self) -> None:
        """Log the newest checkpoint and the best as the artifact ``run-<id>``, whose folder is a run folder."""
        artifact = self._wandb.Artifact(f"run-{self.ident}", type="run")

        def upload_file(file: Path, folder: str) -> None:
            artifact.add_file(str(file), name=f"{folder}/{file.name}".lstrip("/"))

        run = self._run_at
        Uploads(run.path, run.settings["upload"], run.export, upload_file, lambda folder: None).sync(end=True)
        self._run.log_artifact(artifact)


class MlflowSink:
    """Logs to MLflow, to the server or database of MLFLOW_TRACKING_URI.

    A thread sends the entries. An entry that could not be sent is sent with the next entry. An entry that MLflow
    rejects because of its content is dropped and reported.

    Raises:
        RunError: MLflow cannot be reached there, or does not accept the run.
    """

    MAX_BATCH = 1000
    """Maximum metrics per request, MLflow's limit."""
    TIMEOUT_SECONDS, FILES_TIMEOUT_SECONDS = 20.0, 600.0
    """Maximum seconds to wait for unsent entries, and for files, at the end of a run."""

    def __init__(self, run: TrackedRun, ident: str | None) -> None:
        """``ident``: id of the MLflow run to resume; None starts a new one."""
        import mlflow  # optional

        self._path = run.path
        self._mlflow: Any = mlflow
        self.ident: str = ident or ""
        self._pending: list[Any] = []
        self._pending_files: list[Path] = []
        self._last: Exception | None = None
        self._refused, self._reason = 0, ""
        self._sending = False  # a file
        self._files = Uploads(run.path, run.settings["upload"], run.export, self._upload_file, self._delete_folder)
        try:
            self._client: Any = mlflow.MlflowClient()
            self._begin(run)
        except Exception as error:  # many types: from MLflow, its store and the network
            raise RunError(
                f"MLflow at {mlflow.get_tracking_uri()}: {error} Set MLFLOW_TRACKING_URI to a server that is running, "
                "or to a database such as sqlite:///mlflow.db (pip install 'reverie-rl[mlflow]')."
            ) from error
        self._handed: SimpleQueue[tuple[list[Any], list[Path]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._send_all, name="mlflow", daemon=True)
        self._thread.start()

    def _begin(self, run: TrackedRun) -> None:
        """Resume the run ``ident``, or create one and log the settings."""
        if self.ident:
            self._client.update_run(self.ident, status="RUNNING")
            listed = self._client.list_artifacts(self.ident, "checkpoints")
            self._files.uploaded = {name for file in listed if (name := Path(file.path).name) != "best"}
            return
        tags = {"mlflow.note.content": run.title}
        experiment = mlflow_experiment_id(self._client)
        self.ident = self._client.create_run(experiment, run_name=str(run.path), tags=tags).info.run_id
        params = [
            self._mlflow.entities.Param(to_mlflow_name(key), value[:500])
            for key, value in flatten_settings(run.settings)
        ]
        for at in range(0, len(params), 100):  # MLflow's limit per request
            self._log(params=params[at : at + 100])

    @property
    def location(self) -> str:
        """Return the tracking URI and the id of the run."""
        return f"{self._mlflow.get_tracking_uri()}, run {self.ident}"

    def write(self, values: Values, step: int) -> None:
        """Hand over scalars that are finite, texts, images and videos."""
        timestamp = int(wall_clock.time() * 1000)
        metric, scalars = self._mlflow.entities.Metric, _finite(values)
        row = [metric(to_mlflow_name(name), x, timestamp, step) for name, x in scalars.items()]
        self._handed.put((row, [path for _, path in _media(self._path, values, step)]))

    def _send_all(self) -> None:
        while (entry := self._handed.get()) is not None:
            self._send(*entry)
        try:
            self._files.sync(end=True)
            self._client.set_terminated(self.ident)
        except Exception as error:
            self._last = self._last or error

    def _send(self, row: list[Any], videos: list[Path]) -> None:
        self._pending += row
        self._pending_files += videos
        try:
            while self._pending:
                self._log(metrics=self._pending[: self.MAX_BATCH])
                del self._pending[: self.MAX_BATCH]
            while self._pending_files:
                if (path := self._pending_files[0]).exists():  # older ones can be deleted concurrently
                    self._client.log_artifact(self.ident, str(path), path.parent.name)
                del self._pending_files[0]
            self._files.sync()
            self._last = None
        except Exception as error:  # a server that is down does not end the run
            self._last = error

    def _upload_file(self, file: Path, folder: str) -> None:
        self._sending = True
        self._client.log_artifact(self.ident, str(file), folder or None)
        self._sending = False

    def _delete_folder(self, folder: str) -> None:
        """Delete a folder of artifacts. MLflow's client cannot; the repository behind it usually can."""
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        repository: Any = get_artifact_repository(self._client.get_run(self.ident).info.artifact_uri)
        repository.delete_artifacts(folder)

    def _log(self, **batch: list[Any]) -> None:
        """Send one batch. A batch that MLflow rejects (HTTP status 400) would be rejected again: it counts as done."""
        try:
            self._client.log_batch(self.ident, **batch)
        except self._mlflow.exceptions.MlflowException as error:
            if error.get_http_status_code() != 400:
                raise
            self._refused, self._reason = self._refused + sum(map(len, batch.values())), str(error)

    def close(self) -> None:
        """Send remaining entries and end the run, within a time limit; the thread continues until this process ends."""
        self._handed.put(([], []))
        self._handed.put(None)
        self._thread.join(self.TIMEOUT_SECONDS)
        if self._thread.is_alive() and self._sending and not self._last:
            logger.info("MLflow: waiting until the last files of the run are sent")
            self._thread.join(self.FILES_TIMEOUT_SECONDS)
        reason = self._last or "no response"
        if self._pending or self._pending_files:
            unsent = f"{len(self._pending)} values and {len(self._pending_files)} files"
            logger.warning(f"MLflow: {unsent} were not sent ({reason}); metrics.jsonl and videos/ contain them")
        elif self._thread.is_alive() or self._last:
            logger.warning(f"MLflow: not all files were sent, or the run could not be marked as finished ({reason})")
        if self._refused:
            logger.warning(
                f"MLflow refused {self._refused} values: {self._reason}; metrics.jsonl and config.yaml have them"
            )


def to_mlflow_name(name: str) -> str:
    """Return the name of a metric or a setting with only the letters that MLflow accepts; others become ``_``."""
    return re.sub(r"[^\w\-.: /]", "_", name)


def _finite(values: Values) -> dict[str, float]:
    return {name: x for name, x in scalars(values).items() if math.isfinite(x)}


def _media(run: Path, values: Values, step: int) -> Iterator[tuple[str, Path]]:
    for name, value in values.items():
        if (path := media_path(run, name, value, step)) is not None and path.exists():
            yield name, path


def flatten_settings(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted path and the text of each setting."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from flatten_settings(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", str(value)
