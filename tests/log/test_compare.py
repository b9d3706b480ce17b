"""Seeds side by side: what people read, and what is said of folders that hold none."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from reverie.cli import main
from reverie.experiment.config import ExperimentConfig
from reverie.log.aggregate import read_contender
from reverie.scale.seeds import SeedRun, write_seeds


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)


def folder(name, env, *scores):
    Path(name).mkdir()
    runs = [{"seed": i, "score": score} for i, score in enumerate(scores)]
    Path(name, "aggregate.json").write_text(json.dumps({"env": env, "runs": runs}))
    return name


def test_what_people_read(capsys):
    td3 = folder("td3", "Pendulum-v1", -150, -140, -160, -155, None, -145)
    sac = folder("sac-long", "Pendulum-v1", -158, -170, -180, -190, -200)
    ddpg = folder("ddpg", "HalfCheetah-v5", 3000.0, 4000.0)
    assert main(["compare", td3, ddpg, sac]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.split(r"  +", lines[0]) == ["Pendulum-v1", "seeds", "mean", "median", "IQM", "95 % interval"]
    assert lines[1].startswith("  td3            5    -150.00    -150.00    -150.00   -15")
    assert lines[2].startswith("  sac-long       5    -179.60    -180.00    -180.00   -19")
    assert lines[0].index("95 %") == lines[1].index("-158.33 to")
    (pair,) = (line for line in lines if " over " in line)
    assert re.fullmatch(r"  0\.96 \(95 % 0\.\d\d to 1\.00\)  td3 over sac-long", pair)  # -160 loses against -158
    assert re.split(r"  +", lines[-1].strip()) == ["ddpg", "2", "3500.00", "3500.00", "3500.00", "too few seeds"]
    assert lines[-1].index("too few") == lines[-2].index("95 %")


@pytest.mark.usefixtures("drawn")
def test_a_figure_of_their_curves(capsys):
    folders = {"td3": ("Pendulum-v1", -150, -140), "sac": ("Pendulum-v1", -150), "ppo": ("Hopper-v5", 1.0)}
    paths = [folder(name, *given) for name, given in folders.items()]
    assert main(["compare", *paths, "--figure", "no.png"]) == 1
    assert "none of these folders has a learning curve" in capsys.readouterr().err
    for place, path in enumerate(paths[1:]):
        file = Path(path, "aggregate.json")
        middle = {"value": [-900.0, -150.0 * place], "low": [None, -200.0], "high": [None, -100.0]}
        content = json.loads(file.read_text()) | {"curve": {"steps": [1000, 2000], "iqm": middle}}
        file.write_text(json.dumps(content))
    assert main(["compare", *paths, "--figure", "two/panels.png"]) == 0
    assert "two/panels.png" in capsys.readouterr().out
    steps, middle, low, high = read_contender(Path("ppo")).curve
    assert (steps.tolist(), middle.tolist(), low[1], high[1]) == ([1000, 2000], [-900, -150], -200, -100)
    assert np.isnan([low[0], high[0]]).all()
    width, height = Image.open("two/panels.png").size
    assert height > width  # Pendulum without td3, and Hopper
    Path("file").touch()
    assert main(["compare", *paths, "--figure", "file/panels.png"]) == 1
    assert "cannot write file: File exists" in capsys.readouterr().err
    assert main(["compare", *paths, "--figure", "panels.pdf"]) == 2
    assert "--figure panels.pdf: expected a file name ending in .png" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("env", "group"), [("Pendulum-v1", "Pendulum-v1"), ("none", "DATA: returns estimated by FQE, discount 1")]
)
def test_runs_on_data_are_scored_in_an_environment_whatever_their_data(env, group):
    """Agents that learned from a part of the data compare with those that learned from all of it."""
    for data in ("/a/all.hdf5", "/a/tenth.hdf5"):
        path = Path(Path(data).stem)
        config = ExperimentConfig().merge({"env.id": env, "data.path": data})
        run = SeedRun(path, "seed", 0, config)
        run.run.mkdir(parents=True)
        (run.run / "metrics.jsonl").write_text(json.dumps({"step": 9, "estimate/return": 5.0, "estimate/discount": 1}))
        if env != "none":
            (run.run / "eval.json").write_text(json.dumps({"env_steps": 9, "score": {"mean": 5.0}}))
        run.state = "finished"
        write_seeds(config, path, [run])
        found = read_contender(path)
        assert (found.scores.tolist(), found.measured) == ([5.0], group.replace("DATA", data))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no seeds in runs-a: it has no aggregate.json."),
        ('{"env": "X", "runs": [{"seed": 1, "score": null}]}', "holds no scores: no seed has finished"),
    ],
)
def test_folders_without_seeds_are_named(content, message, capsys):
    folder("runs-b", "X", 1.0)
    if content is not None:
        Path("runs-a").mkdir()
        Path("runs-a/aggregate.json").write_text(content)
    assert main(["compare", "runs-b", "runs-a"]) == 1
    assert message in capsys.readouterr().err
