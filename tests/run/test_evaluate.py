"""Whole episodes, none preferred for being short."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from reverie.run.evaluate import episode_limit, evaluate


def test_short_episodes_are_not_preferred(fakes):
    result = evaluate(fakes.Env([[1], [10], [5, 7]]), fakes.Policy(), episodes=5)
    assert result.lengths == [1, 1, 10, 10, 5]
    assert result.scores == [1.0, 1.0, 55.0, 55.0, 15.0]
    assert result.metrics()["eval/score"] == pytest.approx(127 / 5)
    assert result.metrics()["eval/length"] == pytest.approx(27 / 5)


def test_metrics_say_how_sure_they_are(fakes):
    result = evaluate(fakes.Env([[1], [10], [5, 7]]), fakes.Policy(), episodes=5)  # scores 1, 1, 55, 55, 15
    metrics = result.metrics()
    assert metrics["eval/score_median"] == 15.0
    assert metrics["eval/score_iqm"] == pytest.approx((1 + 15 + 55) / 3)
    assert 1.0 <= metrics["eval/score_iqm_low"] < metrics["eval/score_iqm"] < metrics["eval/score_iqm_high"] <= 55.0
    assert metrics == result.metrics()
    assert all(type(value) is float for value in metrics.values())


def test_an_evaluation_draws_nothing_from_the_generators_of_the_run(fakes):
    result = evaluate(fakes.Env([[1, 2, 3]]), fakes.Policy(), episodes=5)
    state = torch.get_rng_state(), str(np.random.get_state(legacy=False)), random.getstate()  # noqa: NPY002
    result.metrics()
    assert torch.equal(torch.get_rng_state(), state[0])
    assert (str(np.random.get_state(legacy=False)), random.getstate()) == state[1:]  # noqa: NPY002


def test_mode_is_handed_on_and_kept(fakes):
    policy = fakes.Policy()
    assert evaluate(fakes.Env([[2]]), policy, 1).mode == "eval"
    assert set(policy.modes) == {"eval"}
    policy = fakes.Policy()
    assert evaluate(fakes.Env([[2]]), policy, 1, mode="explore").mode == "explore"
    assert set(policy.modes) == {"explore"}


def test_frames_are_those_of_the_first_episode_of_the_first_environment(fakes):
    result = evaluate(fakes.Env([[3], [6]]), fakes.Policy(), episodes=4, record=np.array)
    assert result.frames.shape == (4, 2, 3, 3)
    assert result.frames[:, 0, 0, 0].tolist() == [0, 1, 2, 3]
    assert evaluate(fakes.Env([[3]]), fakes.Policy(), episodes=1).frames is None


def test_seed_and_actions_after_the_end(fakes):
    env = fakes.Env([[1, 2]])
    evaluate(env, fakes.Policy(), episodes=2, seed=11)
    assert env.seeds == [11]
    assert torch.equal(env.actions[1], torch.zeros(1, 7))


def test_episodes_that_do_not_end_are_cut_off_and_counted(fakes):
    env = fakes.Env([[3], [1000]])
    result = evaluate(env, fakes.Policy(), episodes=5, most_steps=4)
    assert result.lengths == [3, 3, 3, 4, 4]
    assert result.scores == [6.0, 6.0, 6.0, 10.0, 10.0]
    assert (result.cut_off, result.most_steps, result.metrics()["eval/cut_off"]) == (2, 4, 2.0)
    assert result.cut_text() == "2 of 5 episodes were cut off at 4 steps"
    assert result.to_dict()["cut_off"] == 2
    assert result.merge(result).cut_off == 4
    assert torch.equal(env.actions[4][1], torch.zeros(7))  # nothing is taken where an episode is cut off


@pytest.mark.parametrize("can_end_one", [True, False])
def test_only_the_episode_that_does_not_end_is_cut_off(fakes, can_end_one):
    env = fakes.Env([[1000], [3, 9]])
    env.can_end_one = can_end_one
    result = evaluate(env, fakes.Policy(), episodes=8, most_steps=10)
    assert (result.lengths, result.cut_off) == ([10] * 4 + [3, 9] * 2, 4)
    assert result.scores == [55.0] * 4 + [6.0, 45.0] * 2


def test_an_environment_is_not_cut_off_before_its_own_limit(fakes):
    env = fakes.Env([[-6]])
    env.max_episode_steps = 6
    result = evaluate(env, fakes.Policy(), episodes=2, most_steps=4)
    assert (result.lengths, result.cut_off, result.most_steps) == ([6, 6], 0, None)


@pytest.mark.parametrize(("setting", "longest", "steps"), [(None, 0, 1000), (None, 300, 1200), (50, 300, 50)])
def test_after_how_many_steps(setting, longest, steps):
    assert episode_limit(setting, longest) == steps
