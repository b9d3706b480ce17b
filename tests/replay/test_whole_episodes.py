"""Whole episodes in their order: what is carried, what is learned from, where cursors go."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_replay import Lived
from reverie.core.types import Update, Window
from reverie.replay.config import ReplayConfig
from reverie.replay.sources import Feedback

SEQUENCE = ReplayConfig(sequential=True)


def episode_end(life, stream, row):
    """The row after the last one of the episode that ``row`` belongs to, as far as it has been lived."""
    later = (t for t in range(row + 1, len(life.rows[stream])) if life.rows[stream][t]["first"])
    return next(later, len(life.rows[stream]))


def begins(life, stream, row):
    """Whether the window at ``row`` is the first of an episode."""
    ahead = life.window.context if life.window.crosses_episodes else 0
    rows = life.rows[stream]
    return bool(rows[row + ahead]["first"] or (row == 0 and rows[0]["first"]))


def lived_through(life, data):
    """Live on for a while, and sometimes yield whether the newest row of each stream is the last of its episode."""
    ended = [False, False]
    for _ in range(data.draw(st.integers(10, 60))):
        drawn = data.draw(st.lists(st.integers(0, 7), min_size=2, max_size=2))
        first = [x == 0 or over for x, over in zip(drawn, ended, strict=True)]  # an episode may be cut off, too
        ended = [x == 1 for x in drawn]
        life.add(first, ended)
        if life.valid() and not data.draw(st.booleans()):
            yield ended


def anywhere(life):
    """Where a cursor begins anew."""
    return [(i, t) for i, t in life.valid() if begins(life, i, t)] or life.valid()


@settings(max_examples=15, deadline=None)
@given(
    length=st.integers(1, 4), context=st.integers(1, 2), crosses=st.booleans(), spare=st.integers(0, 25), data=st.data()
)
def test_cursors_go_on_where_they_ended(length, context, crosses, spare, data):
    window = Window(batch=3, length=length, context=context, crosses_episodes=crosses)
    life = Lived(2, window.rows + spare, window, seed=data.draw(st.integers(0, 99)), config=SEQUENCE)
    before = []
    for ended in lived_through(life, data):
        now = life.check(life.replay.sample())
        oldest, count = life.replay.oldest, life.replay.count
        for (i, t), (j, u) in zip(before, now, strict=False):
            learned, end = t + window.rows, episode_end(life, i, t + (context if crosses else 0))
            if t >= oldest and (end >= learned + length or (learned < end and (end < count or ended[i]))):
                assert (j, u) == (i, min(learned + length, end) - window.rows)
            else:
                assert (j, u) in anywhere(life)
        before = now


@settings(max_examples=15, deadline=None)
@given(length=st.integers(1, 4), spare=st.integers(0, 25), data=st.data())
def test_a_carried_state_goes_on_exactly_where_it_ended(length, spare, data):
    """Rows of an episode come in order, and whatever else a window begins with is marked as a first row."""
    window = Window(batch=3, length=length, crosses_episodes=True, carries=True)
    life = Lived(2, length + spare, window, seed=data.draw(st.integers(0, 99)), config=SEQUENCE)
    before = []
    for ended in lived_through(life, data):
        batch = life.replay.sample()
        marked = batch.is_first[:, 0].tolist()
        batch.is_first[:, 0] = torch.tensor([life.rows[h % 2][h // 2]["first"] for h in batch.index.tolist()])
        now = life.check(batch)
        oldest, count = life.replay.oldest, life.replay.count
        for slot, (j, u) in enumerate(now):
            i, t = before[slot] if before else (-1, 0)
            end = episode_end(life, i, t) if before else 0
            inside = before and t >= oldest and t + length < end
            if inside and t + 2 * length <= count:
                assert (j, u) == (i, t + length)
            elif inside and (end < count or ended[i]):  # nothing comes after: moved back
                assert (j, u) == (i, count - length)
            elif before:
                assert (j, u) in anywhere(life)
            assert marked[slot] == (life.rows[j][u]["first"] or (j, u) != (i, t + length))
        before = now


@pytest.mark.parametrize("late", [False, True])
def test_what_was_learned_last_is_where_the_next_window_starts(late):
    window = Window(batch=2, length=4, context=1, crosses_episodes=True)
    life, carried = Lived(2, 200, window, seed=3, config=SEQUENCE), 0
    for t in range(150):
        life.add([t % 17 == 0, t % 23 == 0])
    last = life.replay.sample()
    for number in range(40):
        deter = torch.full((2, 4, 2), float(number)).half()
        extras = {"deter": deter, "stoch": torch.full((2, 4), number, dtype=torch.uint8)}
        if late:  # as from a GPU
            life.replay.pending.append(Feedback(last.index.numpy(), extras, None))
        else:
            life.replay.feedback(last.index, Update(metrics={}, extras=extras))
        batch = life.replay.sample()
        for b in range(2):
            if batch.index[b] == last.index[b] + 4 * life.streams:
                assert batch.extras["stoch"][b, 0] == number
                carried += 1
        last = batch
    assert carried > 30
