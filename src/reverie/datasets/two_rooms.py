"""Generates recordings of ``reverie/TwoRooms-v0``: pictures and actions of a noisy expert."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from reverie.core.bounds import AtLeast
from reverie.core.rows import Rows
from reverie.datasets.output import write_generated
from reverie.envs.two_rooms import DOOR, WALL, TwoRooms

NAME = "two_rooms"
STATES = 101
"""Pictures of an episode, as there are in the 100 steps of the environment."""
NOISE = 1.0
"""Standard deviation of the noise on actions."""


def make_two_rooms(
    folder: Path, episodes: int | None = None, seed: int = 0,
    progress: Callable[[str, int, int], None] = lambda file, count, total: None,
) -> list[Path]:  # fmt: skip
    """Write ``episodes`` (None: 800) to two_rooms.npz in ``folder``, and a tenth of them to two_rooms-val.npz.

    The expert walks to random places. The arrays are those of OGBench: ``observations``, ``actions``, and
    ``terminals``, which is true at an episode's last picture.
    """
    AtLeast(1).check("episodes", episodes)
    AtLeast(0).check("seed", seed)
    rng = np.random.default_rng(seed)
    return write_generated(folder, NAME, 800 if episodes is None else episodes, lambda: _play(rng), progress)


def _play(rng: np.random.Generator) -> Rows:
    """Return the rows of an episode; the last action is not taken."""
    env = TwoRooms()
    obs, _ = env.reset(seed=int(rng.integers(2**31)))
    pictures, actions = [], []
    for _ in range(STATES):
        if np.linalg.norm(env.position - env.target) < 1:
            env.target = env.draw_position()
        direction = _next_point(env.position, env.target) - env.position
        direction /= max(1e-6, np.abs(direction).max())
        actions.append(np.clip(direction + rng.normal(0, NOISE, 2), -1, 1).astype(np.float32))
        pictures.append(obs["image"])
        obs = env.step(actions[-1])[0]
    ends = np.arange(STATES) == STATES - 1
    return {"observations": np.array(pictures), "actions": np.array(actions), "terminals": ends}


def _next_point(place: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return where to walk to from ``place``: to the target, or if it is in the other room, to and through the door."""
    side = np.sign(place[0] - WALL) or 1.0
    middle = (DOOR[0] + DOOR[1]) / 2
    if side * (target[0] - WALL) >= 0:
        return target
    if abs(place[0] - WALL) < 4 and abs(place[1] - middle) < 2:
        return np.array([WALL - 4 * side, middle])
    return np.array([WALL + 3 * side, middle])
