"""Columns of rows in memory: their shapes, ring buffers of them, and copying rows in and out.

The copies are definitions: ``kernels/rows.py`` and ``kernels/rows_gpu.py`` do the same in one call for all columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.core.errors import DataError
from reverie.core.kernel_dispatch import accelerated
from reverie.core.specs import EXTRAS, MASK_KEY, ActionSpec, ObsSpec
from reverie.core.specs import ColumnSpec as ColumnSpec
from reverie.core.types import FLAGS, Step

StepRows = Mapping[str, Tensor | np.ndarray]
"""One row of each of N streams by column, ``[N, ...]``, on any device."""


def row_columns(obs: ObsSpec, action: ActionSpec, extras: Mapping[str, ColumnSpec]) -> dict[str, ColumnSpec]:
    """Return the columns of a row: ``obs/<key>``, ``extras/<key>``, and the fixed ones under their names."""
    columns = {f"obs/{key}": ColumnSpec(part.shape, part.dtype) for key, part in obs.items()}
    columns["action"] = ColumnSpec((action.width,), "float32")
    columns["reward"] = ColumnSpec((), "float32")
    columns |= {name: ColumnSpec((), "bool") for name in FLAGS}
    return columns | {f"{EXTRAS}{key}": column for key, column in extras.items()}


def zero_step(spec: ObsSpec, rows: int, first: bool = False) -> Step:
    """Return all-zero rows in which every action is legal."""
    obs = {key: torch.zeros(rows, *part.shape, dtype=getattr(torch, part.dtype)) for key, part in spec.items()}
    obs |= {key: torch.ones_like(x) for key, x in obs.items() if key == MASK_KEY}
    no = torch.zeros(rows, dtype=torch.bool)
    return Step(obs=obs, reward=torch.zeros(rows), is_first=no | first, is_last=no, is_terminal=no.clone())


def check_column_shapes(
    shapes: Mapping[str, tuple[int, ...]], columns: Mapping[str, ColumnSpec], leading: tuple[int, ...]
) -> None:
    """Check that rows have the given columns, each of shape ``[*leading, *column.shape]``."""
    if shapes.keys() != columns.keys():
        missing, unknown = sorted(columns.keys() - shapes.keys()), sorted(shapes.keys() - columns.keys())
        raise DataError(f"the rows do not have the declared columns: missing {missing}, unknown {unknown}.")
    for name, shape in shapes.items():
        check_column_shape(name, shape, (*leading, *columns[name].shape))


def check_column_shape(name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Raise DataError if the column ``name`` does not have the expected shape."""
    if shape != expected:
        raise DataError(f"{name} has shape {tuple(shape)}: expected {expected} (streams first).")


def pinned_copy(value: Tensor) -> Tensor:
    """Return a copy of ``value`` in pinned host memory, made asynchronously; CPU tensors are returned as they are."""
    if not value.is_cuda:
        return value
    host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
    return host.copy_(value, non_blocking=True)


def copy_in(to: Tensor, x: Tensor) -> None:
    """Copy ``x``, of the CPU and not pinned, into ``to`` on any device, without waiting; ``x`` may change at once.

    On a GPU, ``x`` is copied to pinned memory first. PyTorch reuses it, but not before all copies from it are complete.
    """
    to.copy_(x.pin_memory() if to.is_cuda else x, non_blocking=True)


def load_numbers(numbers: np.ndarray, device: torch.device) -> Tensor:
    """Return a copy of ``numbers`` on ``device``, made without waiting."""
    x = torch.from_numpy(numbers)
    loaded = torch.empty_like(x, device=device)
    copy_in(loaded, x)
    return loaded


def aligned_copy(array: np.ndarray) -> Tensor:
    """Return a copy of ``array`` in C order, which a network may read.

    PyTorch aligns memory to 64 bytes, NumPy to 16. Products of MKL differ in their last bit with the alignment of their
    inputs (oneMKL Developer Guide, "Getting Reproducible Results"), and a resumed run has its arrays elsewhere.
    """
    flags = array.flags
    return torch.from_numpy(array if flags.c_contiguous and flags.writeable else np.array(array, order="C")).clone()


class AlignedCopies:
    """Makes copies of an array that changes, as :func:`aligned_copy` does.

    Memory for small ones is allocated for many at once: between steps of an environment, where the caches are cold, an
    operation of PyTorch takes several microseconds.
    """

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self._tensor = torch.from_numpy(array)
        self._ready: list[tuple[np.ndarray, Tensor]] = []

    def __call__(self) -> Tensor:
        """Return a copy of the current values, which belongs to the caller."""
        if self.array.nbytes > MAX_SMALL_COPY_BYTES:
            return self._tensor.clone()
        if not self._ready:
            self._ready = self._allocate()
        memory, copy = self._ready.pop()
        memory[...] = self.array
        return copy

    def _allocate(self) -> list[tuple[np.ndarray, Tensor]]:
        step = -(-self.array.nbytes // COPY_ALIGNMENT) * COPY_ALIGNMENT // self.array.itemsize
        block = torch.empty(NUM_COPIES * step, dtype=self._tensor.dtype, device="cpu")
        copies = block.as_strided((NUM_COPIES, *self.array.shape), (step, *self._tensor.stride()))
        return [*zip(copies.numpy(), copies.unbind(), strict=True)]


COPY_ALIGNMENT = 64
"""Alignment of PyTorch's tensors on CPUs, in bytes."""
NUM_COPIES, MAX_SMALL_COPY_BYTES = 64, 1024
"""Number of small copies that are allocated at once, and their bytes at most."""


def record_event(device: torch.device) -> torch.cuda.Event:
    """Return an event that occurs once the work launched on ``device`` so far, such as copies, is complete."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has not typed it
    event.record(torch.cuda.current_stream(device))  # the current device may be another
    return event


def as_numpy(value: Tensor | np.ndarray) -> np.ndarray:
    """Return ``value`` as an array on the CPU, waiting for the device if needed; bfloat16 becomes float32."""
    if isinstance(value, np.ndarray):
        return value
    if value.is_cpu and not value.requires_grad and value.dtype is not torch.bfloat16:
        return value.numpy()
    return (value.float() if value.dtype is torch.bfloat16 else value).numpy(force=True)


# ---------------------------------------------------------------- one block of memory


ALIGNMENT = 256
"""Columns in a block begin at multiples of this many bytes, as PyTorch's tensors on GPUs do."""


class BlockLayout:
    """The positions of columns in one block of memory, so that a single copy moves all of them."""

    def __init__(self, columns: Mapping[str, Tensor]) -> None:
        """``columns``: tensors of their shapes and dtypes."""
        self.nbytes: int = 0
        self.places: dict[str, tuple[torch.dtype, torch.Size, tuple[int, ...], int]] = {}
        for name, x in columns.items():
            x = torch.empty_like(x, device="meta", memory_format=torch.contiguous_format)
            self.places[name] = x.dtype, x.shape, x.stride(), self.nbytes // x.itemsize
            self.nbytes += -(-x.nbytes // ALIGNMENT) * ALIGNMENT
        self.dtypes: set[torch.dtype] = {dtype for dtype, *_ in self.places.values()}

    def allocate(self) -> dict[str, Tensor]:
        """Return the columns in new pinned host memory."""
        block = torch.empty(self.nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
        typed = {dtype: block.view(dtype) for dtype in self.dtypes}
        return {
            name: typed[dtype].as_strided(shape, stride, offset)
            for name, (dtype, shape, stride, offset) in self.places.items()
        }


def are_in_block(tensors: Sequence[Tensor]) -> bool:
    """Return whether all ``tensors`` are parts of the block of the first one."""
    storage = tensors[0].untyped_storage()
    begin = storage.data_ptr()
    end = begin + storage.nbytes()
    return all(begin <= x.data_ptr() < end for x in tensors)


def block_of(x: Tensor) -> Tensor:
    """Return the whole memory that ``x`` is a part of, as uint8."""
    return torch.empty(0, dtype=torch.uint8, device=x.device).set_(x.untyped_storage())


def view_in_block(block: Tensor, x: Tensor) -> Tensor:
    """Return the part of ``block`` that lies where ``x`` lies in ``block_of(x)``."""
    return block.view(x.dtype).as_strided(x.shape, x.stride(), x.storage_offset())


# ---------------------------------------------------------------- ring buffers


class RingBuffer:
    """Columns of N streams, each ``[N, slots, ...]``, at fixed addresses and optionally interleaved in memory.

    Rows are contiguous and evenly spaced. Row r of stream i has the handle ``r N + i`` and is in slot ``r % slots``.
    """

    def __init__(self, columns: Mapping[str, np.ndarray]) -> None:
        self.columns = columns
        self.streams: int
        self.slots: int
        self.streams, self.slots = next(iter(columns.values())).shape[:2]
        self.rows: list[tuple[str, tuple[int, ...], torch.dtype]] = [
            (name, (self.streams, *ring.shape[2:]), getattr(torch, ring.dtype.name)) for name, ring in columns.items()
        ]
        """Name, shape and dtype of one row of all streams, by column."""
        self.fast: Any = None  # addresses that a kernel has looked up


@accelerated
def put_rows(ring: RingBuffer, rows: StepRows, slot: int) -> None:
    """Copy one row of each stream into ``slot``, converting dtypes; columns without a ring are ignored."""
    for name, shape, _ in ring.rows:
        row = as_numpy(rows[name])
        check_column_shape(name, row.shape, shape)
        ring.columns[name][:, slot] = row


@accelerated
def extend_rows(ring: RingBuffer, rows: Mapping[str, np.ndarray], part: slice, slot: int) -> None:
    """Copy rows ``part`` of ``[N, n, ...]`` into the slots from ``slot`` on; absent columns are set to 0 there."""
    slots = slice(slot, slot + part.stop - part.start)
    for name, column in ring.columns.items():
        column[:, slots] = rows[name][:, part] if name in rows else 0


@accelerated
def gather_rows(ring: RingBuffer, handles: Tensor, length: int, out: Mapping[str, Tensor]) -> None:
    """Copy windows of ``length`` rows from ``handles`` ``[B]`` on into ``out``, ``[B, length, ...]``; ends at seams."""
    slots = _flat_slots(handles.numpy(), np.arange(length), ring.streams, ring.slots)
    for name, column in ring.columns.items():
        out[name].numpy()[...] = column.reshape(-1, *column.shape[2:])[slots]  # rows are evenly spaced: no copy
    _mark_stream_cuts(out)


def _flat_slots(handles: np.ndarray, offsets: np.ndarray, streams: int, capacity: int) -> np.ndarray:
    """Return the indices ``[B, T']`` of the rows ``offsets`` ``[T']`` after ``handles`` ``[B]`` in a flat column.

    Rows before row 0 have the index of row 0.
    """
    row, stream = np.divmod(handles, streams)
    rows = np.maximum(row[:, None] + offsets, 0)
    slots: np.ndarray = stream[:, None] * capacity + rows % capacity
    return slots


class DeviceRing:
    """Flat columns of N streams on a device, each ``[rows, ...]``: the row with handle h is at ``h % rows``."""

    def __init__(self, columns: Mapping[str, Tensor], streams: int) -> None:
        self.columns = columns
        self.streams = streams
        column = next(iter(columns.values()))
        self.rows: int = len(column)
        self.device: torch.device = column.device
        self.fast: Any = None  # what a kernel has prepared

    def index(self, handles: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Return the indices ``[B, T']`` of the rows ``offsets`` ``[T']`` after ``handles`` ``[B]``.

        Rows before row 0 have the index of row 0.
        """
        begin = handles[:, None]
        index: np.ndarray = np.maximum(begin + offsets * self.streams, begin % self.streams) % self.rows
        return index


@accelerated
def gather_device_rows(ring: DeviceRing, handles: Tensor, length: int, out: Mapping[str, Tensor]) -> None:
    """Do what ``gather_rows`` does, into ``out`` on the ring's device; ``handles`` ``[B]`` are on the CPU."""
    index = load_numbers(ring.index(handles.numpy(), np.arange(length)).ravel(), ring.device)
    for name, column in ring.columns.items():
        torch.index_select(column, 0, index, out=out[name].flatten(0, 1))
    _mark_stream_cuts(out)


def _mark_stream_cuts(rows: Mapping[str, Tensor]) -> None:
    """Also set ``is_last`` before each ``is_first``, where a stream was cut: returns must not bootstrap across it."""
    if "is_first" in rows and "is_last" in rows:
        rows["is_last"][:, :-1].logical_or_(rows["is_first"][:, 1:])
