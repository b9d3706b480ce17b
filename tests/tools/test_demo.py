"""`make demo`, with hardly any training: what it prints, and the dreams that it judges."""

import functools
import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import reverie

PATH = Path(__file__).resolve().parents[2] / "tools" / "demo.py"


@pytest.fixture(scope="module")
def demo():
    spec = importlib.util.spec_from_file_location("demo", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_its_output_fits_a_terminal_and_names_what_it_wrote(demo, tmp_path, monkeypatch, capfd):
    pytest.importorskip("minigrid")
    short = {"steps": 640, "learning_starts": 50, "replay_ratio": 0.01, "schedule.eval_every": 0, "eval_episodes": 1}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "program", lambda name: name)  # not by its path from the test's folder
    monkeypatch.setattr(demo, "FILMED", 2)
    monkeypatch.setattr(demo, "EPISODES", 3)
    monkeypatch.setattr(demo, "COMPARED", 12)
    monkeypatch.setattr("reverie.viewer.walk.DREAMS", 4)
    monkeypatch.setattr("reverie.envs.minigrid.TILE_PIXELS", 8)  # drawing takes longer than all the rest
    monkeypatch.setattr(demo, "SIDE_BY_SIDE", 1)
    monkeypatch.setattr(reverie, "train", functools.partial(reverie.train, **short))
    assert demo.main(["--run", "runs/demo"]) == 1
    printed = capfd.readouterr()
    lines = printed.out.splitlines()
    assert any(line.startswith("Film of the training, one episode dreamt by 24 snapshots") for line in lines)
    assert not [line for line in lines if len(line) > 80 and str(tmp_path) not in line]
    assert "warning" not in (printed.out + printed.err).lower()
    assert any(line.startswith("Not solved after ") for line in lines)
    assert lines[lines.index("Try next:") + 1].endswith("view runs/demo")
    assert Path("runs/demo/videos/dreams.mp4").stat().st_size
    assert "Step into the dream: reverie/Rooms-v0" in Path("runs/demo/step.html").read_text()


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (["", ""], "All 2 dreams are right in every cell of every step."),
        (["", "2 cells off"], "1 of 2 dreams are right; in another, it is 2 cells off at step 2."),
        (["", "the dream has ended"], "1 of 2 dreams are right; in another, the dream has ended at step 2."),
    ],
)
def test_one_sentence_says_where_dreams_go_wrong(demo, texts, sentence):
    strips = [SimpleNamespace(parting=2 if text else None, texts=["", "", text]) for text in texts]
    assert demo.describe(strips) == sentence


def test_the_pages_state_what_the_seeds_took():
    root = PATH.parents[1]
    rows = json.loads((root / "bench" / "demo.json").read_text())["rows"]
    readme, start = (" ".join((root / name).read_text().split()) for name in ("README.md", "docs/start.md"))
    own, random = ([sum(row[name]["1"][key] for row in rows) for key in ("whole", "dreams")]
                   for name in ("dreams", "random_dreams"))  # fmt: skip
    assert f"the slowest in {max(row['cpu_seconds'] for row in rows):.0f} seconds of processor time" in start
    assert f"{own[0]} of {own[1]} dreams are right in every cell of every step along the agent's own" in readme
    assert f"{random[0]} of {random[1]} along random ones" in readme
    for whole, count in (own, random):
        assert f"{whole} of {count} dreams are right along" in start
