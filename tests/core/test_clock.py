"""Counters and the replay ratio."""

from fractions import Fraction
from math import floor

from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.core.clock import Clock, UpdateRatio

RATIOS = st.one_of(
    st.builds(Fraction, st.integers(0, 40), st.integers(1, 40)),
    st.builds(lambda n: Fraction(n, 1024), st.integers(1, 2048)),
)


@settings(max_examples=60, deadline=None)
@given(
    ratio=RATIOS, envs=st.integers(1, 17), turns=st.lists(st.integers(0, 17), max_size=200), start=st.integers(0, 5000)
)
def test_updates_are_the_floor_of_ratio_times_steps(ratio, envs, turns, start):
    clock = Clock(length=10**9, replay_ratio=float(ratio), env_steps=start)
    assert clock.updates_due(windows=1) == 0
    updates = 0
    for ended in turns:
        clock.env_steps += envs - min(ended, envs)  # environments whose episode is over take no step
        updates += clock.updates_due(windows=1)
        assert updates == floor(ratio * (clock.env_steps - start))


def test_with_slack_the_updates_of_a_block_of_steps_are_made_one_by_one():
    clock = Clock(length=1000, replay_ratio=0.5, tolerance=2.0)
    clock.updates_due(windows=1)
    clock.env_steps += 16
    assert [clock.updates_due(windows=1) for _ in range(12)] == [1] * 9 + [0] * 3  # 8 that are due, and up to 2 ahead


def test_updates_in_bursts_after_those_at_the_beginning():
    """DreamerV1: 100 updates at once, then 100 every 1000 steps."""
    clock, made = Clock(length=10_100, replay_ratio=0.1, learning_starts=10, pretrain_updates=100, train_freq=1000), {}
    for step in range(0, 10_101, 4):
        clock.env_steps = step
        if due := clock.updates_due(windows=step // 4):
            made[step] = due
            clock.updates += due
        resumed = Clock(length=10_100, replay_ratio=0.1, learning_starts=10, pretrain_updates=100, train_freq=1000)
        resumed.load_state_dict(clock.state_dict())
        clock = resumed
    assert made == {40: 100, **{1040 + 1000 * i: 100 for i in range(10)}, 10_100: 6}


def test_updates_that_were_due_and_not_made_stay_due():
    clock = Clock(length=100, replay_ratio=2.5)
    clock.updates_due(windows=1)
    clock.env_steps += 3
    assert clock.updates_due(windows=1) == 7
    clock.updates += 4  # then an error
    other = Clock(length=100, replay_ratio=2.5)
    other.load_state_dict(clock.state_dict())
    other.env_steps += 1
    assert other.updates_due(windows=1) == 6  # 3 left, 0.5 + 2.5
    other.updates += 6
    assert other.state_dict()["ratio"]["credit"] == 0


def test_a_resumed_run_that_fills_its_replay_again_owes_nothing_for_it():
    clock = Clock(length=10**6, replay_ratio=1.0, learning_starts=100)
    clock.load_state_dict({**clock.state_dict(), "env_steps": 5000, "ratio": {"credit": 0.5, "seen": 5000}})
    for rows in range(100):
        clock.env_steps += 1
        assert clock.updates_due(rows) == 0
    clock.env_steps += 2
    assert clock.updates_due(100) == 0  # counting starts here
    clock.env_steps += 2
    assert clock.updates_due(100) == 2
    assert clock.ratio.credit == 0.5


@settings(max_examples=40, deadline=None)
@given(
    ratio=RATIOS, turns=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 30)), max_size=60), cut=st.integers(0, 60)
)
def test_learning_that_has_started_goes_on_with_fewer_windows(ratio, turns, cut):
    clock = Clock(length=10**9, replay_ratio=float(ratio), learning_starts=20)
    assert clock.updates_due(20) == 0
    for turn, (taken, windows) in enumerate(turns):
        if turn == cut:
            saved = clock.state_dict()
            clock = Clock(length=10**9, replay_ratio=float(ratio), learning_starts=20)
            clock.load_state_dict(saved)
        clock.env_steps += taken
        clock.updates += clock.updates_due(windows)
        assert clock.updates == floor(ratio * clock.env_steps)


def test_ten_tenths_are_one():
    ratio = UpdateRatio(0.1)
    ratio.updates_due(0)
    assert [ratio.updates_due(step) for step in range(1, 21)] == ([0] * 9 + [1]) * 2


def test_done_by_steps_by_updates_and_by_request():
    clock = Clock(length=10, action_repeat=4)
    assert not clock.done
    clock.env_steps = 10
    assert (clock.done, clock.frames) == (True, 40)
    recorded = Clock(length=3, unit="updates")
    assert (recorded.updates_due(windows=50), recorded.done) == (1, False)
    recorded.updates = 3
    assert recorded.done
    stopped = Clock(length=10)
    stopped.stop = True
    assert stopped.done


def test_schedules_follow_the_larger_part_of_steps_and_of_time():
    clock = Clock(length=100, env_steps=10, max_seconds=60.0, reserved_seconds=10.0)
    endless = Clock(length=100, env_steps=10)
    clock.watch.started = endless.watch.started = 0.0  # long ago
    assert (clock.schedule_position, endless.schedule_position) == (100, 10)
    clock.seconds_before = 25.0 - clock.watch.total_seconds(0.0)
    assert 50 <= clock.schedule_position < 100
    clock.env_steps = 99
    assert clock.schedule_position == 99
