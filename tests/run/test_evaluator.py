"""Evaluations of a run: made up for where they were cut off, and the score that ends it."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from resumed import CONFIG, QUICK, Walk, assert_same, run_until

from reverie.api import train_config as train
from reverie.core.errors import RunError
from reverie.experiment.build import Experiment
from reverie.log.metrics import read_metrics
from reverie.run.checkpoint import Checkpoints
from reverie.run.evaluate import Evaluation
from reverie.run.folder import RunFolder, read_saved
from reverie.run.manifest import step_of
from reverie.run.signals import Stopped


def test_an_evaluation_that_a_signal_cut_off_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"schedule.eval_every": 20, "eval_episodes": 1}
    train(CONFIG.merge(config), env=Walk, run=tmp_path / "whole")
    run_until(tmp_path / "run", 20, monkeypatch, **config)
    train(CONFIG.merge(config), env=Walk, run=tmp_path / "run")
    assert evaluations(tmp_path / "run") == evaluations(tmp_path / "whole")


def test_an_evaluation_that_failed_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And ends the run, if that is good enough, where it would have."""
    config = CONFIG.merge({"schedule.eval_every": 20, "eval_episodes": 1, "stop_score": -1e6})
    whole = train(config, env=Walk, run=tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(Experiment, "evaluate", failed_evaluation)
        with pytest.raises(ValueError, match="once"):
            train(config, env=Walk, run=tmp_path / "run")
    assert train(config, env=Walk, run=tmp_path / "run").env_steps == whole.env_steps
    assert evaluations(tmp_path / "run") == evaluations(tmp_path / "whole")
    assert_same(tmp_path / "run", tmp_path / "whole")


def failed_evaluation(*args: Any, **options: Any) -> Any:
    raise ValueError("once")


def test_an_evaluation_is_written_before_its_best_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed between the two loses neither."""
    config, run = CONFIG.merge({"schedule.eval_every": 20, "eval_episodes": 1}), tmp_path / "run"

    def killed(self: Checkpoints, path: Path) -> None:
        shutil.copytree(run, tmp_path / "killed")
        raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoints, "mark_best", killed)
    with pytest.raises(KeyboardInterrupt):
        train(config, env=Walk, run=run)
    assert [step for step, _ in evaluations(tmp_path / "killed")] == [20]


@pytest.mark.parametrize("goal", [None, 4.0])
def test_the_best_agent_is_marked_though_the_process_ended_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, goal: float | None
) -> None:
    config = QUICK.merge({"schedule.eval_every": 20, "eval_episodes": 1, "steps": 70, "stop_score": goal})
    scores = iter([1.0, 5.0, 5.0, 3.0, 3.0, 3.0, 3.0] if goal else [1.0, 5.0, 3.0, 3.0, 3.0])
    run, mark = tmp_path / "run", Checkpoints.mark_best

    def full(self: Checkpoints, path: Path) -> None:
        if (self.folder / "best").exists():
            shutil.copytree(run, tmp_path / "killed")
            raise RunError("the disk is full.")
        mark(self, path)

    def played(self: Any, which: str) -> Any:
        return Evaluation(scores=[next(scores)], lengths=[7], mode="eval")

    monkeypatch.setattr(Experiment, "evaluate", played)
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "mark_best", full)
        with pytest.raises(RunError, match="disk is full"):
            train(config, env=Walk, run=run)
    train(config, env=Walk, run=tmp_path / "killed")
    best = Checkpoints(tmp_path / "killed" / "checkpoints").best()
    assert best is not None
    assert 40 <= step_of(best) < 60


@pytest.mark.parametrize("what", ["mark", "checkpoint"])
def test_a_run_goes_on_without_its_best_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, said: list[str]
) -> None:
    config = QUICK.merge({"schedule.eval_every": 20, "eval_episodes": 1, "steps": 50})
    scores = iter([5.0, *[1.0] * 9])
    monkeypatch.setattr(
        Experiment, "evaluate", lambda *args, **options: Evaluation(scores=[next(scores)], lengths=[7], mode="eval")
    )
    train(config, env=Walk, run=tmp_path)
    folder = tmp_path / "checkpoints"
    best = folder / (folder / "best").read_text()
    if what == "mark":
        (folder / "best").write_text("nothing")
    else:
        (best / "state.json").write_text("")
    train(config.merge({"steps": 60}), env=Walk, run=tmp_path)
    assert what == "mark" or [line for line in said if "damaged" in line and best.name in line]
    found = Checkpoints(folder).best()
    assert found is not None
    assert (found == best) is (what == "mark")


def evaluations(run: Path) -> list[tuple[int, float]]:
    rows = read_metrics(run / "metrics.jsonl")
    return [(row["step"], row["eval/score"]) for row in rows if "eval/score" in row]


def test_a_run_that_was_good_enough_stays_ended(tmp_path: Path, said: list[str]) -> None:
    config = CONFIG.merge({"schedule.eval_every": 20, "eval_episodes": 1, "stop_score": -1e6})
    assert train(config, env=Walk, run=tmp_path / "run").env_steps < 40
    assert train(config, env=Walk, run=tmp_path / "run").env_steps < 40
    assert "ended early by stop_score = -1e+06" in said[-1]
    (tmp_path / "run" / "eval.json").unlink()  # as if it had been stopped in its last evaluation
    again = train(config, env=Walk, run=tmp_path / "run")
    assert again.evaluation is not None
    assert (tmp_path / "run" / "eval.json").exists()


def test_a_score_that_was_luck_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that reaches the goal is played again in other episodes, and counts with these."""
    asked: list[str] = []
    scores = {"evaluation": iter([1.0, 5.0, 5.0, 5.0]), "confirmation": iter([2.0, 4.5]), "test": iter([3.0])}

    def played(self: Any, which: str) -> Any:
        asked.append(which)
        return Evaluation(scores=[next(scores[which])] * 2, lengths=[7] * 2, mode="eval")

    monkeypatch.setattr(Experiment, "evaluate", played)
    config = CONFIG.merge({"schedule.eval_every": 20, "eval_episodes": 2, "stop_score": 4.7, "steps": 200})
    result = train(config, env=Walk, run=tmp_path / "run")
    assert asked == ["evaluation", "evaluation", "confirmation", "evaluation", "confirmation", "test"]
    assert [score for _, score in evaluations(tmp_path / "run")] == [1.0, 3.5, 4.75, 3.0]
    assert result.env_steps < 80
    rows = [row for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if "eval/score" in row]
    assert [row["eval/episodes"] for row in rows] == [2, 4, 4, 2]
    assert [row["eval/final"] for row in rows] == [0, 0, 0, 1]
    assert (tmp_path / "run" / "checkpoints" / "best").exists()


def stopped(*args: Any) -> Any:
    raise Stopped(signal.SIGTERM)


def test_a_score_is_of_the_end_that_a_run_has_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    """One that goes on and is stopped in its final evaluation has no score from before: the same command makes it."""
    run, longer = tmp_path / "run", CONFIG.merge({"steps": 130})
    train(CONFIG, env=Walk, run=run)
    with monkeypatch.context() as patch:
        patch.setattr(Experiment, "measure", stopped)
        result = train(longer, env=Walk, run=run)
    assert (result.reason, result.signal, result.evaluation) == ("interrupted", signal.SIGTERM, None)
    assert "SIGTERM: the run is saved without its final evaluation" in said[-1]
    assert RunFolder(run).checkpoints in Path(result.files["checkpoint"]).parents
    assert result.files["curve"].exists()
    late = train(longer.merge({"eval_episodes": 2}), env=Walk, run=run)
    assert late.evaluation is not None
    assert len(late.evaluation.scores) == 2
    end = late.env_steps
    assert json.loads((run / "eval.json").read_text())["env_steps"] == end > 100
    assert read_saved(run).experiment["eval_episodes"] == 2
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl") if "eval/score" in row] == [100, end]
    again = train(longer, env=Walk, run=run)  # it has one now, which is found again
    assert again.evaluation == late.evaluation
    assert "stays" not in said[-1]
    assert len([row for row in read_metrics(run / "metrics.jsonl") if "eval/score" in row]) == 2
