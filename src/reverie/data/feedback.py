"""Feedback on its way from a GPU to rows in this computer's memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class Feedback(NamedTuple):
    """What an update says of the windows that it learned from."""

    handles: np.ndarray  # [B]
    extras: dict[str, Tensor]  # [B, T', ...]
    priority: Tensor | None  # [B]
    event: torch.cuda.Event | None = None  # when it will have come; None: it has

    @property
    def on_gpu(self) -> bool:
        """Whether any of it has to travel."""
        return any(value.is_cuda for value in [*self.extras.values(), self.priority] if value is not None)

    def sent(self) -> Feedback:
        """A copy on the host that arrives in its own time; the device goes on working."""
        extras = {key: pinned_copy(value) for key, value in self.extras.items()}
        priority = None if self.priority is None else pinned_copy(self.priority)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has not typed it
        event.record()
        return Feedback(self.handles, extras, priority, event)

    def wait(self) -> None:
        """Until it has come."""
        if self.event is not None:
            self.event.synchronize()

    def state_dict(self) -> dict[str, Any]:
        """Its values, for which this waits."""
        self.wait()
        return {"handles": self.handles, "extras": dict(self.extras), "priority": self.priority}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Feedback:
        """What ``state_dict`` gave."""
        return cls(state["handles"], dict(state["extras"]), state["priority"])


def pinned_copy(value: Tensor) -> Tensor:
    """``value`` on the host, once the device has come to it."""
    if not value.is_cuda:
        return value
    host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
    return host.copy_(value, non_blocking=True)
