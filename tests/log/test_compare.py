"""Settings side by side: what people read, which runs count, and what is said of places that hold none."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import reverie
from reverie.cli import main
from reverie.core.errors import RunError
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.rules import validate_config
from reverie.experiment.saved_settings import saved_settings
from reverie.log import plot
from reverie.log.colors import ORANGE
from reverie.log.style import save_figure
from reverie.run.folder import RunFolder, write_saved_config
from run_logs import logged

CONFIG = ExperimentConfig().merge({"steps": 2000, "schedule.eval_every": 1000})


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)


def run(path, final=None, *, env="Pendulum-v1", seed=0, curve=(), settings=None, log="eval/score"):
    """A run as training leaves it: with a score at the end, if it came so far, and logged ones before."""
    folder, found = (
        RunFolder(Path(path)),
        validate_config(CONFIG.merge({"env.id": env, "seed": seed, **(settings or {})})),
    )
    folder.path.mkdir(parents=True)
    write_saved_config(folder.config, saved_settings(found, None))
    logged(folder.metrics, [(step, {log: score}) for step, score in curve])
    if final is not None:
        end = curve[-1][0] if curve else 2000
        folder.evaluation.write_text(json.dumps({"env_steps": end, "score": {"mean": final}}))
    return str(path)


def seeds(name, env, *scores, **more):
    for seed, score in enumerate(scores):
        run(f"{name}/{seed}", score, env=env, seed=seed, **more)
    return name


def test_a_single_seed_has_the_interval_of_its_episodes(capsys):
    folder = RunFolder(Path(run("only", 3.0)))
    folder.evaluation.write_text(json.dumps({"env_steps": 2000, "score": {"mean": 3.0}, "scores": [1, 2, 3, 4, 5.0]}))
    few = RunFolder(Path(run("few", 3.0)))
    few.evaluation.write_text(json.dumps({"env_steps": 2000, "score": {"mean": 3.0}, "scores": [1, 2]}))
    assert main(["compare", "only", "few"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.search(r"one seed; IQM of its 5 episodes 1\.\d\d to 4\.\d\d$", lines[1])
    assert lines[2].endswith("too few seeds")


def test_what_people_read(capsys):
    td3 = seeds("td3", "Pendulum-v1", -150, -140, -160, -155, None, -145)
    sac = seeds("sac-long", "Pendulum-v1", -158, -170, -180, -190, -200)
    ddpg = seeds("ddpg", "HalfCheetah-v5", 3000.0, 4000.0)
    assert main(["compare", td3, ddpg, sac]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert re.split(r"  +", lines[0]) == ["Pendulum-v1", "seeds", "env steps", "mean", "median", "IQM", "95 % interval"]
    assert lines[1].startswith("  td3            5      2,000  -150.00   -150.00   -150.00   -15")
    assert lines[2].startswith("  sac-long       5      2,000  -179.60   -180.00   -180.00   -19")
    assert lines[0].index("95 %") == lines[1].index("-158.33 to")
    (pair,) = (line for line in lines if " over " in line)
    assert re.fullmatch(r"  0\.96 \(95 % 0\.\d\d to 1\.00\)  td3 over sac-long", pair)  # -160 loses against -158
    assert re.split(r"  +", lines[-1].strip()) == [
        "ddpg",
        "2",
        "2,000",
        "3500.00",
        "3500.00",
        "3500.00",
        "too few seeds",
    ]
    assert lines[-1].index("too few") == lines[-2].index("95 %")
    assert said.err == "warning: td3: skipped without a final evaluation: 4 at 0 of 2,000 env steps\n"


def test_runs_of_separate_jobs_are_found_by_folder_by_pattern_and_alone(said):
    seeds("runs/arr", "Pendulum-v1", -1, -2, -3)
    for seed in range(3):
        run(f"runs/sac-{seed}", -4.0 - seed, seed=seed)
    found = reverie.compare("runs/arr/", Path("runs/sac-*"), "runs/sac-0", "runs/a*")
    assert [(one.name, one.scores.tolist()) for one in found.settings] == [
        ("runs/arr", [-1, -2, -3]), ("runs/sac-*", [-4, -5, -6]), ("runs/sac-0", [-4]), ("runs/arr", [-1, -2, -3]),
    ]  # fmt: skip
    assert found.probability_of_improvement["runs/arr", "runs/sac-*"].value == 1
    assert np.isnan(found.probability_of_improvement["runs/sac-*", "runs/sac-0"]).all()  # nothing is known of one seed
    assert "  -    (too few seeds)  runs/sac-* over runs/sac-0" in str(found).splitlines()
    assert not said


def test_runs_that_go_on_are_compared_where_all_of_them_were_evaluated(said):
    run("alone/0", curve=[(1000, 3.0)])
    run("alone/1", seed=1, curve=[(1000, 5.0), (2000, 9.0)])
    run("prolonged", 7.0, curve=[(500, 1.0)], settings={"steps": 3000, "schedule.eval_every": 0}, log="episode/score")
    logged(Path("prolonged/metrics.jsonl"), [(1500, {"episode/score": 2.0})])
    found = reverie.compare("alone", "prolonged").settings
    assert [one.scores.tolist() for one in found] == [[3.0, 5.0], [2.0]]  # 7 was the end of a shorter run
    assert said == [
        "alone: no final evaluation: compared by evaluations during training, at 1,000 of 2,000 env steps",
        "prolonged: no final evaluation: compared by training episodes, at 1,500 of 3,000 env steps",
    ]


def test_what_makes_seeds_no_seeds_of_one_setting_is_named(said):
    run("mixed/0", 1.0, settings={"threads": 1})
    run("mixed/1", 2.0, seed=1, settings={"threads": 2, "algo.horizon": 9})
    seeds("same", "Pendulum-v1", 1.0)
    run("same/1", 1.0)
    assert len(reverie.compare("mixed", "same").settings) == 2
    assert said == [
        "mixed: its runs differ in more than the seed: algo.horizon: 15 -> 9",
        "same: 2 runs, 1 seed: of runs with equal settings and seed the first counts",
    ]


def test_budgets_that_differ_are_named_and_can_be_made_equal(said, capsys):
    curve = [(step, float(step)) for step in (1000, 2000, 3000)]
    seeds("long", "Pendulum-v1", 9000.0, 9001.0, curve=[*curve, (4000, 4000.0)], settings={"steps": 4000})
    seeds("short", "Pendulum-v1", 2500.0, 2501.0, curve=curve[:2])
    assert main(["compare", "long", "short"]) == 0
    shown = capsys.readouterr().out
    assert "The budgets differ: at = 2000 (--at 2000) compares all after 2,000 steps." in shown.splitlines()
    assert max(map(len, shown.splitlines())) <= 80
    found = reverie.compare("long", "short", at=2000)
    assert [(one.scores.tolist(), one.steps) for one in found.settings] == [([2000] * 2, 2000), ([2500, 2501], 2000)]
    assert "budgets" not in str(found)
    with pytest.raises(RunError, match="long contains no scores of all seeds up to 500 env steps"):
        reverie.compare("long", at=500)


@pytest.mark.usefixtures("drawn")
def test_a_figure_has_one_source_a_panel(capsys, monkeypatch):
    figures = []
    monkeypatch.setattr(plot, "save_figure", lambda figure, png: figures.append(figure) or save_figure(figure, png))
    td3 = seeds("td3", "Pendulum-v1", -150, -140)
    assert main(["compare", td3, "--figure", "no.png"]) == 1
    assert "none of these folders has a learning curve" in capsys.readouterr().err
    curve = [(1000, -900.0), (2000, -150.0)]
    seeds("sac", "Pendulum-v1", -150, curve=curve)
    seeds("ppo", "Pendulum-v1", *[1] * 5, curve=curve, log="episode/score", settings={"schedule.eval_every": 0})
    paths = [td3, "sac", "ppo", seeds("bc", "Hopper-v5", 1, curve=curve)]
    assert main(["compare", *paths, "--figure", "two/panels.png"]) == 0
    assert "two/panels.png" in capsys.readouterr().out
    titles = {axes.get_title(loc="left"): [text.get_text() for text in axes.texts] for axes in figures[0].axes}
    assert titles == {
        "Pendulum-v1: evaluations during training": ["td3\nevaluation at the end", "sac\n1 seed"],
        "Pendulum-v1: training episodes, running mean": ["ppo\nIQM of 5 seeds,\n95 % interval"],
        "Hopper-v5: evaluations during training": ["bc\n1 seed"],
    }
    assert figures[0].axes[0].texts[0].get_color() == ORANGE  # all have the algorithm dreamer_v3: the first its color
    assert Path("two/panels.png").is_file()
    Path("file").touch()
    assert main(["compare", *paths, "--figure", "file/panels.png"]) == 1
    assert "cannot write file: File exists" in capsys.readouterr().err
    for name, start in {"panels.pdf": b"%PDF", "panels.svg": b"<?xml"}.items():
        assert main(["compare", *paths, "--figure", name]) == 0
        assert Path(name).read_bytes().startswith(start)
    assert main(["compare", *paths, "--figure", "panels.jpg"]) == 1
    assert "figure = panels.jpg: expected a file name ending in .png, .svg, .pdf" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("env", "group"), [("Pendulum-v1", "Pendulum-v1"), ("none", "DATA: returns estimated by FQE, discount 1")]
)
def test_runs_on_data_are_scored_in_an_environment_whatever_their_data(env, group):
    """Agents that learned from a part of the data compare with those that learned from all of it."""
    for data in ("/a/all.hdf5", "/a/tenth.hdf5"):
        path = run(Path(data).stem, env=env, settings={"data.path": data})
        values = {"estimate/return": 5.0, "estimate/discount": 1}
        logged(Path(path, "metrics.jsonl"), [(9, values)])
        name, score = ("estimate", {}) if env == "none" else ("eval", {"score": {"mean": 5.0}})
        Path(path, f"{name}.json").write_text(json.dumps({"updates": 9, **score}))
        (found,) = reverie.compare(path).settings
        assert (found.scores.tolist(), found.comparison_key) == ([5.0], group.replace("DATA", data))


def test_places_without_scores_are_named(capsys):
    seeds("grid/trial-0", "Pendulum-v1", 1.0)
    run("begun/0")
    for place, message in {
        "grid": "there are no runs in grid itself, but in its subfolders. To compare these, pass grid/*/",
        "beg": "there is no run in beg: there is no such folder. Did you mean 'begun'",
        "x-*": "there is no run in x-*: there is no such folder",
        "begun": "begun contains no scores: there were no evaluations, and no training episode has ended",
    }.items():
        assert main(["compare", "grid/trial-0", place]) == 1
        assert message in capsys.readouterr().err
    assert main(["compare"]) == 2
