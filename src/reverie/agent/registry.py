"""Trained agents in the model registry of a tracker: what ``reverie register`` writes, and ``load`` reads back."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import torch
import yaml

from reverie.core.discover import version
from reverie.core.errors import RunError
from reverie.core.types import State
from reverie.log.artifacts import known_ids, reached
from reverie.log.trackers import PROJECT, experiment_of
from reverie.run.checkpoint import Checkpoints, read
from reverie.run.folder import RunFolder, Saved, found_at_end, is_of, read_saved, read_spec
from reverie.run.manifest import step_of

FLAVOR = "reverie"


def register(
    run: Path | str,
    name: str,
    *,
    checkpoint: Path | str | None = None,
    alias: str | None = None,
    to: Literal["mlflow", "wandb"] = "mlflow",
) -> str:
    """Add the agent of a run to the model registry of MLflow, or to W&B as an artifact; return how to name it there.

    What is registered is a folder from which :func:`reverie.load` reads the agent: its weights, its settings
    (config.yaml), what it observes and does (spec.json), and for MLflow a file ``MLmodel`` with the signature.

    Args:
        run: the run folder.
        name: the model's name. It is created, or gets another version.
        checkpoint: name of a folder in ``checkpoints/``, "best", or a path. None: the best if there is one, else the
            newest.
        alias: another name of this version, such as "best" for ``models:/NAME@best``. It is taken from the version that
            has it.
        to: the tracker.

    Raises:
        ReverieError: there is no such run or checkpoint, the tracker cannot be reached, or it refuses the name.
    """
    folder = RunFolder.at(run)
    saved, checkpoints = read_saved(folder.path), Checkpoints(folder.checkpoints)
    path = checkpoints.select(checkpoint or checkpoints.best())
    about, ident = described(folder, saved, path), known_ids(folder.path).get(to, "")
    put = _to_mlflow if to == "mlflow" else _to_wandb
    with tempfile.TemporaryDirectory() as place:
        model = write_model(Path(place) / path.name, folder, path)
        with reached(to, f"register {name}") as tracker:
            return put(tracker, name, alias, model, ident, about, folder)


def described(folder: RunFolder, saved: Saved, checkpoint: Path) -> dict[str, str]:
    """Return what a registry tells about an agent besides its files."""
    step, score = step_of(checkpoint), None
    with contextlib.suppress(RunError):  # an agent from elsewhere was not trained here
        life = read(checkpoint, ["run"])["run"]
        score = life["best"] if life["best_step"] == step else None
    if is_of(folder.evaluation, step):
        score = (found_at_end(folder.evaluation) or {})["score"]["mean"]
    about = {"algorithm": saved.algorithm, "env": saved.env, "step": str(step), "reverie": version()}
    return about | {"torch": str(torch.__version__)} | ({} if score is None else {"score": f"{score:g}"})


def write_model(to: Path, folder: RunFolder, checkpoint: Path) -> Path:
    """Write the folder of a registered agent: settings, spaces, and a checkpoint that holds the learner alone."""
    (learner,) = read(checkpoint, ["algo"]).values()
    Checkpoints(to / "checkpoints").save(step_of(checkpoint), {"algo": _Kept(learner)})
    for file in (folder.config, folder.spec):
        shutil.copy2(file, to)
    return to


class _Kept:
    """A state that is saved as it was read."""

    def __init__(self, state: State) -> None:
        self.state = state

    def state_dict(self) -> State:
        """Return the state."""
        return self.state

    def load_state_dict(self, state: State) -> None:
        """Take another one."""
        self.state = state


def signature_of(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return MLflow's signature of a policy from the content of spec.json: N observations in, N actions out."""

    def tensor(name: str, dtype: str, shape: list[int]) -> dict[str, Any]:
        return {"name": name, "type": "tensor", "tensor-spec": {"dtype": dtype, "shape": [-1, *shape]}}

    inputs = [tensor(name, part["dtype"], part["shape"]) for name, part in spec["observation"].items()]
    outputs = []
    for name, part in spec["action"].items():
        kinds = part["classes"]
        size = [] if len(kinds) == 1 else [len(kinds) or part["size"]]
        outputs.append(tensor(name, "int64" if kinds else "float32", size))
    return {"inputs": json.dumps(inputs), "outputs": json.dumps(outputs)}


def _to_mlflow(
    mlflow: Any, name: str, alias: str | None, model: Path, ident: str, about: dict[str, str], run: RunFolder
) -> str:
    client = mlflow.MlflowClient()
    if not ident:
        ident = client.create_run(experiment_of(client), run_name=str(run)).info.run_id
        client.set_terminated(ident)
    content = {
        "artifact_path": f"models/{model.name}",
        "flavors": {FLAVOR: about},
        "mlflow_version": mlflow.__version__,
        "model_uuid": uuid.uuid4().hex,
        "run_id": ident,
        "utc_time_created": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f"),
    }
    if spec := read_spec(RunFolder(model)):
        content["signature"] = signature_of(spec)
    (model / "MLmodel").write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    client.log_artifacts(ident, str(model), f"models/{model.name}")
    if not any(one.name == name for one in client.search_registered_models(f"name='{name}'")):
        client.create_registered_model(name)
    source = f"{client.get_run(ident).info.artifact_uri}/models/{model.name}"
    number = client.create_model_version(name, source, ident, tags=about, await_creation_for=0).version
    if alias:
        client.set_registered_model_alias(name, alias, number)
    return f"models:/{name}/{number}"


def _to_wandb(
    wandb: Any, name: str, alias: str | None, model: Path, ident: str, about: dict[str, str], run: RunFolder
) -> str:
    settings = wandb.Settings(silent=True, console="off")
    project = os.environ.get("WANDB_PROJECT", PROJECT)
    with wandb.init(
        id=ident or None, resume="allow", project=project, name=str(run), dir=str(run.path), settings=settings
    ) as opened:
        artifact = wandb.Artifact(name, type="model", metadata=about)
        artifact.add_dir(str(model))
        opened.log_artifact(artifact, aliases=["latest", *([alias] if alias else [])])
        if opened.offline:
            return f"{name}, offline; to upload it, use wandb sync {Path(opened.dir).parent}"
        artifact.wait()
        return f"wandb:{opened.entity}/{opened.project}/{artifact.name}"
