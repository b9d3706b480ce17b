"""Sources of batches in addition to the replay: prefetched to a GPU, or mixed from offline and online rows.

Also the feedback of updates, which a GPU copies to host memory asynchronously.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from reverie.core.columns import are_in_block, block_of, pinned_copy, record_event, view_in_block
from reverie.core.errors import ConfigError
from reverie.core.protocols import BatchSource
from reverie.core.specs import IS_INTERVENTION
from reverie.core.types import Batch, Step, Update, Window


class Feedback(NamedTuple):
    """New extras and priorities that an update returned for its windows."""

    handles: np.ndarray  # [B]
    extras: dict[str, Tensor]  # [B, T', ...]
    priority: Tensor | None  # [B]
    event: torch.cuda.Event | None = None  # recorded after the copies; None: there is nothing to wait for

    @property
    def gpu(self) -> torch.device | None:
        """The GPU of its tensors; None if they are on the CPU."""
        values = [*self.extras.values(), self.priority]
        return next((value.device for value in values if value is not None and value.is_cuda), None)

    def to_host(self) -> Feedback:
        """Return a copy in host memory, made asynchronously: ``wait`` before reading it."""
        extras = {key: pinned_copy(value) for key, value in self.extras.items()}
        priority = None if self.priority is None else pinned_copy(self.priority)
        assert self.gpu is not None
        return Feedback(self.handles, extras, priority, record_event(self.gpu))

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


# ---------------------------------------------------------------- prefetching


SAME_STREAM_BYTES = 2**20
"""Maximum bytes of a batch whose copy to a GPU takes no longer than a second stream does."""


def prefetch(source: BatchSource, device: torch.device) -> BatchSource:
    """Return ``source``, wrapped in a ``Prefetch`` if its batches have to be copied to a GPU."""
    storage: Any = getattr(source, "storage", None)
    if device.type != "cuda" or storage is None or hasattr(storage, "device"):
        return source
    if hasattr(source, "gpu"):  # it copies whole rollouts there
        source.gpu, storage.pin = device, True
        return source
    return Prefetch(source, device)


class Prefetch:
    """A ``BatchSource`` whose batches are on ``device``; only ``index`` stays on the CPU.

    It needs no thread: an update on a GPU returns once it is launched, so the loop samples the next batch during it.
    The copy is made from pinned memory, on a separate CUDA stream, and waits for nothing. If ``keeps_small``, a small
    batch in one block of pinned memory stays there, as the update copies it in one call.
    """

    def __init__(self, source: BatchSource, device: torch.device) -> None:
        self.source = source
        self.device = device
        self.stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has not typed it
        storage: Any = getattr(source, "storage", None)
        self.keeps_small: bool = True
        self._pins = hasattr(storage, "pin")
        if self._pins:
            storage.pin = True  # spares a copy

    def __len__(self) -> int:
        return len(self.source)

    def sample(self) -> Batch:
        """Return the next batch. The current CUDA stream waits for its copy, the host does not."""
        host = self.source.sample()
        is_block = self._pins and are_in_block(host.tensors)
        if is_block and self.keeps_small and host.reward.untyped_storage().nbytes() <= SAME_STREAM_BYTES:
            return host
        if not is_block:
            host = host.map(lambda x: x if x.is_pinned() else x.pin_memory())
        with torch.cuda.stream(self.stream):
            if is_block:
                block = block_of(host.reward).to(self.device, non_blocking=True)
                batch = host.map(lambda x: view_in_block(block, x))
            else:
                batch = host.to(self.device)
        learner = torch.cuda.current_stream(self.device)
        learner.wait_stream(self.stream)

        def used(x: Tensor) -> Tensor:
            x.record_stream(learner)
            return x

        # The allocator must not reuse the memory of these tensors before the learner has finished with them.
        batch.map(used)
        return replace(batch, index=host.index)

    def feedback(self, index: Tensor, update: Update) -> None:
        """Pass the feedback on to the source."""
        self.source.feedback(index, update)


# ---------------------------------------------------------------- recorded and collected rows


class MixedSource:
    """Batches whose first windows are ``recorded``, the others ``collected``; see ``split_window``."""

    def __init__(self, recorded: BatchSource, collected: BatchSource) -> None:
        self.recorded = recorded
        self.collected = collected
        self.drawn: list[tuple[BatchSource, int]] = []
        for source in (recorded, collected):
            if isinstance(source, Prefetch):
                source.keeps_small = False  # the windows are joined on the GPU

    def __len__(self) -> int:
        """Return the number of collected windows: learning starts when there are enough of these."""
        return len(self.collected)

    def sample(self) -> Batch:
        """Return a batch with the recorded windows first, on the device of the collected windows."""
        sources = self.recorded, self.collected
        parts = [source.sample() for source in sources]
        self.drawn = [(source, len(part.index)) for source, part in zip(sources, parts, strict=True)]
        return concat_batches(parts)

    def feedback(self, index: Tensor, update: Update) -> None:
        """Pass each source the part of the update that belongs to its windows of the latest batch."""
        split_feedback(self.drawn, index, update)


T = TypeVar("T", Batch, Step)


def concat_batches(parts: Sequence[T]) -> T:
    """Concatenate the windows, or rows, of all ``parts``, on the devices of the last part."""

    def cat(tensors: list[Tensor]) -> Tensor:
        return torch.cat([x.to(tensors[-1].device, non_blocking=True) for x in tensors])

    if len(parts) == 1:
        return parts[0]
    values_by_field: dict[str, Any] = {}
    for field in fields(parts[0]):
        values = [getattr(part, field.name) for part in parts]
        is_mapping = isinstance(values[0], dict)
        if field.name == "extras":
            values = _fill_tags(parts)
        values_by_field[field.name] = {k: cat([v[k] for v in values]) for k in values[0]} if is_mapping else cat(values)
    return type(parts[0])(**values_by_field)


def _fill_tags(parts: Sequence[Any]) -> list[dict[str, Tensor]]:
    """Return the extras of all ``parts``, with tags of takeovers if some parts have them."""
    if not any(IS_INTERVENTION in part.extras for part in parts):
        return [part.extras for part in parts]
    return [{IS_INTERVENTION: torch.zeros_like(part.is_last), **part.extras} for part in parts]


def split_feedback(drawn: Iterable[tuple[BatchSource, int]], index: Tensor, update: Update) -> None:
    """Pass each source its part of ``update``; ``drawn``: sources in the order of the windows, with their numbers."""
    start = 0
    for source, count in drawn:
        part = slice(start, start + count)
        priority = None if update.priority is None else update.priority[part]
        extras = {key: value[part] for key, value in update.extras.items()}
        source.feedback(index[part], replace(update, priority=priority, extras=extras))
        start += count


def split_window(window: Window, fraction: float) -> tuple[Window, Window]:
    """Return ``window`` with the batch sizes of the recorded and of the collected part."""
    recorded = round(window.batch * fraction)
    if not 0 < recorded < window.batch:
        raise ConfigError(
            f"experience = mixed({fraction}): of the {window.batch} windows of a batch (algo.batch_size), {recorded} "
            "would be recorded; expected at least one recorded and one collected."
        )
    return replace(window, batch=recorded), replace(window, batch=window.batch - recorded)
