"""A reward that a person teaches, in a run: fitted to labels of rows, and computed when batches are sampled."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from reverie.algos.base import Algorithm
from reverie.algos.settings import init_context
from reverie.core.errors import ConfigError, DataError, ReverieError
from reverie.core.logger import logger
from reverie.core.protocols import BatchSource, Env
from reverie.core.rows import Rows
from reverie.core.specs import ColumnSpec, spec_to_dict
from reverie.core.types import Batch, State, Update
from reverie.datasets.config import DatasetConfig
from reverie.datasets.dataset import RecordedEpisodes, open_recorded
from reverie.datasets.dataset_env import check_same_meaning
from reverie.datasets.labels import SKIP, WRONG, IndexedRows, Label, LabelFile
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.environments import ProbedEnv, plays
from reverie.experiment.goals import ignore_row_rewards
from reverie.experiment.offline import check_dataset_fits
from reverie.nn.reward_model import REWARD_MODELS, ImpreciseError, RewardModel, TooFewError
from reverie.replay.config import PERSON_PAGE

FIRST_FIT = 20
"""Labels at which a fit is tried first while a person labels rows."""


class LearnedReward:
    """A reward model, and the labels that it was fitted to: a part of checkpoints."""

    def __init__(self, path: Path, kind: str, model: RewardModel, fit: Callable[[LabelFile], RewardModel]) -> None:
        """``model``: before the first fit. ``fit``: returns a model of the labels, or raises DataError."""
        self.path = path
        self.kind = kind
        self.model: RewardModel = model
        self.fit = fit
        self.labels: str = ""
        """Checksum of the labels at the newest fit; "": there was none."""
        self.number: int = 0
        """Number of these labels."""
        self.is_fitted: bool = False
        """Whether a fit succeeded; otherwise all rewards are 0."""
        self.is_asking: bool = False
        """Whether a person labels rows while the run learns."""
        self.has_unknown_zero: bool = kind == "preferences" and model.zero == "mean"
        """Whether a terminal row would be worth as much as the mean reward by default."""
        self._stamp = (0, 0)  # of the file

    def refresh(self) -> None:
        """Fit to the file, if a person is asked and it has enough new labels since the newest fit."""
        if not self.is_asking or not self.path.exists():
            return
        if (stamp := (self.path.stat().st_mtime_ns, self.path.stat().st_size)) == self._stamp:
            return
        self._stamp = stamp
        try:
            file = LabelFile.read(self.path, self.kind)
            if is_fit_due(self.number, len(file.labels)):
                self.fit_to(file)
        except ReverieError as error:  # the run goes on with the reward that it has
            logger.info(f"reward: {error}")

    def fit_to(self, file: LabelFile) -> None:
        """Fit to all labels of ``file``."""
        try:
            self.model, self.is_fitted = self.fit(file), True
        except ImpreciseError:
            self.labels, self.number = file.checksum, len(file.labels)
            raise
        self.labels, self.number = file.checksum, len(file.labels)
        wrong = sum(label.answer == WRONG for label in file.labels)
        logger.info(f"reward: {self.model.report}" + f"; {wrong} of {len(file.labels)} look wrong" * (wrong > 0))

    def relabel(self, batch: Batch) -> Batch:
        """Return ``batch`` with the learned rewards."""
        if not self.is_fitted:
            return replace(batch, reward=torch.zeros_like(batch.reward))
        if self.has_unknown_zero and batch.is_terminal.any():
            self.has_unknown_zero = False  # said once
            logger.warning(
                "reward: episodes terminate, and comparisons of equally long clips do not tell whether that is better "
                "than to go on: rewards below their mean are negative, so an agent may end its episodes. If going on "
                "is good, set reward_zero = lowest; if each step costs, reward_zero = highest"
            )
        return self.model.relabel(batch)

    def state_dict(self) -> State:
        """Return the labels, and the weights."""
        names = ("labels", "number", "is_fitted")
        return {name: getattr(self, name) for name in names} | {"model": self.model.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Restore the weights, unless this model is fitted to other labels, which is newer.

        While a person is asked, they stay until the next fit is due.
        """
        number, labels = int(state["number"]), self.labels
        if self.is_asking and self.is_fitted and not is_fit_due(number, self.number):
            file = LabelFile.read(self.path, self.kind)
            labels = replace(file, labels=file.labels[:number]).checksum
        if state["labels"] == labels or not self.is_fitted:
            self.model.load_state_dict(state["model"])
            self.labels, self.number, self.is_fitted = state["labels"], number, bool(state["is_fitted"])
        else:
            logger.info("reward: the labels have changed since the checkpoint, so the reward is fitted to the new ones")


class RelabeledSource:
    """A ``BatchSource`` whose batches have learned rewards."""

    def __init__(self, source: BatchSource, reward: LearnedReward) -> None:
        self.source: BatchSource = source
        self.reward: LearnedReward = reward

    def __len__(self) -> int:
        return len(self.source)

    def sample(self) -> Batch:
        """Return a batch of the source with learned rewards."""
        self.reward.refresh()
        return self.reward.relabel(self.source.sample())

    def feedback(self, index: Tensor, update: Update) -> None:
        """Pass the feedback on to the source."""
        self.source.feedback(index, update)


def build_learned_reward(
    config: ExperimentConfig, algo: Algorithm, owner: Env | RecordedEpisodes, probed: ProbedEnv, seed: int, *,
    is_new: bool,
) -> LearnedReward:  # fmt: skip
    """Return the reward that ``config.reward`` names, fitted on the learner's device.

    ``owner`` has the observations and actions of the run. ``probed`` has the spaces of its environment, for data that
    declare none. If a page asks a person, there may be no labels yet; if a run is not new, its checkpoint has the
    networks. ConfigError, DataError: the learner cannot learn from it, or the labels do not fit the data.
    """
    kind, _, path = config.reward.partition(":")
    if algo.window.learns_rows or algo.annotator is not None:
        raise ConfigError(
            f"reward = {config.reward}: {config.name} needs rewards of whole rows or episodes. Use a learner of "
            "transitions, such as sac, td3, dqn, cql or iql, or write the rewards: reverie data convert --reward-fn."
        )

    def make_model() -> RewardModel:
        model = REWARD_MODELS[kind](owner.obs_spec, owner.action_spec).to(algo.device)
        model.zero = config.reward_zero
        return model

    def fit(file: LabelFile) -> RewardModel:
        with contextlib.ExitStack() as stack, init_context(seed), torch.enable_grad():
            rows = stack.enter_context(_open_rows(config, file, owner, probed)) if file.data else None
            fit_labels(model := make_model(), file, rows)
        return model

    with init_context(seed):
        model = make_model()
    reward = LearnedReward(Path(path), kind, model, fit)
    reward.is_asking = config.human.person == PERSON_PAGE
    if reward.is_asking:
        if reward.path.exists():  # an error only now: later, the run goes on
            with contextlib.suppress(TooFewError, ImpreciseError):
                reward.fit_to(LabelFile.read(reward.path, kind))
        if not reward.is_fitted:
            logger.info(f"reward: 0, until {path} has enough answers")
    elif is_new or reward.path.exists():
        reward.fit_to(LabelFile.read(reward.path, kind))
    else:
        logger.warning(f"reward: {path} does not exist. The run goes on with the networks of its checkpoint")
    ignore_row_rewards(config, algo, f"reward = {config.reward}")
    return reward


def is_fit_due(old: int, new: int) -> bool:
    """Return whether ``new`` labels are enough for a fit: 20, or half as many again as the ``old`` ones."""
    return new >= max(FIRST_FIT, 1.5 * old)


@contextlib.contextmanager
def _open_rows(
    config: ExperimentConfig, file: LabelFile, owner: Env | RecordedEpisodes, probed: ProbedEnv
) -> Iterator[IndexedRows]:
    """Yield the labeled data, as the learner sees them; DataError if they do not fit it."""
    is_there = file.data != config.data.path and (not os.path.isabs(file.data) or os.path.exists(file.data))
    data = DatasetConfig(path=file.data) if is_there or not config.data.path else config.data  # perhaps moved
    with contextlib.closing(open_recorded(data, config.env, probed.action, probed.observation)) as recorded:
        if plays(config):
            check_same_meaning(recorded.about, config.env)
        check_dataset_fits(recorded, spec_to_dict(owner.obs_spec, owner.action_spec), config.env.id, config.algo)
        rows = IndexedRows(recorded)
        file.check(rows)
        yield rows


def fit_labels(model: RewardModel, file: LabelFile, rows: IndexedRows | None) -> None:
    """Fit ``model`` to the labels of ``rows``, and of copied ones, that say something; DataError names the file.

    Of several answers about the same clips, the newest counts: a held-out answer is about others than the fitted ones.
    """
    answers = (*model.values, SKIP, WRONG)
    if unknown := {label.answer for label in file.labels} - {*answers}:
        raise DataError(f"{file.path}: answer {min(unknown)!r}: expected {', '.join(answers)}. Correct the file.")
    newest = {(label.clips, label.copy): label for label in file.labels}
    fitted = [label for label in newest.values() if label.answer in model.values]
    labels = sorted(fitted, key=lambda label: label.copy != "")  # those of the data first
    values = torch.tensor([model.values[label.answer] for label in labels], device=model.device)
    is_chosen = torch.tensor([label.is_chosen for label in labels], dtype=torch.bool)
    try:
        model.fit(_read_labeled(file, labels, rows, model.columns).to(model.device), values, is_chosen)
    except DataError as error:
        raise type(error)(f"{file.path}: {error}") from None


def _read_labeled(
    file: LabelFile, labels: Sequence[Label], rows: IndexedRows | None, columns: Mapping[str, ColumnSpec]
) -> Batch:
    """Return the clips of ``labels``, which begin with those of ``rows``, as :meth:`RewardModel.fit` takes them."""
    number, length = 1 + (file.kind == "preferences"), file.steps + 1
    clips = [clip for label in labels if not label.copy for clip in label.clips]
    shapes = {name: (length, *spec.shape) for name, spec in columns.items()}
    chunks: list[Rows] = []

    def add(chunk: Rows, count: int) -> None:
        arrays = {name: chunk.get(name, np.empty(0)) for name in shapes}
        if any(x.shape != (count, *shapes[name]) or x.dtype.kind not in "biuf" for name, x in arrays.items()):
            raise DataError(
                "the labeled rows have other observations or actions than these. Label rows of this environment."
            )
        chunks.append({name: x.astype(columns[name].dtype, copy=False) for name, x in arrays.items()})

    if rows is not None:
        add(rows.read(rows.find(clips, file.steps)), len(clips))  # [n * number, T, ...]
    for label in labels[len(clips) // number :]:
        add(file.read_copy(label.copy, shapes), number)
    joined = {name: np.concatenate([chunk[name] for chunk in chunks] or [np.zeros((0, *shape), columns[name].dtype)])
              for name, shape in shapes.items()}  # fmt: skip
    sides = {name: x.reshape(-1, number, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape) for name, x in joined.items()}
    return to_batch(sides)


def to_batch(rows: Rows) -> Batch:
    """Return ``rows`` ``[n, T, ...]`` as a batch."""
    tensors = {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in rows.items()}
    return Batch.from_columns(tensors, torch.arange(len(tensors["reward"])))
