"""A run that was stopped and went on is the run that never stopped."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr

import resumed_runs
import reverie
from resumed_runs import CONFIG, QUICK, Walk, assert_rows_in_tail, assert_same, everything, run_until
from reverie.algos.dreamer_v2 import DreamerV2Config
from reverie.api import train_config as train
from reverie.core.errors import RunError
from reverie.experiment.build import build
from reverie.log.jsonl import read_metrics
from reverie.replay.persistent import PersistentReplay
from reverie.run.checkpoint import Checkpoints, read_checkpoint
from reverie.run.manifest import checkpoint_step
from reverie.store.store import ReplayStore


class Closed(Walk):
    """One that cannot be taken up in the middle of an episode."""

    def __init__(self) -> None:
        self.handle = (i for i in range(3))


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Walk, "stop_at", 10**9)
    monkeypatch.setattr(Walk, "steps_of_all", 0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody stopped."""
    run = tmp_path_factory.mktemp("whole") / "run"
    assert train(CONFIG, env=Walk, run=run).reason == "finished"
    return run


@pytest.mark.parametrize("stops", [(7,), (61, 80)])
def test_a_run_that_was_stopped_ends_as_one_that_was_not(
    stops: tuple[int, ...], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    before = 0
    for stop in stops:
        run_until(tmp_path / "run", stop - before, monkeypatch)
        before = stop
    assert train(CONFIG, env=Walk, run=tmp_path / "run").reason == "finished"
    assert not any("episode" in line for line in said if "evaluating" not in line)
    assert_same(tmp_path / "run", whole)


def test_what_came_after_the_checkpoint_is_superseded_and_lived_again(
    whole: Path, tmp_path: Path, said: list[str]
) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    newest = Checkpoints(run / "checkpoints").latest()
    shutil.rmtree(newest)
    train(CONFIG, env=Walk, run=run)
    assert_same(run, whole)
    forgotten = [row["step"] for row in read_metrics(run / "metrics-aside.jsonl")]
    assert forgotten
    assert min(forgotten) > max(checkpoint_step(path) for path in Checkpoints(run / "checkpoints").paths()[:-1])
    lines = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines == sorted(lines)  # one life
    first, second = ReplayStore(run / "replay").segments
    assert second.parent == (first.name, second.first)
    assert first.rows > second.first  # what was lived before is still there
    assert zarr.open(run / "replay", mode="r")[f"{second.name}/reward"].shape[1] == second.rows - second.first


def measured(run: Path) -> list[dict[str, Any]]:
    """The log entries at multiples of 40 env steps, without times."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in lines if row["step"] % 40 == 0]


@pytest.mark.parametrize("killed", [True, False])
def test_the_first_log_entry_after_a_resume_has_the_averages_of_its_whole_interval(
    killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries are due at 40 and 80; the checkpoint of the killed run is of 60, the signal comes at 65."""
    more = {"schedule.log_every": 40}
    train(CONFIG.merge(more), env=Walk, run=tmp_path / "whole")
    if killed:
        run = Path(shutil.copytree(tmp_path / "whole", tmp_path / "run"))
        for path in Checkpoints(run / "checkpoints").paths()[2:]:
            shutil.rmtree(path)
    else:
        run = tmp_path / "run"
        run_until(run, 65, monkeypatch, **more)
    train(CONFIG.merge(more), env=Walk, run=run)
    assert [row["step"] for row in measured(run)] == [40, 80]
    assert measured(run) == measured(tmp_path / "whole")


def test_an_episode_that_cannot_go_on_is_closed_as_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    run = tmp_path / "run"
    run_until(run, 41, monkeypatch, Closed)
    rows = ReplayStore(run / "replay").segments[-1].rows
    train(CONFIG, env=Closed, run=run)
    assert any("2 of 2 environments cannot resume in the middle of an episode" in line for line in said)
    store = ReplayStore(run / "replay")
    seam = next(iter(store.read(store.segments[-1], rows, rows + 2))).rows
    assert seam["is_last"][:, 0].all()
    assert not seam["is_terminal"][:, 0].any()
    assert (seam["action"][:, 0] == 0).all()
    assert seam["is_first"][:, 1].all()


def test_another_number_of_environments_keeps_the_rows(whole: Path, tmp_path: Path, said: list[str]) -> None:
    num, run = 3, Path(shutil.copytree(whole, tmp_path / "run"))
    result = train(CONFIG.merge({"steps": 130, "env.num": num}), env=Walk, run=run)
    assert result.env_steps >= 130
    first, second = ReplayStore(run / "replay").segments
    assert (first.streams, second.streams) == (2, num)
    assert second.imported * num > 60
    assert f"env.num: 2 -> {num}" in said
    again = train(CONFIG.merge({"steps": 150, "env.num": num}), env=Walk, run=run)
    assert again.env_steps >= 150
    store = ReplayStore(run / "replay")
    # The newest row of a checkpoint may become the last of an episode, and so is stored again by the next process.
    assert store.segments[2].parent == (second.name, second.rows - 1)
    rows = [(s.rows - s.first - s.imported) * s.streams for s in store.segments]
    assert store.num_rows() == sum(rows) - num


def test_damaged_rows_are_named_and_the_rest_is_used(whole: Path, tmp_path: Path, said: list[str]) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    (file,) = run.glob("replay/0-*/reward/c.1.0")
    file.write_bytes(b"nonsense")
    result = train(CONFIG.merge({"steps": 130}), env=Walk, run=run)
    assert result.reason == "finished"
    assert any("reward/c.1.0" in line for line in said)
    assert any("rebuilt from its rows" in line for line in said)


def test_a_store_elsewhere_and_back(whole: Path, tmp_path: Path, said: list[str]) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    elsewhere = {"steps": 130, "replay.store_path": str(tmp_path / "elsewhere")}
    train(CONFIG.merge(elsewhere), env=Walk, run=run)
    assert not any("episode" in line or "empty" in line for line in said if "evaluating" not in line)
    there = ReplayStore(tmp_path / "elsewhere").segments[-1]
    assert there.rows > ReplayStore(run / "replay").segments[-1].rows
    train(CONFIG.merge({"steps": 150}), env=Walk, run=run)
    assert len(ReplayStore(run / "replay").segments) == 2


def test_a_run_can_begin_with_the_rows_of_others(whole: Path, tmp_path: Path, said: list[str]) -> None:
    config = CONFIG.merge(
        {"replay.init_from": (str(whole), str(whole / "replay")), "steps": 20, "replay.capacity": 5000}
    )
    train(config, env=Walk, run=tmp_path / "new")
    rows = ReplayStore(whole / "replay").num_rows()
    (told,) = [line for line in said if line.startswith("the replay starts with ")]
    begun = int(told.split()[4].replace(",", ""))
    assert 2 * rows * 0.8 <= begun <= 2 * rows
    store = ReplayStore(tmp_path / "new" / "replay")
    own = store.segments[-1]
    assert own.imported == 0
    assert own.rows > begun // own.streams
    known = ReplayStore(whole / "replay")
    lived = {
        row.tobytes() for chunk in known.read(known.segments[0]) for row in chunk.rows["obs/observation"].reshape(-1, 3)
    }
    first = next(iter(store.read(own, 0, begun // own.streams))).rows["obs/observation"]
    assert {row.tobytes() for row in first.reshape(-1, 3)} <= lived


def test_rows_that_the_store_has_not_confirmed_are_in_the_checkpoint(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flush(self: ReplayStore, timeout: float | None = None) -> bool:
        raise RunError("its thread has failed")

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(ReplayStore, "flush", flush)
        run_until(run, 45, monkeypatch)
    assert_rows_in_tail(run)
    train(CONFIG, env=Walk, run=run)
    assert_same(run, whole)


def test_a_smaller_replay_keeps_its_latents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    run_until(run, 61, monkeypatch)
    newest = Checkpoints(run / "checkpoints").latest()
    assert newest is not None
    saved = np.load(newest / "replay" / "deter.npy")
    experiment = build(CONFIG.merge({"replay.capacity": 40}), Walk)
    replay = PersistentReplay(experiment.replay, CONFIG.replay, run, stop=lambda: False)
    Checkpoints(run / "checkpoints").load(newest, {"replay": replay})
    rows = experiment.replay.storage.read(experiment.replay.oldest, experiment.replay.count)
    assert np.array_equal(rows["extras/deter"], saved[:, -20:])
    assert saved[:, -20:].any()
    replay.close(failed=True)


def test_a_state_that_is_carried_goes_on_after_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its cursors: what DreamerV2 learns from is in the middle of episodes, reset now and then."""
    own = {"batch_size": 2, "batch_length": 4, "horizon": 3, "posterior_samples": 2, "carry_state": True,
           "critic.units": 8,
           "rssm": {"deter": 8, "hidden": 8, "stoch": 2, "latent": "categorical(3)"}, "actor.units": 8,
           "encoder.units": (8,), "decoder.units": (8,), "reward.units": 8, "cont.units": 8}  # fmt: skip
    base = CONFIG.merge({"algo": DreamerV2Config().merge(own), "replay.sequential": True, "replay.reset_interval": 8})
    monkeypatch.setattr(resumed_runs, "CONFIG", base)
    assert train(base, env=Walk, run=tmp_path / "whole").reason == "finished"
    run_until(tmp_path / "run", 45, monkeypatch)
    assert train(base, env=Walk, run=tmp_path / "run").reason == "finished"
    assert_same(tmp_path / "run", tmp_path / "whole")
    assert everything(tmp_path / "run")["/algo/carried/carried_deter"].any()


# ---------------------------------------------------------------- callbacks


class Sloped(Walk):
    slope = 0.0

    def steepen(self, slope: float) -> None:
        self.slope = slope

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.v += self.slope
        return super().step(action)


class Steeper(reverie.Callback):
    """Makes the way steeper with each evaluation, and the learner as well, which forgets a part of what it knew."""

    def __init__(self) -> None:
        self.slope = torch.zeros(())
        self.evaluated: dict[int, dict[str, torch.Tensor]] = {}

    def on_start(self, run: reverie.TrainingRun) -> None:
        np.random.random()  # noqa: NPY002 - a run that is not resumed does so once
        run.env.call("steepen", float(self.slope))

    def on_evaluation(self, run: reverie.TrainingRun, values: Mapping[str, float]) -> None:
        self.evaluated[run.env_steps] = {name: x.clone() for name, x in run.algo.state_dict()["model"].items()}
        self.slope += 0.5
        run.env.call("steepen", float(self.slope))
        run.log({"train/slope": float(self.slope)})
        for parameter in run.algo.parameters():  # type: ignore[attr-defined]
            parameter.data *= 0.9

    def state_dict(self) -> dict[str, Any]:
        return {"slope": self.slope}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.slope = state["slope"]


NAME = f"{Steeper.__module__}:Steeper 1"


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_run_goes_on_with_its_callbacks_where_they_were(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was killed between the best checkpoint and its callbacks calls them when it goes on."""
    more = {"schedule.eval_every": 20, "eval_episodes": 1, "schedule.save_every": 0}
    config, run, whole = CONFIG.merge(more), tmp_path / "run", tmp_path / "whole"
    one = Steeper()
    train(config, env=Sloped, run=whole, callbacks=[one])
    if how == "stopped":
        run_until(run, 150, monkeypatch, Sloped, callbacks=[Steeper()], **more)
        assert (
            0
            < read_checkpoint(Checkpoints(run / "checkpoints").latest(), ["callbacks"])["callbacks"][NAME]["slope"]
            < one.slope
        )
    else:
        mark = Checkpoints.mark_best

        def copied(self: Checkpoints, path: Path) -> None:
            shutil.copytree(self.folder.parent, run)
            monkeypatch.setattr(Checkpoints, "mark_best", mark)

        with monkeypatch.context():
            monkeypatch.setattr(Checkpoints, "mark_best", copied)
            train(config, env=Sloped, run=tmp_path / "killed", callbacks=[Steeper()])
    train(config, env=Sloped, run=run, callbacks=[Steeper()])
    assert_same(run, whole)
    for path in (run, whole):
        checkpoints = Checkpoints(path / "checkpoints")
        assert read_checkpoint(checkpoints.latest(), ["callbacks"])["callbacks"][NAME]["slope"] == one.slope == 2.5
    best = Checkpoints(whole / "checkpoints").best()
    weights = read_checkpoint(best, ["algo"])["algo"]["model"]
    assert all(torch.equal(weights[name], x) for name, x in one.evaluated[checkpoint_step(best)].items())


def test_callbacks_that_are_not_passed_again_are_missed(tmp_path: Path, said: list[str]) -> None:
    config = QUICK.merge({"eval_episodes": 0, "steps": 10})
    train(config, env=Sloped, run=tmp_path, callbacks=[Steeper(), Steeper()])
    train(config.merge({"steps": 12}), env=Sloped, run=tmp_path, callbacks=[Steeper()])
    assert any(f"without the callbacks {NAME[:-1]}2: pass them again" in line for line in said)
