"""A person labels recorded rows: which of two clips is better, or whether a row shows success."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from reverie.core.bounds import AtLeast
from reverie.core.errors import ConfigError, DataError, did_you_mean
from reverie.core.logger import logger
from reverie.datasets.config import DatasetConfig
from reverie.datasets.dataset import open_recorded
from reverie.datasets.labels import SKIP, IndexedRows, Label, LabelFile
from reverie.experiment.rules import absolute_path
from reverie.nn.reward_model import REWARD_MODELS

LAST_ROWS = (1, 5, 1, None)
"""Of which last rows of an episode the row of a question about success is, in turn; None: of all. So there are about as
many successes as failures, and failures that look like successes."""
MAX_TRIES = 50
"""Random clips that are drawn to find some that were not asked about."""
Clips = tuple[tuple[int, int], ...]
"""Episode and first row of a clip, or of the two clips of a pair."""


class LabelSession:
    """Questions about random rows of a dataset, whose answers are written to a file at once."""

    def __init__(self, data: str, path: Path, kind: str, steps: int = 25, seed: int = 0) -> None:
        """``steps``: actions of a clip of ``preferences``. The labels in the file ``path``, if it exists, are kept."""
        self.recorded: Any = open_recorded(DatasetConfig(path=data))
        rows = IndexedRows(self.recorded, keeps_rows=True)
        steps = steps if kind == "preferences" else 0
        self.file: LabelFile = (
            LabelFile.read(path, kind)
            if path.exists()
            else LabelFile(path, kind, absolute_path(data), rows.fingerprint, steps)
        )
        self.file.check(rows)
        if self.file.steps != steps:
            logger.info(f"{path} has clips of {self.file.steps} steps, and so have its further ones")
        self.rows: IndexedRows = rows
        self.answers: tuple[str, ...] = (*REWARD_MODELS[kind].values, SKIP)
        self.rng: np.random.Generator = np.random.default_rng([seed, len(self.file.labels)])
        self.episodes: np.ndarray = np.flatnonzero(rows.lengths > self.file.steps)
        """Episodes that are long enough."""
        if not len(self.episodes):
            raise DataError(f"{data}: no episode has {self.file.steps} steps. Compare shorter clips (steps).")

    def propose(self) -> Clips:
        """Return the clips to ask about, others than before as far as there are some."""
        questions = {label.clips for label in self.file.labels}
        proposals = (self._propose() for _ in range(MAX_TRIES))
        return next((clips for clips in proposals if clips not in questions), self._propose())

    def _propose(self) -> Clips:
        if self.file.kind == "preferences":
            return self._draw(), self._draw()
        return (self._draw(LAST_ROWS[len(self.file.labels) % len(LAST_ROWS)]),)

    def _draw(self, last_rows: int | None = None) -> tuple[int, int]:
        """Return a random clip, all of equal probability; or one of the last of a random episode."""
        counts = self.rows.lengths[self.episodes] - self.file.steps
        episode = int(self.rng.choice(self.episodes, p=None if last_rows else counts / counts.sum()))
        count = int(self.rows.lengths[episode]) - self.file.steps
        return episode, count - 1 - int(self.rng.integers(min(count, last_rows or count)))

    def add(self, clips: Clips, answer: str) -> None:
        """Write an answer to the file; ConfigError if it is none, or if another process has written there."""
        if answer not in self.answers:
            raise ConfigError(
                f"answer = {answer!r}: expected {', '.join(self.answers)}.{did_you_mean(str(answer), self.answers)}"
            )
        written = LabelFile.read(self.file.path, self.file.kind).labels if self.file.path.exists() else []
        if written != self.file.labels:
            raise ConfigError(f"{self.file.path} was changed by another process. Label in one at a time.")
        self.file.labels.append(Label(clips, answer))
        self.file.write()

    def undo(self) -> None:
        """Remove the newest answer from the file."""
        del self.file.labels[-1:]
        self.file.write()

    def count(self) -> dict[str, int]:
        """Return the number of each answer so far."""
        return {answer: sum(label.answer == answer for label in self.file.labels) for answer in self.answers}

    def close(self) -> None:
        """Close the dataset."""
        self.recorded.close()


def label(
    data: str | Path, kind: Literal["preferences", "success"], labels: str | Path, answer: Callable[..., str], *,
    count: int = 200, steps: int = 25, seed: int = 0,
) -> None:  # fmt: skip
    """Ask a function about recorded rows, as ``reverie data compare-clips`` and ``reverie data label`` ask a person.

    ``reverie.train(..., reward=f"{kind}:{labels}")`` learns from the answers.

    Args:
        data: a dataset, a run or a store.
        kind: ``"preferences"``, which of two clips is better; or ``"success"``, whether a row shows success.
        labels: the file of the answers, JSON lines, which are added if it exists.
        answer: function of two clips, or of a row: columns by name, such as ``obs/observation``, ``action`` and
            ``reward``, which are ``[steps + 1, ...]`` or ``[...]``. It returns ``"first"``, ``"second"`` or ``"tie"``,
            or ``"success"`` or ``"failure"``; ``"skip"``: it cannot tell.
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
    with contextlib.closing(LabelSession(str(data), Path(labels), kind, steps, seed)) as session:
        for _ in range(count):
            clips = session.propose()
            columns = session.rows.read(session.rows.find(clips, session.file.steps))  # [n, T, ...]
            parts = [{name: x[i] for name, x in columns.items()} for i in range(len(clips))]
            is_pair = kind == "preferences"
            session.add(clips, answer(*(parts if is_pair else [{name: x[0] for name, x in parts[0].items()}])))
