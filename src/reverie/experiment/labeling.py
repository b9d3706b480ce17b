"""A person labels recorded rows: which of two clips is better, or whether a row shows success."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from reverie.algos.settings import init_context
from reverie.core.bounds import AtLeast
from reverie.core.errors import ConfigError, DataError, did_you_mean
from reverie.core.locations import is_plain, trust_locations
from reverie.core.logger import logger
from reverie.core.rows import Rows
from reverie.core.specs import ObsSpec
from reverie.core.types import Batch
from reverie.datasets.config import DatasetConfig
from reverie.datasets.dataset import open_recorded
from reverie.datasets.dataset_env import dataset_env_config
from reverie.datasets.labels import SKIP, WRONG, IndexedRows, Label, LabelFile
from reverie.envs.config import EnvConfig
from reverie.experiment.learned_reward import LearnedReward, fit_labels, is_fit_due, to_batch
from reverie.experiment.rules import absolute_path
from reverie.nn.reward_model import MEMBERS, REWARD_MODELS, ImpreciseError, RewardModel, SuccessReward
from reverie.replay.buffer import ReplayBuffer
from reverie.replay.storage import Storage

LAST_ROWS = (1, 5, 1, None)
"""Of which last rows of an episode the row of a question about success is, in turn; None: of all. So there are about as
many successes as failures, and failures that look like successes."""
MAX_TRIES = 50
"""Random clips that are drawn to find some that were not asked about."""
RANDOM_EVERY, CANDIDATES, QUICK_UPDATES = 10, 10, 100
"""Of so many questions one is random, the others are chosen among so many candidates by networks after so many updates
each: the page waits for them."""
NEWEST_EPISODES, NEWEST_ROWS, MIN_CLIPS = 20, 5000, 50
"""Episodes of a run in which rows that look like success are found; rows of each environment of a running one; and its
fewest clips, so that questions differ."""
MAX_WRONG = 0.2
"""Share of pairs that look wrong, above which others are better asked about."""
Clips = tuple[tuple[int, int], ...]
"""Episode and first row of a clip, or of the two clips of a pair."""


class LabelSession:
    """Questions about rows of a dataset, whose answers are written to a file at once.

    They are random until there are enough answers for a fit. Nine of ten then ask about the pair, of 10 random ones, on
    which the networks disagree most (Christiano et al. 2017, section 2.2.4); or the row of which they are least sure.
    Of a run, they first ask about rows of its newest episodes that look like success: agents find such failures.
    """

    spans: np.ndarray
    """Episodes as ``[E, 3]``: number, first row, rows."""

    def __init__(self, data: str, path: Path, kind: str, steps: int = 25, seed: int = 0) -> None:
        """``steps``: actions of a clip of ``preferences``. The labels in the file ``path``, if it exists, are kept."""
        self.recorded: Any = open_recorded(DatasetConfig(path=data))
        self.obs_spec: ObsSpec = self.recorded.obs_spec
        self.env: EnvConfig | None = dataset_env_config(self.recorded.about)
        """The environment of the rows; None if it is unknown."""
        self.rows: IndexedRows = IndexedRows(self.recorded, keeps_rows=True)
        self._open_file(path, kind, steps, seed, grows=self.recorded.about.specs is not None)
        if not self.grows:
            self.file.check(self.rows)
            self.file.data, self.file.fingerprint = self.file.data or absolute_path(data), self.rows.fingerprint
            if not is_plain(self.file.data):
                trust_locations([self.file.data])
        self.spans = np.stack([np.arange(len(self.rows.starts)), 0 * self.rows.starts, self.rows.lengths], 1)
        if not (self.rows.lengths > self.file.steps).any():
            raise DataError(f"{data}: no episode has {self.file.steps} steps. Compare shorter clips (steps).")

    def _open_file(self, path: Path, kind: str, steps: int, seed: int, *, grows: bool) -> None:
        steps = steps if kind == "preferences" else 0
        self.file: LabelFile = LabelFile.read(path, kind) if path.exists() else LabelFile(path, kind, steps)
        self.file.delete_unfinished()
        if self.file.steps != steps:
            logger.info(f"{path} has clips of {self.file.steps} steps, and so have its further ones")
        self.seed: int = seed
        self.grows: bool = grows
        """Whether the data are of a run, which can grow, so that labeled rows are copied."""
        self.answers: tuple[str, ...] = (*REWARD_MODELS[kind].values, SKIP, *[WRONG] * (kind == "preferences"))
        self.rng: np.random.Generator = np.random.default_rng([seed, len(self.file.labels)])
        self._model: RewardModel | None = None
        self._number = 0  # of answers at the newest fit
        self._foreign = 0  # first answers of the file, which this session cannot take back
        self._chosen: set[Clips] = set()

    def propose(self) -> Clips | None:
        """Return the clips to ask about, others than before as far as there are some; None: there are no rows yet."""
        model, number = self._find_model(), len(self.file.labels)
        if model is None or number % RANDOM_EVERY == 0:
            return self._draw_new()
        if (clips := self._find_success(model)) is None:
            candidates = [self._draw_new() for _ in range(CANDIDATES)]
            sides = [clip for side in zip(*candidates, strict=True) for clip in side]
            clips = candidates[int(model.measure_doubt(self._read_for(model, sides)).argmax())]
        self._chosen.add(clips)
        return clips

    def _find_model(self) -> RewardModel | None:
        """Return networks that are fitted to the answers, as quickly as a page can wait; None: too few."""
        if is_fit_due(self._number, len(self.file.labels)):
            with contextlib.ExitStack() as stack, init_context(self.seed), contextlib.suppress(DataError):  # too few
                model, rows = REWARD_MODELS[self.file.kind](self.obs_spec, self.recorded.action_spec), self.rows
                model.updates, model.min_answers = QUICK_UPDATES, dict.fromkeys(model.min_answers, MEMBERS)
                if self.grows and self.file.data:
                    labeled = stack.enter_context(contextlib.closing(open_recorded(DatasetConfig(path=self.file.data))))
                    self.file.check(rows := IndexedRows(labeled))
                with contextlib.suppress(ImpreciseError):  # questions of which the networks are unsure help
                    fit_labels(model, self.file, rows)
                self._model, self._number = model, len(self.file.labels)
        return self._model

    def _find_success(self, model: RewardModel) -> Clips | None:
        """Return the first row that looks like success in the newest episode of a run in which none was asked about."""
        if not self.grows or not isinstance(model, SuccessReward):
            return None
        asked = {label.clips for label in self.file.labels}
        for number, first, length in self.spans[: -NEWEST_EPISODES - 1 : -1].tolist():
            clips = [(number, row) for row in range(first, first + length)]
            looks_right = model.predict(self._read_for(model, clips).obs).mean(0)[:, 0] >= model.threshold
            if looks_right.any() and (found := (clips[int(looks_right.int().argmax())],)) not in asked:
                return found
        return None

    def _read_for(self, model: RewardModel, clips: Sequence[tuple[int, int]]) -> Batch:
        return to_batch({name: x for name, x in self.read(clips).items() if name in model.columns}).to(model.device)

    def _draw_new(self) -> Clips:
        questions = {label.clips for label in self.file.labels}
        proposals = (self._propose() for _ in range(MAX_TRIES))
        return next((clips for clips in proposals if clips not in questions), self._propose())

    def _propose(self) -> Clips:
        if self.file.kind == "preferences":
            return self._draw(), self._draw()
        return (self._draw(LAST_ROWS[len(self.file.labels) % len(LAST_ROWS)]),)

    def _draw(self, last_rows: int | None = None) -> tuple[int, int]:
        """Return a random clip, all of equal probability; or one of the last of a random episode."""
        spans = self.spans[self.spans[:, 2] > self.file.steps]
        counts = spans[:, 2] - self.file.steps
        number, first, length = self.rng.choice(spans, p=None if last_rows else counts / counts.sum()).tolist()
        count = length - self.file.steps
        return number, first + count - 1 - int(self.rng.integers(min(count, last_rows or count)))

    def read(self, clips: Sequence[tuple[int, int]]) -> Rows:
        """Return the rows of ``clips``, ``[n, steps + 1, ...]`` by column."""
        return self.rows.read(self.rows.find(clips, self.file.steps))

    def name(self, clip: tuple[int, int]) -> str:
        """Return what a page calls a clip."""
        return f"episode {clip[0]}, row {clip[1]}"

    def add(self, clips: Clips, answer: str) -> None:
        """Write an answer to the file; ConfigError if it is none."""
        if answer not in self.answers:
            raise ConfigError(
                f"answer = {answer!r}: expected {', '.join(self.answers)}.{did_you_mean(str(answer), self.answers)}"
            )
        copy = self.file.write_copy(self.read(clips)) if self.grows else ""
        self._write([*self.file.labels, Label(clips, answer, clips in self._chosen, copy)])

    def undo(self) -> None:
        """Remove the newest answer from the file."""
        self._write(self.file.labels[:-1])

    def _write(self, labels: list[Label]) -> None:
        """Let the file have these ``labels``; ConfigError, once, if another process has written there."""
        written = LabelFile.read(self.file.path, self.file.kind).labels if self.file.path.exists() else []
        if written != self.file.labels or len(labels) < self._foreign:
            self.file.labels, self._foreign = written, len(written)
            raise ConfigError(f"{self.file.path} has answers of another process, which stay. Label in one at a time.")
        replace(self.file, labels=labels).write()
        self.file.labels = labels  # not if the disk was full: the next answer is written then

    def count(self) -> dict[str, int]:
        """Return the number of each answer so far."""
        return {answer: sum(label.answer == answer for label in self.file.labels) for answer in self.answers}

    def find_obstacle(self) -> str:
        """Return why there are no clips to ask about yet."""
        return ""

    def advice(self) -> str:
        """Return what to do if too many clips look wrong; "" otherwise."""
        wrong, total = self.count().get(WRONG, 0), len(self.file.labels)
        if total < RANDOM_EVERY or wrong <= MAX_WRONG * total:
            return ""
        return f"{wrong / total:.0%} look wrong: compare recorded clips, or train the model for longer."

    def close(self) -> None:
        """Close the dataset."""
        self.recorded.close()


class LiveSession(LabelSession):
    """Questions about the newest rows of a run while it collects them, chosen by its learned reward."""

    def __init__(
        self, replay: ReplayBuffer, obs_spec: ObsSpec, reward: LearnedReward, env: EnvConfig | None, seed: int = 0
    ) -> None:
        """``replay``: the rows of the run. The answers are written where ``reward`` reads them."""
        self.storage: Storage = replay.storage
        self.obs_spec: ObsSpec = obs_spec
        self.env = env
        self.reward: LearnedReward = reward
        self._open_file(reward.path, reward.kind, 25, seed, grows=True)
        self._is_new = not reward.path.exists()
        self._kept: dict[Clips, Rows] = {}  # rows of open questions: the replay may drop them

    def propose(self) -> Clips | None:
        """Return clips of the newest rows to ask about; None: none yet, or the run has just overwritten them."""
        with contextlib.suppress(DataError):
            return self._propose_now()
        return None

    def _propose_now(self) -> Clips | None:
        self.spans: np.ndarray = self._find_spans()
        if self._is_new and self.file.kind == "preferences" and len(self.spans):  # no clip is longer than most episodes
            self.file.steps = max(1, min(25, int(np.median(self.spans[:, 2])) - 1))
        if self._count_clips() < MIN_CLIPS:
            return None
        clips = super().propose()
        assert clips is not None
        self._is_new, self._kept[clips] = False, self.read(clips)
        return clips

    def _count_clips(self) -> int:
        return int((self.spans[:, 2] - self.file.steps).clip(0).sum())

    def find_obstacle(self) -> str:
        """Return how many clips there are, and how many are needed."""
        unit = f"clips of {self.file.steps} steps" if self.file.steps else "rows"
        return f"Questions begin when the newest episodes have {MIN_CLIPS} {unit}. They have {self._count_clips()}."

    def _find_model(self) -> RewardModel | None:
        return self.reward.model if self.reward.is_fitted else None

    def _find_spans(self) -> np.ndarray:
        """Return the episodes of the newest rows: number of the environment, first row, rows."""
        stop = max(self.storage.oldest, self.storage.count - 1)  # the action of the newest row can still change
        first, spans = max(self.storage.oldest, stop - NEWEST_ROWS), list[tuple[int, int, int]]()
        for stream, is_first in enumerate(self.storage.read(first, stop, ["is_first"])["is_first"]):
            starts = np.union1d(np.flatnonzero(is_first), [0] * (stop > first))
            spans += [(stream, first + i, n) for i, n in zip(starts, np.diff(starts, append=stop - first), strict=True)]
        return np.array(sorted(spans, key=lambda span: span[1]), np.int64).reshape(-1, 3)

    def read(self, clips: Sequence[tuple[int, int]]) -> Rows:
        """Return the rows of ``clips``, ``[n, steps + 1, ...]`` by column."""
        if tuple(clips) in self._kept:
            return self._kept[tuple(clips)]
        length = self.file.steps + 1
        names = [*self.reward.model.columns]
        parts = [self.storage.read(row, row + length, names, stream) for stream, row in clips]  # [1, T, ...]
        if (first := min(row for _, row in clips)) <= self.storage.count - self.storage.capacity:
            raise DataError(f"the run overwrites row {first}.")  # perhaps while it was read
        return {name: np.concatenate([part[name] for part in parts]) for name in names}

    def name(self, clip: tuple[int, int]) -> str:
        """Return what a page calls a clip."""
        return f"environment {clip[0]}, row {clip[1]}"

    def add(self, clips: Clips, answer: str) -> None:
        """Write an answer and its rows."""
        super().add(clips, answer)
        self._kept.pop(clips, None)

    def close(self) -> None:
        """Do nothing: the run has the rows."""


def label(
    data: str | Path, kind: Literal["preferences", "success"], out: str | Path, answer: Callable[..., str], *,
    count: int = 200, steps: int = 25, seed: int = 0,
) -> None:  # fmt: skip
    """Ask a function about recorded rows, as ``reverie data compare-clips`` and ``reverie data label`` ask a person.

    ``reverie.train(..., reward=f"{kind}:{out}")`` learns from the answers.

    Args:
        data: a dataset, a run or a store.
        kind: ``"preferences"``, which of two clips is better; or ``"success"``, whether a row shows success.
        out: the file of the answers, JSON lines, which are added if it exists.
        answer: function of two clips, or of a row: columns by name, such as ``obs/observation``, ``action`` and
            ``reward``, which are ``[steps + 1, ...]`` or ``[...]``. It returns ``"first"``, ``"second"``, ``"tie"`` or
            ``"wrong"``, one looks wrong; or ``"success"`` or ``"failure"``; ``"skip"``: it cannot tell.
        count: number of questions.
        steps: actions of a clip.
        seed: seed of the questions.

    Raises:
        ConfigError: an answer is none of these.
        DataError: no episode has ``steps`` steps, or the file has other labels.
    """
    if kind not in REWARD_MODELS:
        raise ConfigError(f"kind = {kind!r}: expected {' or '.join(REWARD_MODELS)}.{did_you_mean(kind, REWARD_MODELS)}")
    AtLeast(1).check("steps", steps)
    with contextlib.closing(LabelSession(str(data), Path(out), kind, steps, seed)) as session:
        for _ in range(count):
            clips = session.propose()
            assert clips is not None
            columns = session.read(clips)  # [n, T, ...]
            parts = [{name: x[i] for name, x in columns.items()} for i in range(len(clips))]
            is_pair = kind == "preferences"
            session.add(clips, answer(*(parts if is_pair else [{name: x[0] for name, x in parts[0].items()}])))
