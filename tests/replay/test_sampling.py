"""Ways of drawing windows, each against its definition written the slow way."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_replay import Lived
from reverie.core.errors import ConfigError, DataError
from reverie.core.types import Update, Window
from reverie.replay.config import ReplayConfig

CROSSING = pytest.mark.parametrize("crosses", [True, False])


def some_life(fractions, crosses, batch=200, rows=60, free=False, **more):
    """Two streams of episodes of several lengths, the oldest rows evicted."""
    config = ReplayConfig(online_queue=False).merge({"fractions": {"uniform": 0.0, **fractions}, **more})
    window = Window(batch=batch, length=3, context=1, crosses_episodes=crosses, context_crosses=free)
    life = Lived(2, 40, window, seed=5, config=config)
    for t in range(rows):
        life.add([t % 7 == 0, t % 11 == 3])
    return life


def test_one_way_of_sampling_is_needed():
    with pytest.raises(ConfigError, match=r"replay\.fractions = .*: all are 0"):
        ReplayConfig().merge({"fractions.uniform": 0})


def windows_of(life):
    """The handles of all windows, oldest first."""
    return sorted(t * life.streams + i for i, t in life.valid())


def assert_drawn(life, weights, **how):
    """Windows have probabilities as these weights, and what is drawn is distributed so.

    The statistic of chi-square is within five deviations of its mean.
    """
    expected = {handle: weight / sum(weights.values()) for handle, weight in weights.items()}
    got = life.replay.batch_sampler.probability(np.array(list(expected)))
    assert got == pytest.approx(list(expected.values()), **how)
    drawn = Counter(h for _ in range(30) for h in life.replay.batch_sampler.draw()[0].tolist())
    total = sum(drawn.values())
    assert set(drawn) <= expected.keys()
    statistic = sum((drawn[h] - total * p) ** 2 / (total * p) for h, p in expected.items())
    freedom = len(expected) - 1
    assert abs(statistic - freedom) < 5 * math.sqrt(2 * freedom)


# ---------------------------------------------------------------- definitions: weights of windows


def recency(life, exponent=1.0):
    """The integral of (1 + t)^-exponent over each age, by the midpoint rule on a fine grid."""
    windows = windows_of(life)
    fine = (np.arange(2000) + 0.5) / 2000
    return {handle: float(np.mean((1 + age + fine) ** -exponent)) for age, handle in enumerate(reversed(windows))}


def ends(life):
    """The last window before each is_first row counts 1 + T times, with T rows that are not free."""
    length, weighs = life.window.rows, life.window.rows - life.window.num_free_rows
    weight = {}
    for handle in windows_of(life):
        t, i = divmod(handle, life.streams)
        after = life.rows[i][t + length : t + length + 1]
        weight[handle] = 1 + weighs * any(row["first"] for row in after)
    return weight


def by_priority(life):
    """Some windows of all kinds get a priority, whose power 0.6 is their weight."""
    windows = windows_of(life)
    chosen = np.random.default_rng(8).choice(windows, size=30, replace=False)
    values = np.random.default_rng(9).random(30) * 4
    life.replay.feedback(torch.from_numpy(chosen), Update(metrics={}, priority=torch.from_numpy(values)))
    priority = dict(zip(chosen.tolist(), values + 1e-6, strict=True))
    return {handle: np.float64(np.float32(priority.get(handle, 1.0))) ** 0.6 for handle in windows}


@CROSSING
@pytest.mark.parametrize("exponent", [0.5, 1.0])
def test_recency_follows_its_law(crosses, exponent):
    life = some_life({"recency": 1.0}, crosses, recency_exponent=exponent)
    assert_drawn(life, recency(life, exponent), rel=1e-6)


@CROSSING
@pytest.mark.parametrize("free", [False, True])
def test_ends_follow_their_law(crosses, free):
    life = some_life({"episode_ends": 1.0}, crosses, free=free)
    expected = ends(life)
    assert max(expected.values()) > min(expected.values())
    assert_drawn(life, expected)


@CROSSING
def test_priorities_follow_equation_1(crosses):
    life = some_life({"priority": 1.0}, crosses)
    assert_drawn(life, by_priority(life))


@CROSSING
def test_a_mixture_draws_each_part_by_its_fraction(crosses):
    life = some_life({"uniform": 1.0, "priority": 3.0, "recency": 2.0, "episode_ends": 2.0}, crosses)
    parts = [(1, dict.fromkeys(windows_of(life), 1.0)), (3, by_priority(life)), (2, recency(life)), (2, ends(life))]
    share = [(fraction / sum(weights.values()), weights) for fraction, weights in parts]
    assert_drawn(life, {h: sum(each * weights[h] for each, weights in share) for h in windows_of(life)})


@pytest.mark.parametrize("first", [0, 90])
@pytest.mark.parametrize("part", ["uniform", "priority", "recency", "episode_ends"])
def test_a_replay_that_was_emptied_is_as_a_new_one(part, first):
    """Also if its rows get numbers that others had before."""
    used, new = (some_life({part: 1.0}, crosses=first > 0, rows=n, free=True, online_queue=True) for n in (60, 1))
    for life in (used, new):
        life.replay.restart_at(first)
        for t in range(25):
            life.add([t % 7 == 0, t % 11 == 3])
    mine, its = used.replay.batch_sampler, new.replay.batch_sampler
    handles = mine.windows.handles_at(np.arange(len(mine.windows)))
    assert handles.tolist() == its.windows.handles_at(np.arange(len(its.windows))).tolist()
    assert mine.probability(handles) == pytest.approx(its.probability(handles))
    assert mine.online.queue == its.online.queue


def test_importance_weights_are_those_of_the_mixture():
    more = {"priority.beta": 0.5, "priority.beta_end": 1.0, "priority.beta_anneal_windows": 1000}
    life = some_life({"uniform": 1.0, "priority": 1.0}, crosses=True, batch=50, **more)
    priority = by_priority(life)
    total = sum(priority.values())
    for draw in range(30):
        batch = life.replay.sample()
        beta = 0.5 + 0.5 * min(1.0, 50 * draw / 1000)
        q = np.array([(1 / len(priority) + priority[h] / total) / 2 for h in batch.index.tolist()])
        weight = (1 / (len(priority) * q)) ** beta
        assert batch.weight.numpy() == pytest.approx(weight / weight.max(), rel=1e-5)
        assert (batch.weight.dtype, batch.weight.max()) == (torch.float32, 1)


@settings(max_examples=12, deadline=None)
@given(crosses=st.booleans(), free=st.booleans(), spare=st.integers(0, 8), data=st.data())
def test_priorities_agree_with_a_dictionary(crosses, free, spare, data):
    config = ReplayConfig(online_queue=False).merge({"fractions": {"uniform": 0, "priority": 1}, "priority.alpha": 1})
    window = Window(batch=3, length=2, context=1, crosses_episodes=crosses, context_crosses=free)
    life = Lived(2, window.rows + spare, window, config=config)
    known, highest = {}, 1.0
    for _ in range(data.draw(st.integers(5, 30))):
        life.add(data.draw(st.lists(st.booleans(), min_size=2, max_size=2)))
        windows = windows_of(life)
        known = {handle: known.get(handle, highest) for handle in windows}
        if not windows:
            continue
        index = data.draw(st.lists(st.integers(-4, windows[-1]), min_size=1, max_size=5))  # evicted ones as well
        values = data.draw(st.lists(st.sampled_from([0.0, 0.25, 1.5, 8.0, math.nan, math.inf]), min_size=5, max_size=5))
        update = Update(metrics={}, priority=torch.tensor(values[: len(index)], dtype=torch.float64))
        life.replay.feedback(torch.tensor(index), update)
        for handle, value in zip(index, values, strict=False):
            if handle in known and math.isfinite(value):
                known[handle] = value + 1e-6
                highest = max(highest, value + 1e-6)
        total = sum(known.values())
        expected = [known[handle] / total for handle in windows]
        assert life.replay.batch_sampler.probability(np.array(windows)) == pytest.approx(expected, rel=1e-5)
        assert set(life.replay.batch_sampler.draw()[0].tolist()) <= set(windows)


def test_a_negative_priority_and_settings_without_a_meaning_are_refused():
    life = some_life({"priority": 1.0}, crosses=True)
    with pytest.raises(DataError, match=r"priority -0.5: expected a number, 0 or more"):
        life.replay.feedback(torch.tensor([60]), Update(metrics={}, priority=torch.tensor([-0.5])))
    with pytest.raises(ConfigError, match="Set only one of the two"):
        ReplayConfig().merge({"sequential": True, "fractions.priority": 1}, "replay")


@pytest.mark.parametrize("learns_rows", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 6])
@given(episodes=st.lists(st.integers(1, 15), min_size=4, max_size=8), context=st.integers(0, 1), crosses=st.booleans())
@settings(max_examples=20, deadline=None)
def test_the_online_queue_steps_over_nothing(learns_rows, length, episodes, context, crosses):
    """Each row, or each transition, that any window contains is in a queued window."""
    window = Window(batch=5, length=length, context=context, context_crosses=context > 0, crosses_episodes=crosses,
                    learns_rows=learns_rows)  # fmt: skip
    life = Lived(2, 200, window, config=ReplayConfig())
    firsts = {sum(episodes[:i]) for i in range(len(episodes))}
    for t in range(sum(episodes) + 1):
        life.add([t in firsts or t == sum(episodes), t % 7 == 0])
    for _ in range(length):  # the rows behind the last whole episode complete the windows before them
        life.add([False, False])

    def learned(handles):
        """Stream and number of each row, or of each transition by its first row, that these windows train."""
        num = length if learns_rows or length == 1 else length - 1
        return {(h % 2, h // 2 + context + i) for h in handles for i in range(num)}

    rows = {row for row in learned(windows_of(life)) if row[1] < sum(episodes) and (row[0] == 0 or crosses)}
    assert rows <= learned(life.replay.batch_sampler.online.queue)
