"""What is measured on a GPU runs on a CPU, at tiny sizes: whoever has a GPU for a quarter of an hour finds no fault."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import reverie
from reverie.kernels import gpu

pytestmark = pytest.mark.usefixtures("warm")

FOLDER = Path(__file__).parents[2] / "bench"
KEYS = {
    "kernels/dqn": {"update_s", "slower_without", "unworthy"},
    "kernels/ppo_continuous": {"update_s", "slower_without", "unworthy"},
    "plan/muzero": {"updates_per_s", "decision_s", "waits_a_decision", "slower_without", "unworthy"},
    "precision/cartpole-float16": {"precision", "scores", "stopped"},
    "profile/td3": {"update_s", "kernels_s", "launches"},
    "replay": {"batches_per_s_cpu"},
    "start/td3": {"pytorch", "reverie", "learner", "first_update", "captured", "replays"},
    "tests": {"summary", "passed", "failed"},
    "worlds/host": {"env_steps_per_s", "waits_a_rollout"},
    "worlds/device": {"env_steps_per_s", "waits_a_rollout"},
    "worlds/ant_ppo": {"env_steps_per_s", "updates_per_s"},
}
"""Stages that run here, one of a kind, and what they say; the others are tried each night."""
NEEDED = {"worlds/device": ("jax", "gymnax"), "worlds/ant_ppo": ("jax", "brax")}
MISSING = ("No module named", "need it (", "is not installed")
"""What stages say whose packages are not here."""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    yield importlib.import_module("gpu")
    for name in set(sys.modules) - before:
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", None)):
            del sys.modules[name]


def run(script: ModuleType, folder: Path, only: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The results of stages by name."""
    words = ["gpu", "--device", "cpu", "--tiny", "--together", "2", "--only", only, "--peers", str(folder / "none")]
    monkeypatch.setattr(sys, "argv", [*words, "--out", str(folder / "out.json"), "--logs", str(folder / "logs")])
    assert script.main() == 0
    return json.loads((folder / "out.json").read_text())["stages"]


def names(script: ModuleType) -> list[str]:
    args = argparse.Namespace(device="cpu", tiny=True, logs=Path("logs"), peers=Path("peers"))
    return [stage.name for stage in script.stages(args)]


def test_no_result_hides_another_and_tables_read_what_is_measured(script):
    found, table = names(script), importlib.import_module("gpu_table")
    assert len(found) == len(set(found))
    assert found[0] == "tests"
    assert found[-1] == "atari100k/pong"  # it takes what time is left
    measured = {tuple(name.split("/")[:2]) for name in found} | {tuple(name.split("/")[::2]) for name in found}
    assert {("update", other) for other in table.DREAMERS} <= measured
    assert {("rate", task) for task in (*table.TASKS, *table.LOOPS)} <= measured
    assert {("rate", variant) for variant in table.SCRIPTS} <= measured


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name.startswith("precision") else ()) for name in KEYS]
)
def test_stages_say_what_is_asked(script, name, tmp_path):
    for package in NEEDED.get(name, ()):
        pytest.importorskip(package)
    kind, _, of = name.partition("/")
    args = argparse.Namespace(device="cpu", tiny=True, logs=tmp_path, limit=600)
    stage = getattr(importlib.import_module("gpu_worlds" if kind == "worlds" else "gpu_stages"), kind)
    result = stage(of, args) if of else stage(args)
    assert KEYS[name] <= result.keys()
    assert not result.get("failed")
    assert result.get("passed", 1)


def test_kernels_are_timed_without_each_family_that_is_used(script, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "triton_problem", lambda device, family="recurrence": "this is no GPU")
    asked = gpu.triton_problem
    stages, off = importlib.import_module("gpu_stages"), list[str]()
    args = argparse.Namespace(device="cpu", tiny=True, logs=tmp_path, limit=600)

    def vector_update(*_: Any) -> Any:
        return lambda: off.append(",".join(x for x in ("losses", "replay") if gpu.triton_problem(None, x) == "off"))

    monkeypatch.setattr(stages, "vector_update", vector_update)
    assert stages.kernels("dqn", args)["slower_without"].keys() == {"losses", "replay"}
    assert off == [""] * 12 + ["losses"] * 12 + ["replay"] * 12 + ["", "", "losses", "losses", "replay", "replay"] * 5
    assert gpu.triton_problem is asked


def test_stages_warm_up_together_and_a_second_call_goes_on(script, tmp_path, monkeypatch):
    pytest.importorskip("ale_py.vector_env")
    found = run(script, tmp_path, "^rate/reverie/(ppo_atari_loop|dqn)$", monkeypatch)
    assert {name: row.get("error") for name, row in found.items()} == dict.fromkeys(found)
    assert list(found) == ["rate/reverie/dqn", "rate/reverie/ppo_atari_loop"]
    assert found["rate/reverie/ppo_atari_loop"]["env_steps_per_s"] > 0
    before = (tmp_path / "out.json").read_bytes()
    assert run(script, tmp_path, "^rate/reverie/(ppo_atari_loop|dqn)$", monkeypatch) == found
    assert (tmp_path / "out.json").read_bytes() == before
    found = run(script, tmp_path, "^update/dreamerv3_jax/V-1m-bfloat16$", monkeypatch)
    assert "No module named" in found["update/dreamerv3_jax/V-1m-bfloat16"]["error"]


def test_an_unfinished_result_is_continued_and_others_are_kept(script, tmp_path, monkeypatch):
    first, second = "update/dreamerv3_jax/V-1m-bfloat16", "update/dreamerv3_jax/V-1m-float32"
    rows = {first: {"env_steps": 1, "unfinished": True}, second: {"env_steps": 1, "unfinished": False}}
    (tmp_path / "out.json").write_text(json.dumps({"stages": rows}))
    found = run(script, tmp_path, f"^({first}|{second})$", monkeypatch)
    assert "error" in found[first]
    assert found[second] == rows[second]


def test_what_a_stage_said_counts_though_its_end_takes_long(script, tmp_path):
    words = ["-c", "import time; print('{\"update_s\": 1}', flush=True); time.sleep(600)"]
    running = script.Running(script.Stage("slow", words), tmp_path)
    while not running.out.read_text().strip():
        assert not running.has_ended()
    running.stop()
    assert running.result()["update_s"] == 1
    assert "error" not in running.result()


def test_each_stage_that_had_time_has_a_result(script, tmp_path):
    table = script.Table(tmp_path / "out.json", {"gpu": None})
    ready = "import os; open(os.environ['REVERIE_BENCH_GATE'] + '.ready', 'w'); print('{\"env_steps\": 1}')"
    script.run_batch([script.Stage("early", ["-c", ready])], table, tmp_path, math.inf, math.inf)
    assert table.stages["early"]["env_steps"] == 1  # it ended before its turn
    script.run_batch([script.Stage("begun", ["-c", "import time; time.sleep(600)"])], table, tmp_path, -math.inf, 600)
    assert "begun" not in table.stages  # the next call begins anew


def test_a_child_can_be_interrupted_though_this_process_ignores_it(script):
    stages, before = importlib.import_module("gpu_stages"), signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        status, said = stages.interrupted([sys.executable, "-c", "import time; time.sleep(20)"], 0.5)
    finally:
        signal.signal(signal.SIGINT, before)
    assert status != 0, said


def test_a_run_whose_time_is_over_continues_the_next_time(script, tmp_path):
    worlds = importlib.import_module("gpu_worlds")
    settings = {"env": "CartPole-v1", "steps": 80, "learning_starts": 70, "eval_episodes": 0, "console": False}
    settings |= {"run": tmp_path / "run", "schedule.log_every": 20}
    for end, is_over, steps in ((-math.inf, True, 20), (math.inf, False, 80)):
        clock = worlds.Clock(end)
        result = reverie.train("dqn", callbacks=[clock], **settings)
        assert (clock.is_over, result.env_steps) == (is_over, steps)


def test_waits_for_a_gpu_are_counted_by_place(script, monkeypatch):
    worlds, modes = importlib.import_module("gpu_worlds"), ["default"]

    def wait(*_: Any) -> None:
        if modes[-1] == "warn":
            warnings.warn("called a synchronizing CUDA operation", stacklevel=2)

    def call() -> None:
        for _ in range(2):
            wait()
        torch.cuda.synchronize()
        torch.cuda.Stream.synchronize(None)
        torch.cuda.Event.synchronize(None)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)  # PyTorch's debug mode does not warn of it
    monkeypatch.setattr(torch.cuda.Stream, "synchronize", wait)  # it does of this
    monkeypatch.setattr(torch.cuda.Event, "synchronize", lambda _: None)
    found = worlds.count_waits(call, torch.device("cuda"))
    line = call.__code__.co_firstlineno
    assert found == {f"test_gpu_script.py:{line + i}": count for i, count in {2: 2, 3: 1, 4: 1, 5: 1}.items()}
    assert modes[-1] == "default"
    assert worlds.count_waits(call, torch.device("cpu")) is None


@pytest.mark.nightly
def test_all_stages(script, tmp_path, monkeypatch):
    found = run(script, tmp_path, "", monkeypatch)
    assert set(found) == set(names(script))
    assert not {name: row["error"] for name, row in found.items()
                if "error" in row and not any(word in row["error"] for word in MISSING)}  # fmt: skip
    assert not found["tests"]["failed"]
