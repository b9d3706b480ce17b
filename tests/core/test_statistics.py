"""Measures of scores: against rliable's own numbers, against slow definitions, and honest about few scores."""

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reverie.core import statistics
from reverie.core.statistics import (
    estimate_interval,
    histogram,
    interval,
    iqm,
    mean,
    median,
    probability_of_improvement,
    running_mean,
)

RLIABLE = json.loads((Path(__file__).parents[1] / "golden" / "rliable.json").read_text())
"""What rliable 1.2.0 computed; golden/README.md says how. Its intervals are random, of 100,000 samples each."""
CASES: dict[str, Any] = RLIABLE["cases"]
MEASURES = {"mean": mean, "median": median, "iqm": iqm}


@pytest.mark.parametrize("name", CASES)
def test_measures_are_rliables(name):
    case, scores = CASES[name], np.array(CASES[name]["scores"])
    for measure, function in MEASURES.items():
        if scores.shape[1] > 1 or measure != "median":  # rliable's median of one task is its mean
            assert function(scores) == pytest.approx(case[measure]["value"], abs=1e-12), measure
    better = probability_of_improvement(scores, case["others"])
    assert better == pytest.approx(case["probability_of_improvement"]["value"], abs=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_intervals_are_rliables_up_to_chance(name, monkeypatch):
    monkeypatch.setattr(statistics, "MIN_RUNS", 3)
    case, scores = CASES[name], np.array(CASES[name]["scores"])
    for measure, function in MEASURES.items():
        if scores.shape[1] == 1 and measure == "median":
            continue
        expected = [case[measure][end] for end in ("low", "high")]
        found = interval(function, scores, resamples=20_000)
        assert found == pytest.approx(expected, abs=0.03 * (expected[1] - expected[0])), measure
    better = case["probability_of_improvement"]
    found = interval(probability_of_improvement, scores, case["others"], resamples=20_000)
    assert found == pytest.approx([better["low"], better["high"]], abs=0.03)


def test_iqm_leaves_out_a_whole_number_of_scores_at_either_end():
    for count in range(1, 14):
        scores = np.random.default_rng(count).permutation(count) ** 2.0
        kept = sorted(scores)[int(0.25 * count) : count - int(0.25 * count)]
        assert iqm(scores) == pytest.approx(sum(kept) / len(kept))
    assert iqm([-100.0, 1.0, 2.0, 3.0, 900.0]) == 2.0


def test_the_bootstrap_is_that_of_all_possible_samples(monkeypatch):
    """Of four scores there are 256 samples; their percentiles are the interval."""
    monkeypatch.setattr(statistics, "MIN_RUNS", 4)
    scores = np.array([1.0, 2.0, 4.0, 11.0])
    for measure in (mean, iqm, median):
        all_of_them = [float(measure(list(chosen))) for chosen in itertools.product(scores, repeat=4)]
        expected = np.percentile(all_of_them, [2.5, 97.5])
        assert interval(measure, scores, resamples=100_000) == pytest.approx(expected, abs=0.26)
    every = [float(np.mean(chosen)) for chosen in itertools.product(scores, repeat=4)]
    half = interval(mean, scores, confidence=0.5, resamples=100_000)
    assert half == pytest.approx(np.percentile(every, [25, 75]), abs=0.26)


@pytest.mark.parametrize(("runs", "samples"), [(10, 50_000), (100, 50_000), (1000, 5000), (5000, 2000)])
def test_many_scores_need_fewer_samples(runs, samples):
    """2,000 at least: their error is small beside the interval, which many scores make narrow."""
    shapes = []
    interval(lambda scores: (shapes.append(len(scores)), scores.mean((-2, -1)))[1], np.ones(runs), resamples=50_000)
    assert sum(shapes) == samples


def test_an_interval_is_the_same_again_and_takes_nothing_from_other_generators():
    scores = np.random.default_rng(0).normal(size=12)
    states = random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state()  # noqa: NPY002
    first = estimate_interval(iqm, scores)
    assert states[0] == random.getstate()
    assert str(states[1]) == str(np.random.get_state(legacy=False))  # noqa: NPY002
    assert torch.equal(states[2], torch.get_rng_state())
    np.random.seed(3)  # noqa: NPY002
    torch.manual_seed(3)
    assert estimate_interval(iqm, scores) == first
    assert interval(iqm, scores, seed=1) != (first.low, first.high)
    assert first.low < first.value < first.high


@pytest.mark.parametrize("scores", [[5.0], [5.0, 6.0], [1.0, 2.0, float("inf")], [1.0, float("nan"), 2.0, 3.0]])
def test_too_few_scores_have_no_interval(scores):
    found = estimate_interval(mean, scores)
    assert not found.has_interval
    assert np.isnan([found.low, found.high]).all()


def test_a_running_mean_never_looks_ahead():
    smooth = running_mean(np.arange(100.0))
    assert (smooth[0], smooth[50]) == (0.0, np.mean(np.arange(41, 51)))
    assert running_mean(np.array([-1e17] + 200 * [1.0]))[-1] == 1.0
    assert (running_mean(np.zeros(0)).tolist(), running_mean(np.array([3.0, 5.0])).tolist()) == ([], [3.0, 5.0])


def test_values_are_binned_as_numpy_does():
    values = np.random.default_rng(0).normal(size=100)
    for found, expected in zip(histogram([*values, np.nan, np.inf], 8), np.histogram(values, 8), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_of_one_task_the_median_is_that_of_the_runs():
    assert median([1.0, 2.0, 9.0]) == median([[1.0], [2.0], [9.0]]) == 2.0
    assert median([[1.0, 5.0, 0.0], [3.0, 9.0, 0.0]]) == 2.0  # of the means 2, 7, 0
