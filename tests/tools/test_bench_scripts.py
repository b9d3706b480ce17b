"""The scripts of ``bench/`` can be run, and the pages say what their results say."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "bench"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a script by name, as other scripts there do; forgotten after the test."""
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    yield __import__
    for name in set(sys.modules) - before:
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", None)):
            del sys.modules[name]


def run(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["script", *words])
    return script.main()


def page_and_rows(page: str, results: str) -> tuple[str, list[dict[str, Any]]]:
    """The words of a page, and the results of a script."""
    text = (FOLDER.parent / "docs" / page).read_text(encoding="utf-8")
    return text, json.loads((FOLDER / results).read_text(encoding="utf-8"))["rows"]


@pytest.mark.parametrize(
    "name", sorted(p.stem for p in FOLDER.glob("*.py") if "main()" in p.read_text() and p.stem != "demo")
)
def test_every_script_says_what_it_does(scripts, name, monkeypatch, capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        run(scripts(name), monkeypatch, "--help")
    assert "usage: script" in capsys.readouterr().out


def test_the_page_says_what_the_results_say(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails: python bench/table.py."""
    table = scripts("table")
    names = [name for page in table.PAGES for _, name, _, _ in table.BLOCK.findall(page.read_text())]
    assert sorted(names) == sorted(table.TABLES)
    assert run(table, monkeypatch, "--check") == 0


def test_the_page_says_how_fast_data_were_read() -> None:
    page, rows = page_and_rows("../bench/README.md", "readers.json")
    text = " ".join(page.partition("## Reading recordings")[2].partition("## ")[0].split())
    took = {(row["file"], row["reader"]): row for row in rows}
    s = {key: f"{row['load_s']:.2f}" for key, row in took.items() if "load_s" in row}
    d4rl, hdf5, arrow = "d4rl", "minari hdf5", "minari arrow"
    assert f"a D4RL file takes {s[d4rl, 'reverie']} s, of which h5py takes {s[d4rl, 'h5py']} s" in text
    assert f"HDF5 files take {s[hdf5, 'reverie']} s ({s[hdf5, 'minari']} s with Minari's library)" in text
    assert f"Arrow files {s[arrow, 'reverie']} s ({s[arrow, 'minari']} s)" in text
    minutes = [f"{took[f'shard, {order}', 'reverie']['shard_s'] / 60:.1f}" for order in ("ordered", "shuffled")]
    assert (
        f"takes {minutes[0]} minutes if its steps are in order, and {minutes[1]} minutes if they are shuffled" in text
    )
    peaks = sorted(f"{row['peak']:.1f}" for row in rows if row["reader"] == "reverie" and "peak" in row)
    assert f"{peaks[0]} to {peaks[-1]} times the size of the rows" in text


def test_the_page_says_what_was_killed_and_damaged() -> None:
    page, rows = page_and_rows("results.md", "reliability.json")
    killed = [row for row in rows if row["part"] in ("kills", "calls", "configurations", "commands")]
    damaged = [row for row in rows if row["part"] in ("files", "formats", "agents")]
    for part, text in ((killed, "runs and commands"), (damaged, "damaged files")):
        assert f"{sum(row['good'] for row in part):,} of {sum(row['cases'] for row in part):,} {text}" in page
    assert f"stopped {sum(row.get('stops', row['cases']) for row in killed):,} times" in page
    (configurations,) = (row["each"] for row in rows if row["part"] == "configurations")
    assert f"in {len(configurations)} configurations" in page


def test_the_page_says_what_the_store_costs() -> None:
    page, rows = page_and_rows("../bench/README.md", "store.json")
    page = page.partition("## The replay store")[2]
    found = {row["part"]: [r for r in rows if r["part"] == row["part"]] for row in rows}
    assert [row["rows"] for row in found["collect"]] == ["game", "noise"]
    cells = [
        [f"{(row['ratio'] - 1) * 100:.1f} %" for row in found["collect"]],
        [f"{row['mb_per_s']:.0f} MB" for row in found["write"]],
        [f"{row['ratio']:.2f}" for row in found["resume"]],
    ]
    for game, noise in cells:
        line = next((line for line in page.splitlines() if f"| {game}" in line), "")
        assert noise in line.partition(game)[2], (game, noise)


def test_what_is_on_the_page_agrees_or_says_why() -> None:
    rows = json.loads((FOLDER / "agreement.json").read_text(encoding="utf-8"))["rows"]
    assert {row["peer"] for row in rows} == {"sb3", "tianshou", "d3rlpy", "torchrl"}
    assert all(row["agrees"] or row["known"] for row in rows)


def test_published_curves_are_made_once_for_each_preset(
    scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The queue runs for weeks, and a stale row looks like any other."""
    pytest.importorskip("mujoco")
    published, out = scripts("published"), tmp_path / "out.json"
    monkeypatch.setattr(published, "EVALUATIONS", 2)
    monkeypatch.setattr(published, "EPISODES", 1)
    words = ["--tasks", "InvertedDoublePendulum", "--algorithms", "ddpg", "--seeds", "1", "--steps", "40"]
    words += ["--runs", str(tmp_path / "runs"), "--out", str(out)]
    assert run(published, monkeypatch, *words, "--check") == 1
    assert "InvertedDoublePendulum-v4 ddpg 0 missing" in capsys.readouterr().out
    assert run(published, monkeypatch, *words) == 0
    table = json.loads(out.read_text())
    (row,) = table["rows"]
    assert [step for step, _, _ in row["curve"]] == [20, 40]
    assert not [path for path in tmp_path.glob("runs/*/*/*") if path.is_dir()]
    assert run(published, monkeypatch, *words, "--check") == 0
    (settings,) = table["settings"].values()
    settings["algo.discount"] = 0.5
    del settings["algo.tau"]  # a row from before there was this setting, whose value is the default
    out.write_text(json.dumps(table))
    capsys.readouterr()
    assert run(published, monkeypatch, *words, "--check") == 1
    assert capsys.readouterr().out == "InvertedDoublePendulum-v4 ddpg 0 stale: algo.discount: 0.5 -> 0.99\n"
