"""Learning from a person: batches of which a share begins with the person's actions, and the penalty of takeovers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from reverie.core.specs import IS_INTERVENTION
from reverie.core.types import Batch, State, Update, Window
from reverie.replay.config import HumanConfig
from reverie.replay.sources import concat_batches, split_feedback
from reverie.replay.windows import HandleQueue, Windows

if TYPE_CHECKING:
    from reverie.replay.buffer import ReplayBuffer


class TaggedWindows:
    """The windows of a replay that begin with a person's action; of learners of whole rows, those that contain one.

    They follow from the column ``is_intervention``, which is read once for each window: a second index, no second
    storage.
    """

    def __init__(self, windows: Windows, window: Window, seed: int) -> None:
        """``windows``: of a replay, each of which is a ``window``."""
        self.windows, self.window = windows, window
        self.rng: np.random.Generator = np.random.default_rng(seed)
        self.queue: HandleQueue = HandleQueue()
        self._next = 0  # all smaller handles were looked at

    def clear(self) -> None:
        """Forget all windows: the storage is empty now."""
        self.queue.clear()
        self._next = 0

    def __len__(self) -> int:
        """Return their number, with those that have become complete since the last call."""
        windows = self.windows
        self.queue.drop(windows.oldest)
        if IS_INTERVENTION in windows.storage.specs and len(windows):
            start = max(0, int(windows.positions(np.array([self._next]))[0]))
            if len(new := windows.handles_at(np.arange(start, len(windows)))):
                self.queue.add(new[self._has_tag(new)])
                self._next = int(new[-1]) + 1
        return len(self.queue)

    def _has_tag(self, handles: np.ndarray) -> np.ndarray:
        """Return whether a person acted in the first learned row of the windows ``handles`` ``[n]``, or in any."""
        window, storage = self.window, self.windows.storage
        rows, streams = np.divmod(handles, storage.streams)
        rows = rows + window.context
        width = window.rows - window.context if window.learns_rows else 1
        begin = int(rows.min())
        tags = storage.read(begin, int(rows.max()) + width, [IS_INTERVENTION])[IS_INTERVENTION]  # [N, n]
        counts = np.pad(tags.astype(np.int64).cumsum(1), ((0, 0), (1, 0)))
        rows = rows - begin
        return np.asarray(counts[streams, rows + width] > counts[streams, rows])

    def draw(self, count: int) -> Tensor:
        """Return ``count`` handles, drawn uniformly with replacement."""
        return torch.from_numpy(self.queue.handles[self.rng.integers(len(self.queue), size=count)])

    def state_dict(self) -> State:
        """Return the generator; the windows follow from the rows."""
        return {"rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: State) -> None:
        """Restore the generator."""
        self.rng.bit_generator.state = dict(state["rng"])


class TaggedSource:
    """A ``BatchSource`` of B windows, of which a share is a person's, recorded or tagged; the others are of all rows.

    The person's share has recorded and tagged windows in proportion to their numbers: RLPD (Ball et al. 2023) as
    HIL-SERL uses it (Luo et al. 2024). Imitation learns by it as IWR (Mandlekar et al. 2020), whose share is 1/2, and
    HG-DAgger (Kelly et al. 2019), whose share is 1.
    """

    def __init__(
        self, collected: ReplayBuffer, recorded: ReplayBuffer | None, config: HumanConfig, fraction: float, seed: int
    ) -> None:
        """``fraction``: the person's share of a batch."""
        self.collected, self.recorded = collected, recorded
        self.config, self.fraction = config, fraction
        self.storage = collected.storage
        self.tagged: TaggedWindows = TaggedWindows(collected.batch_sampler.windows, collected.window, seed)
        collected.tagged = self.tagged  # checkpoints of the replay contain its state
        self.settle: Callable[[], None] = lambda: None
        """Waits for what can still tag the newest rows."""
        self._drawn: list[tuple[ReplayBuffer, int]] = []

    def _count_tagged(self) -> int:
        count = len(self.tagged)
        return count if count >= self.config.min_rows else 0

    def __len__(self) -> int:
        """Return the number of collected windows; 0 as long as a person alone is learned from and has none."""
        has_person = self.fraction < 1 or self.recorded is not None or self._count_tagged()
        return len(self.collected) if has_person else 0

    def sample(self) -> Batch:
        """Return a batch: its recorded windows, then the tagged ones, then those of all collected rows."""
        if self.config.intervention_reward:
            self.settle()  # whether the newest action led to a takeover
        batch, num_tagged = self.collected.window.batch, self._count_tagged()
        num_recorded = 0 if self.recorded is None else len(self.recorded)
        total = num_recorded + num_tagged
        share = round(batch * self.fraction) if total else 0
        num_recorded = round(share * num_recorded / max(1, total))
        parts: list[tuple[ReplayBuffer, Batch]] = []
        if self.recorded is not None and num_recorded:
            parts.append((self.recorded, self.recorded.sample(num_recorded)))
        if count := share - num_recorded:
            parts.append((self.collected, self.collected.sample(handles=self.tagged.draw(count))))
        if count := batch - share:
            parts.append((self.collected, self.collected.sample(count)))
        self._drawn = [(source, len(part.index)) for source, part in parts]
        joined = concat_batches([part for _, part in parts])
        return add_penalty(joined, self.config) if self.config.intervention_reward else joined

    def feedback(self, index: Tensor, update: Update) -> None:
        """Pass each replay the part of the update that belongs to its windows of the latest batch."""
        split_feedback(self._drawn, index, update)


def add_penalty(batch: Batch, config: HumanConfig) -> Batch:
    """Return ``batch`` ``[B, T]`` in which actions of the policy that made a person take over have a penalty.

    Source: RLIF, Luo et al., "RLIF: interactive imitation learning as reinforcement learning", ICLR 2024, whose reward
    is -1 there and else 0. The reward of row t is of the action in row t - 1, and the person took over in row t.
    """
    reward = torch.zeros_like(batch.reward) if config.reward == "only" else batch.reward.clone()
    if IS_INTERVENTION in batch.extras:
        tags = batch.extras[IS_INTERVENTION]
        begins = tags[:, 1:] & ~tags[:, :-1] & ~batch.is_first[:, 1:]  # [B, T - 1]
        reward[:, 1:] += config.intervention_reward * begins
    return replace(batch, reward=reward)
