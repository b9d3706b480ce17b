"""Whole episodes in their order: what is carried, what is learned from, where cursors go."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lived import Lived

from reverie.core.types import Update, Window
from reverie.replay.config import ReplayConfig
from reverie.replay.sources import Feedback

SEQUENCE = ReplayConfig(sequence=True)


def episode_end(life: Lived, stream: int, row: int) -> int:
    """The row after the last one of the episode that ``row`` belongs to, as far as it has been lived."""
    later = (t for t in range(row + 1, len(life.rows[stream])) if life.rows[stream][t]["first"])
    return next(later, len(life.rows[stream]))


def begins(life: Lived, stream: int, row: int) -> bool:
    """Whether the window at ``row`` is the first of an episode."""
    ahead = life.window.context if life.window.crosses_episodes else 0
    rows = life.rows[stream]
    return bool(rows[row + ahead]["first"] or (row == 0 and rows[0]["first"]))


@settings(max_examples=120, deadline=None)
@given(
    length=st.integers(1, 4), context=st.integers(1, 2), crosses=st.booleans(), spare=st.integers(0, 25), data=st.data()
)
def test_cursors_go_on_where_they_ended(length, context, crosses, spare, data) -> None:
    window = Window(batch=3, length=length, context=context, crosses_episodes=crosses)
    life = Lived(2, window.rows + spare, window, seed=data.draw(st.integers(0, 99)), config=SEQUENCE)
    before: list[tuple[int, int]] = []
    ended = [False, False]  # whether the newest row of each stream is the last of its episode
    for _ in range(data.draw(st.integers(10, 60))):
        drawn = data.draw(st.lists(st.integers(0, 7), min_size=2, max_size=2))
        first = [x == 0 or over for x, over in zip(drawn, ended, strict=True)]  # an episode may be cut off, too
        ended = [x == 1 for x in drawn]
        life.add(first, ended)
        if not life.valid() or data.draw(st.booleans()):
            continue
        now = life.check(life.replay.sample())
        oldest, count = life.replay.oldest, life.replay.count
        for (i, t), (j, u) in zip(before, now, strict=False):
            learned, end = t + window.rows, episode_end(life, i, t + (context if crosses else 0))
            goes_on = t >= oldest and (end >= learned + length or (learned < end and (end < count or ended[i])))
            if goes_on:
                assert (j, u) == (i, min(learned + length, end) - window.rows)
            else:
                held = [(i, t) for i, t in life.valid() if begins(life, i, t)]
                assert (j, u) in (held or life.valid())
        before = now


@settings(max_examples=120, deadline=None)
@given(length=st.integers(1, 4), spare=st.integers(0, 25), data=st.data())
def test_a_carried_state_goes_on_exactly_where_it_ended(length, spare, data) -> None:
    """Rows of an episode come in order, and whatever else a window begins with is marked as a first row."""
    window = Window(batch=3, length=length, crosses_episodes=True, carries=True)
    life = Lived(2, length + spare, window, seed=data.draw(st.integers(0, 99)), config=SEQUENCE)
    before: list[tuple[int, int]] = []
    ended = [False, False]
    for _ in range(data.draw(st.integers(10, 60))):
        drawn = data.draw(st.lists(st.integers(0, 7), min_size=2, max_size=2))
        first = [x == 0 or over for x, over in zip(drawn, ended, strict=True)]
        ended = [x == 1 for x in drawn]
        life.add(first, ended)
        if not life.valid() or data.draw(st.booleans()):
            continue
        batch = life.replay.sample()
        marked = batch.is_first[:, 0].tolist()
        batch.is_first[:, 0] = torch.tensor([life.rows[h % 2][h // 2]["first"] for h in batch.index.tolist()])
        now = life.check(batch)
        oldest, count = life.replay.oldest, life.replay.count
        for slot, (j, u) in enumerate(now):
            i, t = before[slot] if before else (-1, 0)
            end = episode_end(life, i, t) if before else 0
            inside = before and t >= oldest and t + length < end
            goes_on = inside and t + 2 * length <= count
            if goes_on:
                assert (j, u) == (i, t + length)
            elif inside and (end < count or ended[i]):  # nothing comes after: moved back
                assert (j, u) == (i, count - length)
            elif before:
                assert (j, u) in ([(i, t) for i, t in life.valid() if begins(life, i, t)] or life.valid())
            assert marked[slot] == (life.rows[j][u]["first"] or (j, u) != (i, t + length))
        before = now


@pytest.mark.parametrize(("interval", "share"), [(2, 1.0), (8, 0.25)])
def test_states_are_reset_within_episodes_too(interval: int, share: float) -> None:
    window = Window(batch=4, length=4, crosses_episodes=True, carries=True)
    life = Lived(1, 300, window, seed=3, config=ReplayConfig(sequence=True, reset_interval=interval))
    for t in range(300):
        life.add([t % 100 == 0])
    samples = [life.replay.sample() for _ in range(400)]
    going_on = [
        bool(new.is_first[slot, 0])
        for old, new in pairwise(samples)
        for slot in range(4)
        if new.index[slot] == old.index[slot] + 4
    ]
    assert len(going_on) > 1000
    assert abs(np.mean(going_on) - share) < 0.05


def long_life(batch: int = 2, lengths: tuple[int, int] = (17, 23)) -> Lived:
    window = Window(batch=batch, length=4, context=1, crosses_episodes=True)
    life = Lived(2, 200, window, seed=3, config=SEQUENCE)
    for t in range(150):
        life.add([t % lengths[0] == 0, t % lengths[1] == 0])
    return life


@pytest.mark.parametrize("late", [False, True])
def test_what_was_learned_last_is_where_the_next_window_starts(late: bool) -> None:
    life, carried = long_life(), 0
    last = life.replay.sample()
    for number in range(40):
        latents = torch.full((2, 4, 2), float(number)).half()
        stoch = torch.full((2, 4), number, dtype=torch.uint8)
        update = Update(metrics={}, extras={"deter": latents, "stoch": stoch})
        if late:  # as from a GPU
            life.replay.pending.append(Feedback(last.index.numpy(), update.extras, None))
        else:
            life.replay.feedback(last.index, update)
        batch = life.replay.sample()
        for b in range(2):
            if batch.index[b] == last.index[b] + 4 * life.streams:
                assert batch.extras["stoch"][b, 0] == number
                carried += 1
        last = batch
    assert carried > 30


def test_all_rows_of_complete_episodes_are_learned_from_about_equally() -> None:
    life = long_life(batch=8)
    learned: Counter[tuple[int, int]] = Counter()
    for _ in range(1500):
        for handle in life.replay.sample().index.tolist():
            t, i = divmod(handle, 2)
            learned.update((i, row) for row in range(t + 1, t + 5))
    complete = [(0, t) for t in range(1, 17 * 8)] + [(1, t) for t in range(1, 23 * 6)]
    counts = np.array([learned[row] for row in complete])
    assert counts.min() > 0.5 * np.median(counts)
    assert counts.max() < 3 * np.median(counts)  # the last rows of an episode come twice


@pytest.mark.parametrize("count", [60, 150])  # before and after the oldest rows are evicted
def test_rows_that_were_read_again_are_gone_through_in_the_same_way(count: int) -> None:
    """As on going on from a checkpoint: what lay before the oldest row held is not there any more."""
    window = Window(batch=4, length=4, context=1, crosses_episodes=True)
    for evicted in range(20):
        lives = [Lived(2, 80, window, seed=3, config=SEQUENCE) for _ in range(2)]
        for t in range(count + evicted):
            lives[0].add([t % 17 == 0, t % 23 == 0], [t % 17 == 16, t % 23 == 22])
        one, two = (life.replay for life in lives)
        one.sample()
        two.begin_at(one.oldest)
        two.extend(one.read(one.oldest, one.count))
        two.load_state_dict(one.state_dict())
        for _ in range(30):
            assert torch.equal(one.sample().index, two.sample().index)


@pytest.mark.parametrize("crosses", [True, False])
def test_the_end_of_the_newest_episode_is_learned_from_once_it_is_over(crosses: bool) -> None:
    """Such as that of the last recorded episode, after which nothing comes."""
    window = Window(batch=4, length=8, context=1, crosses_episodes=crosses)
    life = Lived(1, 60, window, seed=3, config=SEQUENCE)
    for t in range(60):
        life.add([t % 20 == 0], [t % 20 == 19])
    for _ in range(5):
        life.replay.sample()  # the first windows start anywhere
    learned = Counter(
        row for _ in range(100) for h in life.replay.sample().index.tolist() for row in range(h + 1, h + 9)
    )
    assert min(learned[row] for row in range(40 + (not crosses), 60)) > 20
