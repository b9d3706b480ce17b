"""Prefetching: batches are copied to a GPU while it still runs the previous update."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from reverie.core.protocols import Source
from reverie.core.types import Batch, Update
from reverie.replay.device import DeviceStorage
from reverie.replay.replay import Replay
from reverie.replay.storage import HostStorage


def ahead(source: Source, device: torch.device) -> Source:
    """Return ``source``, wrapped in a ``Prefetch`` if its batches have to be copied to a GPU."""
    on_device = isinstance(source, Replay) and isinstance(source.storage, DeviceStorage)
    return source if device.type != "cuda" or on_device else Prefetch(source, device)


class Prefetch:
    """A ``Source`` whose batches are on ``device``; only ``index`` stays on the CPU.

    It needs no thread. An update on a GPU returns once it is launched, so the loop samples the next batch while the
    update is still running. The copy must only wait for nothing: it is made from pinned memory, on a CUDA stream of its
    own. Batches are therefore exactly those of ``source``, in the same order and sampled at the same time.
    """

    def __init__(self, source: Source, device: torch.device) -> None:
        self.source, self.device = source, device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has not typed it
        if isinstance(source, Replay) and isinstance(source.storage, HostStorage):
            source.storage.pin = True  # spares a copy

    def __len__(self) -> int:
        return len(self.source)

    def sample(self) -> Batch:
        """Return the next batch. The current CUDA stream waits for its copy, the host does not."""
        host = self.source.sample().map(pinned)
        with torch.cuda.stream(self.stream):
            batch = host.to(self.device)
        learner = torch.cuda.current_stream(self.device)
        learner.wait_stream(self.stream)
        # The allocator must not reuse the memory of these tensors before the learner has finished with them.
        batch.map(lambda tensor: recorded(tensor, learner))
        return replace(batch, index=host.index)

    def feedback(self, index: Tensor, update: Update) -> None:
        """Pass the feedback on to the source."""
        self.source.feedback(index, update)


def pinned(tensor: Tensor) -> Tensor:
    """Return ``tensor`` in pinned memory."""
    return tensor if tensor.is_pinned() else tensor.pin_memory()


def recorded(tensor: Tensor, stream: torch.cuda.Stream) -> Tensor:
    """Tell the allocator that ``stream`` uses ``tensor``, and return it."""
    tensor.record_stream(stream)
    return tensor
