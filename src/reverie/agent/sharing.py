"""Agents passed on: to the Hugging Face Hub, to cloud storage or to a folder, with a page that tells what they are."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import yaml
from PIL import Image

from reverie.agent.registry import described, write_model
from reverie.core.errors import ConfigError, RunError
from reverie.core.files import write_json
from reverie.log.artifacts import AGENT, HUB, fetched, reached
from reverie.run.checkpoint import Checkpoints
from reverie.run.folder import RunFolder, Saved, found_at_end, is_of, read_saved, read_spec
from reverie.run.manifest import step_of
from reverie.store.places import open_objects

TAG = "reverie"
"""Tag of this library's agents at the Hub."""
CARD = "README.md"
HOME = "https://pypi.org/project/reverie-rl"


@dataclass(frozen=True)
class SharedAgent:
    """An agent that somebody passed on."""

    place: str
    """What :func:`reverie.load` takes."""
    about: Mapping[str, str]
    """``algorithm``, ``env``, ``step``, the versions of this library and of PyTorch, and perhaps ``score``."""


def push(run: Path | str, to: str, *, checkpoint: Path | str | None = None, private: bool = False) -> str:
    """Pass on the agent of a run: weights, settings, spaces, evaluation, and a page with a picture; no rows, no code.

    Args:
        run: the run folder.
        to: ``hf://USER/NAME`` at the Hugging Face Hub, whose repository is created or gets a new commit;
            ``s3://BUCKET/NAME`` or another URL that fsspec knows; or a folder, which is new or holds such an agent.
        checkpoint: name of a folder in ``checkpoints/``, "best", or a path. None: the best if there is one, else the
            newest.
        private: a repository that is created is for its owner alone.

    Returns:
        What :func:`reverie.load` takes; of the Hub, without the commit.

    Raises:
        ReverieError: there is no such run or checkpoint, the place cannot be reached, refuses, or holds something else.
    """
    folder = RunFolder.at(run)
    saved, checkpoints = read_saved(folder.path), Checkpoints(folder.checkpoints)
    path = checkpoints.select(checkpoint or checkpoints.best())
    with tempfile.TemporaryDirectory() as place:
        model = write_model(Path(place) / "agent", folder, path)
        about = described(folder, saved, path)
        if is_of(folder.evaluation, step_of(path)):
            write_json(model / "eval.json", found_at_end(folder.evaluation) or {})
        (model / CARD).write_text(card(model, folder, saved, about, to), encoding="utf-8")
        write_json(model / AGENT, about)
        if hub := HUB.fullmatch(to):
            with reached("huggingface_hub", to) as client:
                api = client.HfApi()
                api.create_repo(hub["name"], private=private, exist_ok=True)
                api.upload_folder(
                    repo_id=hub["name"], folder_path=model, delete_patterns="checkpoints/*",
                    commit_message=f"{about['algorithm']} in {about['env']}, step {about['step']}",
                )  # fmt: skip
        else:
            _put(model, to)
    return to


def _put(model: Path, to: str) -> None:
    """Write the files of an agent to a folder or a URL, the one that says what it is last."""
    objects = open_objects(to)
    try:
        before = objects.sizes()
        if before and AGENT not in before:
            raise ConfigError(f"{to} holds {next(iter(before))}, and no agent that was pushed: choose another place.")
        names = sorted(file.relative_to(model).as_posix() for file in model.rglob("*") if file.is_file())
        for name in sorted(names, key=lambda name: name == AGENT):
            objects.put(name, (model / name).read_bytes())
        objects.delete(name for name in before if name.startswith("checkpoints/") and name not in names)
    except objects.failures as error:
        if isinstance(error, ConfigError):
            raise
        raise objects.error(error) from error


def pull(place: str, to: Path | str | None = None) -> Path:
    """Download an agent that was passed on, or a run or an agent at a tracker; return its folder.

    Args:
        place: as :func:`reverie.load` takes it: ``hf://USER/NAME``, also with ``@REVISION``, ``s3://BUCKET/NAME``, or
            one of a tracker.
        to: a new folder. None: one below ``runs/``, into which it is downloaded once.

    Raises:
        ReverieError: it is not there, it is no agent of this library, or the place cannot be reached.
        RunError: the folder exists already.
    """
    if to is not None and Path(to).exists():
        raise RunError(f"{to} exists already: choose the name of a new folder.")
    if to is not None and Path(place).is_dir():
        place = f"file://{place}"
    found = Path(fetched(place, None if to is None else Path(to)))
    if not found.is_dir():
        raise RunError(f"{place} is nothing to download: expected hf://USER/NAME, s3://BUCKET/NAME or the like.")
    return found


def shared(place: str) -> list[SharedAgent]:
    """Return the agents at ``hf://USER``, of everybody at ``hf://``, or in a folder or at a URL, or the one there.

    Raises:
        ReverieError: the place cannot be reached.
    """
    if place.startswith("hf://"):
        name = place.removeprefix("hf://").rstrip("/")
        with reached("huggingface_hub", place) as client:
            if "/" in name:
                return [SharedAgent(place, _about_at_hub(client, name))]
            models = client.HfApi().list_models(author=name or None, filter=TAG, limit=100)
            return [SharedAgent(f"hf://{one.id}", _about_at_hub(client, one.id)) for one in models]
    objects = open_objects(place)
    try:
        names = [name for name in objects.sizes() if name.rpartition("/")[2] == AGENT and name.count("/") < 2]
        found = {name: json.loads(objects.get(name)) for name in names}
    except objects.failures as error:
        raise objects.error(error) from error
    return [SharedAgent(f"{place.rstrip('/')}/{name.removesuffix(AGENT)}".rstrip("/"), x) for name, x in found.items()]


def _about_at_hub(client: Any, name: str) -> dict[str, str]:
    try:
        about: dict[str, str] = json.loads(Path(client.hf_hub_download(name, AGENT)).read_text(encoding="utf-8"))
    except client.errors.EntryNotFoundError:
        return {}
    return about


# ---------------------------------------------------------------- the page


def card(model: Path, folder: RunFolder, saved: Saved, about: Mapping[str, str], to: str) -> str:
    """Return the page of an agent, and put its picture into ``model``, the folder that is passed on."""
    algorithm, env, name = about["algorithm"], about["env"], to.rstrip("/").rpartition("/")[2]
    evaluation = found_at_end(model / "eval.json") or {}
    tags = [TAG, "reinforcement-learning", algorithm, env]
    head: dict[str, Any] = {"library_name": TAG, "pipeline_tag": "reinforcement-learning", "tags": tags}
    lines = [
        f"# {algorithm} in {env}",
        f"An agent of [reverie]({HOME}) after {int(about['step']):,} steps of training.",
    ]
    if picture := _picture(model, folder):
        lines.append(f"![{picture.stem}]({picture.name})")
    if score := evaluation.get("score"):
        head["model-index"] = [{"name": name, "results": [_result(env, score)]}]
        lines.append(_scored(score, evaluation))
    lines += [_spaces(read_spec(folder) or {}), _commands(algorithm, saved, to)]
    front = yaml.safe_dump(head, sort_keys=False, allow_unicode=True)
    return "\n\n".join([f"---\n{front}---", *lines]) + "\n"


def _result(env: str, score: Mapping[str, float]) -> dict[str, Any]:
    """Return a score as the Hub's page shows it."""
    metric = {"type": "mean_reward", "name": "mean return", "value": f"{score['mean']:.2f} +/- {score['std']:.2f}"}
    return {"task": {"type": "reinforcement-learning"}, "dataset": {"name": env, "type": env}, "metrics": [metric]}


def _scored(score: Mapping[str, float], evaluation: Mapping[str, Any]) -> str:
    low, high = score.get("iqm_low"), score.get("iqm_high")
    sure = "" if low is None or high is None else f" (95 % interval {low:.2f} to {high:.2f})"
    return (
        f"Mean return **{score['mean']:.2f}**, interquartile mean {score['iqm']:.2f}{sure}, standard deviation "
        f"{score['std']:.2f}, over {evaluation['episodes']} episodes with actions: {evaluation['actions']}."
    )


def _picture(model: Path, folder: RunFolder) -> Path | None:
    """Copy the learning curve, or the middle frame of the newest video, into ``model``."""
    if folder.curve.is_file():
        return Path(shutil.copy2(folder.curve, model))
    videos = sorted(folder.videos.glob("*.mp4"), key=lambda file: file.stat().st_mtime)
    if not videos:
        return None
    frames = imageio.imread(videos[-1])  # [T, H, W, 3]
    picture = model / "frame.png"
    Image.fromarray(frames[len(frames) // 2]).save(picture)
    return picture


def _spaces(spec: Mapping[str, Any]) -> str:
    rows = [f"| observation `{key}` | {x['kind']} | {x['shape']} |" for key, x in spec.get("observation", {}).items()]
    for key, part in spec.get("action", {}).items():
        size = f"classes {part['classes']}" if part["classes"] else f"{part['size']} numbers"
        rows.append(f"| action `{key}` | {part['kind']} | {size} |")
    return "\n".join(["| | kind | shape |", "|---|---|---|", *rows])


def _commands(algorithm: str, saved: Saved, to: str) -> str:
    own = "".join(f"\n{place} = {what} was given from Python: pass it again." for place, what in saved.custom.items())
    return (
        f"```sh\npip install reverie-rl\nreverie eval {to}\nreverie pull {to} --to agent\n"
        f"reverie train {algorithm} --config agent/config.yaml --run runs/again   # trains it anew\n```\n\n"
        f'In Python: `agent = reverie.load("{to}")`. Weights are safetensors, settings YAML, spaces JSON: loading them '
        f"runs no code.{own}"
    )
