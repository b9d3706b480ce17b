"""Recorded episodes as the learner sees them: read from a dataset, or made from your own arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.vector.utils import concatenate, create_empty_array

from reverie.agent.player import Player
from reverie.core.errors import DataError
from reverie.core.rows import episode_rows
from reverie.core.specs import spec_to_dict
from reverie.core.types import Batch
from reverie.datasets.dataset import RecordedEpisodes, dataset_config, open_recorded
from reverie.datasets.in_memory import DataLike
from reverie.envs.flat_env import CLIPS
from reverie.experiment.offline import check_dataset_fits
from reverie.run.folder import check_locations


@contextlib.contextmanager
def open_dataset(player: Player, data: DataLike | None = None) -> Iterator[RecordedEpisodes]:
    """Open a dataset: see ``Agent.open_dataset``."""
    source = dataset_config(player.run if data is None else data)
    if data is None and player.config.offline:
        source = player.config.data
        check_locations({"data": source.to_dict()}, player.run / "config.yaml")
    env, learner_space = player.config.env, player.observer.learner_space
    with contextlib.closing(open_recorded(source, env, player.action_space, learner_space)) as dataset:
        check_dataset_fits(dataset, spec_to_dict(player.obs_spec, player.action_spec), env.id)
        yield dataset


def load_episode(player: Player, number: int, data: DataLike | None = None) -> Batch:
    """Return a recorded episode: see ``Agent.load_episode``."""
    with open_dataset(player, data) as dataset:
        return dataset.episode(number)


def make_episode(
    player: Player, observations: Sequence[Any], actions: Sequence[Any], rewards: Any = None, *,
    terminal: bool = False, action_masks: Sequence[Any] | None = None,
) -> Batch:  # fmt: skip
    """Return an episode from your own arrays: see ``Agent.make_episode``."""
    count, steps = len(observations), len(actions)
    masks = [None] * count if action_masks is None else action_masks
    if count != steps + 1 or len(masks) != count or not steps:
        raise DataError(
            f"{count} observations, {steps} actions, {len(masks)} masks: expected n >= 1 actions, and n + 1 "
            "observations and masks; the last ones follow the last action."
        )
    (stack,), obs_list = player.observer.stacks(1), list[dict[str, np.ndarray]]()
    for number, (obs, mask) in enumerate(zip(observations, masks, strict=True)):
        row = player.observer(player.observer.count_obs(obs)[1], stack, number == 0, mask, number == steps)
        obs_list.append({key: x.copy() for key, x in row.items()})  # a stack reuses its memory
    out: Any = create_empty_array(player.action_space, steps)
    action_rows = player.flatten_actions(concatenate(player.action_space, list(actions), out), steps)
    reward = np.zeros(steps, np.float32) if rewards is None else np.asarray(rewards, np.float32)
    if player.config.env.clip_reward in CLIPS:
        reward = np.array([CLIPS[player.config.env.clip_reward](x) for x in reward.tolist()], np.float32)
    obs_arrays = {key: np.stack([flat_obs[key] for flat_obs in obs_list]) for key in obs_list[0]}
    columns = episode_rows(obs_arrays, action_rows, reward, terminal=terminal)
    tensors = {name: torch.from_numpy(values)[None] for name, values in columns.items()}
    return Batch.from_columns(tensors, torch.zeros(1, dtype=torch.int64))
