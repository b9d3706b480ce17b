"""Settings side by side: what people read, which runs count, and what is said of places that hold none."""

import functools
import json
import re
from pathlib import Path

import numpy as np
import pytest

import reverie
from reverie.cli import main
from reverie.core.errors import ConfigError, RunError
from reverie.core.statistics import interval, performance_profile
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
    assert not [line for line in str(found).splitlines() if line.endswith("over runs/sac-0")]
    assert str(reverie.compare("runs/sac-0", "runs/sac-1")).endswith("or a pattern in quotes such as 'runs/sac-*'.")
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
    one, five = "◇ evaluation at the end of a seed", "◆ IQM of evaluations at the end"
    assert [axes.get_xlabel() for axes in figures[0].axes] == [f"env steps; {marks}" for marks in (one, five, one)]
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


# ---------------------------------------------------------------- of a paper


def ablation():
    """Two settings in two environments, with five seeds each, as a sweep leaves them."""
    Path("paper").mkdir()
    Path("paper/sweep.yaml").write_text(
        "settings: {base: {}, no_x: {}}\nenvironments: {Pendulum-v1: {}, Hopper-v5: {}}"
    )
    curve = [(1000, 0.0), (2000, 1.0)]
    for setting, shift in {"base": 10.0, "no_x": 0.0}.items():
        seeds(f"paper/{setting}/Pendulum-v1", "Pendulum-v1", *(shift + x for x in (1, 5, 2, 9, 4)), curve=curve)
        seeds(f"paper/{setting}/Hopper-v5", "Hopper-v5", *(shift + x for x in (30, 80, 50, 90, 20)), curve=curve)
    return "paper"


REFERENCES = {"Pendulum-v1": [0, 20], "Hopper-v5": [0, 100]}


@pytest.mark.usefixtures("drawn")
def test_a_figure_has_the_seconds_of_a_person_as_its_axis(capsys, monkeypatch):
    figures = []
    monkeypatch.setattr(plot, "save_figure", lambda figure, png: figures.append(figure) or save_figure(figure, png))
    curve = [(1000, -900.0), (2000, -150.0)]
    alone = run("alone", -150, curve=curve)
    assert main(["compare", alone, "--axis", "person", "--figure", "none.png"]) == 1
    assert "axis = person: no run has logged human/seconds next to a score" in capsys.readouterr().err
    run("helped", -150, curve=curve)
    folder = RunFolder(Path("helped"))
    folder.metrics.unlink()
    seconds = [(500, {"human/seconds": 10.0}), (2000, {"human/seconds": 40.0})]
    logged(
        folder.metrics, sorted([*((step, {"eval/score": x}) for step, x in curve), *seconds], key=lambda row: row[0])
    )
    assert main(["compare", "helped", alone, "--axis", "person", "--figure", "person.png"]) == 0
    assert "env steps     mean" in capsys.readouterr().out  # of scores
    (axes,) = figures[0].axes
    assert axes.get_xlabel() == "seconds of a person; ◇ evaluation at the end of a seed"
    drawn = [line.get_xdata().tolist() for line in axes.lines]  # curves, then evaluations at the end
    assert drawn == [[20, 40], [40], [0], [0]]
    assert main(["compare", alone, "--axis", "updates", "--figure", "none.png"]) == 1


def test_scores_are_aggregated_over_normalized_environments(said):
    found = reverie.compare(ablation(), normalize=REFERENCES, labels={"no_x": "Without x"})
    assert [each.title for each in found.normalized] == ["base", "Without x"]
    pendulum, hopper = (np.array(x) for x in ((1, 5, 2, 9, 4), (30, 80, 50, 90, 20)))
    for each, shift in zip(found.normalized, (10, 0), strict=True):
        scores = np.stack([(pendulum + shift) / 20, (hopper + shift) / 100], 1)
        np.testing.assert_allclose(each.scores, scores)
        ordered = sorted(scores.ravel())  # ten scores: two are cut off at either end
        assert each.iqm().value == pytest.approx(sum(ordered[2:8]) / 6)
        thresholds = np.linspace(0, 1, 7)
        fraction = performance_profile(each.scores, thresholds)
        low, high = interval(functools.partial(performance_profile, thresholds=thresholds), each.scores)
        assert fraction.tolist() == [sum(x > limit for x in ordered) / 10 for limit in thresholds]
        assert (low <= fraction).all()
        assert (fraction <= high).all()
        generator, draws = np.random.default_rng(1), []
        for _ in range(4000):  # each environment's seeds on their own
            picks = [scores[generator.integers(5, size=5), task] for task in range(2)]
            draws.append([np.mean([x > limit for pick in picks for x in pick]) for limit in thresholds])
        np.testing.assert_allclose([low, high], np.percentile(draws, [2.5, 97.5], axis=0), atol=0.11)
    text = str(found).splitlines()
    (head,) = (line for line in text if line.startswith("all, normalized"))
    assert re.split("  +", head)[1:] == ["seeds", "env steps", "mean", "median", "IQM", "95 % interval"]
    wins = np.mean([np.mean((a[:, None] > b) + 0.5 * (a[:, None] == b)) for a, b in
                    ((pendulum + 10, pendulum), (hopper + 10, hopper))])  # fmt: skip
    assert text[-1].startswith(f"  {wins:.2f} (95 % ")
    assert max(map(len, text)) <= 80
    assert not said


@pytest.mark.usefixtures("drawn")
def test_figures_and_tables_have_the_labels_and_colors(capsys, monkeypatch):
    figures = []
    monkeypatch.setattr(plot, "save_figure", lambda figure, png: figures.append(figure) or save_figure(figure, png))
    ablation()
    Path("scores.yaml").write_text("Pendulum-v1: [0, 20]\nHopper-v5: [0, 100]\n")
    options = ["--labels", "base=All & x_1,no_x=None", "--colors", "{None: tab:red}", "--normalize", "scores.yaml"]
    files = ["--figure", "curves.svg", "--profile", "profile.pdf", "--csv", "out/scores.csv", "--latex", "table.tex"]
    assert main(["compare", "paper", *options, *files]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in files[1::2])
    curves, profile = figures
    titles = {text.get_text().partition("\n")[0] for axes in curves.axes for text in axes.texts}
    assert titles == {"All & x_1", "None"}
    assert {text.get_color() for axes in curves.axes for text in axes.texts if text.get_text().startswith("None")} == {
        "tab:red"
    }
    assert [line.get_color() for line in profile.axes[0].lines][1] == "tab:red"
    assert b"<text" in Path("curves.svg").read_bytes()
    rows = Path("out/scores.csv").read_text().splitlines()
    assert rows[0] == "label,algorithm,environment,seeds,steps,mean,median,iqm,iqm_low,iqm_high"
    assert rows[1].startswith("All & x_1,dreamer_v3,Pendulum-v1,5,2000,14.2,14,13.666667,")
    assert [row.split(",")[0] for row in rows[5:]] == ["All & x_1", "None"]
    table = Path("table.tex").read_text().splitlines()
    assert table[2] == r" & All \& x\_1 & None \\"
    assert re.fullmatch(r"Pendulum-v1 & \\textbf\{13.67\} \[1\d\.\d\d, \d+\.\d\d\] & 3.67 \[.*\] \\\\", table[4])
    assert sum("textbf" in line for line in table) == 3


@pytest.mark.parametrize(("options", "message"), [
    ({"labels": {"bas": "x"}}, "labels: 'bas' names no setting. Did you mean 'base'"),
    ({"labels": {"base": "x", "no_x": "x"}}, "labels: 'x' is the label of paper/base/Pendulum-v1 and of paper/no_x"),
    ({"colors": {"Base": "red"}}, "colors: there is no label 'Base'. Did you mean 'base'"),
    ({"colors": {"base": "rad"}}, "colors: base = 'rad': expected a color"),
    ({"normalize": {"Hopper-v5": [0, 1]}}, "normalize: Pendulum-v1 = None: expected \\[LOW, HIGH\\], the two"),
    ({"normalize": {**REFERENCES, "Hopper-v5": [2, 2.0]}}, "normalize: Hopper-v5 = \\[2, 2.0\\]: expected \\[LOW"),
    ({"profile": "a.png"}, "profile: a performance profile needs normalized scores"),
    ({"profile": "a.jpg"}, "profile = a.jpg: expected a file name"),
])  # fmt: skip
def test_what_fits_no_setting_is_named(options, message):
    with pytest.raises(ConfigError, match=message):
        reverie.compare(ablation(), **options)


def test_labels_without_scores_somewhere_are_left_out_of_the_normalized_ones(said):
    ablation()
    seeds("more", "Pendulum-v1", 1.0)
    found = reverie.compare("paper", "more", normalize=REFERENCES)
    assert [each.title for each in found.normalized] == ["base", "no_x"]
    assert said == ["more: left out of the normalized scores, since it has none in Hopper-v5"]


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
