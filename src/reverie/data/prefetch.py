"""Batches for a GPU, copied there while it is still busy with the update before."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from reverie.core.protocols import Source
from reverie.core.types import Batch, Update
from reverie.data.device import DeviceStorage
from reverie.data.replay import Replay
from reverie.data.storage import HostStorage


def ahead(source: Source, device: torch.device) -> Source:
    """``source``, in a ``Prefetch`` if its batches have to travel to a GPU."""
    on_device = isinstance(source, Replay) and isinstance(source.storage, DeviceStorage)
    return source if device.type != "cuda" or on_device else Prefetch(source, device)


class Prefetch:
    """A ``Source`` whose batches lie on ``device``, where ``index`` alone stays on the CPU.

    It has no thread. An update of a GPU returns once it is launched, so that the loop comes to sample the next batch
    while the update is still running; all that is needed is that copying waits for nothing: from pinned memory, on a
    stream of its own. Batches are therefore those of ``source``, in the same order, made at the same moment.
    """

    def __init__(self, source: Source, device: torch.device) -> None:
        self.source, self.device = source, device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has not typed it
        if isinstance(source, Replay) and isinstance(source.storage, HostStorage):
            source.storage.pin = True  # spares a copy

    def __len__(self) -> int:
        return len(self.source)

    def sample(self) -> Batch:
        """The next batch; work that is queued from now on waits for it, the host does not."""
        host = self.source.sample().map(pinned)
        with torch.cuda.stream(self.stream):
            batch = host.to(self.device)
        learner = torch.cuda.current_stream(self.device)
        learner.wait_stream(self.stream)
        # Their memory is not given to another batch before the learner is through with them.
        batch.map(lambda tensor: recorded(tensor, learner))
        return replace(batch, index=host.index)

    def feedback(self, index: Tensor, update: Update) -> None:
        """Handed on."""
        self.source.feedback(index, update)


def pinned(tensor: Tensor) -> Tensor:
    """``tensor`` where a GPU can fetch it by itself."""
    return tensor if tensor.is_pinned() else tensor.pin_memory()


def recorded(tensor: Tensor, stream: torch.cuda.Stream) -> Tensor:
    """``tensor``, of which the allocator now knows that ``stream`` uses it."""
    tensor.record_stream(stream)
    return tensor
