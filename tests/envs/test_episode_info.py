"""Numbers of an environment's info in the logs: what is summarized, where it goes, and what is said of mistakes."""

import functools
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import env_zoo
import reverie
from env_steps import go_on, play
from finished_episodes import as_rows, episodes
from reverie.core.errors import ConfigError, EnvError
from reverie.envs.config import EnvConfig
from reverie.envs.episode_info import RESERVED
from reverie.envs.make import make_gym
from reverie.run.collect import EnvCollector
from reverie.run.evaluate import Evaluation

BOTH = pytest.mark.parametrize("vectorization", ["sync", "async"])
ALL = ("success", "success:max", "cost:sum", "cost:mean", "cost:min", "cost:last", "inner/r:max")
OF_FOUR = {
    "success": 0.0, "success_max": 1.0, "cost_sum": 10.0, "cost_mean": 2.5, "cost_min": 1.0, "cost_last": 4.0,
    "inner/r_max": 4.0, "success_rate": 0.0,
}  # fmt: skip


def stepped(env, count):
    """What is logged after the reset and after each of ``count`` steps."""
    env.reset()
    action = torch.zeros(env.num_envs, env.action_spec.width)
    return [env.episode_info, *((env.step(action), env.episode_info)[1] for _ in range(count))]


# ---------------------------------------------------------------- what is logged


@BOTH
def test_numbers_are_summarized_over_each_episode(make, vectorization):
    env = make(env_zoo.Judged, num=2, vectorization=vectorization, log_info=ALL)
    logged = stepped(env, 10)
    assert logged[4] == logged[9] == {0: OF_FOUR, 1: OF_FOUR}
    assert not any(logged[i] for i in (0, 1, 2, 3, 5, 6, 7, 8, 10))


def test_each_repeated_frame_counts_and_idle_actions_do_not():
    env = make_gym(EnvConfig(log_info=("cost:sum",), action_repeat=2, max_episode_steps=2), env_zoo.Judged, False)
    for _ in range(2):
        env.reset()
        env.step(0)
        assert env.step(0)[2]
        assert env.env.env.summary()[0] == {"cost_sum": 10.0}


def test_an_environment_goes_on_with_its_sums(make):
    one, two = (make(env_zoo.Judged, log_info=("cost:sum", "success:max")) for _ in range(2))
    step = play(one, 3)[-1]
    two.reset()
    two.restore(one.snapshot(), step)
    assert go_on(one, 2) == go_on(two, 2)
    assert one.episode_info == two.episode_info == {0: {"cost_sum": 10.0, "success_max": 1.0, "success_rate": 0.0}}


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("success:mx", "env.log_info = 'success:mx': expected KEY, or KEY:HOW with one of last, sum, mean, max, min"),
        ("", "expected KEY, or KEY:HOW"),
        ("score", "the logs use score for something else. Use 'score:last', which is logged as score_last"),
    ],
)
def test_entries_that_mean_nothing_are_refused(entry, said):
    with pytest.raises(ConfigError, match=said):
        EnvConfig(log_info=(entry,))


def test_no_value_replaces_what_an_evaluation_logs():
    evaluation = Evaluation(scores=[1.0] * 6, lengths=[2] * 6, mode="eval", frames=np.zeros((1, 2, 2, 3), np.uint8))
    names = {name.removeprefix("eval/") for name in evaluation.metrics()}
    assert {"cut_off", "video", "score_iqm_low"} <= names <= RESERVED


@BOTH
def test_a_key_that_is_not_there_ends_the_run_and_is_told(make, vectorization):
    env = make(env_zoo.Judged, num=2, vectorization=vectorization, log_info=("succes",))
    said = (
        r"environment 0 \('Judged'\): .*no finite number 'succes' in any step of the first episode\. Did you mean 's.*"
    )
    with pytest.raises(EnvError, match=rf"{said}It has: cost, inner, success\."):
        stepped(env, 4)
    with pytest.raises(EnvError, match="no finite number 'succes'"):
        env.step(torch.zeros(2, 2))


@pytest.mark.parametrize("value", ["yes", [1, 2], math.nan])
def test_values_that_are_no_numbers_are_told(make, value):
    env = make(functools.partial(env_zoo.Judged, 2, {"mood": value}), log_info=("mood", "cost"))
    with pytest.raises(EnvError, match="no finite number 'mood'"):
        stepped(env, 2)


# ---------------------------------------------------------------- where it goes


IDLE = SimpleNamespace(
    initial=lambda count: None, act=lambda step, state, mode: (torch.zeros(len(step), 2), None), extras=lambda state: {}
)
NOWHERE = SimpleNamespace(add=lambda *given: None)


def collector(make):
    return EnvCollector(make(env_zoo.Judged, log_info=("cost:sum",)), IDLE, NOWHERE)


def test_collected_episodes_have_them_and_checkpoints_keep_them(make):
    one = collector(make)
    for _ in range(4):
        one.collect()
    one.unlogged_episodes.append(episodes((1.0, 2, {"cost_sum": 3.0})))
    state = one.state_dict()  # of the last row, which is not counted yet
    assert state["unlogged"]["info"]["cost_sum"].tolist() == [3.0]
    assert all(name in state["step"] for name in ("reward", "is_first", "is_last"))
    two = collector(make)
    two.load_state_dict(state)
    assert as_rows(two.unlogged_episodes) == as_rows(one.unlogged_episodes)
    assert two.resume(state, one.snapshots()) == 0
    assert (
        as_rows(one.pop_episodes(at_the_end=True))
        == as_rows(two.pop_episodes(at_the_end=True))
        == [(4.0, 4, {"cost_sum": 10.0, "success_rate": 0.0})]
    )


def test_a_run_logs_them(tmp_path):
    options = {
        "env_options": {"log_info": ("success:max", "cost:sum")}, "steps": 60, "learning_starts": 40, "envs": 2,
        "threads": 1, "tensorboard": False, "console": False, "eval_episodes": 2, "algo.networks.units": (8,),
    }  # fmt: skip
    run = tmp_path / "run"
    result = reverie.train("dqn", env=env_zoo.Judged, run=run, **options)
    assert result.evaluation.info == [{"success_max": 1.0, "cost_sum": 10.0, "success_rate": 0.0}] * 2
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert {line["episode/cost_sum"] for line in lines if "episode/cost_sum" in line} == {10.0}
    assert lines[-1]["eval/success_max"] == 1.0
    saved = json.loads((run / "eval.json").read_text())
    assert (saved["info"], saved["success_rate"]) == (result.evaluation.info, 0.0)
    again = reverie.train("dqn", env=env_zoo.Judged, run=run, **options)
    assert again.evaluation.info == result.evaluation.info
