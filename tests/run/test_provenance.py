"""What a run was made with is kept beside it, and told where it matters."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import reverie
from reverie.cli import main
from reverie.core.errors import RunError
from reverie.run import provenance
from reverie.run.folder import RunFolder
from tiny_configs import FEW

WALK = """
import gymnasium
from reverie.envs.dummy import Count

gymnasium.register("Walk-v0", entry_point=lambda: Count(truncate_at=5))
"""
SETTINGS: dict[str, Any] = {**FEW, "eval_episodes": 0}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of the user that registers an environment, in the working folder."""
    monkeypatch.delenv("REVERIE_KERNELS", raising=False)  # off for all tests
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "walk_of_provenance.py"
    path.write_text(WALK)
    return path


def train(steps: int = 10, run: str = "run") -> list[dict[str, Any]]:
    reverie.train("dqn", "walk_of_provenance:Walk-v0", run=run, **{**SETTINGS, "steps": steps})
    return provenance.read_processes(RunFolder(Path(run)))


def test_a_run_keeps_its_modules_and_tells_what_differs_later(
    module: Path, said: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (first,) = train()
    assert first["versions"].keys() >= {"reverie", "python", "torch", "numpy", "gymnasium"}
    assert first["machine"]["kernels"] in ("on", first["machine"]["kernels"])
    assert (first["step"], first["folder"]) == (0, str(module.parent))
    (copy,) = Path("run/code").iterdir()
    assert copy.read_text() == WALK
    assert copy.name == f"{module.stem}-{first['modules'][module.stem][:10]}.py"
    train(20)
    assert len(train(30)) == 1  # nothing has changed
    train(run="other")
    module.write_text(f"{WALK}# changed\n")
    monkeypatch.setenv("REVERIE_KERNELS", "off")
    capsys.readouterr()
    assert main(["info", "run"]) == 0
    here = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("differs here"))
    assert "kernels: on -> off; module walk_of_provenance: " in here
    reverie.load("run")
    assert any(line.startswith("modules have changed since these runs") for line in said)
    _, second = train(40)
    assert (second["step"], second["machine"]["kernels"]) == (30, "off")
    told = [line for line in said if line.startswith("the run continues with other versions or code: kernels: ")]
    assert ["module walk_of_provenance" in line for line in told] == [True]
    assert len([*Path("run/code").iterdir()]) == 2
    shutil.copytree("run", "copied")
    said.clear()
    reverie.compare("run", "copied", "other")
    assert [line.partition(":")[0] for line in said if line.startswith(("the runs", "modules"))] == [
        "the runs were made with different versions, machines or code",
        "modules have changed since these runs, which have copies in code/",
    ]
    assert "kernels: on, then off (run and 1 more), on (other)" in " ".join(said)
    assert "walk_of_provenance (other)" in " ".join(said)


def test_the_commit_is_read_and_no_filter_of_the_repository_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> str:
        identity = ("-c", "user.name=me", "-c", "user.email=me@here")
        return subprocess.run(
            ["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    if shutil.which("git") is None:
        pytest.skip("needs git")
    assert provenance._read_git(tmp_path) is None
    git("init", "-q")
    assert provenance._read_git(tmp_path) is None  # no commit yet
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside/a.py").write_text("1")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    (tmp_path / ".git/info/attributes").write_text("* filter=x\n")
    for setting in ("filter.x.clean", "core.fsmonitor", "core.pager"):
        git("config", setting, f"touch '{tmp_path}/ran'")
    os.utime(tmp_path / "inside/a.py", (1, 1))
    commit = (tmp_path / ".git" / (tmp_path / ".git/HEAD").read_text().split()[1]).read_text().strip()
    assert provenance._read_git(tmp_path / "inside") == commit
    assert not (tmp_path / "ran").exists()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance._read_git(tmp_path) is None


@pytest.mark.parametrize("content", ["[]", '{"processes": 1}', '{"processes": [{"versions": {}, "machine": []}]}'])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    folder = RunFolder(tmp_path)
    folder.provenance.write_text(content)
    with pytest.raises(RunError, match=r"provenance.json is damaged.*Delete it"):
        provenance.read_processes(folder)
    folder.provenance.write_text(json.dumps({"processes": []}))
    assert provenance.read_processes(folder) == []
