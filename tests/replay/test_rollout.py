"""Rollouts: every row is offered as often as wanted, then dropped, and errors are one line."""

import numpy as np
import pytest
import torch

from reverie.algos.a2c import A2CConfig
from reverie.algos.impala import IMPALAConfig
from reverie.algos.ppo import PPOConfig
from reverie.core.errors import ConfigError, RunError
from reverie.core.types import Update, Window
from reverie.experiment.build import build
from reverie.experiment.config import ExperimentConfig
from reverie.replay.config import ReplayConfig
from reverie.replay.rollout import check_rollout

SMALL = {"env.id": "reverie/Count-v0", "env.num": 2, "env.vectorization": "sync", "threads": 1, "eval_episodes": 0,
         "steps": 100, "console": False, "tensorboard": False}  # fmt: skip


def experiment(algo, **more):
    return build(ExperimentConfig(algo=algo).merge(SMALL | {k.replace("__", "."): v for k, v in more.items()}))


def collected(made):
    while not len(made.source):
        made.collector.collect()
    return made.source


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("length", [1, 3])
def test_each_row_is_offered_in_each_epoch_and_then_dropped(length, shares):
    config = PPOConfig(rollout=9, batch_size=6, batch_length=length, epochs=2, discount=0.9)
    made, seen = experiment(config), []
    if shares:
        made.share_batches()
    for _ in range(2):
        source = collected(made)
        rows = made.replay.storage.read(made.replay.count - 9, made.replay.count)
        for left in range(6, 0, -1):
            assert len(source) == left
            seen.append(source.sample().map(torch.clone))
            assert seen[-1].shape == (6 // length, length)
            source.feedback(seen[-1].index, Update(metrics={}))
        assert len(source) == 0
        with pytest.raises(RunError, match="the rollout is not complete"):
            source.sample()
        for epoch in (seen[-6:-3], seen[-3:]):
            place = torch.cat([batch.index for batch in epoch])
            assert sorted(place.tolist()) == list(range(18 // length))
            reward = torch.cat([batch.reward for batch in epoch])[place.argsort()]
            torch.testing.assert_close(reward.view(2, 9), torch.from_numpy(rows["reward"]))
    assert not torch.equal(seen[0].index, seen[3].index)


def test_learners_in_several_processes_may_keep_batches(monkeypatch):
    """Their updates are not recorded."""
    monkeypatch.setattr("reverie.experiment.build.is_distributed", lambda: True)
    made = experiment(PPOConfig(rollout=8, batch_size=4))
    made.share_batches()
    assert not made.source.shares_batch


def test_the_rest_of_a_rollout_is_dropped_when_an_update_says_so():
    source = collected(experiment(PPOConfig(rollout=8, batch_size=4)))
    source.feedback(source.sample().index, Update(metrics={}, rollout_done=torch.tensor(False)))
    assert len(source) == 39
    source.feedback(source.sample().index, Update(metrics={}, rollout_done=torch.tensor(True)))
    assert len(source) == 0


def test_rows_of_rollouts_that_wait_in_a_queue_are_needed():
    made = experiment(IMPALAConfig(rollout=4, batch_size=2))
    for _ in range(11):
        made.collector.collect()
    assert made.replay.oldest_needed == 0
    made.source.sample()
    assert made.replay.oldest_needed == 3  # with the row before them


def test_a_rollout_that_became_shorter_than_its_rows_begins_anew():
    long, short = (experiment(PPOConfig(rollout=rows, batch_size=4)) for rows in (8, 4))
    for _ in range(6):
        long.collector.collect()
    short.replay.restart_at(2)
    short.replay.extend(long.replay.storage.read(2, 6))
    short.replay.load_state_dict(long.replay.state_dict())
    assert len(short.source) == 0


def test_the_row_after_the_last_one_is_bootstrapped_from_and_acted_on_by_the_new_policy():
    made = experiment(A2CConfig(rollout=4))
    source = collected(made)
    batch = source.sample()
    after = made.collector.step
    value = made.algo.objective.network(after.obs).value
    end = after.reward + 0.99 * value * ~after.is_terminal  # GAE(1.0)
    over, seen, last = (x.view(2, 4)[:, -1] for x in (batch.is_last, batch.extras["value"], batch.extras["target"]))
    torch.testing.assert_close(last, torch.where(over, seen, end))
    source.feedback(batch.index, made.algo.update(batch))
    assert len(source) == 0
    assert made.collector.step is after
    made.collector.collect()
    ((name, seen),) = after.obs.items()
    np.testing.assert_array_equal(made.replay.storage.read(4, 5)[f"obs/{name}"][:, 0], seen)


@pytest.mark.parametrize(
    ("algo", "more", "said"),
    [
        ({"batch_size": 64}, {}, "batch_size = 64 does not divide the 16 rows of a rollout.* set algo.batch_size = 16"),
        ({"batch_size": 7}, {}, "batch_size = 7 does not divide the 16 rows .* set algo.batch_size = 8"),
        (
            {"batch_size": 32, "batch_length": 8, "networks.memory": "gru(4)"}, {},
            "batch_size = 32 does not divide the 16 rows .* set algo.batch_size = 16",
        ),
        (
            {"batch_size": 16, "batch_length": 8, "networks.memory": "gru(4)"}, {"env__num": 3},
            "batch_size = 16 does not divide the 24 rows .* set algo.batch_size = 8",
        ),
        ({}, {"replay__fractions__priority": 1.0}, "replay.fractions = .* has no effect"),
        ({}, {"replay_ratio": 0.5}, "replay_ratio = 0.5 has no effect: ppo learns from whole rollouts"),
        ({}, {"steps": 15}, "steps = 15: a rollout has 16 rows, .* nothing would be learned"),
        ({}, {"data__path": "there"}, "ppo learns only from rows of its current policy"),
        ({"normalize_obs": "fixed(10)"}, {}, "no rows come before learning. Use running"),
    ],
)  # fmt: skip
def test_settings_without_meaning_are_named(algo, more, said):
    with pytest.raises(ConfigError, match=said):
        experiment(PPOConfig(rollout=8, batch_size=4).merge(algo), **more)


def test_batches_of_queued_rollouts_may_be_larger_than_what_one_actor_collects_at_once():
    check_rollout(ReplayConfig(), Window(batch=8, length=4, rollout=4, queued=True), streams=2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rollout": 8, "batch_length": 16}, "rollout = 8: expected sequences that divide a rollout evenly"),
        ({"networks.memory": "lstm"}, "batch_length = 1: a recurrent memory cannot be trained on single rows"),
        ({"batch_size": 10, "batch_length": 4}, "batch_size must be a multiple of batch_length"),
        ({"value_estimator": "v_trace"}, "expected one that needs rows alone"),
    ],
)
def test_settings_that_do_not_fit_together_are_named(given, said):
    with pytest.raises(ConfigError, match=said):
        PPOConfig().merge(given)
