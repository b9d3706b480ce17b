"""Feedback of updates, copied from a GPU to rows in the host's memory without waiting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class Feedback(NamedTuple):
    """New extras and priorities that an update returned for its windows."""

    handles: np.ndarray  # [B]
    extras: dict[str, Tensor]  # [B, T', ...]
    priority: Tensor | None  # [B]
    event: torch.cuda.Event | None = None  # recorded after the copies; None: there is nothing to wait for

    @property
    def gpu(self) -> torch.device | None:
        """The GPU that its tensors are on; None if they are on the CPU."""
        values = [*self.extras.values(), self.priority]
        return next((value.device for value in values if value is not None and value.is_cuda), None)

    def sent(self) -> Feedback:
        """Return a copy in host memory, made asynchronously: ``wait`` before reading it."""
        extras = {key: pinned_copy(value) for key, value in self.extras.items()}
        priority = None if self.priority is None else pinned_copy(self.priority)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has not typed it
        event.record(torch.cuda.current_stream(self.gpu))  # the current device may be another
        return Feedback(self.handles, extras, priority, event)

    def wait(self) -> None:
        """Wait until the copy is complete."""
        if self.event is not None:
            self.event.synchronize()

    def state_dict(self) -> dict[str, Any]:
        """Return its values, after waiting for them."""
        self.wait()
        return {"handles": self.handles, "extras": dict(self.extras), "priority": self.priority}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Feedback:
        """Return the feedback that ``state_dict`` saved."""
        return cls(state["handles"], dict(state["extras"]), state["priority"])


def pinned_copy(value: Tensor) -> Tensor:
    """Return a copy of ``value`` in pinned host memory, made asynchronously; CPU tensors are returned as they are."""
    if not value.is_cuda:
        return value
    host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
    return host.copy_(value, non_blocking=True)
