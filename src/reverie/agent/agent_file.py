"""The files of an agent without its run: in a folder that is shared, or in one file."""

from __future__ import annotations

import re
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import yaml

from reverie.core.documents import read_yaml
from reverie.core.files import disk_errors_as_run_error, write_json
from reverie.core.types import State
from reverie.core.version import version
from reverie.log.artifacts import AGENT_FILE
from reverie.run.checkpoint import Checkpoints
from reverie.run.dream_snapshots import LearnerWeights
from reverie.run.folder import RunFolder
from reverie.run.provenance import shareable_processes

if TYPE_CHECKING:
    from reverie.agent.player import Player


def write_agent_folder(to: Path, folder: RunFolder, step: int, algo: State, longest: int) -> Path:
    """Write settings, spaces, and a checkpoint of the learner's state ``algo`` with the length of its longest episode.

    ``folder``: of the run. Return ``to``.
    """
    parts: dict[str, Any] = {"algo": SimpleNamespace(state_dict=lambda: algo)}  # saved unchanged
    parts["clock"] = SimpleNamespace(state_dict=lambda: {"longest_episode": longest})
    Checkpoints(to / "checkpoints").save(step, parts)
    config = yaml.safe_dump(without_folders(read_yaml(folder.config)), sort_keys=False, allow_unicode=True)
    (to / folder.config.name).write_text(config, encoding="utf-8")
    shutil.copy2(folder.spec, to)
    if folder.provenance.is_file():
        processes = without_folders(shareable_processes(folder))
        write_json(RunFolder(to).provenance, {"processes": processes})
    return to


def save_agent(agent: Player, path: Path) -> Path:
    """Write ``agent`` to a zip file: see ``Agent.save``."""
    path = path if path.suffix else path.with_suffix(".zip")
    staged = path.with_name(f".{path.name}.part")
    with tempfile.TemporaryDirectory() as temp_dir, disk_errors_as_run_error(path):
        weights = LearnerWeights(agent.algo).state_dict()
        folder = write_agent_folder(
            Path(temp_dir, "agent"), RunFolder(agent.run), agent.step, weights, agent.longest_episode
        )
        write_json(folder / AGENT_FILE, {"algorithm": agent.config.name, "reverie": version()})
        with zipfile.ZipFile(staged, "w") as archive:  # stored as they are, so that no file expands
            for file in sorted(folder.rglob("*")):
                if file.is_file():
                    archive.write(file, file.relative_to(folder).as_posix())
        staged.replace(path)
    return path


def without_folders(values: Any) -> Any:
    """Return plain values with the names of files and folders instead of absolute paths, which others do not have.

    Paths can contain the user's name. URLs and relative paths are kept.
    """
    if isinstance(values, Mapping):
        return {key: without_folders(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [without_folders(value) for value in values]
    if not isinstance(values, str):
        return values
    text = values.removeprefix("file://")
    if re.match(r"(/|~|[A-Za-z]:[\\/])[^:]*$", text):
        return re.split(r"[\\/]", text.rstrip("\\/"))[-1]
    return re.sub(r"""(?<![\w.:/~])(file:/)?~?/(?:[^/\s'"(),;]+/)+""", "", text)
