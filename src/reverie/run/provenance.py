"""What a run was made with: versions, machine, command, git commit, and copies of the user's modules that it names."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

from reverie.core.documents import read_json
from reverie.core.errors import ReverieError, RunError
from reverie.core.files import read_file, write_atomic, write_json
from reverie.core.imports import list_user_files
from reverie.core.kernel_dispatch import kernel_problem, kernels_disabled
from reverie.core.logger import logger
from reverie.core.processor import processor_name
from reverie.core.version import version
from reverie.run.folder import RunFolder, SavedConfig, modules_in, settings_changes

ADVICE = "Delete it: continuing the run writes it again."
COMPARED = ("versions", "machine", "modules")
"""Parts of an entry that can make results differ, each a mapping."""
PRIVATE = ("command", "folder", "host")
"""Parts of an entry that are not shared."""
GIT_SECONDS = 2.0
"""Timeout of git, which can be slow on a network disk."""


def record_process(folder: RunFolder, saved: SavedConfig, step: int, modules: Iterable[str]) -> None:
    """Add this process to provenance.json unless it equals the previous one; warn if results can differ because of it.

    ``modules``: names of modules that the settings do not name, such as those of callbacks.
    """
    entries = read_processes(folder)
    files = _read_modules([*sorted(modules_in(saved)), *modules])
    entry = {"step": step, "command": _format_command(), "folder": os.getcwd(), "host": platform.node()}
    entry |= {"git": _read_git(Path.cwd()), **_describe(saved, files, _describe_pytorch(saved))}
    if entries and {**entries[-1], "step": step} == entry:
        return
    for name, content in files.items():
        copy = folder.code / f"{name}-{_digest(content)[:10]}.py"
        if not copy.exists():
            write_atomic(copy, content)
    write_json(folder.provenance, {"processes": [*entries, entry]})
    if changes := _list_changes(entries[-1], entry) if entries else []:
        logger.warning(f"the run continues with other versions or code: {'; '.join(changes)}. Its results may differ")


def read_processes(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the entries of provenance.json, the oldest first; none if there is no such file."""
    if not folder.provenance.is_file():
        return []
    entries: Any = read_json(folder.provenance, ADVICE).get("processes")
    is_list = isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)
    if not is_list or not all(isinstance(entry.get(part), dict) for entry in entries for part in COMPARED):
        raise RunError(f"{folder.provenance} is damaged: it does not describe processes. {ADVICE}")
    return list(entries)


def shareable_processes(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the entries of provenance.json without command, paths and host."""
    return [{name: value for name, value in entry.items() if name not in PRIVATE} for entry in read_processes(folder)]


def describe_provenance(folder: RunFolder, saved: SavedConfig) -> dict[str, str]:
    """Return texts for people: with what the run was made, by which command, and what differs on this machine.

    Imports no module.
    """
    if not (entries := read_processes(folder)):
        return {}
    last, facts = entries[-1], _list_run_facts(entries)
    versions, machine = ([f"{name} {facts.pop(name)}" for name in last[part]] for part in COMPARED[:2])
    code = [f"{name} {text}" for name, text in facts.items()]
    kernels = str(last["machine"].get("kernels"))
    if kernels_disabled() != (kernels == "off"):
        kernels = "off" if kernels_disabled() else "on"
    current = _describe(saved, _read_modules(last["modules"]), {"kernels": kernels})
    rows = {"versions": versions, "machine": machine, "code": code, "command": [str(last.get("command", ""))]}
    texts = {name: ", ".join(parts) for name, parts in rows.items() if any(parts)}
    changes = _list_changes(last, current)
    return texts | ({"differs here": "; ".join(changes)} if changes else {})


def warn_of_differences(runs: Sequence[RunFolder], warn: Callable[[str], object]) -> None:
    """Warn if the ``runs`` were not made with the same, or if their modules have changed since. Imports no module."""
    groups: dict[str, dict[str, list[RunFolder]]] = {}
    outdated: dict[str, list[RunFolder]] = {}
    for run in runs:
        entries = read_processes(run)
        for name, text in _list_run_facts(entries).items():
            groups.setdefault(name, {}).setdefault(text, []).append(run)
        digests: Mapping[str, str] = entries[-1]["modules"] if entries else {}
        for name, content in _read_modules(digests).items():
            if name != "__main__" and digests.get(name) not in (None, _digest(content)):
                outdated.setdefault(name, []).append(run)
    unequal = {name: values for name, values in groups.items() if len(values) > 1}
    if unequal:
        lines = [f"{name}: {_format_groups(values)}" for name, values in unequal.items()]
        warn(f"the runs were made with different versions, machines or code: {'; '.join(lines)}")
    if outdated:
        warn(f"modules have changed since these runs, which have copies in code/: {_format_groups(outdated)}")


def _format_groups(groups: Mapping[str, Sequence[RunFolder]]) -> str:
    rest = {text: f" and {len(runs) - 1} more" if len(runs) > 1 else "" for text, runs in groups.items()}
    return ", ".join(f"{text} ({runs[0]}{rest[text]})" for text, runs in groups.items())


def _list_run_facts(entries: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return names and texts of all that can make the results of two runs differ; "on, then off" if it changed."""
    values: dict[str, dict[str, None]] = {}
    for entry in entries:
        commit = {"git": str(git)[:10]} if (git := entry.get("git")) else {}
        for name, text in {**_list_facts(entry), **commit}.items():
            values.setdefault(name, {})[text] = None
    return {name: ", then ".join(texts) for name, texts in values.items()}


def _list_facts(entry: Mapping[str, Any]) -> dict[str, str]:
    facts = {name: str(value) for part in COMPARED[:2] for name, value in entry[part].items()}
    return facts | {f"module {name}": str(digest)[:10] for name, digest in entry["modules"].items()}


def _list_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the differences of two entries in what both have, one line each; threads are a setting, told elsewhere."""
    old_facts, new_facts = _list_facts(old), _list_facts(new)
    names = [name for name in old_facts if name in new_facts and name != "threads"]
    return settings_changes({name: old_facts[name] for name in names}, {name: new_facts[name] for name in names})


def _describe_pytorch(saved: SavedConfig) -> dict[str, Any]:
    """Return device, threads and kernels of this process, which trains."""
    import torch  # not for commands that only read runs

    from reverie.core.hardware import choose_device

    device = choose_device(saved.experiment["device"])
    kernels = "off" if kernels_disabled() else kernel_problem() or "on"
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    return {"device": name, "threads": torch.get_num_threads(), "kernels": kernels}


def _describe(saved: SavedConfig, files: Mapping[str, bytes], pytorch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the compared parts of an entry. ``files``: the contents of its modules."""
    machine = {"system": f"{platform.system()} {platform.machine()}", "processor": processor_name()}
    packages = {
        name: text for name in ("torch", "numpy", "gymnasium", *saved.packages) if (text := _find_version(name))
    }
    return {
        "versions": {"reverie": version(), "python": platform.python_version(), **packages},
        "machine": {**machine, **pytorch},
        "modules": {name: _digest(content) for name, content in files.items()},
    }


def _find_version(package: str) -> str:
    with contextlib.suppress(PackageNotFoundError, ValueError):
        return package_version(package)
    return str(getattr(sys.modules.get(package), "__version__", ""))


def _read_modules(modules: Iterable[str]) -> dict[str, bytes]:
    """Return the content of the user's ``modules``, with their packages, and of the user's script, by name."""
    main = sys.modules.get("__main__")
    script = str(getattr(main, "__file__", None) or "")
    is_command = getattr(main, "__spec__", None) is not None or Path(script).parent == Path(sys.executable).parent
    files = {"__main__": Path(script)} if script.endswith(".py") and not is_command else {}
    for module in modules:
        files |= list_user_files(module)
    contents = {}
    for name, file in files.items():
        with contextlib.suppress(OSError, ReverieError):
            contents[name] = read_file(file)
    return contents


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _format_command() -> str:
    """Return the command line of this process."""
    name, *words = sys.argv or [""]
    return shlex.join([*(["reverie"] if Path(name).stem in ("reverie", "__main__") else ["python", name]), *words])


def _read_git(folder: Path) -> str | None:
    """Return the commit of the repository around ``folder``; None if unknown.

    Nothing else is asked: ``git status`` runs filters that the settings of a stranger's repository name.
    """
    if not any((parent / ".git").exists() for parent in (folder, *folder.parents)):
        return None
    try:
        return subprocess.run(
            ["git", "rev-parse", "--verify", "HEAD"], cwd=folder, capture_output=True, text=True, timeout=GIT_SECONDS,
            stdin=subprocess.DEVNULL, check=True,
        ).stdout.strip()  # fmt: skip
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return None
