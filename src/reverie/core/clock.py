"""All counters of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from reverie.core import wall_clock

if TYPE_CHECKING:
    from reverie.core.types import State


class UpdateRatio:
    """The replay ratio: ``updates = ratio x env steps`` from the first :meth:`updates_due` on; fractions are kept.

    With a ``tolerance``, updates and env steps can each be that many updates ahead; if it is infinite, neither waits.
    """

    def __init__(self, ratio: float, tolerance: float | None = None) -> None:
        self.ratio = ratio
        self.one_at_a_time: bool = tolerance is not None
        self.tolerance: float = tolerance or 0.0
        self.credit: float = 0.0
        self.seen: int | None = None

    def updates_due(self, env_steps: int) -> int:
        """Return the updates to make now; at most one with a tolerance, since rows can arrive after it."""
        if self.seen is not None:
            self.credit += max(0, env_steps - self.seen) * self.ratio
        self.seen = env_steps
        if not self.one_at_a_time:
            return self.take_whole_updates()
        if self.tolerance == math.inf:
            self.credit = 0.0  # a run resumed with a bound starts without pending updates
        if self.must_wait:
            return 0
        self.credit -= 1.0
        return 1

    def take_whole_updates(self) -> int:
        """Return all whole updates that are still due; the fraction stays in ``credit``."""
        num_updates = max(0, int(self.credit + 1e-9))  # 10 x 0.1 is one whole update
        if num_updates:
            self.credit = max(0.0, self.credit - num_updates)
        return num_updates

    @property
    def must_wait(self) -> bool:
        """Whether the next update has to wait for env steps."""
        return self.seen is None or not self.ratio or self.credit - 1.0 < -self.tolerance - 1e-9

    @property
    def env_steps_allowed(self) -> float:
        """Env steps allowed before the next update, if learning has started."""
        if not self.ratio or self.tolerance == math.inf:
            return math.inf
        return math.ceil((max(1.0, self.tolerance) - self.credit) / self.ratio - 1e-9)

    @property
    def is_counting(self) -> bool:
        """Whether env steps are being counted."""
        return self.seen is not None

    def pause(self) -> None:
        """Stop counting until the next :meth:`updates_due`; the fraction is kept."""
        self.seen = None

    def state_dict(self) -> State:
        """Return the credit and the env steps at which it was computed. The ratio is not saved, since it can change."""
        return {"credit": self.credit, "seen": self.seen}

    def load_state_dict(self, state: State) -> None:
        """Continue with the saved credit."""
        self.credit, self.seen = float(state["credit"]), state["seen"]


class Watch:
    """The start time of a run in this process, and whether the run has to stop."""

    is_main = True
    """Whether this process reports signals to the user; only one of several learners does."""
    has_panel = False
    """Whether a panel on the terminal shows ``notice``. Other output would tear the panel."""
    notice = ""
    """What the run does after a signal."""

    def __init__(self) -> None:
        self.started: float = wall_clock.monotonic()
        self.stop = False

    def total_seconds(self, before: float) -> float:
        """Return the seconds of the run, including ``before``, the seconds before it was resumed."""
        return before + wall_clock.monotonic() - self.started


@dataclass
class Clock:
    """Counters of a run.

    ``env_steps`` are policy decisions summed over all environments, action repeat not counted; ``frames`` are
    env_steps x action repeat, the emulator's frame skip counted; ``updates`` are gradient updates.
    """

    length: int  # length of the run in ``unit``
    replay_ratio: float = 1.0
    learning_starts: int = 0
    action_repeat: int = 1
    on_policy: bool = False  # whether all available windows become updates at once, for whole rollouts
    pretrain_updates: int = 0
    """Updates that are due at once when learning starts."""
    train_freq: int = 1
    """Minimum env steps between two turns with updates, which then make all updates that are due."""
    tolerance: float | None = None
    """Tolerance of the ratio in updates, see :class:`UpdateRatio`. None: the ratio holds in every turn."""
    unit: Literal["steps", "updates"] = "steps"
    """Unit of the length, the logs and the periods: env steps, or updates if no rows are collected."""
    max_seconds: float | None = None
    """Seconds after which the run ends. None: no limit."""
    reserved_seconds: float = 0.0
    """Seconds of ``max_seconds`` that are left for an evaluation at the end."""
    env_steps: int = 0
    updates: int = 0
    episodes: int = 0
    longest_episode: int = 0  # env steps of the longest finished training episode
    seconds_before: float = 0.0
    ratio: UpdateRatio = field(init=False)
    watch: Watch = field(init=False, repr=False, default_factory=Watch)
    """Several learners share one. Not saved in checkpoints."""
    last_log: tuple[float, int, int] | None = None
    """Seconds, env steps and updates at the newest log entry of the run; None before the first."""
    last_events: dict[str, float] = field(default_factory=dict)
    """When each periodic event last happened, by the name of the event."""
    updates_promised: int = field(init=False, default=0)
    """Value of ``updates`` once all updates reported as due have been made."""

    def __post_init__(self) -> None:
        self.ratio = UpdateRatio(self.replay_ratio, self.tolerance)

    @property
    def frames(self) -> int:
        """Simulator frames: env steps x action repeat."""
        return self.env_steps * self.action_repeat

    @property
    def position(self) -> int:
        """Progress of the run in ``unit``."""
        return self.env_steps if self.unit == "steps" else self.updates

    @property
    def position_text(self) -> str:
        """Progress of the run as text."""
        return f"{'env step' if self.unit == 'steps' else 'update'} {self.position}"

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of the run, including the time before it was resumed."""
        return self.watch.total_seconds(self.seconds_before)

    @property
    def stop(self) -> bool:
        """Whether the run ends after this turn. Set it to True to end the run after the current turn of the loop."""
        return self.watch.stop

    @stop.setter
    def stop(self, value: bool) -> None:
        self.watch.stop = value

    @property
    def out_of_time(self) -> bool:
        """Whether no time is left of ``max_seconds``."""
        return self.max_seconds is not None and self.seconds + self.reserved_seconds >= self.max_seconds

    @property
    def is_overdue(self) -> bool:
        """Whether ``max_seconds`` have passed."""
        return self.max_seconds is not None and self.seconds >= self.max_seconds

    @property
    def progress(self) -> float:
        """Part of the run that is over: of its length, or of its time if that is more."""
        by_length = self.position / self.length
        if self.max_seconds is None:
            return min(1.0, by_length)
        return min(1.0, max(by_length, self.seconds / max(1e-9, self.max_seconds - self.reserved_seconds)))

    @property
    def schedule_position(self) -> int:
        """Position of schedules in ``unit``. With a time limit they follow ``progress``, and so end with the run."""
        return self.position if self.max_seconds is None else max(self.position, int(self.progress * self.length))

    @property
    def done(self) -> bool:
        """Whether the run has reached its length or its time limit, or ``stop`` is set."""
        return self.stop or self.position >= self.length or self.out_of_time

    def updates_due(self, windows: int) -> int:
        """Return the number of updates due by ``replay_ratio`` if ``windows`` windows can be sampled.

        It is 0 until learning starts.

        Learning starts at ``learning_starts`` windows, then continues while there is a window. An offline run makes one
        update per call; on-policy learners make one for each available window.
        """
        if self.on_policy:
            return windows
        if not windows:
            self.ratio.pause()  # a resumed run may have to refill its replay; learning then starts again
        if windows < (1 if self.ratio.is_counting else max(1, self.learning_starts)):
            return 0
        if self.unit == "updates":
            return 1
        if self.ratio.seen is None and not self.updates:
            self.ratio.credit += self.pretrain_updates
        elif self.train_freq > 1 and self.env_steps < min((self.ratio.seen or 0) + self.train_freq, self.length):
            return 0
        due = self.ratio.updates_due(self.env_steps)
        if self.env_steps >= self.length:
            due += self.ratio.take_whole_updates()
        self.updates_promised = self.updates + due
        return due

    def state_dict(self) -> State:
        """Return all counters. Updates that are due but were not made, because of an error, stay due."""
        state: dict[str, Any] = {"env_steps": self.env_steps, "updates": self.updates, "episodes": self.episodes}
        ratio = dict(self.ratio.state_dict())
        ratio["credit"] += max(0, self.updates_promised - self.updates)
        state |= {"longest_episode": self.longest_episode, "marks": dict(self.last_events), "logged": self.last_log}
        return {**state, "seconds": self.seconds, "ratio": ratio}

    def load_state_dict(self, state: State) -> None:
        """Continue from saved counters."""
        for name in ("env_steps", "updates", "episodes", "longest_episode"):
            setattr(self, name, int(state[name]))
        self.seconds_before = float(state["seconds"])
        self.ratio.load_state_dict(state["ratio"])
        self.updates_promised = self.updates
        self.last_events, self.last_log = dict(state["marks"]), state["logged"]
