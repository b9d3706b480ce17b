"""reverie: replay, update and feedback as its loop calls them, and `reverie.train` with its defaults for the loop."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rates import (
    ACTIONS,
    BATCH,
    CHOICES,
    DISCRETE,
    OBS,
    ROWS,
    START,
    UNITS,
    Experience,
    Update,
    experience,
    main,
    repeated,
)

import reverie
from reverie.algos.settings import AlgorithmConfig
from reverie.core.discover import algorithm_config
from reverie.core.hardware import keep_freed_memory
from reverie.core.protocols import Learner
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.replay.buffer import ReplayBuffer
from reverie.replay.config import ReplayConfig

SEEN = {"observation": ObsPart(kind="vector", shape=(OBS,), dtype="float32")}


def acts(task: str) -> ActionSpec:
    """What is acted with."""
    choice = ActionPart(kind="categorical", classes=(CHOICES,))
    return ActionSpec(parts={"action": choice if task in DISCRETE else ActionPart(kind="continuous", size=ACTIONS)})


def config(task: str) -> AlgorithmConfig:
    """The defaults with the sizes that everybody has."""
    made = algorithm_config(task)()
    assert isinstance(made, AlgorithmConfig)
    widths = {f"{name}.units": tuple(UNITS) for name in ("networks", "vae") if hasattr(made, name)}
    return made.merge({"batch_size": BATCH, **widths})


def rows_of(rows: Experience) -> dict[str, np.ndarray]:
    """As many of them as fit, with the row that each episode ends with."""
    ends = rows.terminated | rows.truncated
    first = np.concatenate([[True], ends[:-1]])
    action = np.eye(CHOICES, dtype=np.float32)[rows.action] if rows.action.ndim == 1 else rows.action
    earned = np.concatenate([np.zeros(1, np.float32), rows.reward[:-1]])
    none, last = np.zeros(len(ends), bool), np.ones(ends.sum(), bool)
    columns = {
        "obs/observation": (rows.obs, rows.next_obs[ends]),
        "action": (action, np.zeros_like(action[ends])),
        "reward": (np.where(first, np.float32(0), earned), rows.reward[ends]),
        "is_first": (first, ~last),
        "is_last": (none, last),
        "is_terminal": (none, rows.terminated[ends]),
    }
    after = np.flatnonzero(ends) + 1
    every = {name: np.insert(here, after, added, axis=0) for name, (here, added) in columns.items()}
    return {name: column[None, : len(ends)] for name, column in every.items()}


def filled(task: str, learner: Learner[Any]) -> ReplayBuffer:
    """Its replay with all of them."""
    replay = ReplayConfig(capacity=ROWS).build(
        obs_spec=SEEN, action_spec=acts(task), extra_spec={}, num_envs=1, window=learner.window, seed=0
    )
    replay.extend(rows_of(experience(task)))
    return replay


def build(task: str, variant: str) -> Update:
    """With its replay filled."""
    learner = config(task).build(SEEN, acts(task))
    replay = filled(task, learner)
    keep_freed_memory()

    def update() -> None:
        batch = replay.sample()
        replay.feedback(batch.index, learner.update(batch))

    return repeated(update)


def loop(env: Any, steps: int) -> None:
    """A run with everything that it writes by default: rows, logs, TensorBoard's too, checkpoints; no evaluation."""
    with tempfile.TemporaryDirectory() as folder:
        reverie.train(
            "td3", env=lambda: env, run=Path(folder) / "run", steps=steps, learning_starts=START, random_steps=START,
            eval_episodes=0, threads=0,
        )  # fmt: skip


if __name__ == "__main__":
    main(build, loop, ("reverie-rl",))
