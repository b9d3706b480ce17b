"""The lanes of an episode: real rows, rows of a dream, and their actions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.agent.world_model_inspector import Predictions
from reverie.core.seeding import RngState, preserve_rng_state, seed_everything
from reverie.core.specs import mover_sign
from reverie.core.types import Step
from reverie.nn.state_space import Latent

CONTEXT = 5
"""Initial number of rows that the model observes before it dreams."""


@dataclass
class RealRow:
    """A row of the episode."""

    step: Step  # [1, ...]
    state: Any  # of the policy, after the row
    policy_action: Tensor  # [1, A]
    picture: bytes | None
    values: dict[str, Any]  # shown on the page
    latent: Latent | None  # the most likely state after the row; the policy's is a sample
    predictions: Predictions | None  # of the networks, from ``latent``


@dataclass
class DreamRow:
    """A row of the dream."""

    latent: Latent  # [1, ...]
    origin: str  # "seen" (the model observes the row), "imagined" or "edited"
    predictions: Predictions  # [...] each
    picture: bytes | None = None


@dataclass(frozen=True)
class DreamBranch:
    """A future that a branch imagines."""

    rows: list[DreamRow]
    actions: list[Tensor]  # [1, A], each before its row
    predicted_return: float
    """Predicted return: see ``WorldModelInspector.predicted_return``."""
    name: str = ""
    """Its first action, if the branch has a future for each action."""


Edit = tuple[int, DreamRow, int, dict[int, int]]
"""State before an edit: the row's number, the row, ``context`` and ``pinned_classes`` of the timeline."""


@dataclass
class RandomStream:
    """An isolated stream of random numbers."""

    seed: int
    state: Any = None

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Draw from this stream within the context."""
        with preserve_rng_state():
            if self.state is None:
                seed_everything(self.seed)
            else:
                RngState().load_state_dict(self.state)
            yield
            self.state = RngState().state_dict()


@dataclass(eq=False)
class Timeline:
    """A lane: the rows and actions of an episode. The dream has at least as many rows as the real episode.

    A lane shares the rows up to ``at`` with its parent, and replaces nothing there.
    """

    real: list[RealRow] = field(default_factory=list)
    dream: list[DreamRow] = field(default_factory=list)
    actions: list[Tensor] = field(default_factory=list)  # [1, A] each, shared by the real episode and the dream
    context: int = CONTEXT
    pinned_classes: dict[int, int] = field(default_factory=dict)
    edits: list[Edit] = field(default_factory=list)
    kind: str = "dream"  # "hands": chosen actions, "future": a chosen future, "search": moves of its tree, "edited"
    parent: Timeline | None = None
    at: int = -1
    name: str = ""  # of its first action

    def __len__(self) -> int:
        return max(len(self.real), len(self.dream))

    def find_lane(self, at: int) -> Timeline:
        """Return the lane whose row ``at`` is: this one, or the ancestor that shares it."""
        return self if self.parent is None or at > self.at else self.parent.find_lane(at)

    def branch(self, at: int, kind: str) -> Timeline:
        """Return a lane with the rows up to ``at``, whose parent is this lane."""
        source = self.find_lane(at)  # edits after this row do not count
        return Timeline(
            self.real[: at + 1], self.dream[: at + 1], self.actions[: max(0, at)], source.context,
            dict(source.pinned_classes), kind=kind, parent=self, at=at,
        )  # fmt: skip

    def has_edits(self) -> bool:
        """Return whether a row of the dream was edited, in this lane or before it left its parent."""
        return any(row.origin == "edited" for row in self.dream)

    def num_seen(self) -> int:
        """Return how many of the first rows the model observes before it dreams."""
        return next((number for number, row in enumerate(self.dream) if row.origin != "seen"), self.context)

    def share_real_rows(self) -> None:
        """Add the real rows of the parent as long as the actions agree: they are what this dream should match."""
        parent, at = self.parent, len(self.real)
        while parent and at < min(len(parent.real), len(self.dream)):
            if not torch.equal(parent.actions[at - 1], self.actions[at - 1]):
                break
            self.real.append(parent.real[at])
            at += 1

    def count_shared(self, other: Timeline) -> int:
        """Return how many of the first rows, up to their actions, are the same objects in another lane."""
        pairs = zip_longest(self.real, self.dream, [None, *self.actions], fillvalue=None)
        others = zip_longest(other.real, other.dream, [None, *other.actions], fillvalue=None)
        same = [all(map(is_, *rows)) for rows in zip(pairs, others, strict=False)]
        return [*same, False].index(False)

    def dream_end(self) -> int | None:
        """Return the first row at which the dream ends, for certain or probably; None: it does not end."""
        for number, row in enumerate(self.dream):
            is_real = row.origin == "seen"
            if self.real[number].values["terminal"] if is_real else row.predictions["cont"] < 0.5:
                return number
        return None

    def cut_at_end(self, kept: int) -> None:
        """Drop the rows after the end of the dream, but for the first ``kept`` and the next one."""
        if (end := self.dream_end()) is not None:
            del self.dream[max(kept, end) + 1 :], self.actions[max(kept, end) :]

    def score(self) -> float:
        """Return the sum of the rewards: those that came, then those that are predicted until the dream ends.

        In games, it is the first player's.
        """
        end = self.dream_end()
        dreamt = self.dream[: None if end is None else end + 1]
        rewards = np.array([*(row.values["reward"] for row in self.real), *(
            row.predictions["reward"] for row in dreamt[len(self.real) :])], float)  # fmt: skip
        if (player := self.real[0].values.get("player")) is not None:
            rewards *= mover_sign((player + np.arange(len(rewards))) % 2)
        return float(sum(rewards[1:].tolist()))
