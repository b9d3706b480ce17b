"""Rows of environments on a device: on their way to a replay, and until they are counted on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reverie.core.columns import pinned_copy, record_event
from reverie.core.protocols import Env, RowSink
from reverie.core.specs import IS_INTERVENTION, PLAYER_KEY, SUCCESS_RATE
from reverie.core.tree import flatten_named, unflatten_named
from reverie.core.types import FLAGS, State, Step, count_set

COUNTED_TURNS = 32
"""Turns that are counted, and read from the device, at once."""


class DeviceRow(NamedTuple):
    """What is counted of a row of each environment."""

    step: Step
    """Without observations, but for the player of games."""
    exact_rewards: Any  # [N]
    success: Tensor | None
    tags: Tensor | None
    """Where a person took over; None: nowhere."""

    @classmethod
    def of(cls, env: Env, step: Step, tags: Tensor | None) -> DeviceRow:
        """Return what is counted of the rows ``step`` of ``env``."""
        players = {PLAYER_KEY: step.obs[PLAYER_KEY]} if PLAYER_KEY in step.obs else {}
        return cls(step.with_obs(players), env.exact_rewards, env.success, tags)

    @classmethod
    def read(cls, rows: Sequence[DeviceRow]) -> list[DeviceRow]:
        """Return ``rows`` in host memory, for whose device this waits; their rewards are arrays of float64."""
        if not rows:
            return []
        steps = [row.step for row in rows]
        flags = _on_host([getattr(step, name) for name in FLAGS for step in steps]).view(len(FLAGS), len(rows), -1)
        exact = _on_host([row.exact_rewards for row in rows]).double()
        players = _on_host([step.obs[PLAYER_KEY] for step in steps]) if steps[0].obs else None
        success, tags = (_flags_on_host([getattr(row, name) for row in rows]) for name in ("success", "tags"))
        return [
            cls(
                Step(
                    obs={} if players is None else {PLAYER_KEY: players[t]}, reward=exact[t].float(),
                    **dict(zip(FLAGS, flags[:, t], strict=True)),
                ),
                exact[t].numpy(), None if success is None else success[t], None if tags is None else tags[t],
            )
            for t in range(len(rows))
        ]  # fmt: skip

    def episode_info(self) -> dict[int, Mapping[str, float]]:
        """Return the success of the episodes that end with these rows, by environment, if it is known."""
        if self.success is None:
            return {}
        ends = self.step.is_last.nonzero().flatten().tolist()
        return {i: {SUCCESS_RATE: x} for i, x in zip(ends, self.success[ends].double().tolist(), strict=True)}


def _on_host(rows: list[Tensor]) -> Tensor:
    return torch.stack(rows).cpu()


def _flags_on_host(rows: list[Tensor | None]) -> Tensor | None:
    """Return flags ``[n, N]``, false where rows have none; None if no row has any."""
    flags = next((row for row in rows if row is not None), None)
    return None if flags is None else _on_host([torch.zeros_like(flags) if row is None else row for row in rows])


class ActedRow(NamedTuple):
    """A row of each environment on which the policy has acted, before it is added to the replay."""

    step: Step
    """Its ``is_first`` and ``is_last`` are in host memory, once ``event`` has occurred."""
    action: Tensor
    extras: Mapping[str, Tensor]
    event: torch.cuda.Event | None
    is_takeover: Tensor | None = None
    """Where a person took over; None: nowhere."""


class LateRows:
    """Adds each row to a replay, ``late``: one turn later; satisfies ``RowSink``.

    On a GPU the flags are copied to pinned memory while the learner makes its updates: so nothing waits for the GPU.
    """

    def __init__(self, sink: RowSink, late: bool) -> None:
        self.sink: RowSink = sink
        self.late: bool = late
        self.newest: ActedRow | None = None
        """The row that is not in the replay yet."""

    def add(self, step: Step, action: Tensor, extras: Mapping[str, Tensor]) -> None:
        """Take one row of each environment."""
        row = replace(step, is_first=pinned_copy(step.is_first), is_last=pinned_copy(step.is_last))
        self.newest = ActedRow(row, action, extras, record_event(step.is_last.device) if step.is_last.is_cuda else None)

    def correct(self, action: Tensor, is_takeover: Tensor | None) -> None:
        """Replace the actions of the newest rows, in the replay or before."""
        if self.newest is None:
            self.sink.correct(action, is_takeover)
        else:
            self.newest = self.newest._replace(action=action, is_takeover=is_takeover)

    def flush(self) -> int:
        """Add the newest row to the replay, if it was not added yet; return its env steps."""
        if (row := self.newest) is None:
            return 0
        if row.event is not None:
            row.event.synchronize()
        self.sink.add(row.step, row.action, row.extras)
        if row.is_takeover is not None:
            self.sink.correct(row.action, row.is_takeover)
        self.newest = None
        return len(row.step) - count_set(row.step.is_last)

    def state_dict(self) -> State:
        """Return the row that is not in the replay; {} if there is none."""
        if (row := self.newest) is None:
            return {}
        if row.event is not None:
            row.event.synchronize()
        tags = {} if row.is_takeover is None else {IS_INTERVENTION: row.is_takeover}
        return {"step": flatten_named(row.step), "action": row.action, "extras": dict(row.extras), **tags}

    def load_state_dict(self, row: State, like: Step) -> None:
        """Restore what ``state_dict`` returned; ``like``: a row on the device."""
        if not row:
            return
        step, device = unflatten_named(like, row["step"]), like.reward.device
        step = replace(step, is_first=step.is_first.cpu(), is_last=step.is_last.cpu())
        extras = {name: x.to(device) for name, x in row["extras"].items()}
        tags = row[IS_INTERVENTION].to(device) if IS_INTERVENTION in row else None
        self.newest = ActedRow(step, row["action"].to(device), extras, None, tags)
