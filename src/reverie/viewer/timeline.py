"""The real rows of an episode, the rows of its dream, and their actions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from reverie.agent.world_model_inspector import Predictions
from reverie.core.seeding import RngState, preserve_rng_state, seed_everything
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


@dataclass
class Timeline:
    """The rows and actions of an episode. The dream has at least as many rows as the real episode."""

    real: list[RealRow] = field(default_factory=list)
    dream: list[DreamRow] = field(default_factory=list)
    actions: list[Tensor] = field(default_factory=list)  # [1, A] each, shared by the real episode and the dream
    context: int = CONTEXT
    pinned_classes: dict[int, int] = field(default_factory=dict)
    edits: list[Edit] = field(default_factory=list)

    def dream_end(self) -> int | None:
        """Return the first row at which the dream ends, for certain or probably; None: it does not end."""
        for number, row in enumerate(self.dream):
            is_real = row.origin == "seen"
            if self.real[number].values["terminal"] if is_real else row.predictions["cont"] < 0.5:
                return number
        return None
