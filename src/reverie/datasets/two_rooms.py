"""Generates recordings of ``reverie/TwoRooms-v0``: pictures and actions of a noisy expert."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from reverie.core.bounds import AtLeast
from reverie.datasets.output import staged_file
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
    count, rng = 800 if episodes is None else episodes, np.random.default_rng(seed)
    files = {folder / f"{NAME}.npz": count, folder / f"{NAME}-val.npz": max(1, count // 10)}
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        staged = [stack.enter_context(staged_file(path)) for path in files]
        for part, (path, total) in zip(staged, files.items(), strict=True):
            pictures, actions = [], []
            for number in range(total):
                episode = _play(rng)
                pictures.append(episode[0])
                actions.append(episode[1])
                progress(path.name, number + 1, total)
            ends = np.arange(STATES * total) % STATES == STATES - 1
            with part.open("wb") as file:
                np.savez_compressed(
                    file, observations=np.concatenate(pictures), actions=np.concatenate(actions), terminals=ends
                )
    return list(files)


def _play(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the pictures ``[101, 32, 32, 3]`` and the actions ``[101, 2]`` of an episode; the last is not taken."""
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
    return np.array(pictures), np.array(actions)


def _next_point(place: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return where to walk to from ``place``: to the target, or if it is in the other room, to and through the door."""
    side = np.sign(place[0] - WALL) or 1.0
    middle = (DOOR[0] + DOOR[1]) / 2
    if side * (target[0] - WALL) >= 0:
        return target
    if abs(place[0] - WALL) < 4 and abs(place[1] - middle) < 2:
        return np.array([WALL - 4 * side, middle])
    return np.array([WALL + 3 * side, middle])
