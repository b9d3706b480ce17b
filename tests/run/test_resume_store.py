"""The store of a run that goes on: by another name, elsewhere, and shared with a copy of the run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from resumed import CONFIG, Walk, leaves

from reverie.api import train_config as train
from reverie.core.errors import RunError
from reverie.core.lock import FolderLock
from reverie.core.words import say_nothing
from reverie.run.checkpoint import Checkpoints, read
from reverie.run.manifest import step_of
from reverie.store import manifest
from reverie.store.store import Store


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
    with FolderLock(rows), pytest.raises(RunError, match=r"rows is in use by process .*place with --replay.store"):
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
