"""Files of a run go to a tracker so that what lies there can be used at every moment, and come back from there."""

from __future__ import annotations

import shutil
import sys
import types
from pathlib import Path

import pytest

from reverie.core.errors import ConfigError, RunError
from reverie.log.artifacts import Upload, Uploads, local
from reverie.run.checkpoint import Checkpoints, export, name_of
from reverie.run.manifest import problem_of


class There:
    """A tracker that is a folder."""

    def __init__(self, run: Path, there: Path, upload: Upload) -> None:
        self.there, self.order = there, []
        self.uploads = Uploads(run, upload, export, self.put, lambda folder: shutil.rmtree(there / folder))

    def put(self, file: Path, folder: str) -> None:
        self.order.append(f"{folder}/{file.name}".lstrip("/"))
        (self.there / folder).mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, self.there / folder)

    def checkpoints(self) -> list[str]:
        return sorted(path.name for path in (self.there / "checkpoints").glob("step-*"))


class Number:
    def __init__(self, value: int) -> None:
        self.value = value

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


@pytest.fixture
def run(tmp_path: Path, trained: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_the_newest_and_the_best_checkpoint_are_there(run: Path, tmp_path: Path) -> None:
    tracker, kept = There(run, tmp_path / "there", "checkpoints"), Checkpoints(run / "checkpoints", keep=2)
    for step in (300, 400, 500, 600):
        path = kept.save(step, {"algo": Number(step)})
        if step in (300, 600):
            kept.mark_best(path)
        tracker.uploads.sync()
        wanted = {name_of(step), kept.best().name}  # type: ignore[union-attr]
        assert {*tracker.checkpoints()} == wanted
        assert not any(problem_of(tmp_path / "there/checkpoints" / name) for name in wanted)
        assert (tmp_path / "there/checkpoints/best").read_text() in wanted
    count = len(tracker.order)
    tracker.uploads.sync()
    assert len(tracker.order) == count
    assert not (run / ".upload").exists()
    assert not list(tmp_path.glob("there/replay"))


def test_a_checkpoint_is_sent_after_the_rows_that_it_needs_and_the_list_of_rows_after_them(
    run: Path, tmp_path: Path
) -> None:
    tracker = There(run, tmp_path / "there", "rows")
    tracker.uploads.sync()
    (segment,) = [path.parent.name for path in run.glob("replay/*/zarr.json")]
    listed = tracker.order.index(f"replay/{segment}/zarr.json")
    rows = [i for i, name in enumerate(tracker.order) if name.startswith("replay/") and Path(name).name[:2] == "c."]
    first = next(i for i, name in enumerate(tracker.order) if name.startswith("checkpoints/"))
    assert rows
    assert max(rows) < listed < first
    count = len(tracker.order)
    (run / "eval.json").write_text("{}")
    tracker.uploads.sync(end=True)
    assert tracker.order[count:] == ["eval.json"]


def test_a_checkpoint_that_is_deleted_meanwhile_is_left_out(run: Path, tmp_path: Path) -> None:
    tracker = There(run, tmp_path / "there", "checkpoints")

    def gone(path: Path, to: Path, spare: bool) -> None:
        shutil.rmtree(path)
        export(path, to, spare)

    tracker.uploads.export = gone
    tracker.uploads.sync()
    assert (tracker.checkpoints(), "config.yaml" in tracker.order) == ([], True)


def test_metrics_alone_are_small(run: Path, tmp_path: Path) -> None:
    tracker = There(run, tmp_path / "there", "metrics")
    tracker.uploads.sync(end=True)
    assert {"config.yaml", "metrics.jsonl"} <= {*tracker.order}
    assert not any("/" in name for name in tracker.order)


def test_artifacts_of_weights_and_biases_are_downloaded_once(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def artifact(name: str) -> types.SimpleNamespace:
        asked.append(name)
        source = trained if "run-abc" in name else tmp_path / "empty"
        return types.SimpleNamespace(
            name=f"{name.split('/')[-1]}", version="v3",
            download=lambda root: shutil.copytree(source, root, dirs_exist_ok=True) if source.exists() else None,
        )  # fmt: skip

    monkeypatch.setitem(
        sys.modules, "wandb", types.SimpleNamespace(Api=lambda: types.SimpleNamespace(artifact=artifact))
    )
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        found = local("wandb:me/mine/run-abc:latest")
        assert found == Path("runs/run-abc-v3")
        assert (tmp_path / found / "config.yaml").read_bytes() == (trained / "config.yaml").read_bytes()
    assert asked == ["me/mine/run-abc:latest"] * 2
    with pytest.raises(RunError, match=r"nothing-v3: what was downloaded is no run of this library"):
        local("wandb:me/mine/nothing:v3")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["run-abc-v3"]


def test_what_is_no_place_of_a_tracker_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("runs/first", Path("runs"), "models", "wandb", "/a/runs:b", 3):
        assert local(place) is place  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ConfigError, match=r"models:/a/1: the package mlflow is not installed.*reverie-rl\[mlflow\]"):
        local("models:/a/1")
