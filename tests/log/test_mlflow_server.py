"""A run that lies at a real MLflow server: it goes on in another folder, and its agent is registered and loaded."""

import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

import reverie
from reverie.cli import main
from reverie.core.errors import ConfigError, RunError
from reverie.run.evaluate import read_evaluation
from reverie.run.folder import RunFolder

SETTINGS = {
    "learning_starts": 20, "eval_episodes": 2, "console": False, "tensorboard": False, "threads": 1, "steps": 60,
    "algo.networks.units": (4,), "algo.batch_size": 4, "schedule.log_every": 20, "schedule.eval_every": 30,
    "schedule.save_every": 20,
}  # fmt: skip


SERVE = """
import os, sys
from mlflow import server
os.environ |= {
    server.BACKEND_STORE_URI_ENV_VAR: sys.argv[2], server.ARTIFACTS_DESTINATION_ENV_VAR: sys.argv[3],
    server.ARTIFACT_ROOT_ENV_VAR: "mlflow-artifacts:/", server.SERVE_ARTIFACTS_ENV_VAR: "true",
}
server.app.run(port=int(sys.argv[1]))
"""
"""What ``mlflow server`` does in a process of its own and in another that it starts: importing MLflow takes seconds."""


@pytest.fixture
def server(tmp_path, monkeypatch):
    """MLflow itself, with SQLite and artifacts in a folder, which clients reach through the server alone."""
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("flask")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    command = [sys.executable, "-c", SERVE, str(port), f"sqlite:///{tmp_path}/mlflow.db", f"{tmp_path}/there"]
    log = (tmp_path / "server.log").open("wb")
    process = subprocess.Popen(command, stdout=log, stderr=log)
    where = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{where}/health", timeout=5).close()
                break
            except OSError:
                said = (tmp_path / "server.log").read_text()
                if process.poll() is not None and "ModuleNotFoundError" in said:
                    pytest.skip(f"this mlflow cannot serve: {said.splitlines()[-1]}")
                assert process.poll() is None, said
                time.sleep(0.1)
        mlflow.set_tracking_uri(where)
        yield mlflow
    finally:
        mlflow.set_tracking_uri(None)
        process.kill()
        process.wait()


@pytest.mark.nightly  # a server of its own takes seconds; test_trackers.py and test_artifacts.py write without one
def test_a_run_at_a_server(server, tmp_path, monkeypatch, capsys):
    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    reverie.train("dqn", env="CartPole-v1", run="first", mlflow=True, upload="rows", **SETTINGS)
    client = server.MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("reverie").experiment_id])
    ident = found.info.run_id
    shutil.copytree("first", "stays")
    monkeypatch.chdir(tmp_path / "elsewhere")
    goes_on_elsewhere(client, ident, tmp_path / "here" / "stays")
    is_registered_and_loaded(server, ident, tmp_path / "here" / "first", capsys)
    client.log_text(ident, "", "checkpoints/step-000000999/manifest.json")
    for place, error, message in [
        ("runs:/nothing", RunError, "at http://.*Run with id=nothing not found. Set MLFLOW_TRACKING_URI"),
        ("models:/mine/9", RunError, r"at http://.*version=9\) not found"),
        ("models:/other@best", RunError, "at http://.*name=other not found"),
        ("models:/mine", ConfigError, "expected models:/NAME/VERSION"),
        (f"runs:/{ident}", RunError, r"is older than runs:/\w+, which has step-000000999"),
    ]:
        with pytest.raises(error, match=message):
            reverie.load(place)


def goes_on_elsewhere(client, ident, stays):
    """The run continues as if it had stayed: the same weights, the same replay, one run at the server."""
    assert main(["train", "--resume", f"runs:/{ident}", "--steps", "100", "--no-console"]) == 0
    run = Path("runs") / f"mlflow-{ident}"
    config = str(stays / "config.yaml")
    reverie.train("dqn", run=stays, config=config, steps=100, mlflow=False)
    name = "checkpoints/step-000000100/tensors.safetensors"
    assert (run / name).read_bytes() == (stays / name).read_bytes()
    assert {int(m.step) for m in client.get_metric_history(ident, "eval/score")} == {30, 60, 90, 100}
    there = [file.path for file in client.list_artifacts(ident, "checkpoints")]
    assert "checkpoints/step-000000100" in there
    assert "checkpoints/step-000000060" not in there or (run / "checkpoints/best").read_text() == "step-000000060"
    names = {file.path for file in client.list_artifacts(ident)}
    assert {"config.yaml", "spec.json", "metrics.jsonl", "curve.png", "eval.json", "replay"} <= names


def is_registered_and_loaded(mlflow, ident, run, capsys):
    assert main(["register", str(run), "--name", "mine", "--alias", "best", "--checkpoint", "step-000000060"]) == 0
    assert "registered models:/mine/1" in capsys.readouterr().out
    assert reverie.register_model(run, "mine") == "models:/mine/2"
    agent, first = reverie.load("models:/mine@best"), Path("runs/mine-v1")
    assert (agent.step, agent.run) == (60, first.absolute())
    own = reverie.load(run, checkpoint="step-000000060").algo.state_dict()
    assert str(agent.algo.state_dict()) == str(own)
    signature = mlflow.models.Model.load(str(first)).signature
    assert [(one.name, one.shape) for one in signature.inputs.inputs] == [("observation", (-1, 4))]
    assert [(one.name, one.type.name) for one in signature.outputs.inputs] == [("action", "int64")]
    version = mlflow.MlflowClient().get_model_version("mine", "1")
    told = {"algorithm": "dqn", "env": "CartPole-v1", "step": "60", "reverie": reverie.__version__}
    assert version.tags.items() >= {**told, "score": f"{read_evaluation(RunFolder(run)).score:g}"}.items()
    assert version.run_id == ident
    assert main(["eval", "models:/mine/2", "--episodes", "1"]) == 0
    assert Path("runs/mine-v2/eval.json").exists()
