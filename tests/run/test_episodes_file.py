"""episodes.jsonl: each finished episode once, also in a run that was killed and goes on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import reverie
from reverie.envs.dummy import Count
from reverie.log.jsonl import read_metrics
from tiny_configs import FEW

SETTINGS: dict[str, Any] = {**FEW, "eval_episodes": 0, "schedule.log_every": 7, "schedule.save_every": 10}


def train(run: Path, steps: int) -> list[dict[str, Any]]:
    reverie.train("dqn", lambda: Count(truncate_at=4), run=run, **{**SETTINGS, "steps": steps})
    return read_metrics(run / "episodes.jsonl")


def test_each_episode_has_a_line_also_after_a_kill(tmp_path: Path) -> None:
    rows = train(tmp_path / "whole", 40)
    assert [(row["step"], row["length"], row["terminated"]) for row in rows] == [
        (step, 4, 0) for step in range(4, 41, 4)
    ]
    train(tmp_path / "killed", 20)
    before = shutil.copytree(tmp_path / "killed", tmp_path / "before")
    train(tmp_path / "killed", 30)
    with (tmp_path / "killed/episodes.jsonl").open("a") as file:  # what kill -9 leaves: later lines, and half a line
        file.write('{"step": 39, "return": 1.0}\n{"step": 39, "ret')
    shutil.rmtree(tmp_path / "killed/checkpoints")
    shutil.copytree(before / "checkpoints", tmp_path / "killed/checkpoints")
    again = train(tmp_path / "killed", 40)
    assert [row["step"] for row in again] == [row["step"] for row in rows]


class Draws(reverie.Callback):
    """Logs what is no number."""

    def on_log(self, run: Any, values: Any) -> None:
        import numpy as np

        run.log({"train/map": np.zeros((4, 5, 3), np.uint8), "train/note": "found the key"})


def test_images_and_texts_of_callbacks_are_files(tmp_path: Path) -> None:
    run = tmp_path / "run"
    reverie.train("dqn", lambda: Count(truncate_at=4), run=run, callbacks=[Draws()], **SETTINGS)
    assert {path.name for path in (run / "images").iterdir()} >= {"train_map-000000000010.png"}
    assert (run / "texts/train_note-000000000010.txt").read_text() == "found the key"
    with pytest.raises(reverie.ReverieError, match="reserved"):
        reverie.train("dqn", lambda: Count(), run=tmp_path / "no", callbacks=[Reserved()], **SETTINGS)


class Reserved(Draws):
    def on_log(self, run: Any, values: Any) -> None:
        run.log({"eval/score": "a text"})
