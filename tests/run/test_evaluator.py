"""Evaluations of a run: made up for where they were cut off, and the score that ends it."""

from __future__ import annotations

import contextlib
import json
import pickle
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from gymnasium.vector import SyncVectorEnv

import reverie
from resumed_runs import CONFIG, QUICK, Walk, assert_same, run_until
from reverie.api import train_config as train
from reverie.cli.output import score_line
from reverie.core.errors import ConfigError, DataError, RunError
from reverie.core.specs import MASK_KEY
from reverie.envs.board_games import NimRules
from reverie.experiment.build import Experiment
from reverie.log.jsonl import read_metrics
from reverie.run.checkpoint import Checkpoints
from reverie.run.config import EVALUATION_METRICS
from reverie.run.evaluate import Evaluation
from reverie.run.folder import RunFolder, read_saved_config
from reverie.run.manifest import checkpoint_step
from reverie.run.match import to_results
from reverie.run.rating import Rating
from reverie.run.signal_handling import SignalStop
from reverie.viewer.session import Session
from tiny_configs import FEW
from unlimited_env import Endless


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
    assert 40 <= checkpoint_step(best) < 60


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
    raise SignalStop(signal.SIGTERM)


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
    assert re.search("(?s)finished at env step .* of 2 episodes.*image/png;base64,iVBOR", late._repr_html_())
    end = late.env_steps
    assert json.loads((run / "eval.json").read_text())["env_steps"] == end > 100
    assert read_saved_config(run).experiment["eval_episodes"] == 2
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl") if "eval/score" in row] == [100, end]
    again = train(longer, env=Walk, run=run)  # it has one now, which is found again
    assert again.evaluation == late.evaluation
    assert "stays" not in said[-1]
    assert len([row for row in read_metrics(run / "metrics.jsonl") if "eval/score" in row]) == 2


# ---------------------------------------------------------------- patience, other scores, callbacks that end a run


def costing(costs: list[float]) -> Any:
    """Evaluations of these costs in turn, at the end and in confirmations 5; the score is always 5."""
    left = iter(costs)

    def played(self: Any, which: str) -> Evaluation:
        cost = next(left) if which == "evaluation" else 5.0
        return Evaluation(scores=[5.0], lengths=[7], mode="eval", info=[{"cost": cost}])

    return played


COSTS = QUICK.merge({
    "schedule.eval_every": 20, "eval_episodes": 1, "steps": 50, "score_metric": "eval/cost:min", "env.num": 1,
    "eval_env": {"log_info": ["cost"]},
})  # fmt: skip


def best_step(run: Path) -> int:
    best = Checkpoints(run / "checkpoints").best()
    assert best is not None
    return checkpoint_step(best)


def test_patience_goes_on_counting_and_ends_a_run_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    """Before the first update, here after three evaluations, it does not count."""
    own = {"patience": 2, "steps": 90, "replay_ratio": 0.1, "learning_starts": 62}
    config, run = COSTS.merge(own), tmp_path / "run"
    monkeypatch.setattr(Experiment, "evaluate", costing([7.0, 8.0, 8.0, 7.0, 7.5, 6.0, 6.0]))
    assert train(config, env=Walk, run=run).stop_reason == ""
    longer = config.merge({"steps": 150})
    result = train(longer, env=Walk, run=run)
    assert (result.reason, result.env_steps, best_step(run)) == ("finished", 100, 20)
    assert result.stop_reason == "patience = 2 (no eval/cost was better than 7 in 2 evaluations)"
    assert any(f"by {result.stop_reason}" in line for line in said)
    assert result.evaluation is not None
    again = train(longer, env=Walk, run=run)
    assert (again.env_steps, again.stop_reason) == (result.env_steps, result.stop_reason)
    assert "set another patience, or None, to continue" in said[-1]
    assert train(longer.merge({"patience": None}), env=Walk, run=run).env_steps >= 150
    assert best_step(run) == 120
    with pytest.raises(ConfigError, match=r"patience = 2 counts evaluations .* schedule.eval_every"):
        train(longer.merge({"schedule.eval_every": 0}), env=Walk, run=tmp_path / "none")


def test_the_lowest_cost_ends_a_run_if_it_was_no_luck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = COSTS.merge({"stop_score": 4.0, "steps": 150})
    monkeypatch.setattr(Experiment, "evaluate", costing([9.0, 3.5, 2.0]))
    result = train(config, env=Walk, run=tmp_path)
    assert result.stop_reason == "stop_score = 4 (best eval/cost 3.5)"
    rows = [row["eval/cost"] for row in read_metrics(tmp_path / "metrics.jsonl") if "eval/cost" in row]
    assert rows == [9.0, (3.5 + 5.0) / 2, 3.5, 5.0]


def test_a_score_that_nothing_logs_is_told_when_an_evaluation_could_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a run that goes on by another number has no best agent by that."""
    monkeypatch.setattr(Experiment, "evaluate", costing([9.0, 9.0, 8.0, 9.5, 9.7]))
    said = r"score_metric = eval/csot:min: evaluations do not log 'eval/csot'\. Choose one of eval/score, .*eval/cost;"
    with pytest.raises(ConfigError, match=said):
        train(COSTS.merge({"score_metric": "eval/csot:min"}), env=Walk, run=tmp_path)
    assert [score for _, score in evaluations(tmp_path)] == [5.0]
    train(COSTS.merge({"score_metric": "eval/score"}), env=Walk, run=tmp_path)
    assert best_step(tmp_path) == 20
    train(COSTS.merge({"steps": 90}), env=Walk, run=tmp_path)
    assert best_step(tmp_path) == 60
    nothing = COSTS.merge({"score_metric": "eval/csot", "eval_env": None})  # adds to what evaluations log
    with pytest.raises(
        ConfigError, match=r"score_metric = eval/csot: .*eval/score_iqm_low, .*eval/success_rate, eval/won;"
    ):
        train(nothing, env=Walk, run=tmp_path / "new")
    assert not (tmp_path / "new").exists()
    for wrong in ("", "eval/cost:least", "eval/cost:"):
        with pytest.raises(ConfigError, match="expected the name of an evaluation metric"):
            COSTS.merge({"score_metric": wrong})


class Stops(reverie.Callback):
    """Ends a run by its first evaluation, or log entry."""

    def __init__(self, hook: str) -> None:
        setattr(self, hook, lambda run, values: run.stop("enough"))


@pytest.mark.parametrize("hook", ["on_evaluation", "on_log"])
def test_a_callback_ends_a_run_for_good(hook: str, tmp_path: Path, said: list[str]) -> None:
    config = QUICK.merge({"schedule.eval_every": 20, "schedule.log_every": 10, "eval_episodes": 1, "steps": 90})
    first = train(config, env=Walk, run=tmp_path, callbacks=[Stops(hook)])
    at = 20 if hook == "on_evaluation" else 10
    assert (first.reason, first.stop_reason, at <= first.env_steps < at + 10) == (
        "finished",
        "a callback: enough",
        True,
    )
    assert first.evaluation is not None
    again = train(config, env=Walk, run=tmp_path)
    assert (again.env_steps, again.stop_reason) == (first.env_steps, first.stop_reason)
    assert "ended early by a callback: enough: increase steps to continue" in said[-1]
    longer = train(config.merge({"steps": 100}), env=Walk, run=tmp_path)
    assert (longer.env_steps >= 100, longer.stop_reason) == (True, "")


# ---------------------------------------------------------------- episodes that do not end


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_episodes_that_do_not_end_are_cut_off_everywhere(tmp_path: Path, said: list[str], vectorization: str) -> None:
    options = {"vectorization": vectorization, "log_info": ("cost:sum",)}
    settings = {"eval_episode_steps": 7, "eval_episodes": 3, "eval_envs": 2, "schedule.eval_every": 5}
    result = reverie.train("dqn", env=Endless, env_options=options, run=tmp_path, **FEW | settings)
    assert (result.evaluation.lengths, result.evaluation.cut_off) == ([7, 7, 7], 3)
    assert result.evaluation.info_means() == {"cost_sum": 7.0}
    assert [line.partition(" (")[0] for line in said if "cut off" in line] == [
        "3 of 3 episodes were cut off at 7 steps"
    ] * 2
    written = json.loads((tmp_path / "eval.json").read_text())
    assert (written["cut_off"], written["most_steps"]) == (3, 7)
    assert read_metrics(tmp_path / "metrics.jsonl")[-1]["eval/cut_off"] == 3
    assert "3 of 3 episodes were cut off at 7 steps" in result._repr_html_()
    assert repr(result).startswith("TrainResult(finished at env step")
    agent = reverie.load(tmp_path, env=Endless)
    found = agent.evaluate(2)
    assert (found.lengths, found.cut_off) == ([7, 7], 2)
    assert "2 of 2 episodes were cut off at 7 steps" in score_line(found)
    with contextlib.closing(Session(agent)) as session:
        for _ in range(7):
            session.step()
        assert session.timeline.real[-1].values["last"]
        with pytest.raises(DataError, match="over"):
            session.step()


@pytest.mark.parametrize("vectorization", ["sync", "native"])
def test_the_longest_episode_of_training_is_known_to_the_agent(tmp_path: Path, vectorization: str) -> None:
    options = {"vectorization": vectorization}
    env = Endless if vectorization == "sync" else lambda num_envs: SyncVectorEnv([Endless] * num_envs)
    more = {**FEW, "steps": 620, "eval_episodes": 1, "env.kwargs": {}}
    Endless.length = 300
    try:
        result = reverie.train("dqn", env=env, env_options=options, run=tmp_path, **more)
    finally:
        Endless.length = 10**9
    assert result.evaluation.cut_off == 0
    agent = reverie.load(tmp_path, env=env)
    assert (agent.longest_episode, agent.episode_limit) == (300, 1200)
    assert pickle.loads(pickle.dumps(agent.config)).eval_episode_steps is None
    found = agent.evaluate(2)
    assert (found.lengths, found.cut_off) == ([1200, 1200], 2)


def test_the_names_of_metrics_that_can_rank_are_those_that_evaluations_log() -> None:
    strength = NimRules((1, 2)).measure_strength(lambda obs: obs[MASK_KEY].argmax(-1)) | Rating().measure([1.0, -1.0])
    results = to_results([0.0] * 10, [{"success_rate": 1.0}] * 10)
    logged = Evaluation(lengths=[1] * 10, mode="eval", strength=strength, **results).metrics()
    assert sorted(logged) == [*EVALUATION_METRICS]
