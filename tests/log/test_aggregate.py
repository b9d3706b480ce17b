"""What several seeds come to: scores that decided nothing, curves at the same steps, and nothing made up."""

import json

import numpy as np
import pytest

from reverie.distributed.compare import measurement_settings
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.rules import validate_config
from reverie.log.aggregate import aggregate as aggregate_of
from reverie.log.aggregate import evaluation_scores, format_seeds_table, summarize_seed, write_aggregate
from reverie.log.jsonl import FINAL
from reverie.run.folder import RunFolder, read_final_result, write_result
from run_logs import logged

EVERY_100 = ExperimentConfig().merge({"schedule.eval_every": 100})


def aggregate(runs, config):
    """As ``api.write_seeds`` reads the folders."""
    how = measurement_settings(validate_config(config).to_dict())
    seeds = {n: summarize_seed(r.metrics, read_final_result(r.evaluation) or {}, how) for n, r in runs.items()}
    return aggregate_of(seeds, how)


def run_of(path, rows, final=None, **more):
    """A run folder as training leaves it, with these lines of metrics and this score at the end."""
    folder = RunFolder(path)
    logged(folder.metrics, rows)
    if final is not None:
        folder.evaluation.write_text(json.dumps({"env_steps": rows[-1][0], "score": {"mean": final}, **more}))
    return folder


def evaluations(*points, final=None):
    return marked(*((*point, 0) for point in points), *([(*final, 1)] if final else []))


def marked(*points):
    """Evaluations with their step, score, and whether they were at the end."""
    return [(step, {"eval/score": score, FINAL: float(final)}) for step, score, final in points]


def folders(tmp_path, *metrics):
    return {seed: run_of(tmp_path / f"seed-{seed}", rows) for seed, rows in enumerate(metrics, start=3)}


def test_the_scores_are_those_of_the_end(tmp_path):
    runs = {
        seed: run_of(tmp_path / str(seed), evaluations((100, 0.0), (200, 1.0)), final=score)
        for seed, score in {0: 2.0, 1: 4.0, 2: 9.0, 5: 100.0, 7: 5.0}.items()
    }
    found = aggregate(runs, EVERY_100)
    assert (found.seeds, found.steps) == ([0, 1, 2, 5, 7], [200] * 5)
    assert found.scores == [2.0, 4.0, 9.0, 100.0, 5.0]
    assert {name: one.value for name, one in found.score.items()} == {"iqm": 6.0, "mean": 24.0, "median": 5.0}
    assert found.score["mean"].low < 24.0 < found.score["mean"].high
    assert aggregate(runs, EVERY_100).score == found.score


@pytest.mark.parametrize("early", [{"stop_score": 1.0}, {"patience": 2}, {"callbacks": ("mine:Stops",)}])
def test_whatever_may_end_a_seed_early_is_known(early):
    may = [measurement_settings(config.to_dict()).early for config in (EVERY_100.merge(early), EVERY_100)]
    assert may == [True, False]


def test_a_later_look_at_the_agent_is_not_its_score(tmp_path):
    """``reverie eval`` writes eval.json too: with other episodes, or of an earlier checkpoint."""
    runs = {0: run_of(tmp_path / "0", evaluations((100, 1.0)), final=99.0, checkpoint="step-000000100")}
    assert aggregate(runs, EVERY_100).scores == [None]
    final = {"env_steps": 200, "score": {"mean": 4.0}, "scores": [4.0]}
    later = {"env_steps": 100, "score": {"mean": 99.0}, "checkpoint": "step-000000100"}
    for found in (final, later, later):
        write_result(runs[0].evaluation, found)
    assert json.loads(runs[0].evaluation.read_text())["final"] == final
    assert aggregate(runs, EVERY_100).scores == [4.0]


def test_a_curve_has_the_evaluations_of_all_seeds_at_the_steps_that_they_were_due(tmp_path):
    """Turns of several environments differ by a step or two; the evaluation at the end is not part of the curve."""
    first = evaluations((101, 1.0), (203, 2.0), (300, 3.0), final=(300, -7.0))
    second = evaluations((100, 5.0), (200, 6.0), (302, 7.0), final=(302, -7.0))
    curve = aggregate(folders(tmp_path, first, second), EVERY_100).curve
    assert (curve.source, curve.steps.tolist()) == ("evaluation", [100, 200, 300])
    assert curve.scores.tolist() == [[1, 2, 3], [5, 6, 7]]
    assert [e.value for e in curve.estimates("mean")] == [3, 4, 5]
    assert np.isnan(curve.interval()[2]).all()  # of two seeds there is no interval


def test_a_final_evaluation_before_a_continuation_is_no_point_of_the_curve(tmp_path):
    """The first end is at 250: before evaluations during training, or before one that a shorter period makes due."""
    prolonged = marked((250, 50.0, 1), (300, 3.0, 0), (400, 4.0, 0), (400, 60.0, 1))
    found = aggregate(folders(tmp_path, prolonged), EVERY_100)
    assert (found.curve.steps.tolist(), found.curve.scores.tolist()) == ([300, 400], [[3, 4]])
    shorter = marked((200, 2.0, 0), (205, 9.0, 0), (250, 50.0, 1), (250, 2.5, 0), (270, 2.7, 0), (280, 60.0, 1))
    steps, scores = evaluation_scores([{"step": s} | v for s, v in shorter], 30)
    assert (steps.tolist(), scores.tolist()) == ([180, 240, 270], [2.0, 2.5, 2.7])


def test_without_evaluations_the_curve_is_of_training(tmp_path):
    """Entries of the log come by the clock on the wall, at other steps for each seed."""
    first = [(step, {"episode/score": float(step)}) for step in range(10, 210, 20)]
    second = [(step, {"episode/score": 1000.0 + step}) for step in range(15, 230, 30)]
    curve = aggregate(folders(tmp_path, first, second), ExperimentConfig()).curve
    assert curve.source == "training"
    assert (curve.steps[0], curve.steps[-1], len(curve.steps)) == (15, 225, 10)
    assert curve.scores[0] == pytest.approx(np.minimum(curve.steps, 190))  # at its last entry
    assert curve.scores[1] == pytest.approx(1000 + curve.steps)


def test_estimates_stand_in_for_scores_and_are_called_so(tmp_path):
    rows = [
        [(10, {"estimate/return": 9.0}), (20, {"estimate/return": value, "estimate/discount": 0.9})]
        for value in (1.0, 2.0, 6.0)
    ]
    found = aggregate(folders(tmp_path, *rows, [(20, {"loss/a": 1.0})]), EVERY_100.merge({"data.path": "a.hdf5"}))
    assert (found.scores, found.score) == ([None] * 4, {})
    assert found.estimates == [1.0, 2.0, 6.0, None]
    assert {name: value.value for name, value in found.estimate.items()} == {"iqm": 3.0, "mean": 3.0, "median": 2.0}
    lines = format_seeds_table(found).splitlines()
    assert lines[0].split() == ["seed", "estimate", "updates"]
    assert {"     5        6.00            20", "     6           -            20"} < {*lines}
    assert any("95 % interval over 3 seeds" in line for line in lines)
    assert lines[-2].startswith("no scores: ")
    assert "discounted return that fitted Q evaluation expects" in lines[-1]
    content = written(found, tmp_path / "aggregate.json")
    estimate = content["estimate"]
    assert (content["score"], estimate["mean"]["value"], estimate["discount"]) == ({}, 3.0, 0.9)
    assert estimate["seeds"] == {"3": 1.0, "4": 2.0, "5": 6.0, "6": None}


def written(found, path):
    write_aggregate(path, found, {"algorithm": "td3"})
    return json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))


def test_the_file_is_json_without_nan(tmp_path):
    rows = evaluations((100, 1.0), (200, 2.0))
    runs = {seed: run_of(tmp_path / f"seed-{seed}", rows, final=2.0) for seed in range(3, 8)}
    two = written(aggregate({seed: runs[seed] for seed in (3, 4)}, EVERY_100), tmp_path / "two.json")
    assert two["score"]["iqm"] == {"value": 2.0, "low": None, "high": None}
    assert two["curve"]["steps"] == [100, 200]
    assert two["curve"]["seeds"] == {"3": [1.0, 2.0], "4": [1.0, 2.0]}
    assert two["curve"]["iqm"] == {"value": [1.0, 2.0], "low": [None, None], "high": [None, None]}
    five = written(aggregate(runs, EVERY_100), tmp_path / "five.json")
    assert five["score"]["iqm"] == {"value": 2.0, "low": 2.0, "high": 2.0}
    assert (five["confidence"], five["unit"]) == (0.95, "env steps")
    assert written(None, tmp_path / "none.json") == {"algorithm": "td3"}
