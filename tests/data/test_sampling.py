"""Ways of drawing windows, each against its definition written the slow way."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lived import Lived

from reverie.core.errors import ConfigError, DataError
from reverie.core.types import Update, Window
from reverie.replay.config import ReplayConfig
from reverie.replay.priority import SumTree, tree_draw, tree_set

CROSSING = pytest.mark.parametrize("crosses", [True, False])


def some_life(
    fractions: dict[str, float], crosses: bool, batch: int = 200, rows: int = 60, free: bool = False, **more
) -> Lived:
    """Two streams of episodes of several lengths, the oldest rows evicted."""
    config = ReplayConfig(online=False).merge({"fractions": {"uniform": 0.0, **fractions}, **more})
    window = Window(batch=batch, length=3, context=1, crosses_episodes=crosses, context_crosses=free)
    life = Lived(2, 40, window, seed=5, config=config)
    for t in range(rows):
        life.add([t % 7 == 0, t % 11 == 3])
    return life


def windows_of(life: Lived) -> list[int]:
    """The handles of all windows, oldest first."""
    return sorted(t * life.streams + i for i, t in life.valid())


def chi_square_fits(life: Lived, expected: dict[int, float], batches: int = 30) -> bool:
    """Whether what is drawn is distributed as expected: the statistic is within five deviations of its mean."""
    drawn = Counter(h for _ in range(batches) for h in life.replay.batch_sampler.draw()[0].tolist())
    total = sum(drawn.values())
    assert set(drawn) <= {handle for handle, p in expected.items() if p > 0}
    statistic = sum((drawn[h] - total * p) ** 2 / (total * p) for h, p in expected.items() if p > 0)
    freedom = len(expected) - 1
    return abs(statistic - freedom) < 5 * math.sqrt(2 * freedom)


# ---------------------------------------------------------------- definitions


def recency(life: Lived, exponent: float) -> dict[int, float]:
    """The integral of (1 + t)^-exponent over each age, by the midpoint rule on a fine grid."""
    windows = windows_of(life)
    fine = (np.arange(2000) + 0.5) / 2000
    mass = [float(np.mean((1 + age + fine) ** -exponent)) for age in range(len(windows))]
    return {handle: mass[age] / sum(mass) for age, handle in enumerate(reversed(windows))}


def ends(life: Lived) -> dict[int, float]:
    """The last window before each is_first row counts 1 + T times, with T rows that are not free."""
    length, weighs = life.window.rows, life.window.rows - life.window.free
    weight = {}
    for handle in windows_of(life):
        t, i = divmod(handle, life.streams)
        after = life.rows[i][t + length : t + length + 1]
        weight[handle] = 1 + weighs * any(row["first"] for row in after)
    return {handle: w / sum(weight.values()) for handle, w in weight.items()}


def by_priority(life: Lived, priority: dict[int, float], alpha: float) -> dict[int, float]:
    weight = {handle: np.float64(np.float32(priority.get(handle, 1.0))) ** alpha for handle in windows_of(life)}
    return {handle: w / sum(weight.values()) for handle, w in weight.items()}


def give_priorities(life: Lived) -> dict[int, float]:
    """Some windows of all kinds get one; what they should be now."""
    windows = windows_of(life)
    chosen = np.random.default_rng(8).choice(windows, size=30, replace=False)
    values = np.random.default_rng(9).random(30) * 4
    update = Update(metrics={}, priority=torch.from_numpy(values))
    life.replay.feedback(torch.from_numpy(chosen), update)
    return {int(h): float(v) + 1e-6 for h, v in zip(chosen, values, strict=True)}


# ---------------------------------------------------------------- samplers


@CROSSING
@pytest.mark.parametrize("exponent", [0.5, 1.0])
def test_recency_follows_its_law(crosses: bool, exponent: float) -> None:
    life = some_life({"recency": 1.0}, crosses, recency_exponent=exponent)
    expected = recency(life, exponent)
    got = life.replay.batch_sampler.probability(np.array(list(expected)))
    assert got == pytest.approx(list(expected.values()), rel=1e-6)
    assert chi_square_fits(life, expected)


@CROSSING
@pytest.mark.parametrize("free", [False, True])
def test_ends_follow_their_law(crosses: bool, free: bool) -> None:
    life = some_life({"ends": 1.0}, crosses, free=free)
    expected = ends(life)
    assert max(expected.values()) > min(expected.values())
    got = life.replay.batch_sampler.probability(np.array(list(expected)))
    assert got == pytest.approx(list(expected.values()))
    assert chi_square_fits(life, expected)


@CROSSING
def test_priorities_follow_equation_1(crosses: bool) -> None:
    life = some_life({"priority": 1.0}, crosses)
    expected = by_priority(life, give_priorities(life), 0.6)
    got = life.replay.batch_sampler.probability(np.array(list(expected)))
    assert got == pytest.approx(list(expected.values()))
    assert chi_square_fits(life, expected)


@CROSSING
def test_a_mixture_draws_each_part_by_its_fraction(crosses: bool) -> None:
    fractions = {"uniform": 1.0, "priority": 3.0, "recency": 2.0, "ends": 2.0}
    life = some_life(fractions, crosses)
    priority = by_priority(life, give_priorities(life), 0.6)
    new, last, windows = recency(life, 1.0), ends(life), windows_of(life)
    expected = {h: (1 / len(windows) + 3 * priority[h] + 2 * new[h] + 2 * last[h]) / 8 for h in windows}
    assert life.replay.batch_sampler.probability(np.array(windows)) == pytest.approx(list(expected.values()))
    assert chi_square_fits(life, expected)


# ---------------------------------------------------------------- weights


@pytest.mark.parametrize("first", [0, 90])
@pytest.mark.parametrize("part", ["uniform", "priority", "recency", "ends"])
def test_a_replay_that_was_emptied_is_as_a_new_one(part: str, first: int) -> None:
    """Also if its rows get numbers that others had before."""
    used, new = (some_life({part: 1.0}, crosses=first > 0, rows=n, free=True, online=True) for n in (60, 1))
    for life in (used, new):
        life.replay.begin_at(first)
        for t in range(25):
            life.add([t % 7 == 0, t % 11 == 3])
    mine, its = used.replay.batch_sampler, new.replay.batch_sampler
    handles = mine.windows.at(np.arange(len(mine.windows)))
    assert handles.tolist() == its.windows.at(np.arange(len(its.windows))).tolist()
    assert mine.probability(handles) == pytest.approx(its.probability(handles))
    assert mine.online.queue == its.online.queue


def test_importance_weights_are_those_of_the_mixture() -> None:
    more = {"priority.beta": 0.5, "priority.beta_end": 1.0, "priority.beta_windows": 1000}
    life = some_life({"uniform": 1.0, "priority": 1.0}, crosses=True, batch=50, **more)
    priority, windows = by_priority(life, give_priorities(life), 0.6), windows_of(life)
    for draw in range(30):
        batch = life.replay.sample()
        beta = 0.5 + 0.5 * min(1.0, 50 * draw / 1000)
        q = np.array([(1 / len(windows) + priority[h]) / 2 for h in batch.index.tolist()])
        weight = (1 / (len(windows) * q)) ** beta
        assert batch.weight.numpy() == pytest.approx(weight / weight.max(), rel=1e-5)
        assert batch.weight.dtype == torch.float32
        assert batch.weight.max() == 1


# ---------------------------------------------------------------- priorities


@settings(max_examples=12, deadline=None)
@given(crosses=st.booleans(), free=st.booleans(), spare=st.integers(0, 8), data=st.data())
def test_priorities_agree_with_a_dictionary(crosses: bool, free: bool, spare: int, data) -> None:
    config = ReplayConfig(online=False).merge({"fractions": {"uniform": 0, "priority": 1}, "priority.alpha": 1})
    window = Window(batch=3, length=2, context=1, crosses_episodes=crosses, context_crosses=free)
    life = Lived(2, window.rows + spare, window, config=config)
    known: dict[int, float] = {}
    highest = 1.0
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


def test_a_negative_priority_and_settings_without_a_meaning_are_refused() -> None:
    life = some_life({"priority": 1.0}, crosses=True)
    with pytest.raises(DataError, match=r"priority -0.5: expected a number, 0 or more"):
        life.replay.feedback(torch.tensor([60]), Update(metrics={}, priority=torch.tensor([-0.5])))
    with pytest.raises(ConfigError, match="Set only one of the two"):
        ReplayConfig().merge({"sequence": True, "fractions.priority": 1}, "replay")


@settings(max_examples=20, deadline=None)
@given(size=st.integers(1, 5000), seed=st.integers(0, 2**31), rounds=st.integers(1, 6))
def test_the_tree_finds_what_a_running_sum_finds(size: int, seed: int, rounds: int) -> None:
    rng, tree, weights = np.random.default_rng(seed), SumTree(size), np.zeros(size)
    for _ in range(rounds):
        slots = rng.integers(size, size=int(rng.integers(1, 200)))
        values = rng.choice([0.0, 1e-12, 0.3, 1.0, 1e6], size=len(slots)) * rng.random(len(slots))
        tree_set(tree, slots, values)
        for slot, value in zip(slots, values, strict=True):
            weights[slot] = value
    weights[slots[0]] = 0.7
    tree_set(tree, slots[:1], np.array([0.7]))
    again = SumTree(size)
    tree_set(again, np.arange(size), weights)
    assert all(np.array_equal(a, b) for a, b in zip(tree.levels, again.levels, strict=True))
    assert np.array_equal(tree.leaves[:size], weights)
    numbers = np.append(rng.random(50), [0.0, 1 - 2**-53])
    drawn, sums = tree_draw(tree, numbers), weights.cumsum()
    slack = 1e-9 * sums[-1]
    assert (weights[drawn] > 0).all()
    assert (sums[drawn] >= numbers * sums[-1] - slack).all()
    assert (sums[drawn] - weights[drawn] <= numbers * sums[-1] + slack).all()
