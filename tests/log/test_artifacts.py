"""Files of a run go to a tracker so that what lies there can be used at every moment, and come back from there."""

import shutil
import sys
import types
from pathlib import Path

import pytest
import torch

from reverie.core.errors import ConfigError, RunError
from reverie.log.artifacts import Uploads, download_run
from reverie.run.checkpoint import Checkpoints, checkpoint_name, export_checkpoint
from reverie.run.manifest import checkpoint_problem


class There:
    """A tracker that is a folder."""

    def __init__(self, run, there, upload):
        self.run, self.there, self.order = run, there, []
        self.uploads = Uploads(run, upload, export_checkpoint, self.put, lambda folder: shutil.rmtree(there / folder))

    def put(self, file, folder):
        self.order.append(f"{folder}/{file.name}".lstrip("/"))
        (self.there / folder).mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, self.there / folder)

    def checkpoints(self):
        return sorted(path.name for path in (self.there / "checkpoints").glob("step-*"))


@pytest.fixture
def tracker(tmp_path, trained):
    """Make one beside a run."""
    return lambda upload: There(Path(shutil.copytree(trained, tmp_path / "run")), tmp_path / "there", upload)


def test_the_newest_and_the_best_checkpoint_are_there(tracker):
    tracker = tracker("checkpoints")
    kept, there = Checkpoints(tracker.run / "checkpoints", keep=2), tracker.there / "checkpoints"
    for step in (300, 400, 500, 600):
        path = kept.save(step, {"algo": torch.nn.Linear(1, 1)})
        if step in (300, 600):
            kept.mark_best(path)
        tracker.uploads.sync()
        wanted = {checkpoint_name(step), kept.best().name}
        assert {*tracker.checkpoints()} == wanted
        assert not any(checkpoint_problem(there / name) for name in wanted)
        assert (there / "best").read_text() in wanted
    count = len(tracker.order)
    tracker.uploads.sync()
    assert len(tracker.order) == count
    assert ((tracker.run / ".upload").exists(), (tracker.there / "replay").exists()) == (False, False)


def test_a_checkpoint_is_sent_after_the_rows_that_it_needs_and_the_list_of_rows_after_them(tracker):
    tracker = tracker("rows")
    tracker.uploads.sync()
    (segment,) = [path.parent.name for path in tracker.run.glob("replay/*/zarr.json")]
    listed = tracker.order.index(f"replay/{segment}/zarr.json")
    rows = [i for i, name in enumerate(tracker.order) if name.startswith("replay/") and Path(name).name[:2] == "c."]
    first = next(i for i, name in enumerate(tracker.order) if name.startswith("checkpoints/"))
    assert max(rows) < listed < first
    count = len(tracker.order)
    (tracker.run / "eval.json").write_text("{}")
    tracker.uploads.sync(end=True)
    assert tracker.order[count:] == ["eval.json"]


def test_a_checkpoint_that_is_deleted_meanwhile_is_left_out(tracker):
    tracker = tracker("checkpoints")
    tracker.uploads.export = lambda path, to, spare: (shutil.rmtree(path), export_checkpoint(path, to, spare))
    tracker.uploads.sync()
    assert (tracker.checkpoints(), "config.yaml" in tracker.order) == ([], True)


def test_metrics_alone_are_small(tracker):
    tracker = tracker("metrics")
    tracker.uploads.sync(end=True)
    assert {"config.yaml", "metrics.jsonl"} <= {*tracker.order}
    assert not any("/" in name for name in tracker.order)


def test_artifacts_of_weights_and_biases_are_downloaded_once(trained, tmp_path, monkeypatch):
    asked = []

    def artifact(name):
        asked.append(name)
        source = trained if "run-abc" in name else tmp_path / "empty"
        return types.SimpleNamespace(
            name=name.split("/")[-1], version="v3",
            download=lambda root: shutil.copytree(source, root, dirs_exist_ok=True) if source.exists() else None,
        )  # fmt: skip

    api = types.SimpleNamespace(artifact=artifact)
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(Api=lambda: api))
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        found = download_run("wandb:me/mine/run-abc:latest")
        assert found == Path("runs/run-abc-v3")
        assert (tmp_path / found / "config.yaml").read_bytes() == (trained / "config.yaml").read_bytes()
    assert asked == ["me/mine/run-abc:latest"] * 2
    with pytest.raises(RunError, match=r"nothing-v3: the download is not a reverie run"):
        download_run("wandb:me/mine/nothing:v3")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["run-abc-v3"]


def test_what_is_no_place_of_a_tracker_stays(monkeypatch):
    for place in ("runs/first", Path("runs"), "models", "wandb", "/a/runs:b", 3):
        assert download_run(place) is place
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ConfigError, match=r"models:/a/1: the package mlflow is not installed.*reverie-rl\[mlflow\]"):
        download_run("models:/a/1")
