"""What is measured on a GPU runs on a CPU, at tiny sizes: whoever has a GPU for a quarter of an hour finds no fault."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "bench"
KEYS = {
    "kernels/dqn": {"update_s", "slower_without", "unworthy"},
    "plan/muzero": {"updates_per_s", "decision_s", "decision_without_kernels_s", "waits_a_decision"},
    "start/td3": {"pytorch", "reverie", "learner", "first_update", "captured", "replays"},
    "worlds/host": {"env_steps_per_s", "waits_a_rollout"},
}
"""Stages that run here, one of a kind, and what they say; the others are tried each night."""
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


@pytest.mark.parametrize("name", KEYS)
def test_stages_say_what_is_asked(script, name, tmp_path):
    kind, _, of = name.partition("/")
    args = argparse.Namespace(device="cpu", tiny=True, logs=tmp_path)
    module = importlib.import_module("gpu_worlds" if kind == "worlds" else "gpu_stages")
    assert KEYS[name] <= getattr(module, kind)(of, args).keys()


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


@pytest.mark.nightly
def test_all_stages(script, tmp_path, monkeypatch):
    found = run(script, tmp_path, "", monkeypatch)
    assert set(found) == set(names(script))
    assert not {name: row["error"] for name, row in found.items()
                if "error" in row and not any(word in row["error"] for word in MISSING)}  # fmt: skip
    assert not found["tests"]["failed"]
