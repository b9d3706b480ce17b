"""A person who takes over from the policy: the protocol, and how often it happens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from reverie.core import wall_clock
from reverie.core.protocols import Env
from reverie.core.specs import SUCCESS_RATE
from reverie.core.types import ExecutedActions, State, Step


class ActionChannel(Protocol):
    """Through which a person can take over from the policy in environment 0."""

    def connect(self, env: Env, stop: Callable[[], bool]) -> None:
        """Read the actions of ``env``. No wait goes on once ``stop()`` is true."""

    def judge(self, step: Step) -> tuple[bool, float] | None:
        """Return whether the episode that a person ends with ``step`` succeeds, and what to add to its reward.

        None: it goes on.
        """

    def choose(self, step: Step, action: Tensor) -> ExecutedActions | None:
        """Return the actions to take instead of the policy's ``action`` ``[N, A]`` on ``step``; None: take those."""

    def state_dict(self) -> State:
        """Return what a checkpoint holds."""

    def load_state_dict(self, state: State) -> None:
        """Restore the state that ``state_dict`` returned."""


class TakeoverCounter:
    """Counts a person's steps in N environments, and the takeovers: steps of a person after one of the policy.

    A takeover can go on in the next episode.
    """

    def __init__(self, num_envs: int) -> None:
        self.steps: int = 0
        self.count: int = 0
        """Number of takeovers."""
        self.is_open: bool = False
        """Whether a person took the newest step of some environment."""
        self.seconds: float = 0.0
        """How long a person acted: from the rows of the person's steps to the next ones, without evaluations."""
        self._time = 0.0
        self._logged = (0, 0)
        self._newest: Tensor = torch.zeros(num_envs, dtype=torch.bool)
        self._assisted: Tensor = torch.zeros(num_envs, dtype=torch.bool)  # in the running episode

    def add(self, tags: Tensor | None, begins: Tensor) -> None:
        """Count one step of each environment; a person took those in which ``tags`` ``[N]`` is set. None: none.

        ``begins`` ``[N]``: whether instead of a step an episode has begun.
        """
        tags = torch.zeros_like(self._newest) if tags is None else tags.cpu()
        before, self._time = self._time, wall_clock.monotonic()
        self.seconds += self._time - before if self.is_open else 0.0
        self.steps += int(tags.sum())
        self.count += int((tags & ~self._newest).sum())
        self._newest = torch.where(begins.cpu(), self._newest, tags)
        self.is_open = bool(self._newest.any())
        self._assisted |= tags

    def skip(self, seconds: float) -> None:
        """Count the last ``seconds`` for nobody: an evaluation, in which no person acts."""
        self._time += seconds

    def end_episodes(
        self, numbers: Sequence[int], logged: Mapping[int, Mapping[str, float]]
    ) -> dict[int, Mapping[str, float]]:
        """Return what the environments ``numbers`` have ``logged`` of the episodes that end.

        A success counts as ``alone``, or, with one step of a person in the episode, as ``assisted``.
        """
        entries = dict(logged)
        for number in numbers:
            if SUCCESS_RATE in (entry := entries.get(number, {})):
                name = f"{SUCCESS_RATE}_{'assisted' if self._assisted[number] else 'alone'}"
                entries[number] = {**entry, name: entry[SUCCESS_RATE]}
            self._assisted[number] = False
        return entries

    def pop_metrics(self, env_steps: int) -> dict[str, float]:
        """Return the totals, and the rates over the ``env_steps`` since the last call; {} before the first takeover."""
        steps, count = self.steps - self._logged[0], self.count - self._logged[1]
        self._logged = self.steps, self.count
        if not self.steps or not env_steps:
            return {}
        return {
            "human/steps": float(self.steps), "human/takeovers": float(self.count), "human/rate": steps / env_steps,
            "human/takeovers_per_1000_steps": 1000 * count / env_steps, "human/seconds": self.seconds,
        }  # fmt: skip

    def state_dict(self) -> State:
        """Return all counters."""
        return {"steps": self.steps, "count": self.count, "seconds": self.seconds, "logged": self._logged,
                "newest": self._newest, "assisted": self._assisted}  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        """Restore the counters; those of episodes only with the same number of environments."""
        self.steps, self.count, self.seconds = int(state["steps"]), int(state["count"]), float(state["seconds"])
        self._logged = int(state["logged"][0]), int(state["logged"][1])
        if len(state["newest"]) == len(self._newest):
            self._newest, self._assisted = state["newest"].clone(), state["assisted"].clone()
            self.is_open, self._time = bool(self._newest.any()), wall_clock.monotonic()
