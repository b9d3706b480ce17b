"""The scripts of ``benchmarks/``: their tables are on the page, and what they add up is right."""

from __future__ import annotations

import argparse
import ast
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from reverie.bench import gflop

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


# ---------------------------------------------------------------- tables


def test_the_page_says_what_the_results_say(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails: python benchmarks/table.py."""
    table = scripts("table")
    names = [name for page in table.PAGES for _, name, _, _ in table.BLOCK.findall(page.read_text())]
    assert sorted(names) == sorted(table.TABLES)
    assert run(table, monkeypatch, "--check") == 0


def test_tables_are_written_between_their_comments_only(table: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(table, monkeypatch, "--check") == 1
    assert "old" in table.PAGES[0].read_text()
    assert run(table, monkeypatch) == 0
    page = table.PAGES[0].read_text()
    assert page.startswith("before\n\n<!-- table:update -->\n\n| setting |")
    assert page.endswith("\n<!-- /table -->\n\nafter\n")
    assert "| V: vector of 24, size 1m | 0.64M | 0.50 s | 1.50 s | 0.15 s | 0.70 GB | 28.9 | 40% |" in page
    assert "| V: vector of 24, size 1m, bfloat16 | 0.64M | 0.50 s | 1.50 s | 0.15 s | 0.70 GB | - | - |" in page
    assert "Measured on A CPU, 2 cores, 2 threads, PyTorch 2.13. Matrix products: 450 in float32 GFLOP/s." in page
    assert run(table, monkeypatch, "--check") == 0


def test_a_number_changed_by_hand_is_found(
    table: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(table, monkeypatch)
    page = table.PAGES[0]
    page.write_text(page.read_text().replace("40%", "60%"))
    assert run(table, monkeypatch, "--check") == 1
    assert "update not as measured" in capsys.readouterr().err


def test_results_that_are_missing_are_said_to_be(table: ModuleType) -> None:
    assert table.render("peers").startswith("Not measured yet: `benchmarks/peers.json`")


def test_an_unknown_table_is_named(table: ModuleType) -> None:
    with pytest.raises(SystemExit, match=r"unknown table .updates.: there are update"):
        table.render("updates")


def test_decisions_stand_side_by_side(scripts: Any) -> None:
    rows = [
        {"setting": "V", "mode": mode, "envs": n, "act_ms": ms}
        for mode, n, ms in [("explore", 1, 0.25), ("explore", 8, 1.5), ("eval", 8, 120.0)]
    ]
    head, _, explore, evaluate = scripts("table").act_table({"rows": rows})
    assert head == "| setting | mode | 1 env | 8 envs |"
    assert explore.endswith("| explore | 0.25 ms | 1.50 ms |")
    assert evaluate.endswith("| eval | - | 0.12 s |")


def test_the_parts_of_the_loop_are_all_shown(scripts: Any) -> None:
    """Whatever ``loop.py`` watches has a column: columns add up to the whole."""
    table, loop = scripts("table"), scripts("loop")
    watched: list[str] = []
    spy = type("Spy", (), {"watch": lambda self, owner, method, part, after: watched.append(part)})()
    loop.watch_all(spy, _Anything(), None)
    parts = dict.fromkeys([*watched, "other"], 1.0)
    row = {"case": "x", "parts": parts, "share_beside_update": 0.5}
    cells = table.loop_table({"rows": [row]})[2].split(" | ")[1:-1]
    assert sum(float(cell.removesuffix(" ms")) for cell in cells) == len(parts)


class _Anything:
    """Has every attribute."""

    def __getattr__(self, name: str) -> Any:
        return self


def test_peers_stand_by_setting_and_speed_with_what_must_be_said_once(scripts: Any) -> None:
    def row(system: str, setting: str, update: float, note: str = "") -> dict[str, Any]:
        times = {"first_update_s": 1.0, "update_s": update, "act_1_ms": 0.4, "act_8_ms": None}
        ratio = update * 5
        return {"system": system, "setting": setting, "parameters": 5e5, **times, "ratio": ratio, "note": note}

    failed = {"system": "none 2", "setting": "V", "note": "failed"}
    rows = [row("slow 1", "V", 0.6, "dense"), row("reverie", "V", 0.2), failed,
            row("slow 1", "I", 4.0, "dense"), row("reverie", "I", 2.0)]  # fmt: skip
    lines = scripts("table").peers_table({"rows": rows})
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:7]]
    order = [(c[0], c[1], c[5]) for c in cells]
    assert order == [("V", "reverie", "1.0"), ("V", "slow 1", "3.0"), ("V", "none 2", "-"),
                     ("I", "reverie", "10.0"), ("I", "slow 1", "20.0")]  # fmt: skip
    assert cells[0][6:] == ["0.40 ms", "-", "-"]
    assert cells[2][2:] == ["-"] * 7
    assert lines[7:] == ["", "- slow 1: dense", "- none 2: failed"]


def test_parts_stand_with_their_floors(scripts: Any) -> None:
    def row(part: str, **values: float) -> dict[str, Any]:
        zeros = {f"{way}_{unit}": 0.0 for way in ("forward", "backward") for unit in ("ms", "gflop")}
        return {"setting": "V", "part": part, "floor_ms": 0.0, **zeros, **values}

    work = {"forward_gflop": 10.0, "backward_gflop": 20.0, "floor_ms": 60.0}
    rows = [row("world", forward_ms=50.0, backward_ms=100.0, **work), row("optimiser", forward_ms=2.0)]
    lines = scripts("table").parts_table({"rows": rows})
    assert lines[2] == "| V | decoder, reward, continuation, KL | 50.0 ms | 0.10 s | 30.0 | 60.0 ms | 2.50 |"
    assert lines[3] == "| V | optimiser | 2.00 ms | - | - | - | - |"


def test_precisions_are_compared_by_task(scripts: Any) -> None:
    curves = {p: {"1": [[400, 20.0]], "2": [[400, 30.0]]} for p in ("float32", "bfloat16")}
    found = {"float32": 25.0, "bfloat16": 24.5, "difference_95": [-3.25, 2.0], "apart": False, "curves": curves}
    line = scripts("table").precision_table({"tasks": {"CartPole-v1": found}})[2]
    assert [cell.strip() for cell in line.split("|")[1:-1]] == ["CartPole-v1", "2", "25.0", "24.5", "-3.25 to 2"]


def test_bootstrap_tells_precisions_apart_only_where_they_are(scripts: Any) -> None:
    judged = scripts("precision").judged
    near = {p: {str(k): [[1, k + 0.1 * (p == "bfloat16")]] for k in range(5)} for p in ("float32", "bfloat16")}
    far = {p: {str(k): [[1, k + 100.0 * (p == "bfloat16")]] for k in range(5)} for p in ("float32", "bfloat16")}
    assert not judged(near)["apart"]
    assert judged(far)["apart"]
    assert judged(far)["bfloat16"] == 102.0


def test_neighbours_are_compared_with_the_fastest_of_a_setting(scripts: Any) -> None:
    times = {(1, "default"): (0.2, 0.22), (2, "default"): (0.1, 5.0), (2, "1000"): (0.11, 0.3)}
    rows = [
        {"setting": "V", "threads": threads, "spin": spin, "neighbour": neighbour, "update_s": seconds}
        for (threads, spin), both in times.items()
        for neighbour, seconds in zip(("idle", "torch"), both, strict=True)
    ]
    head, _, *lines = scripts("table").threads_table({"rows": rows[:-1]})
    assert head == "| setting | threads | spin | nothing else | beside PyTorch on 2 threads |"
    assert lines[0] == "| V | 1 | - | 0.20 s (2.0) | 0.22 s (2.2) |"
    assert lines[1] == "| V | 2 | default | 0.10 s (1.0) | 5.00 s (50.0) |"
    assert lines[2] == "| V | 2 | 1000 | 0.11 s (1.1) | - |"


# ---------------------------------------------------------------- measuring


class Work:
    """Takes time on a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0

    def outer(self) -> str:
        self.now += 1
        self.inner()
        self.inner()
        self.now += 2
        return "done"

    def inner(self) -> None:
        self.now += 10

    def fails(self) -> None:
        self.now += 5
        raise ValueError


def test_a_stopwatch_counts_each_moment_once(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, work = scripts("loop"), Work()
    monkeypatch.setattr(loop.time, "perf_counter", lambda: work.now)
    watch = loop.Stopwatch()
    for method in ("outer", "inner", "fails", "absent"):
        watch.watch(work, method, method)
    assert work.outer() == "done"
    with pytest.raises(ValueError):  # noqa: PT011
        work.fails()
    assert dict(watch.seconds) == {"outer": 3, "inner": 20, "fails": 5}
    assert watch.total() == 28
    watch.restart()
    work.inner()
    assert dict(watch.seconds) == {"inner": 10}
    assert watch.total() == 10


def test_the_loop_is_measured_without_its_beginning(
    scripts: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = scripts("loop")
    small = {"algo.batch_size": 2, "algo.batch_length": 4, "learning_starts": 20, "replay_ratio": 0.5, "env.num": 2}
    monkeypatch.setitem(loop.CASES, "small", ({"env": "CartPole-v1"}, small, 6))
    for owner, method in ((loop.FiniteCheck, "add"), (loop.MetricsLog, "log"), (loop.Batch, "to")):
        monkeypatch.setattr(owner, method, getattr(owner, method))  # what is watched is put back
    for method in ("write", "episodes"):
        monkeypatch.setattr(loop.MetricsLog, method, getattr(loop.MetricsLog, method))
    restarts: list[bool] = []
    restart = loop.Stopwatch.restart
    monkeypatch.setattr(
        loop.Stopwatch, "restart", lambda self: (restarts.append("update" in self.seconds), restart(self))
    )
    row = loop.measure("small")
    assert restarts == [True]  # after the first updates, once
    assert (row["updates"], row["envs"]) == (6, 2)
    assert row["env_steps_an_update"] == pytest.approx(2, abs=0.4)  # but for the ends of episodes
    assert set(row["parts"]) == {
        "act", "collect", "env", "feedback", "log", "meter", "sample", "store", "to_device", "update", "other",
    }  # fmt: skip
    assert all(ms >= 0 for ms in row["parts"].values())
    assert sum(row["parts"].values()) == pytest.approx(row["ms_an_update"])
    assert row["share_beside_update"] == pytest.approx(1 - row["parts"]["update"] / row["ms_an_update"])
    capsys.readouterr()


def test_a_setting_is_measured_with_everything_that_its_table_shows(scripts: Any) -> None:
    update, table = scripts("update"), scripts("table")
    update.SETTINGS["tiny"] = ("nano", update.VECTOR, update.CONTINUOUS, {"batch_size": 2, "batch_length": 4})
    update.matrix_gflops = lambda device: {"float32": 400.0}
    row = {"setting": "tiny", "precision": "float32", **update.measure("tiny", 1)}
    assert row["share"] == pytest.approx(row["gflop"] / row["update_s"] / 400)
    assert row["parameters"] == update.build("tiny").optim.count
    assert "| tiny | 0.22M |" in table.update_table({"rows": [row]})[2]


@pytest.fixture
def tiny(scripts: Any) -> str:
    """A setting that takes no time."""
    update = scripts("update")
    update.SETTINGS["tiny"] = ("nano", update.VECTOR, update.CONTINUOUS, {"batch_size": 2, "batch_length": 4})
    return "tiny"


def test_the_parts_are_the_update(scripts: Any, tiny: str) -> None:
    """The script goes through an update in its own words: gradients and both critics must come out the same."""
    parts, update = scripts("parts"), scripts("update")
    update.SETTINGS[tiny][3].update({"optim.lr": 1e-3, "optim.warmup": 0})

    def learned(step: Any) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        agent = update.build(tiny)
        for p in agent.optim.params:  # heads that begin with zeros pass no gradient on
            p.data += 0.1 * torch.randn_like(p)
        step(agent, update.batch(tiny, agent))
        return {"square": agent.optim.square, **agent.slow_critic.state_dict()}

    whole = learned(lambda agent, data: agent.update(data))
    cut = learned(lambda agent, data: parts.update_in_parts(agent, data, parts.Meter(lambda: 0.0)))
    assert whole["square"].max() > 1e-5
    assert torch.allclose(cut.pop("square"), whole.pop("square"), rtol=1e-3, atol=1e-9)
    for name, value in whole.items():
        assert torch.allclose(cut[name], value, rtol=0, atol=1e-6), name


def test_the_operations_of_the_parts_add_up(scripts: Any, tiny: str) -> None:
    parts, update = scripts("parts"), scripts("update")
    _, obs, action, _ = update.SETTINGS[tiny]
    used = parts.operations(tiny).used
    assert {part for part, _ in used} == set(parts.PARTS)
    assert sum(sum(values) for values in used.values()) == pytest.approx(gflop(update.config(tiny), obs, action))
    assert used["imagine", "forward"][0] > 0
    assert ("imagine", "backward") not in used


def test_a_meter_keeps_parts_and_ways_apart(scripts: Any) -> None:
    work = Work()
    meter = scripts("parts").Meter(lambda: work.now)
    assert meter("a", "forward", work.outer) == "done"
    for _ in range(3):
        meter("a", "backward", work.inner)
    assert meter.median("a", "forward") == 23
    assert meter.median("a", "backward") == 10
    assert meter.median("b", "forward") == 0


def test_parts_are_measured_with_everything_that_their_table_shows(scripts: Any, tiny: str) -> None:
    parts = scripts("parts")
    parts.matrix_gflops = lambda device: {"float32": 400.0}
    rows = parts.measure(tiny, 1)
    assert [row["part"] for row in rows] == [*parts.PARTS, parts.WHOLE]
    assert rows[-1]["forward_gflop"] == pytest.approx(sum(row["forward_gflop"] for row in rows[:-1]))
    assert rows[-1]["floor_ms"] == pytest.approx(sum(row["floor_ms"] for row in rows[:-1]))
    assert rows[1]["floor_ms"] == pytest.approx((rows[1]["forward_gflop"] + rows[1]["backward_gflop"]) / 0.4)
    assert all(row["forward_ms"] > 0 for row in rows)
    assert len(scripts("table").parts_table({"rows": [{"setting": tiny, **row} for row in rows]})) == 2 + len(rows)


@pytest.mark.parametrize("neighbour", ["loop", "torch"])
def test_a_neighbour_is_busy_meanwhile_and_gone_afterwards(
    scripts: Any, neighbour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, started = scripts("threads"), []
    popen = threads.subprocess.Popen
    monkeypatch.setattr(threads.subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1])
    with threads.beside(neighbour):
        assert started[0].poll() is None
    assert started[0].returncode == -9


def test_every_way_of_waiting_is_measured_in_a_process_that_knows_it(
    scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    threads, asked = scripts("threads"), []

    def child(script: Path, *words: str, under: list[str], setting: dict[str, str]) -> dict[str, float]:
        asked.append((words[words.index("--ways") + 1], setting.get("GOMP_SPINCOUNT"), under))
        return {"update_s": 1.0}

    monkeypatch.setattr(threads, "child", child)
    monkeypatch.setattr(threads, "machine", lambda: {})
    out = tmp_path / "threads.json"
    words = ["--settings", "V", "--neighbours", "idle", "--under", "nice", "--out", str(out)]
    assert run(threads, monkeypatch, *words) == 0
    assert asked == [
        ("1", None, ["nice"]),
        ("2", None, ["nice"]),
        ("2 short", "1000", ["nice"]),
        ("2 none", "0", ["nice"]),
    ]
    rows = json.loads(out.read_text())["rows"]
    assert [(row["threads"], row["spin"]) for row in rows] == [(1, "default"), (2, "default"), (2, "1000"), (2, "0")]
    capsys.readouterr()


def test_an_update_is_timed_with_nothing_beside_it(scripts: Any, tiny: str) -> None:
    measured = scripts("threads").measure(tiny, "idle", 0.0)
    assert set(measured) == {"update_s", "worked_s", "slowest_s"}
    assert 0 < measured["update_s"] <= measured["slowest_s"]


def test_a_child_runs_under_a_command_and_with_settings(scripts: Any, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import json, os\nprint(json.dumps([os.environ.get(name) for name in ('ONE', 'TWO')]))\n")
    assert scripts("machine").child(script, under=["env", "TWO=2"], setting={"ONE": "1"}) == ["1", "2"]
    assert scripts("machine").child(script) == [None, None]


def test_a_child_that_fails_says_why(scripts: Any, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint('talk')\nprint('[1, 2]' if sys.argv[1] == 'well' else undefined)\n")
    machine = scripts("machine")
    assert machine.child(script, "well") == [1, 2]
    with pytest.raises(RuntimeError, match=r"script.py badly ended with 1(.|\n)*name 'undefined'"):
        machine.child(script, "badly")


def test_results_keep_four_digits(scripts: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    scripts("machine").write(path, {"rates": {"float32": 123456.7}}, [{"a": 0.123456, "n": 1234567, "b": {"c": 2.0}}])
    expected = {"machine": {"rates": {"float32": 123500.0}}, "rows": [{"a": 0.1235, "n": 1234567, "b": {"c": 2.0}}]}
    assert json.loads(path.read_text()) == expected


def test_a_start_is_taken_apart(scripts: Any) -> None:
    """The command itself, up to its first update; every part has a column."""
    start, table = scripts("start"), scripts("table")
    parts = scripts("machine").child(FOLDER / "start.py", "--child", "--cases", "start_cartpole")
    assert set(parts) == set(start.PARTS)
    assert all(seconds > 0 for seconds in parts.values())
    row = {"case": "start_cartpole", "kernels": "warm", **parts, "first_update_s": sum(parts.values())}
    cells = [cell.strip() for cell in table.start_table({"rows": [row]})[2].split("|")[1:-1]]
    assert cells[:2] == ["CartPole, `cartpole`", "compiled before"]
    assert cells[2:] == [table.time(value) for value in [*(parts[part] for part in start.PARTS), sum(parts.values())]]


def test_a_warm_start_does_not_count_the_one_that_compiled(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    start, caches = scripts("start"), []
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("REVERIE_KERNELS", "")

    def child(*_: Any) -> dict[str, float]:
        caches.append(os.environ["XDG_CACHE_HOME"])
        return dict.fromkeys(start.PARTS, float(len(caches)))

    monkeypatch.setattr(scripts("machine"), "child", child)
    assert start.measure("start_cpu", "warm", 3) == {**dict.fromkeys(start.PARTS, 3.0), "first_update_s": 15.0}
    assert len(set(caches)) == 1
    caches.clear()
    assert start.measure("start_cpu", "cold", 3)["update"] == 2.0
    assert len(set(caches)) == 3


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


def test_kernels_of_an_update_are_counted_by_function_without_views(
    scripts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = scripts("operations")
    x = torch.ones(3, 4, device="meta")
    with counting.Kernels() as kernels:
        (x.t().reshape(2, 6)[0] * 2).sum()  # a copy by reshape, a product, a sum
    assert kernels.by_function == {"elsewhere": 3}
    monkeypatch.setattr(torch.nn.functional, "rms_norm", lambda x, shape, weight, eps: counting.Norm.apply(x, weight))
    monkeypatch.setattr("reverie.kernels.call.kernels", lambda: None)
    found = counting.count("nano", "float32")
    assert found["nn/gpu.py: sample_into"] == 32 + 15  # once a step of the windows and of the dream
    assert found["elsewhere"] == 0
    plain = counting.count("nano", "float32", triton=False)
    assert plain["nn/functional.py: norm_silu"] % 2 == 0  # the norm and SiLU
    assert 1000 < plain["nn/optim.py: _backward"] < plain.total() / 2
    assert found.total() < plain.total() / 2


def test_peers_measured_apart_stand_beside_earlier_ones_and_say_so(scripts: Any, tmp_path: Path) -> None:
    peers, out = scripts("peers"), tmp_path / "peers.json"
    earlier = [
        {"setting": "V", "system": "reverie", "update_s": 0.1, "ratio": 1.0, "note": ""},
        {"setting": "V", "system": "slow 2", "update_s": 0.4, "ratio": 4.0, "note": "old"},
    ]
    out.write_text(json.dumps({"machine": {"cores": 2}, "rows": earlier}))
    rows = [
        {"setting": "V", "system": "reverie", "update_s": 0.2, "ratio": 1.0, "note": ""},
        {"setting": "V", "system": "slow 2", "update_s": 0.6, "ratio": 3.0, "note": "new"},
    ]
    machine, kept = peers.beside_earlier(out, [dict(row) for row in rows], asked=1)
    assert machine == {"cores": 2}
    assert kept == [earlier[0], {**rows[1], "note": "new; measured apart from the others, beside 0.2 s of ours for V"}]
    assert peers.beside_earlier(out, rows, asked=len(peers.SYSTEMS)) == (None, rows)
    assert peers.chosen("r2dreamer", ["eager"], "V") == ["eager"]
    assert peers.chosen("torchrl", ["eager"], "V") == ["dreamer_v3"]
    assert peers.chosen("sheeprl", [], "V2-image") == ["dreamer_v2"]
    assert peers.chosen("pydreamer", [], "V1-image") == []


def test_clones_are_folders_of_systems_that_have_a_repository(scripts: Any, tmp_path: Path) -> None:
    peers = scripts("peers")
    (tmp_path / ".git").mkdir()
    assert peers.clone(f"r2dreamer={tmp_path}") == ("r2dreamer", tmp_path)
    for word in (f"sheeprl={tmp_path}", f"r2dreamer={tmp_path / 'nothing'}", "r2dreamer"):
        with pytest.raises(argparse.ArgumentTypeError, match="expected a clone's folder, as dreamerv3=FOLDER"):
            peers.clone(word)


# ---------------------------------------------------------------- agreement with other libraries


@pytest.fixture
def beside(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a script of ``peers/`` by name."""
    monkeypatch.syspath_prepend(str(FOLDER / "peers"))
    return scripts


def answered(algorithm: str, *differences: float, **words: str) -> dict[str, Any]:
    quantities = [{"what": f"loss {i}", "difference": d, "scale": 4.0} for i, d in enumerate(differences)]
    return {"algorithm": algorithm, "note": "", "known": "", "quantities": quantities, **words}


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


def test_numbers_agree_within_the_digits_of_float32(scripts: Any) -> None:
    agrees = scripts("agreement").agrees
    assert agrees(1e-6, 0.0)
    assert not agrees(1e-5, 0.1)
    assert agrees(1e-4, 10.0)
    assert not agrees(3e-4, 10.0)
    assert not agrees(float("nan"), 1.0)


def test_what_differs_without_a_reason_is_named(scripts: Any) -> None:
    agreement = scripts("agreement")
    answers = [
        answered("td3", 1e-6, 2e-6, note="patched"),
        answered("sac", 1e-6, 0.5),
        answered("cql_best", 0.5, known="another maximum"),
        {"algorithm": "bcq", "failed": "KeyError: 'vae'"},
    ]
    rows = [agreement.row_of("d3rlpy", answer) for answer in answers]
    assert rows[0] == {"algorithm": "td3", "peer": "d3rlpy", "compared": 2, "difference": 2e-6, "scale": 4.0,
                       "note": "patched", "agrees": True}  # fmt: skip
    assert rows[2]["note"] == "differs: another maximum"
    assert agreement.unexplained(rows) == ["sac, d3rlpy: loss 1", "bcq, d3rlpy: failed: KeyError: 'vae'"]
    table = agreement.agreement_table({"rows": agreement.merged([], rows)})
    assert [line.split(" | ")[1:] for line in table[2:6]] == [
        ["2", "-", "-", "2e-06 of 4", "- |"],
        ["2", "-", "-", "**5e-01 of 4**", "- |"],
        ["0", "-", "-", "failed", "- |"],
        ["1", "-", "-", "**5e-01 of 4**", "- |"],
    ]
    assert table[6:8] == ["", "- d3rlpy 2.8.1, TD3: patched"]


def test_what_was_not_compared_again_stays(scripts: Any) -> None:
    agreement = scripts("agreement")
    old = [agreement.row_of(peer, answered("td3", 1e-6)) for peer in ("sb3", "d3rlpy")]
    new = [agreement.row_of("d3rlpy", answered(name, 0.0)) for name in ("td3", "ddpg")]
    found = agreement.merged(old, new)
    assert [(r["algorithm"], r["peer"]) for r in found] == [("ddpg", "d3rlpy"), ("td3", "sb3"), ("td3", "d3rlpy")]
    assert [r["difference"] for r in found] == [0.0, 1e-6, 0.0]


def test_an_unknown_algorithm_is_named_with_those_there_are(
    scripts: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(scripts("agreement"), monkeypatch, "--algorithms", "ppo")
    said = capsys.readouterr().err
    assert "invalid choice: 'ppo'" in said
    assert "td3_bc" in said


@pytest.mark.parametrize(("difference", "status"), [(1e-7, 0), (0.1, 1)])
def test_the_status_of_the_comparison_says_whether_numbers_agree(
    scripts: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    difference: float,
    status: int,
) -> None:
    agreement, said = scripts("agreement"), []
    answer = json.dumps({"versions": {"d3rlpy": "2"}, "answers": [answered("td3", difference)]})
    monkeypatch.setattr(agreement, "installed", lambda wanted, where: {name: Path(name) for name in wanted})
    monkeypatch.setattr(agreement, "run", lambda python, name, *words: (said.append((name, words[1:])), answer)[1])
    out = tmp_path / "agreement.json"
    words = ["--peers", "d3rlpy", "--algorithms", "td3", "--out", str(out)]
    assert run(agreement, monkeypatch, *words) == status
    assert said == [("reverie", ("td3",)), ("d3rlpy", ("td3",))]
    result = json.loads(out.read_text())
    assert result["machine"]["versions"] == {"d3rlpy": "2"}
    assert result["rows"][0]["agrees"] == (not status)
    assert ("differs: td3, d3rlpy: loss 0" in capsys.readouterr().err) == bool(status)


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


def test_a_learner_without_a_network_or_loss_of_ours_fails_with_its_name(
    beside: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    side, ours = beside("side_by_side"), beside("agreement_reverie")
    mine = ours.learn(ours.TASKS["bc"])
    learner = plain_clone(beside, mine, 1e-3)
    learner.nets["critic.body"] = []
    assert "only one side has critic.body" in side.answer("bc", lambda _: learner, None, mine)["failed"]
    learner = plain_clone(beside, mine, 1e-3)
    learner.update = lambda k, t: {"loss/critic": 0.0}
    assert "ours never has loss/critic" in side.answer("bc", lambda _: learner, None, mine)["failed"]
    capsys.readouterr()


def test_heads_and_losses_of_another_scale_are_ours_after_all(beside: Any) -> None:
    side = beside("side_by_side")
    body, mean, log_std = torch.nn.Linear(4, 3), torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    adam = torch.optim.Adam([p for m in (body, mean, log_std) for p in m.parameters()])
    net = side.Linears([body, mean, log_std], adam, times=2.0)
    ours = [(torch.randn(3, 4), torch.randn(3)), (torch.randn(4, 3), torch.randn(4))]
    net.put(ours)
    assert adam.param_groups[0]["eps"] == 2e-8
    assert torch.equal(torch.cat([mean.weight, log_std.weight]), ours[1][0])
    assert side.quantity("x", net.weights(), net.arranged(ours)).difference == 0
    assert net.gradient() is None
    (2 * (mean(body(torch.ones(4))).sum() + log_std(body(torch.ones(4))).sum())).backward()
    adam.step()
    assert torch.allclose(net.gradient()[1][1], torch.ones(2))
    with pytest.raises(ValueError, match="a layer is"):
        net.put([(torch.randn(3, 5), torch.randn(3)), ours[1]])


def test_a_peer_draws_our_random_numbers_and_all_of_them(beside: Any) -> None:
    side = beside("side_by_side")
    normal, uniform = side.draws(3, ("n", (2, 2)), ("u", (4,)))
    torch.manual_seed(side.SEED + 3)
    assert torch.equal(normal, torch.randn(2, 2))
    before = torch.randn
    with side.drawing([normal, uniform, normal]):
        assert torch.equal(torch.normal(torch.ones(4), torch.full((4,), 2.0)), 1 + 2 * normal.flatten())
        assert torch.allclose(torch.empty(4).uniform_(2, 6), 4 + 2 * uniform)
        assert torch.equal(torch.randn((2, 2)), normal)
    assert torch.randn is before
    with pytest.raises(ValueError, match="1 draws of ours were not made"), side.drawing([normal]):
        pass
    with pytest.raises(ValueError, match=r"\(3,\) was drawn where ours has \(2, 2\)"), side.drawing([normal]):
        torch.randn(3)


def test_estimators_are_compared_over_all_streams(beside: Any) -> None:
    side, ours = beside("side_by_side"), beside("agreement_reverie")
    mine = ours.estimate("n_step")

    def one(stream: Any, discount: float, lam: float) -> dict[str, torch.Tensor]:
        return {"1": stream["reward"] + discount * stream["nextv"] * ~stream["term"]}

    [found] = side.estimated(one, mine)
    assert found.what == "1"
    assert found.difference < 1e-12 < found.scale
    [wrong] = side.estimated(lambda s, *_: {"1": one(s, 0.9, 0.0)["1"]}, mine)
    assert wrong.difference > 0.01


def test_the_kernels_of_a_gpu_stand_on_the_page_as_they_were_counted() -> None:
    rows = {(r["setting"], r["precision"]): r for r in json.loads((FOLDER / "operations.json").read_text())["rows"]}
    page = (FOLDER.parent / "docs/performance.md").read_text()
    for name in ("V", "I"):
        narrow, half = rows[name, "float32"], rows[name, "bfloat16"]
        cells = [r[key] for key in ("kernels", "kernels_without_triton") for r in (narrow, half)]
        assert f"| {name} | {' | '.join(f'{x:,}' for x in cells)} |" in page
