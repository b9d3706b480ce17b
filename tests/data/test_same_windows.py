"""The windows that a seed draws stay what they are: runs that were made with it can be made again."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
import torch
from lived import Lived

from reverie.core.types import Update, Window
from reverie.replay.config import ReplayConfig

CASES = {
    "uniform": {},
    "prioritised": {"fractions.uniform": 0, "fractions.priority": 1},
    "recent": {"fractions.uniform": 0, "fractions.recency": 1},
    "ends": {"fractions.uniform": 0, "fractions.ends": 1},
    "mixed": {"fractions.priority": 1, "fractions.recency": 1, "fractions.ends": 1},
    "online": {"online": True},
    "sequence": {"sequence": True},
}
KNOWN = {
    ("uniform", True): 22547863,
    ("uniform", False): 1586952421,
    ("prioritised", True): 344017041,
    ("prioritised", False): 779708395,
    ("recent", True): 527956176,
    ("recent", False): 1341718385,
    ("ends", True): 3378447916,
    ("ends", False): 3377313694,
    ("mixed", True): 3520652327,
    ("mixed", False): 469400536,
    ("online", True): 4124434602,
    ("online", False): 4261407219,
    ("sequence", True): 434668176,
    ("sequence", False): 2376827461,
}
"""By what is drawn from, and whether windows cross the ends of episodes: the checksum of all handles drawn."""


def drawn(case: str, crosses: bool) -> np.ndarray:
    """Handles of 60 batches ``[60, 16]`` while two streams are lived, evicted and given priorities."""
    config = ReplayConfig(online=False).merge(CASES[case])
    life = Lived(2, 50, Window(batch=16, length=3, context=1, crosses_episodes=crosses), seed=7, config=config)
    for t in range(20):
        life.add([t % 9 == 0, t % 13 == 3])
    chance, handles = np.random.default_rng(3), []
    for t in range(20, 80):
        life.add([t % 9 == 0, t % 13 == 3])
        batch = life.replay.sample()
        life.replay.feedback(batch.index, Update(metrics={}, priority=torch.from_numpy(chance.random(16))))
        handles.append(batch.index.numpy())
    return np.array(handles)


@pytest.mark.parametrize("crosses", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_a_seed_draws_the_windows_that_it_always_drew(case: str, crosses: bool) -> None:
    assert zlib.crc32(drawn(case, crosses).astype("<i8").tobytes()) == KNOWN[case, crosses]
