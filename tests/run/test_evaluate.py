"""Whole episodes, none preferred for being short."""

from __future__ import annotations

import pytest
import torch

from reverie.core.errors import ConfigError
from reverie.run.evaluate import evaluate


def test_short_episodes_are_not_preferred(fakes):
    result = evaluate(fakes.Env([[1], [10], [5, 7]]), fakes.Policy(), episodes=5)
    assert result.lengths == [1, 1, 10, 10, 5]
    assert result.scores == [1.0, 1.0, 55.0, 55.0, 15.0]
    assert result.metrics()["eval/score"] == pytest.approx(127 / 5)
    assert result.metrics()["eval/length"] == pytest.approx(27 / 5)


def test_fewer_episodes_than_environments(fakes):
    assert evaluate(fakes.Env([[4], [-2], [3]]), fakes.Policy(), episodes=2).lengths == [4, 2]


def test_mode_is_handed_on_and_kept(fakes):
    policy = fakes.Policy()
    assert evaluate(fakes.Env([[2]]), policy, 1).mode == "eval"
    assert set(policy.modes) == {"eval"}
    policy = fakes.Policy()
    assert evaluate(fakes.Env([[2]]), policy, 1, mode="explore").mode == "explore"
    assert set(policy.modes) == {"explore"}


def test_frames_are_those_of_the_first_episode_of_the_first_environment(fakes):
    result = evaluate(fakes.Env([[3], [6]]), fakes.Policy(), episodes=4, record=True)
    assert result.frames.shape == (4, 2, 3, 3)
    assert result.frames[:, 0, 0, 0].tolist() == [0, 1, 2, 3]
    assert evaluate(fakes.Env([[3]]), fakes.Policy(), episodes=1).frames is None


def test_seed_and_actions_after_the_end(fakes):
    env = fakes.Env([[1, 2]])
    evaluate(env, fakes.Policy(), episodes=2, seed=11)
    assert env.seeds == [11]
    assert torch.equal(env.actions[1], torch.zeros(1, 7))


def test_no_episodes_is_an_error(fakes):
    with pytest.raises(ConfigError, match="episodes = 0"):
        evaluate(fakes.Env([[1]]), fakes.Policy(), episodes=0)
