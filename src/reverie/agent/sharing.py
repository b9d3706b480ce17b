"""Share agents: on the Hugging Face Hub, in cloud storage or a folder, with a model card.

Or in a tracker's registry.
"""

from __future__ import annotations

import contextlib
import html
import json
import os
import shlex
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple

import torch
import yaml

from reverie.agent.agent_file import without_folders, write_agent_folder
from reverie.agent.loading import check_code
from reverie.core import wall_clock
from reverie.core.errors import ConfigError, RunError
from reverie.core.files import read_file, write_json
from reverie.core.version import version
from reverie.datasets.data_path import OBJECT, split_paths
from reverie.experiment.config import NO_ENV
from reverie.log.artifacts import AGENT_FILE, HUB_PATTERN, download_agent, tracker_ids, tracker_module
from reverie.log.trackers import PROJECT, mlflow_experiment_id
from reverie.run.checkpoint import Checkpoints, longest_episode, read_checkpoint
from reverie.run.folder import (
    RunFolder,
    SavedConfig,
    is_final_result_of_step,
    read_final_result,
    read_saved_config,
    read_spec,
)
from reverie.run.manifest import checkpoint_step
from reverie.store.local_objects import open_objects

TAG = "reverie"
"""Tag of reverie agents on the Hub."""
HOME = "https://pypi.org/project/reverie-rl"


@dataclass(frozen=True)
class SharedAgent:
    """A shared agent."""

    location: str
    """Argument for :func:`reverie.load`."""
    metadata: Mapping[str, str]
    """``algorithm``, ``env``, ``step``, the versions of reverie and PyTorch, and perhaps ``score``."""


class AgentPage(NamedTuple):
    """A page about an agent, in the folder that is shared, and what the model card says of it."""

    finding: str
    support: str
    numbers: list[list[str]]
    """Numbers, each with what it measures."""


PAGE = "report.html"
"""The page in a shared folder."""
MakePageFn = Callable[[Path, Path], AgentPage | None]
"""Writes the page of a checkpoint to a file; None if there is nothing to show."""


def upload_agent(
    run: Path | str, destination: str, *, checkpoint: Path | str | None, private: bool, make_page: MakePageFn
) -> str:
    """Upload the agent of a run, with the page that ``make_page`` writes: see :func:`reverie.push`."""
    folder = RunFolder.from_path(run)
    saved, checkpoints = read_saved_config(folder.path), Checkpoints(folder.checkpoints)
    check_code(saved, folder.path)
    read_spec(folder)  # a damaged one is not shared
    path = checkpoints.select(checkpoint or checkpoints.best())
    with tempfile.TemporaryDirectory() as temp_dir:
        model = _write_agent_folder(Path(temp_dir) / "agent", folder, path)
        metadata = _agent_metadata(folder, saved, path)
        if is_final_result_of_step(folder.evaluation, checkpoint_step(path)):
            write_json(model / "eval.json", without_folders(read_final_result(folder.evaluation) or {}))
        page = make_page(path, model / PAGE)
        card = _model_card(model, folder, saved, metadata, destination, page)
        (model / "README.md").write_text(card, encoding="utf-8")
        write_json(model / AGENT_FILE, metadata)
        if hub := HUB_PATTERN.fullmatch(destination):
            with tracker_module("huggingface_hub", destination) as client:
                api = client.HfApi()
                api.create_repo(hub["name"], private=private, exist_ok=True)
                api.upload_folder(
                    repo_id=hub["name"], folder_path=model, delete_patterns="checkpoints/*",
                    commit_message=f"{_title(metadata)}, step {metadata['step']}",
                )  # fmt: skip
        else:
            _upload_folder(model, destination)
    return destination


def _upload_folder(model: Path, destination: str) -> None:
    """Write the files of an agent to a folder or a URL; the file that identifies it is written last."""
    objects = open_objects(destination)
    try:
        before = objects.sizes()
        if before and AGENT_FILE not in before:
            raise ConfigError(
                f"{destination} contains {next(iter(before))}, but no pushed agent: choose another destination."
            )
        names = sorted(file.relative_to(model).as_posix() for file in model.rglob("*") if file.is_file())
        for name in sorted(names, key=lambda name: name == AGENT_FILE):
            objects.put(name, (model / name).read_bytes())
        objects.delete(name for name in before if name.startswith("checkpoints/") and name not in names)
    except objects.exceptions as error:
        if isinstance(error, ConfigError):
            raise
        raise objects.error(error) from error


def pull(location: str, to: Path | str | None = None) -> Path:
    """Download a shared agent, or a run or an agent from a tracker; return its folder.

    Args:
        location: as for :func:`reverie.load`: ``hf://USER/NAME``, optionally with ``@REVISION``, ``s3://BUCKET/NAME``,
            or a tracker's address.
        to: a new folder. None: a folder under ``runs/``, to which it is downloaded once.

    Raises:
        ReverieError: it does not exist, it is not a reverie agent, or the location cannot be reached.
        RunError: the folder already exists.
        UntrustedError: it names a module that belongs to no installed package and that you have not named yourself;
            none of its code runs.
    """
    if to is not None and Path(to).exists():
        raise RunError(f"{to} already exists: choose the name of a new folder.")
    if to is not None and Path(location).is_dir():
        location = f"file://{location}"
    folder = Path(download_agent(location, None if to is None else Path(to)))
    if not folder.is_dir():
        raise RunError(f"{location} cannot be downloaded: expected hf://USER/NAME, s3://BUCKET/NAME or the like.")
    check_code(read_saved_config(folder), folder)
    return folder


def list_agents(location: str) -> list[SharedAgent]:
    """Return the agents at ``hf://USER``, of all users at ``hf://``, in a folder, or at a URL."""
    if location.startswith("hf://"):
        name = location.removeprefix("hf://").rstrip("/")
        with tracker_module("huggingface_hub", location) as client:
            if "/" in name:
                return [SharedAgent(location, _hub_metadata(client, name))]
            models = client.HfApi().list_models(author=name or None, filter=TAG, limit=100)
            return [SharedAgent(f"hf://{model.id}", _hub_metadata(client, model.id)) for model in models]
    objects = open_objects(location)
    try:
        names = [name for name in objects.sizes() if name.rpartition("/")[2] == AGENT_FILE and name.count("/") < 2]
        metadata = {name: _parse_metadata(objects.get(name)) for name in names}
    except objects.exceptions as error:
        raise objects.error(error) from error
    root = location.rstrip("/")
    return [SharedAgent(f"{root}/{name.removesuffix(AGENT_FILE)}".rstrip("/"), x) for name, x in metadata.items()]


def _hub_metadata(client: ModuleType, name: str) -> dict[str, str]:
    try:
        return _parse_metadata(read_file(Path(client.hf_hub_download(name, AGENT_FILE))))
    except client.errors.EntryNotFoundError:
        return {}


def _parse_metadata(content: bytes) -> dict[str, str]:
    """Return the texts in an untrusted ``agent.json``; none if it is damaged, so that other agents are still listed."""
    try:
        metadata = json.loads(content)
    except (ValueError, RecursionError):
        metadata = {}
    return {name: str(value) for name, value in metadata.items()} if isinstance(metadata, dict) else {}


def _agent_metadata(folder: RunFolder, saved: SavedConfig, checkpoint: Path) -> dict[str, str]:
    """Return the metadata of an agent, for ``AGENT_FILE``."""
    step, score = checkpoint_step(checkpoint), None
    with contextlib.suppress(RunError, KeyError):  # an imported agent was not trained here
        run_state = read_checkpoint(checkpoint, ["run"])["run"]
        score = run_state["best"] if run_state["best_step"] == step else None
    if is_final_result_of_step(folder.evaluation, step):
        score = (read_final_result(folder.evaluation) or {})["score"]["mean"]
    data = ", ".join(without_folders(split_paths(saved.experiment.get("data", {}).get("path", ""))))
    origin = {"env": saved.env} if saved.env != NO_ENV else {}
    origin |= {"data": "data in memory" if OBJECT in data else data} if data else {}
    metadata = {"algorithm": saved.algorithm, **origin, "step": str(step), "reverie": version()}
    return metadata | {"torch": str(torch.__version__)} | ({} if score is None else {"score": f"{score:g}"})


def _write_agent_folder(to: Path, folder: RunFolder, checkpoint: Path) -> Path:
    """Write the folder of a shared agent: settings, spaces, a checkpoint of the learner and the longest episode."""
    try:
        state, longest = read_checkpoint(checkpoint, ["algo"])["algo"], longest_episode(checkpoint)
    except KeyError as error:
        raise RunError(f"{checkpoint} is damaged: it contains no {error}. Use another checkpoint.") from error
    return write_agent_folder(to, folder, checkpoint_step(checkpoint), state, longest)


# ---------------------------------------------------------------- the page


def _model_card(
    model: Path, folder: RunFolder, saved: SavedConfig, metadata: Mapping[str, str], destination: str,
    page: AgentPage | None,
) -> str:  # fmt: skip
    """Return the model card of an agent, and save its image in ``model``, the folder to share."""
    algorithm, env, name = metadata["algorithm"], metadata.get("env"), destination.rstrip("/").rpartition("/")[2]
    destination = without_folders(destination)
    evaluation = read_final_result(model / "eval.json") or {}
    tags = [TAG, "reinforcement-learning", algorithm, *([env] if env else ["offline-reinforcement-learning"])]
    head: dict[str, Any] = {"library_name": TAG, "pipeline_tag": "reinforcement-learning", "tags": tags}
    is_offline = saved.experiment.get("experience") == "offline"
    training = f"updates on {metadata.get('data')}" if is_offline else "steps of training"
    lines = [f"# {_title(metadata)}", f"A [reverie]({HOME}) agent after {int(metadata['step']):,} {training}."]
    if page is not None:
        rows = [f"| **{html.escape(value)}** | {html.escape(unit)} |" for value, unit in page.numbers]
        lines += [
            f"**{html.escape(page.finding)}** {html.escape(page.support)}",
            "\n".join(["| | |", "|---|---|", *rows]),
        ]
        lines.append(f"[{PAGE}]({PAGE}) shows its episodes, curves and settings: one file, no server.")
    for image in [image for image in (folder.dream / "strip.png", folder.curve) if image.is_file()][:1]:
        lines.append(f"![{image.stem}]({Path(shutil.copy2(image, model)).name})")
    if score := evaluation.get("score"):
        metric = {"type": "mean_reward", "name": "mean return", "value": f"{score['mean']:.2f} +/- {score['std']:.2f}"}
        task = {"task": {"type": "reinforcement-learning"}, "dataset": {"name": env, "type": env}}
        head["model-index"] = [{"name": name, "results": [task | {"metrics": [metric]}]}]
    lines.append(_commands(metadata, saved, destination))
    front = yaml.safe_dump(head, sort_keys=False, allow_unicode=True)
    return "\n\n".join([f"---\n{front}---", *lines]) + "\n"


def _title(metadata: Mapping[str, str]) -> str:
    """Return the name of an agent: its algorithm, and its environment or its data."""
    env = metadata.get("env")
    return f"{metadata['algorithm']} in {env}" if env else f"{metadata['algorithm']} on {metadata.get('data')}"


def _commands(metadata: Mapping[str, str], saved: SavedConfig, destination: str) -> str:
    env = "" if "env" in metadata else " --env ENV"
    notes = "".join(
        f"\n{key} = {value} was passed from Python: pass it again."
        for key, value in without_folders(saved.custom).items()
    )
    train = format_train_command(saved, "agent/config.yaml", "runs/again")
    return (
        f"```sh\npip install reverie-rl\nreverie eval {destination}{env}\nreverie pull {destination} --to agent\n"
        f"{train}   # trains it again\n```\n\n"
        f'In Python: `agent = reverie.load("{destination}")`. Weights are safetensors, settings YAML, spaces JSON: '
        f"loading them runs no code.{notes}"
    )


def format_train_command(saved: SavedConfig, config: str, run: str) -> str:
    """Return the command that trains an agent again, with the settings in ``config``; names of data have no folders."""
    paths = list(split_paths(saved.experiment.get("data", {}).get("path", "")))
    names = ["DATA" if path.startswith(OBJECT) else path for path in without_folders(paths)]
    data = f" --data {shlex.join(names)}" if names != paths else ""
    return f"reverie train {saved.algorithm} --config {shlex.quote(config)}{data} --run {shlex.quote(run)}"


# ---------------------------------------------------------------- the registry of a tracker


def register_model(
    run: Path | str, name: str, *,
    checkpoint: Path | str | None = None, alias: str | None = None,
    tracker: Literal["mlflow", "wandb"] = "mlflow",
) -> str:  # fmt: skip
    """Add the agent of a run to the model registry of MLflow, or to W&B as an artifact; return its name there.

    The registered folder can be read by :func:`reverie.load`: weights, settings (config.yaml), observations and actions
    (spec.json), and for MLflow a file ``MLmodel`` with the signature.

    Args:
        run: the run folder.
        name: the model's name. The model is created, or a version is added.
        checkpoint: name of a folder in ``checkpoints/``, "best", or a path. None: the best if there is one, else the
            newest.
        alias: alias of this version, such as "best" for ``models:/NAME@best``. It is removed from any other version.
        tracker: "mlflow", its model registry, or "wandb", an artifact.

    Raises:
        ReverieError: the run or checkpoint does not exist, or the tracker cannot be reached or rejects the name.
    """
    folder = RunFolder.from_path(run)
    saved, checkpoints = read_saved_config(folder.path), Checkpoints(folder.checkpoints)
    check_code(saved, folder.path)
    path = checkpoints.select(checkpoint or checkpoints.best())
    metadata, ident = _agent_metadata(folder, saved, path), tracker_ids(folder.path).get(tracker, "")
    register_fn = _to_mlflow if tracker == "mlflow" else _to_wandb
    with tempfile.TemporaryDirectory() as temp_dir:
        model = _write_agent_folder(Path(temp_dir) / path.name, folder, path)
        with tracker_module(tracker, f"register {name}") as module:
            return register_fn(module, name, alias, model, ident, metadata, folder)


def _mlflow_signature(spec: Mapping[str, Any]) -> dict[str, str]:
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
    mlflow: ModuleType, name: str, alias: str | None, model: Path, ident: str, metadata: dict[str, str], run: RunFolder
) -> str:
    client = mlflow.MlflowClient()
    if not ident:
        ident = client.create_run(mlflow_experiment_id(client), run_name=str(run)).info.run_id
        client.set_terminated(ident)
    content = {
        "artifact_path": f"models/{model.name}",
        "flavors": {"reverie": metadata},
        "mlflow_version": mlflow.__version__,
        "model_uuid": uuid.uuid4().hex,
        "run_id": ident,
        "utc_time_created": wall_clock.now().astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f"),
    }
    if spec := read_spec(RunFolder(model)):
        content["signature"] = _mlflow_signature(spec)
    (model / "MLmodel").write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    client.log_artifacts(ident, str(model), f"models/{model.name}")
    if not any(model_entry.name == name for model_entry in client.search_registered_models(f"name='{name}'")):
        client.create_registered_model(name)
    source = f"{client.get_run(ident).info.artifact_uri}/models/{model.name}"
    number = client.create_model_version(name, source, ident, tags=metadata, await_creation_for=0).version
    if alias:
        client.set_registered_model_alias(name, alias, number)
    return f"models:/{name}/{number}"


def _to_wandb(
    wandb: ModuleType, name: str, alias: str | None, model: Path, ident: str, metadata: dict[str, str], run: RunFolder
) -> str:
    settings = wandb.Settings(silent=True, console="off")
    project = os.environ.get("WANDB_PROJECT", PROJECT)
    with wandb.init(
        id=ident or None, resume="allow", project=project, name=str(run), dir=str(run.path), settings=settings
    ) as wandb_run:
        artifact = wandb.Artifact(name, type="model", metadata=metadata)
        artifact.add_dir(str(model))
        wandb_run.log_artifact(artifact, aliases=["latest", *([alias] if alias else [])])
        if wandb_run.offline:
            return f"{name}, offline; to upload it, use wandb sync {Path(wandb_run.dir).parent}"
        artifact.wait()
        return f"wandb:{wandb_run.entity}/{wandb_run.project}/{artifact.name}"
