"""The config.yaml of a run: own kinds of settings are found again, files of other versions refused."""

from __future__ import annotations

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
