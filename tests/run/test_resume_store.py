"""The store of a run that goes on: by another name, elsewhere, and shared with a copy of the run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr

from log_capture import logged
from resumed_runs import CONFIG, Walk, leaves, stored
from reverie.api import train_config as train
from reverie.replay.persistent import PersistentReplay
from reverie.run.checkpoint import Checkpoints, read_checkpoint
from reverie.store.store import ReplayStore, iter_store_episodes


def test_a_run_without_checkpoints_begins_anew_in_its_own_store_elsewhere(tmp_path: Path) -> None:
    run, shared = tmp_path / "run", {"replay.store_path": str(tmp_path / "rows"), "steps": 20}
    train(CONFIG.merge(shared), env=Walk, run=run)
    shutil.rmtree(run / "checkpoints")
    train(CONFIG.merge(shared), env=Walk, run=run)
    assert len(ReplayStore(tmp_path / "rows").segments) == 2


def going_on(run: Path, steps: int, **more: Any) -> list[str]:
    """What is said as the run goes on in a store that it shares."""
    with logged() as said:
        train(CONFIG.merge({"replay.store_path": str(run.parent / "rows"), "steps": steps, **more}), env=Walk, run=run)
    return said


def learned(run: Path) -> dict[str, Any]:
    newest = Checkpoints(run / "checkpoints").latest()
    assert newest is not None
    return {name: value for name, value in leaves(read_checkpoint(newest, ["algo"])) if isinstance(value, torch.Tensor)}


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
    going_on(copy, 130, **{"algo.optim.lr": 0.01})
    assert not any("episode" in line for line in going_on(run, 160) if "evaluating" not in line)
    assert_learned_the_same(run, undisturbed)
    store = ReplayStore(tmp_path / "rows")
    assert {segment.run for segment in store.segments} == {str(run), str(copy)}
    assert len(store.histories()) == 2
    other = store.histories()[1]
    assert [part.segment.run for part in other] == [str(copy)]  # what both have lived comes once


def test_rows_that_are_gone_are_told(tmp_path: Path) -> None:
    run = tmp_path / "run"
    going_on(run, 60)
    going_on(run, 100)
    shutil.rmtree(tmp_path / "rows" / ReplayStore(tmp_path / "rows").segments[0].name)
    said = going_on(run, 160)
    assert any("rows of the checkpoint are no longer in" in line for line in said)
    assert any("rebuilt from its rows" in line for line in said)
    assert any("no longer those of the checkpoint" in line for line in said)


def test_rows_that_a_kill_after_the_last_checkpoint_left_out_are_stored_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, run = CONFIG.merge({"steps": 60}), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(PersistentReplay, "close", lambda self, *, failed: None)  # which a killed process never calls
        train(config, env=Walk, run=run)
    assert {segment.rows for segment in ReplayStore(run / "replay").segments} == {30}
    for _ in range(2):  # the second time, nothing is missing
        train(config, env=Walk, run=run)
    train(config, env=Walk, run=tmp_path / "unkilled")
    assert len(ReplayStore(run / "replay").segments) == 2
    rows, expected = (stored(ReplayStore(path / "replay")) for path in (run, tmp_path / "unkilled"))
    assert rows.keys() == expected.keys()
    assert all(np.array_equal(rows[name], expected[name]) for name in rows)


def test_two_runs_may_share_a_store(undisturbed: Path, tmp_path: Path) -> None:
    for steps in (60, 160):
        for name in ("run", "other"):
            going_on(tmp_path / name, steps, seed=int(name == "other"))
    assert_learned_the_same(tmp_path / "run", undisturbed)
    assert len(ReplayStore(tmp_path / "rows").histories()) == 2


class Failing(Walk):
    """Fails in every 7th step, and cannot be saved."""

    def __init__(self) -> None:
        self.unsaved = (number for number in range(9))

    def step(self, action: int) -> Any:
        if Walk.steps_of_all % 7 == 6:
            Walk.steps_of_all += 1
            raise OSError(f"wheel {Walk.steps_of_all} came off")  # never the same failure twice
        return super().step(action)


def test_episodes_of_failed_environments_and_processes_have_last_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a notebook reads them: following the parents."""
    monkeypatch.setattr(Walk, "steps_of_all", 0)
    for steps in (40, 80):
        train(CONFIG.merge({"steps": steps, "env.restarts": 99}), env=Failing, run=tmp_path / "run")
    replay: Any = zarr.open(tmp_path / "run" / "replay", mode="r")
    names = sorted(replay.group_keys())
    parent, row = replay[names[1]].attrs["parent"]
    assert (parent, row) == (names[0], replay[names[1]].attrs["first"])
    first, last, action = (
        np.concatenate([replay[names[0]][name][:, :row], replay[names[1]][name][:]], 1)
        for name in ("is_first", "is_last", "action")
    )
    assert first.sum() > 10
    assert (first.sum(1) == last.sum(1) + ~last[:, -1]).all()
    assert (last[:, :-1] == first[:, 1:]).all()
    assert (action.any(2) == ~last).all()
    pieces = list(iter_store_episodes(ReplayStore(tmp_path / "run" / "replay")))
    assert (len(pieces), sum(piece.has_last_row for piece in pieces)) == (first.sum(), last.sum())
