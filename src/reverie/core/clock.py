"""Every counter of a run in one place, and everything that happens "every so often"."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

from reverie.core.errors import ConfigError
from reverie.core.types import State


class Ratio:
    """How many updates are due so that ``updates = ratio x env steps``, with fractions carried.

    Credit is counted from the first call, not from step 0: steps that were taken before learning could start leave
    no debt. Credit is never negative, whatever a resumed counter says.
    """

    def __init__(self, ratio: float) -> None:
        if not (ratio >= 0 and math.isfinite(ratio)):
            raise ConfigError(f"replay_ratio = {ratio}: expected a finite number of updates per env step, 0 or more.")
        self.ratio = ratio
        self.credit = 0.0
        self.seen: int | None = None

    def due(self, env_steps: int) -> int:
        """Whole updates owed since the last call; the fraction stays in credit."""
        if self.seen is not None:
            self.credit += max(0, env_steps - self.seen) * self.ratio
        self.seen = env_steps
        whole = int(self.credit + 1e-9)  # 10 x 0.1 is one whole update
        self.credit = max(0.0, self.credit - whole)
        return whole

    @property
    def counts(self) -> bool:
        """Whether env steps add to the credit."""
        return self.seen is not None

    def pause(self) -> None:
        """Count again from the next call of ``due``; the fraction stays."""
        self.seen = None

    def state_dict(self) -> State:
        """Credit and the counter it was last computed at; not the ratio, which a resumed run may change."""
        return {"credit": self.credit, "seen": self.seen}

    def load_state_dict(self, state: State) -> None:
        """Continue with the saved remainder."""
        self.credit, self.seen = float(state["credit"]), state["seen"]


class Every:
    """True once for each stretch of ``period`` units; 0 means never.

    Stretches follow each other without gaps: one that is noticed late makes the next one shorter.
    """

    def __init__(self, period: float, start: float = 0.0) -> None:
        self.period = period
        self.last = start

    def __call__(self, now: float) -> bool:
        """Whether a stretch has passed since the last time this was true."""
        if self.period <= 0 or now - self.last < self.period:
            return False
        self.last += (now - self.last) // self.period * self.period
        return True


@dataclass
class Clock:
    """Counters of a run.

    ``env_steps`` are policy decisions summed over all environments, action repeat not counted; ``frames`` are
    env_steps x action repeat; ``updates`` are gradient updates.
    """

    total_steps: int
    replay_ratio: float = 1.0
    learning_starts: int = 0
    action_repeat: int = 1
    total_updates: int | None = None
    env_steps: int = 0
    updates: int = 0
    episodes: int = 0
    seconds_before: float = 0.0
    ratio: Ratio = field(init=False)
    started: float = field(init=False, default_factory=time.monotonic)
    marks: dict[str, float] = field(default_factory=dict)
    """Up to where things that happen every so often have happened, by what they are."""
    promised: int = field(init=False, default=0)
    """What ``updates`` will be when all that were said to be due are made."""
    stop: bool = False
    """Set to end the run after the current turn of the loop."""

    def __post_init__(self) -> None:
        self.ratio = Ratio(self.replay_ratio)

    @property
    def frames(self) -> int:
        """Simulator frames: env steps x action repeat."""
        return self.env_steps * self.action_repeat

    @property
    def place(self) -> str:
        """How far the run is, in words: in updates where there are no env steps to count."""
        return f"env step {self.env_steps}" if self.total_updates is None else f"update {self.updates}"

    @property
    def seconds(self) -> float:
        """Wall-clock seconds this run has been at it, earlier sittings included."""
        return self.seconds_before + time.monotonic() - self.started

    @property
    def done(self) -> bool:
        """Whether the run has had its steps or its updates, or was told to stop."""
        if self.stop or (self.total_updates is not None and self.updates >= self.total_updates):
            return True
        return self.total_updates is None and self.env_steps >= self.total_steps

    def updates_due(self, windows: int) -> int:
        """Updates to make now, given that ``windows`` windows can be sampled; 0 until learning starts.

        Once it has, it goes on as long as there are any: short episodes make them fewer again as the oldest rows leave.
        A run that counts in updates (recorded experience: no env steps ever come) makes one each turn.
        """
        if not windows:
            self.ratio.pause()  # a resumed run may have to fill its replay again: learning starts anew
        if windows < (1 if self.ratio.counts else max(1, self.learning_starts)):
            return 0
        if self.total_updates is not None:
            return 1
        due = self.ratio.due(self.env_steps)
        self.promised = self.updates + due
        return due

    def state_dict(self) -> State:
        """Every counter. Updates that an error has kept from being made stay due."""
        state: dict[str, Any] = {"env_steps": self.env_steps, "updates": self.updates, "episodes": self.episodes}
        ratio = dict(self.ratio.state_dict())
        ratio["credit"] += max(0, self.promised - self.updates)
        return {**state, "seconds": self.seconds, "ratio": ratio, "marks": dict(self.marks)}

    def load_state_dict(self, state: State) -> None:
        """Continue counting."""
        self.env_steps, self.updates, self.episodes = (int(state[k]) for k in ("env_steps", "updates", "episodes"))
        self.seconds_before = float(state["seconds"])
        self.ratio.load_state_dict(state["ratio"])
        self.promised = self.updates
        self.marks = dict(state["marks"])
