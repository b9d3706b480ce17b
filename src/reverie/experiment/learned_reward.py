"""A reward that a person teaches, in a run: fitted to labels of rows, and computed when batches are sampled."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from reverie.algos.base import Algorithm
from reverie.algos.settings import init_context
from reverie.core.errors import ConfigError, DataError
from reverie.core.logger import logger
from reverie.core.protocols import BatchSource, Env
from reverie.core.specs import spec_to_dict
from reverie.core.types import Batch, State, Update
from reverie.datasets.config import DatasetConfig
from reverie.datasets.dataset import RecordedEpisodes, open_recorded
from reverie.datasets.dataset_env import check_same_meaning
from reverie.datasets.labels import SKIP, IndexedRows, LabelFile
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.environments import ProbedEnv, plays
from reverie.experiment.goals import ignore_row_rewards
from reverie.experiment.offline import check_dataset_fits
from reverie.nn.reward_model import REWARD_MODELS, RewardModel


class LearnedReward:
    """A fitted model, and the labels that it was fitted to: a part of checkpoints."""

    def __init__(self, model: RewardModel, labels: str) -> None:
        self.model: RewardModel = model
        self.labels: str = labels

    def state_dict(self) -> State:
        """Return the labels, and the weights."""
        return {"labels": self.labels, "model": self.model.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Restore the weights, if they were fitted to the same labels. With others, this model is newer."""
        if state["labels"] == self.labels:
            self.model.load_state_dict(state["model"])
        else:
            logger.info("reward: the labels have changed since the checkpoint, so the reward is fitted to the new ones")


class RelabeledSource:
    """A ``BatchSource`` whose batches have learned rewards."""

    def __init__(self, source: BatchSource, model: RewardModel) -> None:
        self.source: BatchSource = source
        self.model: RewardModel = model

    def __len__(self) -> int:
        return len(self.source)

    def sample(self) -> Batch:
        """Return a batch of the source with learned rewards."""
        return self.model.relabel(self.source.sample())

    def feedback(self, index: Tensor, update: Update) -> None:
        """Pass the feedback on to the source."""
        self.source.feedback(index, update)


def build_learned_reward(
    config: ExperimentConfig, algo: Algorithm, owner: Env | RecordedEpisodes, probed: ProbedEnv, seed: int
) -> LearnedReward:
    """Return the reward that ``config.reward`` names, fitted on the learner's device.

    ``owner`` has the observations and actions of the run. ``probed`` has the spaces of its environment, for data that
    declare none. ConfigError, DataError: the learner cannot learn from it, or the labels do not fit the data.
    """
    kind, _, path = config.reward.partition(":")
    if algo.window.learns_rows or algo.annotator is not None:
        raise ConfigError(
            f"reward = {config.reward}: {config.name} needs rewards of whole rows or episodes. Use a learner of "
            "transitions, such as sac, td3, dqn, cql or iql, or write the rewards: reverie data convert --reward-fn."
        )
    file = LabelFile.read(Path(path), kind)
    is_there = file.data != config.data.path and (not os.path.isabs(file.data) or os.path.exists(file.data))
    data = DatasetConfig(path=file.data) if is_there or not config.data.path else config.data  # perhaps moved
    with contextlib.closing(open_recorded(data, config.env, probed.action, probed.observation)) as recorded:
        if plays(config):
            check_same_meaning(recorded.about, config.env)
        check_dataset_fits(recorded, spec_to_dict(owner.obs_spec, owner.action_spec), config.env.id, config.algo)
        rows = IndexedRows(recorded)
        file.check(rows)
        with init_context(seed):
            model = REWARD_MODELS[kind](owner.obs_spec, owner.action_spec).to(algo.device)
            fit_labels(model, file, rows)
    ignore_row_rewards(algo, f"reward = {config.reward}")
    logger.info(f"reward: {model.report}")
    return LearnedReward(model, file.checksum)


def fit_labels(model: RewardModel, file: LabelFile, rows: IndexedRows) -> None:
    """Fit ``model`` to the labels of ``rows`` that say something; DataError names the file.

    Of several answers about the same clips, the newest counts: a held-out answer is about others than the fitted ones.
    """
    answers = (*model.values, SKIP)
    if unknown := {label.answer for label in file.labels} - {*answers}:
        raise DataError(f"{file.path}: answer {min(unknown)!r}: expected {', '.join(answers)}. Correct the file.")
    labels = [*{label.clips: label for label in file.labels if label.answer != SKIP}.values()]
    clips = [clip for side in zip(*(label.clips for label in labels), strict=True) for clip in side]
    device = next(model.parameters()).device
    values = torch.tensor([model.values[label.answer] for label in labels], device=device)
    try:
        model.fit(read_clips(rows, clips, file.steps).to(device), values)
    except DataError as error:
        raise DataError(f"{file.path}: {error}") from None


def read_clips(rows: IndexedRows, clips: list[tuple[int, int]], steps: int) -> Batch:
    """Return ``clips`` as a batch ``[n, steps + 1]``, by their numbers."""
    columns = rows.read(rows.find(clips, steps))
    tensors = {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in columns.items()}
    return Batch.from_columns(tensors, torch.arange(len(clips)))
