"""Evaluations of a trained agent leave scores and a video."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from reverie.agent.evaluation import evaluate_run
from reverie.agent.loading import load
from reverie.core.errors import ConfigError


def test_evaluation_writes_scores_and_video(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    agent = load(run)
    report = evaluate_run(agent, 3, actions="sample", video=True)
    assert len(report.evaluation.scores) == 3
    saved = json.loads((run / "eval.json").read_text())
    assert saved["actions"] == "sample"
    assert saved["checkpoint"] == agent.checkpoint.name
    assert report.files["video"].stat().st_size > 1000
    assert evaluate_run(agent, 3, actions="sample").evaluation.scores == report.evaluation.scores
    assert "time_limit" not in saved
    assert evaluate_run(agent, 3, time_limit=4).evaluation.lengths == [4, 4, 4]
    assert json.loads((run / "eval.json").read_text())["time_limit"] == 4
    with pytest.raises(ConfigError, match=r"env\.time_limit = 0: expected at least 1"):
        agent.evaluate(1, time_limit=0)
