"""Data for learners of recorded rows: what somebody does in an environment, in D4RL's form."""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np

COLUMNS = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")


def played(env, act, path, episodes, *, rewarded=True):
    """So many episodes of what ``act`` does; without ``rewarded`` every row has the reward 0, which says nothing."""
    rows: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for seed in range(episodes):
        obs, terminated, truncated = env.reset(seed=seed)[0], False, False
        while not (terminated or truncated):
            action = act(obs)
            after, reward, terminated, truncated, _ = env.step(action)
            values = (obs, action, reward if rewarded else 0.0, terminated, truncated, after)
            for name, value in zip(COLUMNS, values, strict=True):
                rows[name].append(value)
            obs = after
    with h5py.File(path, "w") as file:
        for name, values in rows.items():
            file[name] = np.array(values)
    return path
