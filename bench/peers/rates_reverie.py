"""reverie: replay, update and feedback as its loop calls them, and `reverie.train` with its defaults for the loop."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from rates import (
    ACTIONS,
    BATCH,
    CHOICES,
    CHUNK,
    CRITICS,
    DISCRETE,
    ENVS,
    EPOCHS,
    GOALS,
    IMAGE_TASKS,
    OBS,
    ROLLOUT,
    START,
    UNITS,
    Experience,
    ImageTask,
    Update,
    experience,
    image_experience,
    main,
    repeated,
)

import reverie
from reverie.algos.settings import AlgorithmConfig
from reverie.algos.table import algorithm_config
from reverie.core.hardware import keep_freed_memory
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import FLAGS
from reverie.experiment.model_free_presets import TABLE
from reverie.replay.build import build_replay
from reverie.replay.config import ReplayConfig
from reverie.replay.goals import GoalSampler

PRESETS = {"rainbow_image": "rainbow", "sac_ae": "sac_ae"}
"""Tasks with all settings of a preset. Rainbow's windows have four rows: three transitions each."""
SEEN = {"observation": ObsPart(kind="vector", shape=(OBS,), dtype="float32")}


def acts(discrete: bool) -> ActionSpec:
    """What is acted with."""
    choice = ActionPart(kind="categorical", classes=(CHOICES,))
    return ActionSpec(parts={"action": choice if discrete else ActionPart(kind="continuous", size=ACTIONS)})


def config(task: str) -> AlgorithmConfig:
    """The defaults with the sizes that everybody has; those of `CRITICS` and `PRESETS` are of the preset."""
    if task in (*CRITICS, *PRESETS):
        preset = TABLE[PRESETS.get(task, task)]
        settings = {key[5:]: value for key, value in preset.settings.items() if key.startswith("algo.")}
        for key in ("frame_stack", "frame_stack_keys"):  # images come stacked
            settings.pop(key, None)
        made = algorithm_config(preset.algorithm)().merge(settings)
        assert isinstance(made, AlgorithmConfig)
        return made.merge({"batch_size": BATCH} if task in CRITICS else {})
    name = "fql" if task == "qc_fql" else task
    made = algorithm_config(IMAGE_TASKS[task].algorithm if task in IMAGE_TASKS else name)()
    assert isinstance(made, AlgorithmConfig)
    if task in IMAGE_TASKS:
        image = IMAGE_TASKS[task]
        units = (512,) if image.channels == 4 else tuple(UNITS)
        if image.algorithm == "ppo":
            shared = {"networks.share_encoder": True, "networks.activation": "relu", "entropy_coef": 0.01}
            made = made.merge({"rollout": ROLLOUT, "epochs": EPOCHS, **shared})
        if image.algorithm == "iqn":  # as Tianshou's
            made = made.merge({"double": True, "num_policy_quantiles": 8})
        return made.merge({"batch_size": image.batch, "networks.units": units, "networks.encoder": image.encoder})
    if task == "decision_transformer":
        return made
    if task == "qc_fql":
        made = made.merge({"chunk_size": CHUNK, "batch_length": CHUNK + 1})
    widths = {f"{part}.units": tuple(UNITS) for part in ("networks", "vae") if hasattr(made, part)}
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


def rollouts(task: ImageTask) -> Update:
    """Updates of PPO: the minibatches of a rollout, with its advantages."""
    shape, acting = (task.side, task.side, task.channels), acts(True)
    seen = {"observation": ObsPart(kind="image", shape=shape, dtype="uint8")}
    learner = config("ppo_image").build(seen, acting)
    replay: Any = build_replay(
        ReplayConfig(), obs_spec=seen, action_spec=acting, extra_spec={}, num_envs=ENVS, window=learner.window, seed=0
    )
    steps = ENVS * ROLLOUT
    rows = {
        name: column[0, :steps].reshape(ENVS, ROLLOUT, *column.shape[2:])
        for name, column in rows_of(image_experience(task)).items()
    }
    first = {name: torch.from_numpy(column[:, 0]) for name, column in rows.items()}
    latest = {"obs": {"observation": first["obs/observation"]}} | {k: first[k] for k in ("reward", *FLAGS)}
    replay.prepare_fn, replay.next_row_fn = learner.prepare_rollout, lambda: SimpleNamespace(**latest)
    keep_freed_memory()

    def update() -> int:
        replay.extend(rows)
        count = len(replay)
        for _ in range(count):
            batch = replay.sample()
            replay.feedback(batch.index, learner.update(batch))
        return count

    return update


def build(task: str, variant: str) -> Update:
    """With its replay filled."""
    if task == "ppo_image":
        return rollouts(IMAGE_TASKS[task])
    if task in IMAGE_TASKS:
        image, rows = IMAGE_TASKS[task], image_experience(IMAGE_TASKS[task])
        shape = (image.side, image.side, image.channels)
        seen, discrete = {"observation": ObsPart(kind="image", shape=shape, dtype="uint8")}, image.channels == 4
    else:
        seen, discrete, rows = SEEN, task in DISCRETE, experience(task)
    learner: Any = config(task).build(seen, acts(discrete))
    replay = build_replay(
        ReplayConfig(capacity=len(rows.obs)),
        obs_spec=seen,
        action_spec=acts(discrete),
        extra_spec=learner.extra_spec,
        num_envs=1,
        window=learner.window,
        seed=0,
    )
    replay.annotator = learner.annotator
    replay.extend(rows_of(rows))
    if task in GOALS:
        windows = replay.batch_sampler.windows
        replay.goals = GoalSampler(replay.storage, replay.window, windows, learner.goal_sampling, seed=0)
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
