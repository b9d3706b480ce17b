"""Weights & Biases and MLflow get what every other log gets, and take nothing from a run."""

import json
import re
import shutil
import sys
import types
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock, call

import numpy as np
import pytest

import reverie
from reverie.core.errors import RunError
from reverie.log import trackers
from reverie.log.sinks import ErrorTolerantSink, LogOutputs, MediaSink
from reverie.log.trackers import MlflowSink, WandbSink
from reverie.run.checkpoint import export_checkpoint

VALUES = {"loss/critic": np.float32(0.5), "nothing": float("nan"), "film": np.zeros((2, 8, 8, 3), np.uint8)}
SETTINGS = {
    "steps": 60, "learning_starts": 20, "eval_episodes": 1, "console": False, "tensorboard": False, "threads": 1,
    "algo.networks.units": (4,), "algo.batch_size": 4, "schedule.log_every": 20,
}  # fmt: skip


@pytest.fixture
def run(tmp_path):
    settings = {"steps": 3, "upload": "checkpoints", "algo": {"lr": 0.1, "none": {}}}
    return LogOutputs(path=tmp_path, title="dqn on CartPole-v1", settings=settings, export=export_checkpoint)


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    module = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlruns")
    return module


class FakeArtifact:
    def __init__(self, name, type):
        self.name, self.files = name, {}

    def add_file(self, path, name):
        self.files[name] = Path(path).read_bytes()


@pytest.fixture
def wandb(monkeypatch):
    """What is said to the module, without it."""
    run = Mock(spec_set=["offline", "url", "dir", "define_metric", "log", "log_artifact", "finish"])
    run.offline, run.url, run.dir = False, "https://example.org/run", "x/files"
    fake = types.SimpleNamespace(
        init=Mock(return_value=run), run=run, login=lambda verify: True, Settings=lambda **x: x,
        Video=lambda path, format: (path, format), Artifact=FakeArtifact, __spec__=True,  # it is installed
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_weights_and_biases_gets_numbers_and_videos(run, wandb, monkeypatch):
    MediaSink(run.path).write(VALUES, 40)
    sink = WandbSink(run, None)
    sink.write(VALUES, 40)
    sink.write({"nothing": float("inf")}, 50)
    sink.close()
    film = run.path / "videos" / "film-000000000040.mp4"
    wandb.run.log.assert_called_once_with({"env_step": 40, "loss/critic": 0.5, "film": (str(film), "mp4")})
    assert wandb.run.define_metric.mock_calls == [call("env_step"), call("*", step_metric="env_step")]
    wandb.run.finish.assert_called_once_with()
    told = {"project": "reverie", "group": run.title, "resume": "allow", "config": run.settings, "name": str(run.path)}
    assert wandb.init.call_args.kwargs.items() >= {**told, "id": sink.ident}.items()
    assert sink.location == "https://example.org/run"
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    monkeypatch.setenv("WANDB_RUN_GROUP", "ours")
    assert WandbSink(run, "abc").ident == "abc"
    assert wandb.init.call_args.kwargs.items() >= {"project": "mine", "group": "ours", "id": "abc"}.items()


@pytest.mark.parametrize(("upload", "folders"), [("metrics", None), ("checkpoints", 1), ("rows", 2)])
def test_weights_and_biases_gets_a_run_folder_at_the_end(run, wandb, trained, upload, folders):
    shutil.copytree(trained, run.path, dirs_exist_ok=True)
    WandbSink(replace(run, settings={"upload": upload}), "abc").close()
    if folders is None:
        wandb.run.log_artifact.assert_not_called()
        return
    (artifact,) = wandb.run.log_artifact.call_args.args
    assert artifact.name == "run-abc"
    held = {Path(name).parts[0] for name in artifact.files if "/" in name}
    assert held == {*["checkpoints", "replay"][:folders]}
    assert all((trained / name).read_bytes() == content for name, content in artifact.files.items())
    assert {"config.yaml", "spec.json", "metrics.jsonl"} <= artifact.files.keys()


def test_training_goes_on_when_weights_and_biases_has_died(run, wandb, said):
    sink = ErrorTolerantSink(WandbSink(replace(run), None), "Weights & Biases", Exception)
    wandb.run.log.side_effect = wandb.run.finish.side_effect = ConnectionError("Connection lost")
    for step in range(3):
        sink.write(VALUES, step)
    sink.close()
    assert said == [
        "Weights & Biases cannot write: Connection lost. The run continues; later entries go to it",
        "closing Weights & Biases failed: Connection lost",
    ]


def test_mlflow_gets_numbers_settings_and_videos(run, mlflow):
    MediaSink(run.path).write(VALUES, 40)
    sink = MlflowSink(run, None)
    sink.write(VALUES, 40)
    sink.write({f"x{i}": float(i) for i in range(2500)}, 50)
    sink.close()
    client = mlflow.MlflowClient()
    found = client.get_run(sink.ident)
    assert found.info.status == "FINISHED"
    assert found.data.params == {"steps": "3", "upload": "checkpoints", "algo.lr": "0.1", "algo.none": "{}"}
    assert found.data.metrics == {"loss/critic": 0.5} | {f"x{i}": float(i) for i in range(2500)}
    assert client.get_metric_history(sink.ident, "loss/critic")[0].step == 40
    assert [file.path for file in client.list_artifacts(sink.ident, "videos")] == ["videos/film-000000000040.mp4"]


def test_a_run_goes_on_in_mlflow_as_well(tmp_path, mlflow):
    for steps in (60, 80):
        settings = {**SETTINGS, "steps": steps, "mlflow": True}
        reverie.train("dqn", env="CartPole-v1", run=tmp_path / "run", **settings)
    client = mlflow.MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("reverie").experiment_id])
    for name, steps in {"counters/updates": [20, 40, 60, 80], "eval/score": [60, 80]}.items():
        assert [m.step for m in client.get_metric_history(found.info.run_id, name)] == steps


def test_what_mlflow_refuses_is_told_of_and_blocks_nothing(run, mlflow, monkeypatch, said):
    monkeypatch.setattr(trackers, "to_mlflow_name", lambda name: name)
    sink = MlflowSink(replace(run, settings={"a[0]": 1, "upload": "metrics"}), None)
    sink.write({"x[0]": 1.0}, 1)
    sink.write({"loss": 2.0}, 2)
    sink.close()
    assert re.match(r"MLflow refused 3 values: Invalid value .x\[0\].*; metrics.jsonl and config", said[0], re.S)
    found = mlflow.MlflowClient().get_run(sink.ident)
    assert (found.data.metrics, found.info.status) == ({"loss": 2.0}, "FINISHED")
    with pytest.raises(RunError, match=r"^MLflow at file:.*not found"):
        MlflowSink(run, "0" * 32)


def test_a_server_that_is_down_for_a_while_gets_everything_later(run, mlflow):
    sink = MlflowSink(run, None)
    client, calls = sink._client, []

    class Down:
        def __getattr__(self, name):
            calls.append(name)
            if len(calls) < 3:
                raise ConnectionError("down")
            return getattr(client, name)

    sink._client = Down()
    MediaSink(run.path).write(VALUES, 0)
    sink.write({"film": VALUES["film"], "x": 0.0}, 0)
    for step in range(1, 4):
        sink.write({"x": float(step)}, step)
    sink.close()
    assert [file.path for file in client.list_artifacts(sink.ident, "videos")] == ["videos/film-000000000000.mp4"]
    assert [m.value for m in client.get_metric_history(sink.ident, "x")] == [0, 1, 2, 3]


class Mine:
    def __init__(self):
        self.steps, self.closed = [], 0

    def write(self, values, step):
        self.steps.append((step, "eval/score" in values))

    def close(self):
        self.closed += 1


def test_a_sink_of_ones_own(tmp_path):
    mine = Mine()
    reverie.train("dqn", env="CartPole-v1", run=tmp_path / "run", sinks=[mine], **SETTINGS)
    assert (mine.steps, mine.closed) == ([(20, False), (40, False), (60, False), (60, True)], 1)


class Fails(Mine):
    def __init__(self, at=()):
        super().__init__()
        self.at = at

    def write(self, values, step):
        if step in self.at:
            json.loads("nothing")  # raised in another file
        super().write(values, step)

    def close(self):
        raise ConnectionError("it was not open")


def test_a_sink_that_fails_ends_no_run(tmp_path, said):
    mine, fails = Mine(), Fails(at=(20, 40))
    run = tmp_path / "run"
    ended = reverie.train("dqn", env="CartPole-v1", run=run, sinks=[fails, mine], **SETTINGS)
    assert ended.evaluation is not None
    assert fails.steps == [(60, False), (60, True)]
    assert (len(mine.steps), mine.closed) == (4, 1)
    first, close = (line for line in said if "the sink" in line)
    assert re.search(
        r"the sink Fails cannot write: JSONDecodeError: .*test_trackers\.py:\d+ in write\)\. The run", first
    )
    assert close.endswith("closing the sink Fails failed: it was not open")
