"""Learning from a person: batches of which a share has the person's actions, and the penalty of takeovers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from reverie.core.specs import IS_IMITATED, IS_INTERVENTION
from reverie.core.types import Batch, Update
from reverie.replay.buffer import ReplayBuffer
from reverie.replay.config import HumanConfig
from reverie.replay.sources import concat_batches, split_feedback
from reverie.replay.storage import Storage
from reverie.replay.tagged import TaggedWindows


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
        self.collected: ReplayBuffer = collected
        self.recorded: ReplayBuffer | None = recorded
        self.config: HumanConfig = config
        self.fraction: float = fraction
        self.storage: Storage = collected.storage
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
        if self.collected.window.length > 2 and num_recorded < share:
            is_imitated = torch.ones_like(joined.is_last)
            is_imitated[num_recorded:share] = joined.extras[IS_INTERVENTION][num_recorded:share]
            joined = replace(joined, extras={**joined.extras, IS_IMITATED: is_imitated})
        return penalize_takeovers(joined, self.config) if self.config.intervention_reward else joined

    def feedback(self, index: Tensor, update: Update) -> None:
        """Pass each replay the part of the update that belongs to its windows of the latest batch."""
        split_feedback(self._drawn, index, update)


def penalize_takeovers(batch: Batch, config: HumanConfig) -> Batch:
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
