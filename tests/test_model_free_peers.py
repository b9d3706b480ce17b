"""The scripts that measure model-free agents beside other libraries: rounds, environments, workers, their table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from test_benchmarks import FOLDER, run, scripts

__all__ = ["scripts"]  # a fixture


def peer(task: str, key: str, per_s: float | None, ours_to_it: float | None = None, note: str = "") -> dict[str, Any]:
    measured = {} if per_s is None else {"per_s": per_s, "ours_to_it": ours_to_it}
    return {"task": task, "key": key, "system": {"reverie": "reverie"}.get(key, f"{key} 2"), "note": note, **measured}


def test_model_free_peers_stand_beside_each_other_the_fastest_in_bold(scripts: Any) -> None:
    rows = [
        peer("td3", "reverie", 600.0, 1.0), peer("td3", "quick", 200.0, 2.9), peer("td3", "slow", 100.0, 6.1),
        peer("loop", "reverie", None, note="failed at loop: why"), peer("loop", "slow", 50.0),
        peer("dqn", "quick", 9.6),
    ]  # fmt: skip
    lines = scripts("table").model_free_peers_table({"rows": rows})
    assert lines[0] == "| per second | reverie | quick 2 | slow 2 | ours, times the best of them |"
    assert lines[2:5] == [
        "| TD3 | 600 | **200** | 100 | 2.90 |",
        "| steps of TD3 on HalfCheetah-v5 | - | - | **50.0** | - |",
        "| DQN, 4 actions | - | **9.60** | - | - |",
    ]
    assert lines[5:] == ["", "- reverie: failed at loop: why"]


def test_peers_are_compared_within_rounds_and_failures_are_not_repeated(
    scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    peers, asked = scripts("model_free_peers"), []
    rates = {"reverie": [300.0, 600.0, 330.0], "sb3": [100.0, 300.0, 100.0]}

    def measured(python: Path, system: Any, task: str, args: Any) -> dict[str, Any]:
        asked.append((system.script, python))
        if system.script not in rates:
            raise RuntimeError("no")
        rest = {"first_s": 1.0, "peak_gb": 0.5, "others_cores": 0.25, "versions": {"torch": "2"}}
        return {"per_s": rates[system.script].pop(0), **rest}

    def installed(wanted: dict[str, Any], where: Path) -> dict[str, Path]:
        return {name: Path(name) for name in wanted if name != "d3rlpy"}

    monkeypatch.setattr(peers, "measured", measured)
    monkeypatch.setattr(peers, "installed", installed)
    monkeypatch.setattr(peers, "machine", lambda threads: {})
    out = tmp_path / "peers.json"
    kept = {"task": "dqn", "key": "sb3", "system": "SB3", "note": "", "per_s": 1.0}
    out.write_text(json.dumps({"machine": {}, "rows": [kept, {**kept, "task": "td3", "key": "gone"}]}))
    words = ["--tasks", "td3", "--systems", "reverie", "sb3", "tianshou", "d3rlpy", "--out", str(out)]
    assert run(peers, monkeypatch, *words) == 0
    ours, theirs = ("reverie", Path(sys.executable)), ("sb3", Path("sb3"))
    assert asked == [ours, theirs, ("tianshou", Path("tianshou")), ours, theirs, ours, theirs]
    rows = json.loads(out.read_text())["rows"]
    assert [(row["task"], row["key"], row.get("per_s"), row.get("ours_to_it")) for row in rows] == [
        ("td3", "reverie", 330.0, 1.0), ("td3", "sb3", 100.0, 3.0), ("td3", "tianshou", None, None),
        ("dqn", "sb3", 1.0, None),
    ]  # fmt: skip
    assert rows[1]["rounds"] == [100.0, 300.0, 100.0]
    assert rows[2]["note"] == "failed at td3: no"
    said = capsys.readouterr().out
    assert "td3 sb3, round 2: 300.0 /s, beside others on 0.2 cores" in said
    assert "| TD3 | 330 |" in said


def test_an_environment_is_made_once_with_our_pytorch_first(
    scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed, commands = scripts("installed"), []

    def made(command: list[Any], check: bool) -> None:
        words = [str(word) for word in command]
        if "-c" in words:
            constraint = words.index("-c") + 1
            words[constraint] = Path(words[constraint]).read_text()
        commands.append(words)
        (tmp_path / "peer").mkdir(exist_ok=True)

    monkeypatch.setattr(installed.subprocess, "run", made)
    monkeypatch.setattr(installed.shutil, "which", lambda name: None)
    pin = installed.pin()
    assert pin.startswith("torch==")
    assert pin in installed.CONSTRAINTS.read_text().split()
    for _ in range(2):
        assert installed.environment("peer", ["peer==1"], tmp_path) == tmp_path / "peer" / "bin" / "python"
    assert [words[-1] for words in commands] == [str(tmp_path / "peer"), pin, "peer==1"]
    assert commands[2][-3:] == ["-c", pin, "peer==1"]
    installed.environment("peer", ["peer==2"], tmp_path)
    assert len(commands) == 6
    monkeypatch.setattr(installed.shutil, "which", lambda name: "/bin/uv")
    monkeypatch.setenv("PIP_FIND_LINKS", "/some/wheels")
    installed.environment("peer", ["peer==3"], tmp_path)
    assert commands[-1][:3] == ["/bin/uv", "pip", "install"]
    assert commands[-1][-5:] == ["--find-links", "/some/wheels", "-c", pin, "peer==3"]
    capsys.readouterr()


@pytest.fixture
def workers(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a script of ``peers/`` by name; there are few transitions, in short episodes."""
    monkeypatch.syspath_prepend(str(FOLDER / "peers"))
    rates = scripts("rates")
    monkeypatch.setattr(rates, "ROWS", 60)
    monkeypatch.setattr(rates, "EPISODE", 10)
    return scripts


@pytest.mark.parametrize("task", ["td3", "dqn"])
def test_our_replay_is_filled_with_the_transitions_of_the_others(workers: Any, task: str) -> None:
    """Whichever rows a batch has, one after another they are a transition that everybody has."""
    rates, ours = workers("rates"), workers("rates_reverie")
    every = rates.experience(task)
    learner = ours.config(task).build(ours.SEEN, ours.acts(task))
    replay = ours.filled(task, learner)
    seen = set()
    for _ in range(3):
        batch = replay.sample()
        for b in range(batch.shape[0]):
            t = int((every.obs == batch.obs["observation"][b, 0].numpy()).all(1).argmax())
            seen.add(t)
            action = batch.action[b, 0].argmax() if task == "dqn" else batch.action[b, 0]
            assert torch.equal(action, torch.as_tensor(every.action[t]))
            assert torch.equal(batch.obs["observation"][b, 1], torch.as_tensor(every.next_obs[t]))
            assert batch.reward[b, 1] == every.reward[t]
            assert batch.is_first[b, 0] == (t % 10 == 0)
            assert batch.is_terminal[b, 1] == every.terminated[t]
            assert batch.is_last[b, 1] == (every.terminated[t] or every.truncated[t])
    assert seen >= set(range(50))


@pytest.mark.parametrize("task", ["td3", "sac", "ddpg", "dqn", "qr_dqn"])
def test_our_learners_of_the_comparison_are_as_large_as_the_others(workers: Any, task: str) -> None:
    ours = workers("rates_reverie")
    config = ours.config(task)
    assert (config.batch_size, config.networks.units, config.precision) == (256, (256, 256), "float32")
    assert getattr(config, "quantiles", 200) == 200
    assert not getattr(config, "double", False)
    assert ours.build(task, "")() == 1


def test_a_worker_says_one_line_whatever_is_printed(workers: Any, tmp_path: Path) -> None:
    script = tmp_path / "loud.py"
    script.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(FOLDER / 'peers')!r})\n"
        "import os, rates\n"
        "def build(task, variant):\n"
        "    print('talk')\n"
        "    os.write(1, b'more talk')\n"
        "    return rates.repeated(lambda: print(task, variant))\n"
        "rates.main(build, packages=('gymnasium',))\n"
    )
    words = ["sac", "--variant", "v", "--seconds", "0.01"]
    done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, check=True)
    (said,) = done.stdout.splitlines()
    line = json.loads(said)
    assert set(line) == {"first_s", "per_s", "others_cores", "peak_gb", "versions"}
    assert set(line["versions"]) == {"torch", "numpy", "gymnasium"}
    assert line["per_s"] > 0
    assert line["others_cores"] >= 0  # of a hundredth of a second, in whole ticks


def test_steps_are_counted_after_the_warm_up(workers: Any) -> None:
    rates = workers("rates")
    begin = rates.START + rates.WARM_UP
    moments = [0.001 * i for i in range(begin)] + [100.0 + 0.5 * i for i in range(11)]
    assert rates.steps_per_second(moments) == pytest.approx(2.0)
