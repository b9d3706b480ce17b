"""The windows that a seed draws stay what they are: runs that were made with it can be made again."""

import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from reference_replay import Lived
from reverie.core.types import Update, Window
from reverie.replay.config import ReplayConfig

CASES = {
    "uniform": {},
    "prioritized": {"fractions.uniform": 0, "fractions.priority": 1},
    "recent": {"fractions.uniform": 0, "fractions.recency": 1},
    "ends": {"fractions.uniform": 0, "fractions.episode_ends": 1},
    "mixed": {"fractions.priority": 1, "fractions.recency": 1, "fractions.episode_ends": 1},
    "online": {"online_queue": True},  # of a learner of rows
    "sequence": {"sequential": True},
    "reset": {"sequential": True, "reset_interval": 8},
}
KNOWN = {
    "uniform": [22547863, 1586952421, 3440279522, 1906095477],
    "prioritized": [344017041, 779708395, 1684591768, 3623271905],
    "recent": [527956176, 1341718385, 1887860796, 35696730],
    "ends": [3378447916, 3377313694, 1340747574, 726634032],
    "mixed": [3520652327, 469400536, 2878756355, 3187379993],
    "online": [3729393217, 2989216894],
    "sequence": [434668176, 2376827461],
    "reset": [2924756341],
}
"""Checksums of all handles drawn: where windows cross the ends of episodes, where not; the same with free rows."""


def drawn(case, crosses, free):
    """Handles of 60 batches ``[60, 16]`` while two streams are lived, evicted and given priorities."""
    config, carries = ReplayConfig(online_queue=False).merge(CASES[case]), case == "reset"
    window = Window(batch=16, length=3, context=1 - carries, crosses_episodes=crosses or carries, carries=carries,
                    learns_rows=case == "online")  # fmt: skip
    life = Lived(2, 50, replace(window, context_crosses=free), seed=7, config=config)
    for t in range(20):
        life.add([t % 9 == 0, t % 13 == 3])
    chance, handles = np.random.default_rng(3), []
    for t in range(20, 80):
        life.add([t % 9 == 0, t % 13 == 3])
        batch = life.replay.sample()
        life.replay.feedback(batch.index, Update(metrics={}, priority=torch.from_numpy(chance.random(16))))
        handles.append(batch.index.numpy() + 1000 * carries * batch.is_first[:, 0].numpy())
    return np.array(handles)


@pytest.mark.parametrize("case", CASES)
def test_a_seed_draws_the_windows_that_it_always_drew(case):
    ways = [(True, False), (False, False), (True, True), (False, True)][: len(KNOWN[case])]
    assert [zlib.crc32(drawn(case, *way).astype("<i8").tobytes()) for way in ways] == KNOWN[case]
