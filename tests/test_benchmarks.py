"""The scripts of ``benchmarks/``: their tables are on the page, and what they add up is right."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).parents[1] / "benchmarks"
MACHINE = {"processor": "A CPU", "cores": 2, "threads": 2, "torch": "2.13", "matrix_gflops": {"float32": 450.0}}


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a script by name, as other scripts there do; forgotten after the test."""
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)

    def load(name: str) -> ModuleType:
        return __import__(name)

    yield load
    for name in set(sys.modules) - before:
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", None)):
            del sys.modules[name]


@pytest.fixture
def table(scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script with a page and results of its own."""
    module: ModuleType = scripts("table")
    page = tmp_path / "performance.md"
    page.write_text("before\n\n<!-- table:update -->\nold\n<!-- /table -->\n\nafter\n")
    monkeypatch.setattr(module, "PAGES", (page,))
    monkeypatch.setattr(module, "HERE", tmp_path)
    row = {"setting": "V", "precision": "float32", "parameters": 640_867, "first_update_s": 0.5, "start_s": 1.5}
    row |= {"update_s": 0.15, "peak_gb": 0.7, "gflop": 28.86, "share": 0.4}
    rows = [row, {**row, "precision": "bfloat16", "gflop": None, "share": None}]
    (tmp_path / "update.json").write_text(json.dumps({"machine": MACHINE, "rows": rows}))
    return module


def run(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["script", *words])
    code: int = script.main()
    return code


@pytest.mark.parametrize(
    "name", sorted(p.stem for p in FOLDER.glob("*.py") if "main()" in p.read_text() and p.stem != "demo")
)
def test_every_script_says_what_it_does(
    scripts: Any, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(scripts(name), monkeypatch, "--help")
    assert ended.value.code == 0
    assert "usage: script" in capsys.readouterr().out


# ---------------------------------------------------------------- tables


def test_the_page_says_what_the_results_say(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails: python benchmarks/table.py."""
    table = scripts("table")
    names = [name for page in table.PAGES for _, name, _, _ in table.BLOCK.findall(page.read_text())]
    assert sorted(names) == sorted(table.TABLES)
    assert run(table, monkeypatch, "--check") == 0


# ---------------------------------------------------------------- measuring


def test_the_page_says_how_fast_data_were_read() -> None:
    root = Path(__file__).parents[1]
    rows = json.loads((root / "benchmarks" / "readers.json").read_text(encoding="utf-8"))["rows"]
    page = (root / "docs" / "datasets.md").read_text(encoding="utf-8").partition("## Speed")[2].partition("## ")[0]
    text = " ".join(page.split())
    took = {(row["file"], row["reader"]): row for row in rows}
    s = {key: f"{row['load_s']:.2f}" for key, row in took.items() if "load_s" in row}
    d4rl, hdf5, arrow = "d4rl", "minari hdf5", "minari arrow"
    assert f"a D4RL file in {s[d4rl, 'reverie']} s ({s[d4rl, 'h5py']} s of it h5py's)" in text
    assert f"HDF5 in {s[hdf5, 'reverie']} s where its own library takes {s[hdf5, 'minari']} s" in text
    assert f"Arrow files in {s[arrow, 'reverie']} s and {s[arrow, 'minari']} s" in text
    minutes = [f"{took[f'shard, {order}', 'reverie']['shard_s'] / 60:.1f}" for order in ("ordered", "shuffled")]
    assert f"takes {minutes[0]} minutes if its steps are in order, and {minutes[1]} if they are shuffled" in text
    peaks = sorted(f"{row['peak']:.1f}" for row in rows if row["reader"] == "reverie" and "peak" in row)
    assert f"{peaks[0]} to {peaks[-1]} times the rows" in text


def test_the_page_says_what_the_store_costs() -> None:
    """Of game and noise, as store.json has it."""
    root = FOLDER.parent
    rows = json.loads((root / "benchmarks" / "store.json").read_text(encoding="utf-8"))["rows"]
    page = (root / "docs" / "replay_store.md").read_text(encoding="utf-8").partition("## What it costs")[2]
    found = {row["part"]: [r for r in rows if r["part"] == row["part"]] for row in rows}
    assert [row["rows"] for row in found["collect"]] == ["game", "noise"]
    cells = [
        [f"{(row['ratio'] - 1) * 100:.1f} %" for row in found["collect"]],
        [f"{row['mb_per_s']:.0f} MB" for row in found["write"]],
        [f"{row['ratio']:.2f} times" for row in found["resume"]],
    ]
    for game, noise in cells:
        line = next((line for line in page.splitlines() if f"| {game}" in line), "")
        assert noise in line.partition(game)[2], (game, noise)


def test_seeds_are_added_to_those_with_the_same_settings(scripts: Any) -> None:
    script = scripts("on_policy")

    def row(seeds: list[int], scores: list[float], mark: str = "a") -> dict[str, Any]:
        same = {"part": "results", "task": "cue", "env": "reverie/Cue-v0", "system": "reverie", "steps": 9}
        return same | {"mark": mark, "seeds": seeds, "scores": scores, "cpu_s": [1.0] * len(seeds)}

    timed = {"part": "speed", "task": "cartpole", "system": script.PEER, "per_s": 1.0}
    found = script.merged([row([3], [5.0]), timed], [row([1], [2.0])])
    assert [(each.get("seeds"), each.get("scores")) for each in found] == [([1, 3], [2.0, 5.0]), (None, None)]
    assert found[0]["mean"]["value"] == 3.5
    assert script.merged(found, [row([3], [7.0])])[0]["scores"] == [2.0, 7.0]
    assert script.merged(found, [row([4], [7.0], "b")])[0]["seeds"] == [4]  # others are of other settings
    faster = script.merged(found, [timed | {"per_s": 2.0}])
    assert [each.get("per_s") for each in faster] == [None, 2.0]


# ---------------------------------------------------------------- agreement with other libraries


@pytest.fixture
def beside(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a script of ``peers/`` by name."""
    monkeypatch.syspath_prepend(str(FOLDER / "peers"))
    return scripts


def plain_clone(beside: Any, ours: Any, rate: float) -> Any:
    """Behaviour cloning in ten lines of PyTorch, as a peer."""
    side = beside("side_by_side")
    layers = [torch.nn.Linear(a, b) for a, b in zip([5, 32, 32], [32, 32, 3], strict=True)]
    network = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2], torch.nn.Tanh())
    adam = torch.optim.Adam(network.parameters(), rate)

    def update(_: int, t: Any) -> dict[str, float]:
        loss = (network(t["obs"]) - t["act"]).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        return {"loss/actor": loss.item()}

    return side.Learner({"actor.body": [side.Linears([network], adam)]}, update, note="plain")


def test_every_algorithm_of_the_comparison_is_ours_and_has_a_peer(beside: Any) -> None:
    agreement, ours = beside("agreement"), beside("agreement_reverie")
    assert list(ours.TASKS) == list(agreement.LEARNERS)
    assert set(ours.ESTIMATES) == set(agreement.ESTIMATORS)
    theirs: set[str] = set()
    for peer in agreement.PEERS:
        source = (FOLDER / "peers" / f"agreement_{peer}.py").read_text()
        tree = ast.parse(source[source.index("LEARNERS: dict") :])
        keys = [key for node in ast.walk(tree) if isinstance(node, ast.Dict) for key in node.keys]
        found = {key.value for key in keys if isinstance(key, ast.Constant)}
        assert found <= set(agreement.ALGORITHMS), peer
        theirs |= found
    assert theirs == set(agreement.ALGORITHMS)


def test_what_is_on_the_page_agrees_or_says_why() -> None:
    rows = json.loads((FOLDER / "agreement.json").read_text(encoding="utf-8"))["rows"]
    assert {row["peer"] for row in rows} == {"sb3", "tianshou", "d3rlpy", "torchrl"}
    assert all(row["agrees"] or row["known"] for row in rows)


def test_a_learner_is_compared_in_losses_gradients_and_weights(beside: Any) -> None:
    side, ours = beside("side_by_side"), beside("agreement_reverie")
    mine = ours.learn(ours.TASKS["bc"])
    agrees = beside("agreement").agrees
    same = side.learned(plain_clone(beside, mine, mine["lr"]), mine)
    losses = [f"loss/actor {k}" for k in range(6)]
    assert [q.what for q in same] == [losses[0], "grad actor.body 0", *losses[1:], "actor.body 0"]
    assert all(agrees(q.difference, q.scale) for q in same)
    other = side.learned(plain_clone(beside, mine, 2 * mine["lr"]), mine)
    assert [q.what for q in other if not agrees(q.difference, q.scale)] == [*losses[1:], "actor.body 0"]
