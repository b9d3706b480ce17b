"""A run that was stopped and went on is the run that never stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import zarr

from reverie.algos.dqn import DQNConfig
from reverie.core.errors import RunError
from reverie.data import extras
from reverie.data.store import manifest
from reverie.data.store.manifest import Segment
from reverie.data.store.store import Store
from reverie.experiment import Experiment, ExperimentConfig, build
from reverie.folder import RunFolder
from reverie.log.sinks import read_metrics
from reverie.run.checkpoint import Checkpoints, read
from reverie.run.evaluate import Evaluation
from reverie.run.interrupt import Stopped, stopping
from reverie.run.lock import RunLock
from reverie.run.verify import step_of
from reverie.saved import read_saved
from reverie.training import evaluator
from reverie.training.checkpointing import place_of
from reverie.training.evaluator import Result
from reverie.training.messages import say_nothing
from reverie.training.replay_state import DurableReplay
from reverie.training.run import train
from tiny import SETTINGS

CONFIG = ExperimentConfig().merge(SETTINGS).merge(
    {
        **{"steps": 100, "threads": 1, "learning_starts": 10, "env.id": "Walk", "replay.capacity": 120},
        "schedule.save_every": 30,
    }
)  # fmt: skip
QUICK = ExperimentConfig(algo=DQNConfig()).merge(
    {k: v for k, v in SETTINGS.items() if k != "algo"} | {"threads": 1, "replay_ratio": 0.0}
)
"""Settings of a run that only collects."""


class Walk(gymnasium.Env[Any, Any]):
    """A random walk with a hidden velocity that ends at random; sends SIGTERM to its process when told to."""

    observation_space = gymnasium.spaces.Box(-100, 100, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    stop_at = 10**9
    steps_of_all = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.x, self.v = np.zeros(2), 0.0
        return self._seen(), {}

    def _seen(self) -> np.ndarray:
        return np.array([*self.x, np.random.random()], np.float32)  # noqa: NPY002 - as environments of others do

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.v += self.np_random.normal() + action - 0.5
        self.x += self.v, 1.0
        Walk.steps_of_all += 1
        if Walk.steps_of_all == Walk.stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return self._seen(), float(self.v), bool(self.np_random.random() < 0.05), False, {}


class Closed(Walk):
    """One that cannot be taken up in the middle of an episode."""

    def __init__(self) -> None:
        self.handle = (i for i in range(3))


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Walk, "stop_at", 10**9)
    monkeypatch.setattr(Walk, "steps_of_all", 0)


def run_until(run: Path, stop_at: int, monkeypatch: pytest.MonkeyPatch, env: Any = Walk, **more: Any) -> Result:
    """Interrupted at that step of the environments."""
    with monkeypatch.context() as patch:
        patch.setattr(Walk, "stop_at", stop_at)
        patch.setattr(Walk, "steps_of_all", 0)
        result = train(CONFIG.merge(more), env=env, run=run, say=say_nothing)
    assert result.signal == signal.SIGTERM
    return result


def everything(run: Path) -> dict[str, Any]:
    """All that a finished run has learned and lived."""
    newest = Checkpoints(run / "checkpoints").latest()
    assert newest is not None
    found = dict(leaves(read(newest, ["algo", "random", "replay"])))
    found |= {file.name: np.load(file) for file in (newest / "replay").glob("*.npy")}
    store = Store(run / "replay", say=say_nothing)
    for chunk in store.read(store.segments[-1]):
        found |= {f"{name}@{chunk.start}": column for name, column in chunk.rows.items()}
    return found


def leaves(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{name}/{key}")
    else:
        yield name, value


def assert_same(run: Path, other: Path) -> None:
    a, b = everything(run), everything(other)
    assert a.keys() == b.keys()
    for name, value in a.items():
        if name == "/replay/segment" or name.startswith("/replay/sittings"):  # no two are called the same
            continue
        expected = b[name]
        same = np.array_equal(value, expected) if isinstance(value, np.ndarray | torch.Tensor) else value == expected
        assert same, name


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody stopped."""
    run = tmp_path_factory.mktemp("whole") / "run"
    assert train(CONFIG, env=Walk, run=run, say=say_nothing).reason == "finished"
    return run


@pytest.mark.parametrize("stops", [(7,), (45,), (61, 80)])
def test_a_run_that_was_stopped_ends_as_one_that_was_not(
    stops: tuple[int, ...], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = 0
    for stop in stops:
        run_until(tmp_path / "run", stop - before, monkeypatch)
        before = stop
    said: list[str] = []
    assert train(CONFIG, env=Walk, run=tmp_path / "run", say=said.append).reason == "finished"
    assert not any("episode" in line for line in said if "evaluating" not in line)
    assert_same(tmp_path / "run", whole)


def test_what_came_after_the_checkpoint_is_set_aside_and_lived_again(whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    newest = Checkpoints(run / "checkpoints").latest()
    shutil.rmtree(newest)
    said: list[str] = []
    train(CONFIG, env=Walk, run=run, say=said.append)
    assert any("set aside" in line for line in said)
    assert_same(run, whole)
    forgotten = [row["step"] for row in read_metrics(run / "metrics-aside.jsonl")]
    assert forgotten
    assert min(forgotten) > max(step_of(path) for path in Checkpoints(run / "checkpoints").all()[:-1])
    lines = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines == sorted(lines)  # one life
    assert zarr.open(run / "replay", mode="r")["aside/0/reward"].shape[1] > 0


def test_newer_rows_can_be_kept(whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    before = Store(run / "replay", say=say_nothing).segments[-1].rows
    shutil.rmtree(Checkpoints(run / "checkpoints").latest())
    said: list[str] = []
    train(CONFIG, env=Walk, run=run, say=said.append, keep_newer=True)
    assert not any("set aside" in line for line in said)
    assert any("rows newer than the checkpoint: they are kept" in line for line in said)
    assert any("no longer those of the checkpoint: environments start new episodes" in line for line in said)
    store = Store(run / "replay", say=say_nothing)
    (segment,) = store.segments
    assert segment.rows > before
    assert next(iter(store.read(segment, before, before + 1))).rows["is_first"].all()


def test_an_episode_that_cannot_go_on_is_closed_as_truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    run_until(run, 41, monkeypatch, Closed)
    rows = Store(run / "replay", say=say_nothing).segments[-1].rows
    said: list[str] = []
    train(CONFIG, env=Closed, run=run, say=said.append)
    assert any("2 of 2 environments cannot resume in the middle of an episode" in line for line in said)
    store = Store(run / "replay", say=say_nothing)
    seam = next(iter(store.read(store.segments[-1], rows, rows + 2))).rows
    assert seam["is_last"][:, 0].all()
    assert not seam["is_terminal"][:, 0].any()
    assert (seam["action"][:, 0] == 0).all()
    assert seam["is_first"][:, 1].all()


@pytest.mark.parametrize("num", [1, 3])
def test_another_number_of_environments_keeps_the_rows(
    num: int, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    said: list[str] = []
    result = train(CONFIG.merge({"steps": 130, "env.num": num}), env=Walk, run=run, say=said.append)
    assert result.env_steps >= 130
    first, second = Store(run / "replay", say=say_nothing).segments
    assert (first.streams, second.streams) == (2, num)
    assert second.imported * num > 60
    assert f"env.num: 2 -> {num}" in said
    again = train(CONFIG.merge({"steps": 150, "env.num": num}), env=Walk, run=run, say=said.append)
    assert again.env_steps >= 150
    assert len(Store(run / "replay", say=say_nothing).segments) == 2


def test_damaged_rows_are_named_and_the_rest_is_used(whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    (run / "replay" / "0" / "reward" / "c.1.0").write_bytes(b"nonsense")
    said: list[str] = []
    result = train(CONFIG.merge({"steps": 130}), env=Walk, run=run, say=said.append)
    assert result.reason == "finished"
    assert any("reward/c.1.0" in line for line in said)
    assert any("rebuilt from its rows" in line for line in said)


def test_a_store_elsewhere_and_back(whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    elsewhere = {"steps": 130, "replay.store": str(tmp_path / "elsewhere")}
    said: list[str] = []
    train(CONFIG.merge(elsewhere), env=Walk, run=run, say=said.append)
    assert not any("episode" in line or "empty" in line for line in said if "evaluating" not in line)
    there = Store(tmp_path / "elsewhere", say=say_nothing).segments[-1]
    assert there.rows > Store(run / "replay", say=say_nothing).segments[-1].rows
    train(CONFIG.merge({"steps": 150}), env=Walk, run=run, say=said.append)
    assert len(Store(run / "replay", say=say_nothing).segments) == 2


def test_without_a_store_the_replay_starts_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    run_until(run, 41, monkeypatch, **{"replay.store": "none"})
    assert not (run / "replay").exists()
    said: list[str] = []
    train(CONFIG.merge({"replay.store": "none"}), env=Walk, run=run, say=said.append, keep_newer=True)
    assert any("starts empty" in line for line in said)
    assert "keep_newer has no effect: this run stores no rows" in said


def test_a_run_can_begin_with_the_rows_of_others(whole: Path, tmp_path: Path) -> None:
    said: list[str] = []
    config = CONFIG.merge({"replay.init": (str(whole), str(whole / "replay")), "steps": 20, "replay.capacity": 5000})
    train(config, env=Walk, run=tmp_path / "new", say=said.append, keep_newer=True)
    assert "keep_newer has no effect: there is no checkpoint to continue from" in said
    rows = sum((s.rows - s.first) * s.streams for s in Store(whole / "replay", say=say_nothing).segments)
    (told,) = [line for line in said if line.startswith("the replay starts with ")]
    begun = int(told.split()[4].replace(",", ""))
    assert 2 * rows * 0.8 <= begun <= 2 * rows
    store = Store(tmp_path / "new" / "replay", say=say_nothing)
    own = store.segments[-1]
    assert own.imported == 0
    assert own.rows > begun // own.streams
    known = Store(whole / "replay", say=say_nothing)
    lived = {row.tobytes() for chunk in known.read("0") for row in chunk.rows["obs/observation"].reshape(-1, 3)}
    first = next(iter(store.read(own, 0, begun // own.streams))).rows["obs/observation"]
    assert {row.tobytes() for row in first.reshape(-1, 3)} <= lived


class Wide(Walk):
    observation_space = gymnasium.spaces.Box(-100, 100, (4,), np.float32)

    def _seen(self) -> np.ndarray:
        return np.zeros(4, np.float32)


def test_rows_of_other_spaces_are_refused_before_anything_is_written(whole: Path, tmp_path: Path) -> None:
    config = CONFIG.merge({"replay.init": (str(whole),)})
    with pytest.raises(RunError, match=r"do not fit this environment.* columns: obs/observation"):
        train(config, env=Wide, run=tmp_path / "new", say=say_nothing)
    with pytest.raises(RunError, match=r"no replay store found there"):
        train(CONFIG.merge({"replay.init": (str(tmp_path),)}), env=Walk, run=tmp_path / "new", say=say_nothing)
    with pytest.raises(RunError, match=r"replay.store = .*do not fit this environment"):
        train(CONFIG.merge({"replay.store": str(whole / "replay")}), env=Wide, run=tmp_path / "new", say=say_nothing)
    assert not (tmp_path / "new").exists()


def test_rows_that_the_store_has_not_confirmed_are_in_the_checkpoint(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Store, "flush", lambda self, timeout=None: False)
        run_until(run, 45, monkeypatch)
    assert_rows_in_tail(run)
    train(CONFIG, env=Walk, run=run, say=say_nothing)
    assert_same(run, whole)


def assert_rows_in_tail(run: Path) -> None:
    newest = Checkpoints(run / "checkpoints").latest()
    assert newest is not None
    assert read(newest, ["replay"])["replay"]["tail"]["reward"].shape[1] > 0


# ---------------------------------------------------------------- what once went wrong


@pytest.mark.parametrize("num", [1, 3, 4])
def test_more_or_fewer_environments_keep_the_newest_rows_of_all(num: int, tmp_path: Path) -> None:
    run, config = tmp_path / "run", CONFIG.merge({"replay.capacity": 160, "steps": 400, "replay_ratio": 0.01})
    train(config, env=Walk, run=run, say=say_nothing)
    (first,) = Store(run / "replay", say=say_nothing).segments
    held = next(iter(Store(run / "replay", say=say_nothing).read(first, first.rows - 80))).rows["obs/observation"]
    train(config.merge({"env.num": num, "steps": 404}), env=Walk, run=run, say=say_nothing)
    store = Store(run / "replay", say=say_nothing)
    rows = next(iter(store.read(store.segments[-1]))).rows["obs/observation"][:, : store.segments[-1].imported]
    kept = {row.tobytes() for row in rows.reshape(-1, 3)}
    for stream in held:  # whole episodes of each stream, its newest ones
        assert sum(row.tobytes() in kept for row in stream) > 0
    assert kept <= {row.tobytes() for row in held.reshape(-1, 3)}


def test_newer_rows_do_not_come_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Store, "flush", lambda self, timeout=None: False)
        run_until(run, 45, monkeypatch)  # its last rows are in the checkpoint, and stored when the store is closed
    assert_rows_in_tail(run)
    before = Store(run / "replay", say=say_nothing).segments[-1].rows
    result = train(CONFIG, env=Walk, run=run, say=say_nothing, keep_newer=True)
    segment = Store(run / "replay", say=say_nothing).segments[-1]
    assert result.env_steps >= 100
    assert before <= segment.rows <= (result.env_steps + 40) // 2


def test_a_store_by_another_name_is_the_same_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train(CONFIG.merge({"replay.store": "rows"}), env=Walk, run=tmp_path / "run", say=say_nothing)
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    said: list[str] = []
    more = CONFIG.merge({"replay.store": "../rows", "steps": 120})
    train(more, env=Walk, run=tmp_path / "run", say=said.append)
    assert not any("empty" in line or "laid out" in line for line in said)
    assert len(Store(tmp_path / "rows", say=say_nothing).segments) == 1


def test_a_store_has_one_writer(tmp_path: Path) -> None:
    """Who is refused leaves nothing."""
    rows, other = tmp_path / "rows", tmp_path / "other"
    rows.mkdir()
    with RunLock(rows), pytest.raises(RunError, match=r"rows is in use by process .*place with --replay.store"):
        train(CONFIG.merge({"replay.store": str(rows)}), env=Walk, run=other, say=say_nothing)
    assert not other.exists()


def test_a_new_run_does_not_begin_among_the_rows_of_another(tmp_path: Path) -> None:
    shared, other = {"replay.store": str(tmp_path / "rows"), "steps": 20}, tmp_path / "other"
    train(CONFIG.merge(shared), env=Walk, run=tmp_path / "run", say=say_nothing)
    with pytest.raises(RunError, match=rf"rows of the run {tmp_path / 'run'}\. .* --replay.init") as error:
        train(CONFIG.merge(shared), env=Walk, run=other, say=say_nothing)
    assert "another place with --replay.store" in str(error.value)
    train(CONFIG.merge({"steps": 20}), env=Walk, run=tmp_path / "run2", say=say_nothing)
    with pytest.raises(RunError, match="rows of another run"):  # where the segments name nobody
        train(CONFIG.merge({"replay.store": str(tmp_path / "run2" / "replay")}), env=Walk, run=other, say=say_nothing)
    assert not other.exists()
    assert len(Store(tmp_path / "rows", say=say_nothing).segments) == 1


def test_a_run_without_checkpoints_begins_anew_in_its_own_store_elsewhere(tmp_path: Path) -> None:
    run, shared = tmp_path / "run", {"replay.store": str(tmp_path / "rows"), "steps": 20}
    train(CONFIG.merge(shared), env=Walk, run=run, say=say_nothing)
    shutil.rmtree(run / "checkpoints")
    train(CONFIG.merge(shared), env=Walk, run=run, say=say_nothing)
    assert len(Store(tmp_path / "rows", say=say_nothing).segments) == 2


def test_a_run_finds_its_store_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path)
    train(CONFIG.merge({"replay.store": "rows"}), env=Walk, run="run", say=say_nothing)
    assert read_saved(run).experiment["replay"]["store"] == str(tmp_path / "rows")
    monkeypatch.chdir(tmp_path / "else")
    again = ExperimentConfig.from_dict(read_saved(run).experiment).merge({"steps": 120})
    said: list[str] = []
    train(again, env=Walk, run="../run", say=said.append)
    assert "steps: 100 -> 120" in said
    assert not any("set aside" in line or "replay.store" in line for line in said)
    assert len(Store(tmp_path / "rows", say=say_nothing).segments) == 1
    assert not (tmp_path / "else" / "rows").exists()


@pytest.mark.parametrize("store", ["auto", "none", "memory://rows"])
def test_places_that_stay_as_they_are_called(store: str) -> None:
    assert place_of(store) == store


def test_rows_that_were_copied_there_and_back_count_once(tmp_path: Path) -> None:
    run, rows = tmp_path / "run", {"replay.capacity": 5000, "replay_ratio": 0.01}
    for steps, store in ((100, "here"), (120, "there"), (140, "here")):
        said: list[str] = []
        train(CONFIG.merge({**rows, "steps": steps, "replay.store": str(tmp_path / store)}), env=Walk, run=run,
              say=said.append)  # fmt: skip
    assert any(f"the replay was in {tmp_path / 'there'}: its rows are copied" in line for line in said)
    first, second = Store(tmp_path / "here", say=say_nothing).segments
    assert second.imported == first.rows
    assert first.own_rows + second.own_rows == second.rows * second.streams
    (elsewhere,) = Store(tmp_path / "there", say=say_nothing).segments
    assert elsewhere.imported == 0


def going_on(run: Path, steps: int, **more: Any) -> list[str]:
    """What is said as the run goes on in a store that it shares."""
    said: list[str] = []
    train(CONFIG.merge({"replay.store": str(run.parent / "rows"), "steps": steps, **more}), env=Walk, run=run,
          say=said.append)  # fmt: skip
    return said


def learned(run: Path) -> dict[str, Any]:
    newest = Checkpoints(run / "checkpoints").latest()
    assert newest is not None
    return {name: value for name, value in leaves(read(newest, ["algo"])) if isinstance(value, torch.Tensor)}


def assert_learned_the_same(run: Path, other: Path) -> None:
    a, b = learned(run), learned(other)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in a store of its own, of three sittings."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    for steps in (60, 100, 160):
        going_on(run, steps)
    return run


def test_a_copy_of_a_run_takes_nothing_from_it_in_the_store_they_share(undisturbed: Path, tmp_path: Path) -> None:
    run, copy = tmp_path / "run", tmp_path / "copy"
    going_on(run, 60)
    shutil.copytree(run, copy)
    going_on(run, 100)
    said = going_on(copy, 130, **{"algo.optim.lr": 0.01})
    assert any(f"newer than the checkpoint belong to the run {run}: they are kept" in line for line in said)
    assert not any("set aside" in line for line in said)
    said = going_on(run, 160)
    assert not any("set aside" in line or "start new ones" in line for line in said)
    assert_learned_the_same(run, undisturbed)
    store = Store(tmp_path / "rows", say=say_nothing)
    assert not store.aside
    assert {segment.run for segment in store.segments} == {str(run), str(copy)}
    (other,) = [segment for segment in store.segments if segment.run == str(copy)]
    assert 60 <= other.imported * other.streams < 80  # what both have lived counts once


def under_another_name(run: Path, former: Path) -> None:
    """Rows of ``run`` are set aside by a copy that is where the run was."""
    going_on(run, 60)
    shutil.copytree(run, former)
    going_on(run, 100)
    run.rename(run.with_name("moved"))
    former.rename(run)
    assert any("set aside" in line for line in going_on(run, 130, **{"algo.optim.lr": 0.01}))
    run.rename(former)
    run.with_name("moved").rename(run)


def test_rows_that_were_replaced_are_taken_from_where_they_were_set_aside(undisturbed: Path, tmp_path: Path) -> None:
    run, former = tmp_path / "run", tmp_path / "former"
    under_another_name(run, former)
    said = going_on(run, 160)
    assert any("another run, such as a copy of this one, has continued" in line and "aside/0" in line for line in said)
    assert_learned_the_same(run, undisturbed)
    own = Store(tmp_path / "rows", say=say_nothing).segments[-1]
    assert 60 <= own.imported * own.streams < 80 < own.rows * own.streams  # those set aside are nowhere else
    _, *later = [path for path in Checkpoints(run / "checkpoints").all() if step_of(path) >= 100]
    for path in later:  # as if it had been killed soon after it had copied them
        shutil.rmtree(path)
    assert not any("another run" in line for line in going_on(run, 160))
    assert_learned_the_same(run, undisturbed)


def test_rows_that_were_replaced_and_are_gone_are_told(tmp_path: Path) -> None:
    run = tmp_path / "run"
    under_another_name(run, tmp_path / "former")
    store = Store(tmp_path / "rows", say=say_nothing)
    manifest.save(store.objects, replace(store.manifest, aside=()))
    said = going_on(run, 160)
    assert any("rows of the checkpoint are no longer in" in line for line in said)
    assert any("rebuilt from its rows" in line for line in said)
    assert any("no longer those of the checkpoint" in line for line in said)


def test_a_store_of_an_earlier_version_goes_on(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as earlier:
        plain, save = Segment.plain, DurableReplay.state_dict
        earlier.setattr(manifest, "FORMAT", 1)
        earlier.setattr(Segment, "plain", lambda self: without(plain(self), "run", "sittings"))
        earlier.setattr(DurableReplay, "state_dict", lambda self: without(save(self), "sittings"))
        going_on(run, 60)
        shutil.copytree(run, tmp_path / "copy")
    for steps in (100, 160):
        assert not any("episode" in line for line in going_on(run, steps) if "evaluating" not in line)
    assert_learned_the_same(run, undisturbed)
    going_on(tmp_path / "copy", 100)
    own, others = Store(tmp_path / "rows", say=say_nothing).segments
    assert {own.run, others.run} == {str(run), str(tmp_path / "copy")}
    assert 60 <= 2 * (own.imported + others.imported) < 80  # counted once


def without(values: Any, *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def test_a_store_whose_thread_has_failed_does_not_keep_a_run_from_being_saved(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failed(self: Store, timeout: float | None = None) -> bool:
        raise RunError("its thread has failed")

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Store, "flush", failed)
        run_until(run, 45, monkeypatch)
    assert_rows_in_tail(run)
    train(CONFIG, env=Walk, run=run, say=say_nothing)
    assert_same(run, whole)


def test_an_evaluation_that_a_signal_cut_off_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"schedule.eval_every": 20, "eval_episodes": 1}
    train(CONFIG.merge(config), env=Walk, run=tmp_path / "whole", say=say_nothing)
    for stop in range(18, 23):
        run_until(tmp_path / f"run{stop}", stop, monkeypatch, **config)
        train(CONFIG.merge(config), env=Walk, run=tmp_path / f"run{stop}", say=say_nothing)
        assert evaluations(tmp_path / f"run{stop}") == evaluations(tmp_path / "whole")


def test_an_evaluation_that_failed_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And ends the run, if that is good enough, where it would have."""
    config = CONFIG.merge({"schedule.eval_every": 20, "eval_episodes": 1, "stop_score": -1e6})
    whole = train(config, env=Walk, run=tmp_path / "whole", say=say_nothing)
    with monkeypatch.context() as patch:
        patch.setattr(Experiment, "evaluate", failed_evaluation)
        with pytest.raises(ValueError, match="once"):
            train(config, env=Walk, run=tmp_path / "run", say=say_nothing)
    assert train(config, env=Walk, run=tmp_path / "run", say=say_nothing).env_steps == whole.env_steps
    assert evaluations(tmp_path / "run") == evaluations(tmp_path / "whole")
    assert_same(tmp_path / "run", tmp_path / "whole")


def test_an_evaluation_that_failed_in_the_last_turn_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, run = QUICK.merge({"schedule.eval_every": 40, "eval_episodes": 1, "steps": 40}), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Experiment, "evaluate", failed_evaluation)
        with pytest.raises(ValueError, match="once"):
            train(config, env=Walk, run=run, say=say_nothing)
    assert not evaluations(run)
    steps = train(config, env=Walk, run=run, say=say_nothing).env_steps
    assert [step for step, _ in evaluations(run)] == [steps, steps]  # also the final one
    assert (run / "checkpoints" / "best").exists()
    other = config.merge({"schedule.eval_every": 20})
    train(other, env=Walk, run=run, say=say_nothing)
    assert len(evaluations(run)) == 2


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
        train(config, env=Walk, run=run, say=say_nothing)
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

    def played(self: Any, episodes: int, *args: Any, **options: Any) -> Any:
        return Evaluation(scores=[next(scores)], lengths=[7], mode="eval")

    monkeypatch.setattr(Experiment, "evaluate", played)
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "mark_best", full)
        with pytest.raises(RunError, match="disk is full"):
            train(config, env=Walk, run=run, say=say_nothing)
    train(config, env=Walk, run=tmp_path / "killed", say=say_nothing)
    best = Checkpoints(tmp_path / "killed" / "checkpoints").best()
    assert best is not None
    assert 40 <= step_of(best) < 60


def evaluations(run: Path) -> list[tuple[int, float]]:
    rows = read_metrics(run / "metrics.jsonl")
    return [(row["step"], row["eval/score"]) for row in rows if "eval/score" in row]


def test_a_run_that_was_good_enough_stays_ended(tmp_path: Path) -> None:
    config = CONFIG.merge({"schedule.eval_every": 20, "eval_episodes": 1, "stop_score": -1e6})
    assert train(config, env=Walk, run=tmp_path / "run", say=say_nothing).env_steps < 40
    said: list[str] = []
    assert train(config, env=Walk, run=tmp_path / "run", say=said.append).env_steps < 40
    assert "has reached stop_score = -1e+06" in said[-1]
    (tmp_path / "run" / "eval.json").unlink()  # as if it had been stopped in its last evaluation
    again = train(config, env=Walk, run=tmp_path / "run", say=said.append)
    assert again.evaluation is not None
    assert (tmp_path / "run" / "eval.json").exists()


class Worthless(Walk):
    """All of its scores are 0."""

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen, _, terminated, truncated, info = super().step(action)
        return seen, 0.0, terminated, truncated, info


def test_a_run_that_a_score_of_0_has_ended_stays_ended(tmp_path: Path) -> None:
    config = CONFIG.merge({"schedule.eval_every": 20, "eval_episodes": 1, "stop_score": 0.0})
    ended = train(config, env=Worthless, run=tmp_path / "run", say=say_nothing).env_steps
    assert ended < 40
    said: list[str] = []
    assert train(config, env=Worthless, run=tmp_path / "run", say=said.append).env_steps == ended
    assert "has reached stop_score = 0 (best score 0)" in said[-1]


def test_a_score_that_was_luck_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that reaches the goal is played again in other episodes, and counts with these."""
    asked: list[str] = []
    scores = {"evaluation": iter([1.0, 5.0, 5.0, 5.0]), "confirmation": iter([2.0, 4.5]), "test": iter([3.0])}

    def played(self: Any, episodes: int, mode: str = "eval", record: bool = False, which: str = "evaluation") -> Any:
        asked.append(which)
        return Evaluation(scores=[next(scores[which])] * episodes, lengths=[7] * episodes, mode="eval")

    monkeypatch.setattr(Experiment, "evaluate", played)
    config = CONFIG.merge({"schedule.eval_every": 20, "eval_episodes": 2, "stop_score": 4.7, "steps": 200})
    result = train(config, env=Walk, run=tmp_path / "run", say=say_nothing)
    assert asked == ["evaluation", "evaluation", "confirmation", "evaluation", "confirmation", "test"]
    assert [score for _, score in evaluations(tmp_path / "run")] == [1.0, 3.5, 4.75, 3.0]
    assert result.env_steps < 80
    rows = [row for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if "eval/score" in row]
    assert [row["eval/episodes"] for row in rows] == [2, 4, 4, 2]
    assert [row["eval/final"] for row in rows] == [0, 0, 0, 1]
    assert (tmp_path / "run" / "checkpoints" / "best").exists()


def test_a_run_without_checkpoints_says_that_it_begins_anew(tmp_path: Path) -> None:
    """Nothing that is there is lost."""
    run = tmp_path / "run"
    train(CONFIG, env=Walk, run=run, say=say_nothing)
    before = sum(segment.rows for segment in Store(run / "replay", say=say_nothing).segments)
    shutil.rmtree(run / "checkpoints")
    said: list[str] = []
    train(CONFIG, env=Walk, run=run, say=said.append)
    assert any("has no checkpoint: it starts over" in line for line in said)
    assert sum(segment.rows for segment in Store(run / "replay", say=say_nothing).segments) == 2 * before


def stopped(*args: Any) -> Any:
    raise Stopped(signal.SIGTERM)


def test_a_score_is_of_the_end_that_a_run_has_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that goes on and is stopped in its final evaluation has no score from before: the same command makes it."""
    run, longer = tmp_path / "run", CONFIG.merge({"steps": 130})
    train(CONFIG, env=Walk, run=run, say=say_nothing)
    said: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(evaluator, "final_evaluation", stopped)
        result = train(longer, env=Walk, run=run, say=said.append)
    assert (result.reason, result.signal, result.evaluation) == ("interrupted", signal.SIGTERM, None)
    assert "SIGTERM: the run is saved without its final evaluation" in said[-1]
    assert RunFolder(run).checkpoints in Path(result.files["checkpoint"]).parents
    assert result.files["curve"].exists()
    late = train(longer.merge({"eval_episodes": 2}), env=Walk, run=run, say=say_nothing)
    assert late.evaluation is not None
    assert len(late.evaluation.scores) == 2
    end = late.env_steps
    assert json.loads((run / "eval.json").read_text())["env_steps"] == end > 100
    assert read_saved(run).experiment["eval_episodes"] == 2
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl") if "eval/score" in row] == [100, end]
    again = train(longer, env=Walk, run=run, say=said.append)  # it has one now, which is found again
    assert again.evaluation == late.evaluation
    assert "stays" not in said[-1]
    again = train(longer.merge({"eval_episodes": 3}), env=Walk, run=run, say=said.append)
    assert again.evaluation == late.evaluation
    assert "eval_episodes = 3 has no effect on a finished run: its final evaluation of 2 episodes is kept" in said[-1]
    assert f"reverie eval {run} --episodes 3" in said[-1]
    assert len([row for row in read_metrics(run / "metrics.jsonl") if "eval/score" in row]) == 2


def test_signals_end_a_judgement_at_once() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped, match="SIGTERM"), stopping():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


def test_what_was_logged_where_a_run_goes_on_stays(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run, config = tmp_path / "run", CONFIG.merge({"tensorboard": True})
    ends = [train(config.merge({"steps": n}), env=Walk, run=run, say=say_nothing).env_steps for n in (100, 130)]
    events = accumulator.EventAccumulator(str(run / "tensorboard")).Reload()
    assert sorted(event.step for event in events.Scalars("eval/score")) == ends  # files are read by name


def test_a_smaller_replay_keeps_its_latents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    run_until(run, 61, monkeypatch)
    newest = Checkpoints(run / "checkpoints").latest()
    assert newest is not None
    saved = np.load(newest / "replay" / "deter.npy")
    experiment = build(CONFIG.merge({"replay.capacity": 40}), Walk)
    store = Store(run / "replay", say=say_nothing)
    replay = DurableReplay(experiment.replay, store, "auto", say_nothing, former=lambda place: None)
    Checkpoints(run / "checkpoints").load(newest, {"replay": replay})
    rows = experiment.replay.read(experiment.replay.oldest, experiment.replay.count)
    assert np.array_equal(rows["extras/deter"], saved[:, -20:])
    assert saved[:, -20:].any()
    store.close(0)


def test_latents_of_another_version_begin_as_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They said z otherwise, under another name."""
    run, file_of = tmp_path / "run", extras.file_of
    with monkeypatch.context() as earlier:
        earlier.setattr(extras, "file_of", lambda folder, name: file_of(folder, name.replace("classes", "stoch")))
        run_until(run, 61, monkeypatch)
    monkeypatch.setattr(Walk, "stop_at", 10**9)
    result = train(CONFIG, env=Walk, run=run, say=say_nothing)
    assert "written by another version: it contains deter, stoch instead of" in capsys.readouterr().err
    assert (result.reason, result.env_steps >= 100) == ("finished", True)


class Quitting(Walk):
    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if Walk.steps_of_all == 30:
            Walk.steps_of_all += 1
            sys.exit("enough")
        return super().step(action)


def test_an_environment_that_exits_is_started_again(tmp_path: Path) -> None:
    result = train(CONFIG, env=Quitting, run=tmp_path / "run", say=say_nothing)
    assert result.env_steps >= 100
