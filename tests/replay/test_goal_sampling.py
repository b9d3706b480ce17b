"""Sampled goals against the probabilities of OGBench's distributions; observations name the row."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from reverie.core.columns import row_columns
from reverie.core.errors import ConfigError
from reverie.core.goals import GoalSampling, GoalShares
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Window
from reverie.replay.buffer import ReplayBuffer
from reverie.replay.config import ReplayConfig
from reverie.replay.goals import GoalSampler
from reverie.replay.storage import DeviceStorage, HostStorage

PLACE = ObsPart(kind="vector", shape=(1,), dtype="float32")
ACTION = ActionSpec(parts={"a": ActionPart(kind="continuous", size=1)})
COLUMNS = row_columns({"place": PLACE}, ACTION, {})
WINDOW = Window(batch=4000, length=2)
DISCOUNT = 0.75
STEPS = (4, 1, 40, 2)
"""Actions of each episode, which has one row more."""


def filled(shares, kind=HostStorage, window=WINDOW, seed=0, **settings):
    rows = sum(STEPS) + len(STEPS)
    extra = {HostStorage: (), DeviceStorage: (torch.device("cpu"),)}
    storage = kind(COLUMNS, 1, rows, *extra[kind])
    replay = ReplayBuffer(storage, window, seed=seed, config=ReplayConfig())
    first, last = np.zeros(rows, bool), np.zeros(rows, bool)
    starts = np.cumsum([0, *(steps + 1 for steps in STEPS)])
    first[starts[:-1]], last[starts[1:] - 1] = True, True
    replay.extend({
        "obs/place": np.arange(rows, dtype=np.float32)[None, :, None], "action": np.zeros((1, rows, 1), np.float32),
        "reward": np.full((1, rows), 7, np.float32), "is_first": first[None], "is_last": last[None],
        "is_terminal": last[None],
    })  # fmt: skip
    sampling = GoalSampling(shares=shares, keys=["place"], discount=DISCOUNT, **settings)
    replay.goals = GoalSampler(storage, window, replay.batch_sampler.windows, sampling, seed)
    return replay, starts


def probabilities(shares, row, starts):
    """The probability of each row as the goal of the transition from ``row``, by definition."""
    out = np.zeros(starts[-1])
    begin = starts[starts <= row][-1]
    last = starts[starts > row][0] - 2  # the last row with an action
    out[row] += shares.current
    if shares.geometric:
        for k in range(1, 2000):
            out[min(row + k, last)] += shares.episode * DISCOUNT ** (k - 1) * (1 - DISCOUNT)
    else:
        low = min(row + 1, last)
        edges = np.linspace(low, last, 100_001)
        goals = np.round((edges[1:] + edges[:-1]) / 2).astype(int)
        np.add.at(out, goals, shares.episode / len(goals))
    transitions = np.setdiff1d(np.arange(starts[-1]), starts[1:] - 1)
    out[transitions] += shares.random / len(transitions)
    assert out.sum() == pytest.approx(1)
    assert out[:begin].sum() <= shares.random
    return out


@pytest.mark.parametrize("kind", [HostStorage, DeviceStorage])
@pytest.mark.parametrize("shares", [
    GoalShares(current=0.2, episode=0.5, random=0.3, geometric=True), GoalShares(), GoalShares(episode=0, random=1),
])  # fmt: skip
def test_goals_have_the_probabilities_of_ogbench(shares, kind):
    """A chi-square test for each first row; also the half weight of both ends, and no goal in a last row."""
    replay, starts = filled({"value": shares, "actor": GoalShares()}, kind)
    drawn = [replay.sample() for _ in range(10)]
    row = torch.cat([batch.obs["place"][:, 0, 0] for batch in drawn]).long().numpy()
    goal = torch.cat([batch.goals["value/place"][:, 0, 0] for batch in drawn]).long().numpy()
    for start in np.unique(row):
        expected, counts = probabilities(shares, start, starts), np.bincount(goal[row == start], minlength=starts[-1])
        assert not counts[expected == 0].any()
        mean = expected[expected > 0] * counts.sum()
        chi_square, freedom = ((counts[expected > 0] - mean) ** 2 / mean).sum(), (expected > 0).sum() - 1
        assert chi_square < freedom + 5 * np.sqrt(2 * freedom) + 5
    reached = torch.cat([batch.is_terminal[:, 1] for batch in drawn]).numpy()
    reward = torch.cat([batch.reward[:, 1] for batch in drawn]).numpy()
    assert (reached == (row == goal)).all()
    assert (reward == np.where(row == goal, 0, -1)).all()


def test_subgoals_lie_on_the_way_to_the_goal():
    """``low`` is K rows later, ``high`` at most the goal; neither passes the last row with an action."""
    shares = {"value": GoalShares(), "actor": GoalShares(episode=0.5, random=0.5)}
    replay, starts = filled(shares, subgoal_steps=5)
    batch = replay.sample()
    row = batch.obs["place"][:, 0, 0].numpy()
    goal, low, high = (batch.goals[f"{name}/place"][:, 0, 0].numpy() for name in ("actor", "low", "high"))
    last = (starts[np.searchsorted(starts, row, "right")] - 2).astype(np.float32)
    assert (low == np.minimum(row + 5, last)).all()
    same = (goal > row) & (goal <= last)  # most of these are of the episode
    assert (high[same] <= np.minimum(row + 5, last)[same]).all()
    assert (high[~same] == low[~same]).all()
    assert (high[same] == np.minimum(low, goal)[same]).mean() > 0.9


def test_stacked_goals_repeat_the_first_row_of_their_episode():
    window = Window(batch=4000, length=2, context=2, context_crosses=True)
    replay, starts = filled({"actor": GoalShares()}, window=window, context=2)
    frames = replay.sample().goals["actor/place"][..., 0].numpy()  # [B, 3]
    begin = starts[np.searchsorted(starts, frames[:, -1], "right") - 1]
    assert (frames == np.maximum(frames[:, -1:] - [2, 1, 0], begin[:, None])).all()


def test_a_restored_sampler_draws_the_same_goals():
    shares = {"value": GoalShares(current=0.2, episode=0.5, random=0.3, geometric=True)}
    replay, _ = filled(shares)
    replay.sample()
    other, _ = filled(shares, seed=1)
    other.load_state_dict(replay.state_dict())
    for key, goal in replay.sample().goals.items():
        assert torch.equal(goal, other.sample().goals[key])


def test_shares_add_up_to_one():
    with pytest.raises(ConfigError, match=r"add up to 1\.3; expected 1"):
        GoalShares(current=0.3)


class Numbers:
    """A generator that makes draws from uniform numbers, as that of the recording did."""

    def __init__(self, uniform):
        self.uniform = iter(uniform)

    def random(self, size):
        return next(self.uniform)

    def geometric(self, p, size):
        return np.ceil(np.log1p(-next(self.uniform)) / np.log1p(-p)).astype(int)

    def integers(self, high, size):
        return (next(self.uniform) * high).astype(int)


def numbers_of(uniform, shares):
    """The uniform numbers of the authors' draws, as our draws of the same goals."""
    numbers = []
    for (row, part, *coins), part_shares in zip(np.split(uniform, [4]), shares, strict=True):
        current = part_shares.current
        if len(coins) == 2:  # of the episode or not, then of the current row
            coin = np.where(coins[1] < current, coins[1], current + (1 - current) * coins[0])
        else:  # HIQL: whether random; the goal of the episode is drawn before the random one
            row, part, coin = part, row, 1 - coins[0]
        numbers += [coin, part, row[coin >= current + part_shares.episode]]
    return numbers


@pytest.mark.parametrize("name", ["flat", "stitch", "hiql", "hiql_stitch"])
def test_goals_are_those_of_the_authors_code_from_the_same_numbers(name):
    """Against a recording of OGBench's GCDataset and HGCDataset: also halves, last rows and HIQL's goals.

    Draws differ on purpose, not the goals. The authors toss two coins for the source of a goal, we a single one with
    the same probabilities. They draw a random row for each transition; we draw those that become goals.
    """
    with np.load(Path(__file__).parents[1] / "golden/ogbench_goals.npz") as z:
        meta, starts, uniform = json.loads(bytes(z["meta"])), z["data/starts"], z[f"data/{name}/uniform"]
        wanted = {k.rpartition("/")[2]: z[k] for k in z.files if k.startswith(f"out/{name}/")}
        assert z["data/steps"].tolist() == [*STEPS]
    mixes = (dict(zip(("current", "episode", "random", "geometric"), mix, strict=True)) for mix in meta["shares"][name])
    shares = {kind: GoalShares(**mix) for kind, mix in zip(("value", "actor"), mixes, strict=True)}
    replay, _ = filled(shares, subgoal_steps=meta["subgoal_steps"])
    replay.goals.config = replace(replay.goals.config, discount=meta["discount"])
    replay.goals.rng = Numbers(numbers_of(uniform, shares.values()))
    rows = {"reward": torch.zeros(len(starts), 2), "is_terminal": torch.zeros(len(starts), 2, dtype=torch.bool)}
    replay.goals.annotate(rows, torch.from_numpy(starts))
    ours = {"rewards": rows["reward"][:, 1], "masks": 1.0 - rows["is_terminal"][:, 1].float()}
    names = {"value_goals": "value", "actor_goals": "actor", "high_actor_goals": "actor", "low_actor_goals": "low",
             "high_actor_targets": "high"}  # fmt: skip
    ours |= {theirs: rows[f"goals/{goal}/place"][:, 0, 0] for theirs, goal in names.items()}
    for key, values in wanted.items():
        assert np.array_equal(ours[key], values), key
