"""Rows hold what was seen, what was then done and what the policy held in mind, side by side."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from finished_episodes import as_rows, episodes
from reverie.core.clock import Clock
from reverie.core.errors import RunError
from reverie.core.types import Step
from reverie.run.collect import EnvCollector
from reverie.run.episodes import EpisodeCounter, join_episodes
from reverie.run.evaluate import evaluate


def lived(fakes, lengths, turns, **options):
    env, policy, sink = fakes.Env(lengths), fakes.Policy(), fakes.Rows()
    collector = EnvCollector(env, policy, sink, seed=7, **options)
    taken = [collector.collect() for _ in range(turns)]
    return env, policy, sink, collector, taken


def test_rows_of_a_terminal_and_a_truncated_episode(fakes):
    env, _, sink, collector, taken = lived(fakes, [[2, -1]], turns=7)
    rows = [(s.is_first.item(), s.is_last.item(), s.is_terminal.item(), s.reward.item()) for s, _, _ in sink.rows]
    assert rows == [
        (True, False, False, 0.0),
        (False, False, False, 1.0),
        (False, True, True, 2.0),  # terminal
        (True, False, False, 0.0),
        (False, True, False, 1.0),  # truncated
        (True, False, False, 0.0),
        (False, False, False, 1.0),
    ]
    assert taken == [1, 1, 0, 1, 0, 1, 1]
    assert collector.env_steps == 5
    assert env.seeds == [7]
    assert as_rows(collector.pop_episodes()) == [(3.0, 2), (1.0, 1)]
    assert not collector.pop_episodes()


def test_actions_are_zero_where_nothing_is_taken_and_equal_to_what_was_executed(fakes):
    env, _, sink, _, _ = lived(fakes, [[2], [-3], [1]], turns=12)
    for t, (step, action, _) in enumerate(sink.rows):
        assert torch.equal(env.actions[t], action)
        chosen = step.obs["id"][:, :1] + 100 * step.obs["id"][:, 1:] + 1
        assert torch.equal(action, torch.where(step.is_last[:, None], 0.0, chosen).expand_as(action))
        assert step.obs["id"][:, 1].tolist() == [t] * 3


def test_a_watcher_is_shown_every_row_once_and_before_the_policy(fakes):
    class Notes:
        def __init__(self, policy):
            self.policy, self.seen = policy, []

        def update_statistics(self, step):
            assert len(self.seen) == len(self.policy.modes)
            self.seen.append(step)

    env, policy, sink = fakes.Env([[2], [-3]]), fakes.Policy(), fakes.Rows()
    notes = Notes(policy)
    collector = EnvCollector(env, policy, sink, seed=7, random_steps=3, running_statistics=notes)
    for _ in range(9):
        collector.collect()
    assert all(seen is stored for seen, (stored, _, _) in zip(notes.seen, sink.rows, strict=True))
    assert any(bool(step.is_last.any()) for step in notes.seen)


def test_random_steps_are_executed_stored_and_told_to_the_policy(fakes):
    env, policy, sink, collector, _ = lived(fakes, [[4], [-4], [3]], turns=12, random_steps=14)
    steps = 0
    for t, (step, action, _) in enumerate(sink.rows):
        random = steps < 14
        alive = ~step.is_last
        assert torch.equal(env.actions[t], action)
        assert (action[~alive] == 0).all()
        if random:
            arm, grip = action[alive, :2], action[alive, 2:]
            assert (arm.abs() <= 1).all()
            assert (grip[:, :3].sum(1) == 1).all()
            assert (grip[:, 3:].sum(1) == 1).all()
            assert set(grip.unique().tolist()) <= {0.0, 1.0}
        if t + 1 < len(sink.rows):
            cut = sink.rows[t + 1][0].is_first
            told = policy.previous[t + 1]
            if random:
                assert torch.equal(told, torch.where(cut[:, None], 0.0, action))
        steps += int(alive.sum())
    assert steps == collector.env_steps > 14


def test_episodes_that_end_with_the_current_row_are_counted_once(fakes):
    def collector():
        return EnvCollector(fakes.Env([[2], [3]]), fakes.Policy(), fakes.Rows())

    one = collector()
    assert one.collect() == one.collect() == 2
    one.count()
    one.count()
    assert as_rows(one.pop_episodes()) == [(3.0, 2)]
    assert one.collect() == 1  # the first row of the first environment's next episode comes of it
    assert not one.pop_episodes()
    one.collect()
    assert as_rows(one.pop_episodes()) == [(6.0, 3)]
    assert one.counter.totals[1].tolist() == [0, 3]


def test_a_run_that_goes_on_counts_no_episode_twice(fakes):
    class Restorable(fakes.Env):
        """Its first environment goes on; the second cannot."""

        def snapshot(self):
            return [b"here", None]

        def restore(self, snapshots, step):
            return replace(step, is_last=step.is_last | torch.tensor([False, True]))

        restarts = 0

    one = EnvCollector(Restorable([[2], [5]]), fakes.Policy(), fakes.Rows())
    one.collect()
    one.collect()
    one.count()
    assert as_rows(one.pop_episodes()) == [(3.0, 2)]
    other = EnvCollector(Restorable([[2], [5]]), fakes.Policy(), fakes.Rows())
    state = one.state_dict()
    other.load_state_dict(state)
    assert other.resume(state, one.snapshots()) == 1
    assert as_rows(other.pop_episodes()) == [(3.0, 2)]  # that of the second, which is over now: 1 + 2
    other.collect()
    assert not other.pop_episodes()


class Notes:
    """A running_statistics that remembers the ids of the rows it was shown."""

    def __init__(self):
        self.watched = []

    def update_statistics(self, step):
        self.watched.append(step.obs["id"].tolist())


@pytest.mark.parametrize("broken", ["policy", "sink", "env"])
def test_a_turn_that_an_error_ends_is_finished_after_resuming(fakes, broken):
    class Restorable(fakes.Env):
        """Its step, its sink or its policy fails once, in the third turn."""

        restarts = 0

        def snapshot(self):
            return [(self.decision[:], self.episode[:], self.turn)]

        def restore(self, snapshots, step):
            ((self.decision, self.episode, self.turn),) = snapshots
            return step

        def step(self, action):
            if broken == "env" and len(sink.rows) == 3 and (self.decision, seen) == ([2], []):
                seen.append("fails")
                raise KeyboardInterrupt
            return super().step(action)

    class Sink(fakes.Rows):
        def add(self, step, action, extras):
            if broken == "sink" and len(self.rows) == 2 and not seen:
                seen.append("fails")
                raise RunError("the store is closed.")
            super().add(step, action, extras)

    class Policy(fakes.Policy):
        def act(self, step, state, mode):
            if broken == "policy" and len(sink.rows) == 2 and not seen:
                seen.append("fails")
                raise RunError("out of memory.")
            return super().act(step, state, mode)

    seen, sink, notes = [], Sink(), Notes()
    one = EnvCollector(Restorable([[3]]), Policy(), sink, seed=7, random_steps=10, running_statistics=notes)
    one.collect()
    one.collect()
    with pytest.raises((KeyboardInterrupt, RunError)):
        one.collect()
    other = EnvCollector(Restorable([[3]]), fakes.Policy(), sink, seed=7, random_steps=10, running_statistics=notes)
    state = one.state_dict()
    other.load_state_dict(state)
    assert other.resume(state, one.snapshots()) == 0
    for _ in range(4):
        other.collect()
    _, _, whole, undisturbed, _ = lived(fakes, [[3]], turns=6, random_steps=10)
    assert seen
    assert as_rows(other.pop_episodes()) == as_rows(undisturbed.pop_episodes()) == [(6.0, 3)]
    assert other.env_steps == undisturbed.env_steps
    assert notes.watched == [step.obs["id"].tolist() for step, _, _ in whole.rows]
    found, wanted = (
        [(step.obs["id"], action, extras["age"]) for step, action, extras in x.rows] for x in (sink, whole)
    )
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_scores_are_sums_of_the_rewards_before_they_were_rounded(fakes):
    class Exact(fakes.Env):
        restarts = 0

        def step(self, action):
            step = super().step(action)
            self.exact_rewards = step.reward.double() / 10
            return replace(step, reward=self.exact_rewards.float())

        def snapshot(self):
            return [None]

        def restore(self, snapshots, step):
            self.decision, self.exact_rewards = [3], None
            return step

    one, two = (EnvCollector(Exact([[4]]), fakes.Policy(), fakes.Rows()) for _ in range(2))
    for _ in range(3):
        one.collect()
    state = one.state_dict()
    two.load_state_dict(state)
    two.resume(state, one.snapshots())
    for collector in (one, two):
        collector.collect()
        assert as_rows(collector.pop_episodes(at_the_end=True)) == [(0.1 + 0.2 + 0.3 + 0.4, 4)]
    assert evaluate(Exact([[2]]), fakes.Policy(), episodes=1).scores == [0.1 + 0.2]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=7),
    ratio=st.sampled_from([0.125, 0.3, 0.5, 1.0, 1.5]),
)
def test_replay_ratio_holds_for_any_number_of_envs(fakes, lengths, ratio):
    collector = EnvCollector(fakes.Env(lengths), fakes.Policy(), sink := fakes.Rows(), seed=0)
    clock, updates, base = Clock(length=10**6, replay_ratio=ratio), 0, None
    for _ in range(60):
        clock.env_steps += collector.collect()
        base = clock.env_steps if base is None else base
        updates += clock.updates_due(windows=1)
        assert updates == int(ratio * (clock.env_steps - base) + 1e-9)
    assert clock.env_steps == sum(int((~step.is_last).sum()) for step, _, _ in sink.rows)


def test_episodes_of_a_single_row_are_no_episodes():
    """An environment that is down shows them."""
    counter, on, off = EpisodeCounter(2), torch.tensor([True, True]), torch.tensor([False, False])
    shown = Step(obs={}, reward=torch.zeros(2), is_first=on, is_last=off, is_terminal=off)
    assert not counter.add(shown, np.array([0.0, 0.0])).size
    over = replace(shown, is_first=torch.tensor([True, False]), is_last=on)
    assert counter.add(over, np.array([0.0, 2.0])).tolist() == [1]
    assert counter.totals[:, 1].tolist() == [2.0, 1.0]


def test_means_are_over_the_episodes_that_have_a_value():
    one, two = episodes((1.0, 2, {"cost": 3.0}), (2.0, 4, {})), episodes((6.0, 3, {"cost": 5.0, "rare": 7.0}))
    means = {"score": 3.0, "length": 3.0, "cost": 4.0, "rare": 7.0}
    assert join_episodes([one, two]).means() == {f"episode/{name}": value for name, value in means.items()}
    assert as_rows([one, two])[1:] == [(2.0, 4), (6.0, 3, {"cost": 5.0, "rare": 7.0})]
