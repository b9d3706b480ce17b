"""Where the goals of goal-conditioned learners come from; ``replay/goals.py`` samples them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from reverie.core.bounds import Within
from reverie.core.config import Config
from reverie.core.errors import ConfigError

VALUE = "value"
"""Name of the goals that determine the rewards."""


@dataclass(frozen=True, kw_only=True)
class GoalShares(Config):
    """Where goals come from. The shares of the three sources add up to 1."""

    current: Annotated[float, Within("[0, 1]")] = 0.0
    """Share of goals that the transition has reached: its own first observation."""
    episode: Annotated[float, Within("[0, 1]")] = 1.0
    """Share of goals from later rows of the same episode."""
    random: Annotated[float, Within("[0, 1]")] = 0.0
    """Share of goals from any row of the data."""
    geometric: bool = False
    """Whether the number of rows to a goal of the same episode has a geometric distribution, which discount
    determines; otherwise all later rows are about equally likely."""

    def __post_init__(self) -> None:
        super().__post_init__()
        total = self.current + self.episode + self.random
        if abs(total - 1) > 1e-6:
            raise ConfigError(
                f"current = {self.current:g}, episode = {self.episode:g}, random = {self.random:g}: shares of goals "
                f"that add up to {total:g}; expected 1."
            )


@dataclass(frozen=True, kw_only=True)
class GoalSampling:
    """The goals that a learner samples for each transition."""

    shares: Mapping[str, GoalShares]
    """By the name of the goal. :data:`VALUE` determines rewards and terminations, if it is among them."""
    keys: Sequence[str]
    """Observations that form a goal."""
    discount: float
    """Gamma of geometric distances."""
    subgoal_steps: int = 0
    """K: also sample ``low`` and ``high``, rows at most K after the transition's, ``high`` on the way to ``actor``."""
    context: int = 0
    """Rows before each goal that are sampled as well, for stacked frames; the episode's first row is repeated."""
