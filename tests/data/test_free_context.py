"""Windows whose context may be of any episode or none: the same things are learned from as without it."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from lived import ACTION, EXTRA, OBS, Lived

from reverie.core.errors import ConfigError, RunError
from reverie.core.types import Update, Window
from reverie.replay.config import ReplayConfig

FREE = 3
PLAIN = Window(batch=200, length=2)
FRAMES = Window(batch=200, length=2, context=FREE, context_crosses=True)
LONG = Window(batch=200, length=4, crosses_episodes=True)
LONG_FRAMES = Window(batch=200, length=4, context=FREE, crosses_episodes=True, context_crosses=True)


def lived(window: Window, rows: int = 70, **config) -> Lived:
    """Two streams of episodes of several lengths, of which 40 rows are learned from, the oldest evicted."""
    settings = ReplayConfig(online=False).merge(config)
    life = Lived(2, 40 + window.free, window, seed=5, config=settings)
    for t in range(rows):
        life.add([t % 7 == 0, t % 11 == 3])
    return life


def learned(life: Lived, handles: np.ndarray) -> list[int]:
    """The handles of the first rows that are learned from."""
    return (handles + life.window.free * life.streams).tolist()


WAYS = ({"uniform": 1}, {"recency": 1}, {"ends": 1}, {"priority": 1}, {"uniform": 1, "priority": 1, "ends": 1})
MOMENTS = pytest.mark.parametrize("rows", [5, 70])  # before and after the oldest are evicted
PAIRS = pytest.mark.parametrize("pair", [(PLAIN, FRAMES), (LONG, LONG_FRAMES)], ids=["one", "several"])


@PAIRS
@MOMENTS
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_each_way_of_drawing_is_as_likely_to_take_what_it_takes_without_context(
    way: dict, rows: int, pair: tuple[Window, Window]
) -> None:
    lives = [lived(window, rows, fractions={"uniform": 0, **way}) for window in pair]
    for turn in range(4):
        handles = [life.replay.batch_sampler.windows.at(np.arange(len(life.replay))) for life in lives]
        assert learned(lives[0], handles[0]) == learned(lives[1], handles[1])
        likely = [
            life.replay.batch_sampler.sampler.probability(found) for life, found in zip(lives, handles, strict=True)
        ]
        assert likely[0] == pytest.approx(likely[1])
        for life, found in zip(lives, handles, strict=True):
            priority = torch.linspace(0, 3, len(found))
            life.replay.feedback(torch.from_numpy(found), Update(metrics={}, priority=priority))
            life.add([turn == 1, False])


def test_draws_are_uniform_over_what_is_learned_from() -> None:
    life = lived(FRAMES)
    rows = {(i, t) for i in range(2) for t in range(30, 69) if not life.rows[i][t + 1]["first"]}
    counts = Counter(
        (int(h) % 2, int(h) // 2) for _ in range(60) for h in learned(life, life.replay.batch_sampler.draw()[0])
    )
    assert set(counts) == rows
    expected = 60 * 200 / len(rows)
    chi2 = sum((counts[row] - expected) ** 2 / expected for row in rows)
    assert abs(chi2 - len(rows)) < 5 * math.sqrt(2 * len(rows))


def test_a_window_needs_no_more_rows_than_are_learned_from() -> None:
    with pytest.raises(RunError, match="1 row of each stream; a window needs 2"):
        lived(FRAMES, rows=1).replay.sample()
    make = {"obs_spec": OBS, "action_spec": ACTION, "extra_spec": EXTRA, "num_envs": 2, "seed": 0}
    assert ReplayConfig(capacity=4).build(window=FRAMES, **make).storage.capacity == 2 + FREE
    with pytest.raises(ConfigError, match=r"a window has 5 \(3 context \+ 2\). Expected at least 4 rows"):
        ReplayConfig(capacity=3).build(window=FRAMES, **make)
