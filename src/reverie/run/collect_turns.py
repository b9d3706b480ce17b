"""Collecting in environments on a device for a replay: one row of each environment at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reverie.core.columns import pinned_copy, record_event
from reverie.core.protocols import Env, Policy, RowSink
from reverie.core.specs import IS_INTERVENTION
from reverie.core.tree import flatten_named, unflatten_named
from reverie.core.types import ExecutedActions, State, Step, count_set
from reverie.run.collect import DeviceCollector

COUNTED_TURNS = 32
"""Turns whose rewards are counted, and read from the device, at once."""
COUNTED = ("reward", "is_first", "is_last")
"""What is counted of a row, in addition to successes."""


class ActedRow(NamedTuple):
    """A row of each environment on which the policy has acted, before it is added to the replay."""

    step: Step
    """Its ``is_first`` and ``is_last`` are in host memory, once ``event`` has occurred."""
    action: Tensor
    extras: Mapping[str, Tensor]
    event: torch.cuda.Event | None
    is_takeover: Tensor | None = None
    """Where a person took over; None: nowhere."""


class TurnCollector(DeviceCollector):
    """Collects one row of each environment in each turn. Part of a checkpoint.

    The replay needs to know on the host where episodes begin and end. On a GPU these flags are copied to pinned memory
    while the learner makes its updates, and the row is added one turn ``late``: so nothing waits for the GPU.
    """

    sink: RowSink  # type: ignore[assignment]  # it collects single rows
    env_steps: int
    schedule_position: Callable[[], int] | None
    state: Any

    def __init__(
        self, env: Env, policy: Policy[Any], sink: RowSink, *, late: bool | None = None, **options: Any
    ) -> None:
        """``late``: by default on a GPU. ``options``: those of :class:`EnvCollector`."""
        super().__init__(env, policy, sink, turns=1, **options)  # type: ignore[arg-type]
        self.late: bool = env.device.type != "cpu" if late is None else late
        self.acted: ActedRow | None = None
        if self.schedule_position is None:
            self.schedule_position = lambda: self.env_steps

    def _restart_counters(self) -> None:
        super()._restart_counters()
        self.uncounted: list[dict[str, Tensor]] = [self._counted_columns()]  # the first row is counted already

    def _counted_columns(self) -> dict[str, Tensor]:
        columns = {name: getattr(self.step, name) for name in COUNTED}
        return columns if self.env.success is None else columns | {"success": self.env.success}

    def collect(self) -> int:
        """Do one turn. Return the env steps of the row that was added: one for each that is not ``is_last``."""
        if not self._is_whole:
            self._begin_episodes()
        self._is_whole, before = False, self.env_steps
        self._add_acted()
        self._take_turn()
        self.uncounted.append(self._counted_columns())
        if len(self.uncounted) > COUNTED_TURNS:
            self.count()
        self._is_whole = True
        return self.env_steps - before

    def _add(self, step: Step, action: Tensor) -> None:
        row = replace(step, is_first=pinned_copy(step.is_first), is_last=pinned_copy(step.is_last))
        event = record_event(self.env.device) if step.is_last.is_cuda else None
        self.acted = ActedRow(row, action, self.policy.extras(self.state), event)
        if not self.late:
            self._add_acted()

    def _correct(self, executed_actions: ExecutedActions) -> None:
        """Store the ``executed_actions`` of the newest rows, which may not be in the replay yet."""
        assert self._sent is not None
        action = executed_actions.replace_in(self._sent)
        if self.acted is None:
            self.sink.correct(action, executed_actions.tags)
        else:
            self.acted = self.acted._replace(action=action, is_takeover=executed_actions.tags)
        self.state = self.policy.override(self.state, action)

    def _add_acted(self) -> None:
        """Add the row of the newest turn to the replay, if it was not added yet."""
        if (row := self.acted) is None:
            return
        if row.event is not None:
            row.event.synchronize()
        self.sink.add(row.step, row.action, row.extras)
        if row.is_takeover is not None:
            self.sink.correct(row.action, row.is_takeover)
        self.acted = None
        self.env_steps += self.env.num_envs - count_set(row.step.is_last)

    def count(self) -> None:
        """Count all rows, for which this waits; DataError if a reward is not finite."""
        if len(self.uncounted) > 1:
            self.env.check()
            successes = [row.get("success") for row in self.uncounted[1:]]
            self._count_rollout({name: x for name, x in self._stacked().items() if name in COUNTED}, successes)
            del self.uncounted[:-1]

    def _stacked(self) -> dict[str, Tensor]:
        """Return the columns of the newest row that was counted and of those after it, ``[n, N]``."""
        newest = self.uncounted[-1]  # a first row may lack the flags of success
        return {name: torch.stack([row.get(name, x) for row in self.uncounted]) for name, x in newest.items()}

    def state_dict(self) -> State:
        """Return also the rows that are not counted, and those that are not in the replay."""
        state = {**super().state_dict(), "uncounted": self._stacked()}
        if (row := self.acted) is not None:
            if row.event is not None:
                row.event.synchronize()
            state["acted"] = {"step": flatten_named(row.step), "action": row.action, "extras": dict(row.extras)}
            state["acted"] |= {} if row.is_takeover is None else {IS_INTERVENTION: row.is_takeover}
        return state

    def load_state_dict(self, state: State) -> None:
        """Continue the saved episodes bit for bit; with another number of environments, new ones begin."""
        super().load_state_dict(state)
        if len(state["uncounted"]["reward"][0]) != self.env.num_envs:
            return
        device = self.env.device
        if "environments" in state:
            columns = {name: x.to(device).unbind() for name, x in state["uncounted"].items()}
            self.uncounted = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        if row := state.get("acted"):
            step = unflatten_named(self.step, row["step"])
            step = replace(step, is_first=step.is_first.cpu(), is_last=step.is_last.cpu())
            extras = {name: x.to(device) for name, x in row["extras"].items()}
            tags = row[IS_INTERVENTION].to(device) if IS_INTERVENTION in row else None
            self.acted = ActedRow(step, row["action"].to(device), extras, None, tags)
