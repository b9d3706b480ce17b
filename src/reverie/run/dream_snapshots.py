"""Snapshots of a world model at moments spread over a run: the frames of a film, in which each dreams one episode."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from torch import Tensor

from reverie.core.clock import Clock
from reverie.core.errors import RunError
from reverie.core.logger import logger
from reverie.core.protocols import Learner
from reverie.core.types import State
from reverie.run.checkpoint import Checkpoints, step_from_name

NUM_SNAPSHOTS, MAX_BYTES, MIN_UPDATES = 12, 100_000_000, 100
"""Default number of snapshots, for runs whose snapshots take less than ``MAX_BYTES`` together and that make at
least ``MIN_UPDATES`` updates between two of them: as an update takes longer than writing one, less than 1 % of the run.
"""


class LearnerWeights:
    """The networks of a learner as part of a checkpoint, without optimizers."""

    def __init__(self, algo: Learner) -> None:
        self.algo = algo

    def state_dict(self) -> State:
        """Return the parameters and buffers."""
        return {"model": self.algo.state_dict()["model"]}

    def load_state_dict(self, state: State) -> None:
        """Load what ``state`` has; the rest of the learner, such as its optimizers, stays as it is."""
        self.algo.load_state_dict({**self.algo.state_dict(), **state})

    def num_bytes(self) -> int:
        """Return the size of the parameters and buffers."""
        tensors = [value for value in self.state_dict()["model"].values() if isinstance(value, Tensor)]
        return sum(value.numel() * value.element_size() for value in tensors)


class DreamSnapshots:
    """Writes ``count`` snapshots of a learner with a world model, the first before training, none at the end.

    A snapshot is a checkpoint of the weights alone. The newest checkpoint of the run is the end of the film.
    """

    def __init__(self, folder: Path, algo: Learner, clock: Clock, count: int | None) -> None:
        """Delete snapshots that are newer than the checkpoint from which a run resumes: it writes them again.

        ``count`` None: ``NUM_SNAPSHOTS``, if the snapshots are small and the run is long enough.
        """
        self.checkpoints: Checkpoints = Checkpoints(folder, keep=sys.maxsize)
        self.weights: LearnerWeights = LearnerWeights(algo)
        self.clock = clock
        self.count: int = 0 if getattr(algo, "world", None) is None else self._default() if count is None else count
        self.next: int = 1 + int(clock.progress * self.count) if clock.position else 0
        for path in self.checkpoints.paths():
            if step_from_name(path) > clock.position or not clock.position:
                shutil.rmtree(path, ignore_errors=True)

    def _default(self) -> int:
        updates = self.clock.length * (self.clock.replay_ratio if self.clock.unit == "steps" else 1)
        is_cheap = updates >= NUM_SNAPSHOTS * MIN_UPDATES and NUM_SNAPSHOTS * self.weights.num_bytes() <= MAX_BYTES
        return NUM_SNAPSHOTS if is_cheap else 0

    @property
    def is_due(self) -> bool:
        """Whether the run has reached the next moment."""
        return self.next < self.count and self.next <= self.clock.progress * self.count < self.count

    def save(self) -> None:
        """Write a snapshot. A full disk does not end the run."""
        self.next = 1 + int(self.clock.progress * self.count)
        try:
            self.checkpoints.save(self.clock.position, {"algo": self.weights})
        except RunError as error:
            logger.warning(f"{error} The run continues without this snapshot")
