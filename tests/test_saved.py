"""The config.yaml of a run: own kinds of settings are found again, files of other versions refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from reverie.agent.loading import load
from reverie.cli import main
from reverie.core.errors import RunError


@pytest.mark.parametrize(
    ("text", "message"),
    [("schema: 99\nalgorithm: dreamer_v3\nexperiment: {}\n", "schema 99"), ("steps: 3\n", "has no schema, algorithm")],
)
def test_a_config_of_another_time_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(RunError, match=message):
        load(tmp_path)


OWN_ESTIMATOR = """
from dataclasses import dataclass
from reverie.objectives.estimators import OneRow

@dataclass(frozen=True)
class Further(OneRow):
    by: int = 2

    def steps(self, rows):
        return self.by
"""


def test_an_own_value_estimator_in_a_module_is_found_again(tmp_path: Path) -> None:
    (tmp_path / "own_estimators.py").write_text(OWN_ESTIMATOR)
    flags = "--env Pendulum-v1 --algo.batch-length 4 --algo.networks.units 8 8 --steps 250 --learning-starts 200 "
    flags += "--random-steps 200 --eval-episodes 0 --no-tensorboard --algo.value-estimator own_estimators:Further(by=3)"

    def reverie(*words: str, cwd: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "reverie", *words]
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)

    made = reverie("train", "ddpg", *flags.split(), "--run", str(tmp_path / "run"))
    assert made.returncode == 0, made.stderr
    assert "value_estimator: own_estimators:Further(by=3)" in (tmp_path / "run" / "config.yaml").read_text()
    on = reverie("train", "--resume", str(tmp_path / "run"), "--steps", "260", "--trust")
    assert on.returncode == 0, on.stderr
    elsewhere = reverie("eval", str(tmp_path / "run"), "--trust", cwd=tmp_path / "run")
    assert elsewhere.returncode == 1
    assert "module 'own_estimators' cannot be imported" in elsewhere.stderr
    assert "PYTHONPATH" in elsewhere.stderr


def test_a_folder_of_several_runs_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("seed-1", "seed-2"):
        (tmp_path / "seeds" / name).mkdir(parents=True)
        (tmp_path / "seeds" / name / "config.yaml").touch()
    for args in (["eval", "seeds"], ["train", "--resume", "seeds"]):
        assert main(args) == 1
        assert capsys.readouterr().err.endswith("There are runs inside: seed-1, seed-2.\n")
