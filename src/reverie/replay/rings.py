"""Copying rows into and out of columns in memory, all columns in one compiled call (``rows.c``).

Without a compiler NumPy copies column by column, with the same result.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from reverie.core.compiler import kernels
from reverie.core.errors import DataError

Rows = Mapping[str, Tensor | np.ndarray]
"""One row of each of N streams by column, ``[N, ...]``, on any device."""

PARALLEL = 2**20
"""Bytes of a batch from which several threads are faster than one."""


class Rings:
    """Ring buffers: columns of N streams, each ``[N, slots, ...]``, which may be interleaved in memory.

    Copying a small row takes less time than looking up the addresses of its source and target in Python. So the
    addresses of the rings are looked up once, and of a row only each tensor's address.
    """

    def __init__(self, columns: Mapping[str, np.ndarray]) -> None:
        """Use ``columns``, which must not move. In each column every row is contiguous, and rows are evenly spaced."""
        self.columns = columns
        self.streams, self.slots = next(iter(columns.values())).shape[:2]
        self._library = kernels()
        self._expected = [
            (name, (self.streams, *ring.shape[2:]), getattr(torch, ring.dtype.name)) for name, ring in columns.items()
        ]
        self._bytes = [ring[:1, :1].nbytes for ring in columns.values()]
        self._table = np.array(self._layout(), np.int64)
        self._address = self._table.ctypes.data
        self._pack = struct.Struct(f"{len(columns)}P").pack
        self._row_bytes = sum(self._bytes)
        self._blanks: dict[str, Tensor] = {}
        self._blanks_of = (0, 0)  # windows and rows of each

    def _layout(self) -> list[int]:
        """Return the table that ``rows.c`` reads."""
        names = list(self.columns)
        flags = [names.index(name) if name in names else -1 for name in ("is_first", "is_last")]
        strides = [ring.strides[1] for ring in self.columns.values()]
        addresses = [ring.ctypes.data for ring in self.columns.values()]
        places = places_of(addresses, strides)
        counts = [len(names), self.streams, self.slots, len(places)]
        return [*counts, *flags, *self._bytes, *strides, *addresses, *places.values(), *places]

    # ------------------------------------------------------------------ in

    def put(self, rows: Rows, slot: int) -> None:
        """Copy one row of each stream into ``slot``, converting dtypes and copying from other devices where needed.

        Columns without a ring are ignored.

        Raises:
            DataError: a column has a wrong shape.
        """
        if self._library is None:
            for name, shape, _ in self._expected:
                self.columns[name][:, slot] = checked(name, as_numpy(rows[name]), shape)
            return
        found, kept = [], []
        for name, shape, dtype in self._expected:
            row = rows[name]
            if type(row) is not Tensor or not (
                row.dtype is dtype and row.shape == shape and row.is_contiguous() and row.is_cpu
            ):
                array = checked(name, as_numpy(row), shape)
                row = torch.from_numpy(np.array(array, self.columns[name].dtype, order="C"))
                kept.append(row)  # keeps it alive until it has been copied
            found.append(row.data_ptr())
        self._library.put_rows(self._address, self._pack(*found), slot)

    def extend(self, rows: Mapping[str, np.ndarray], part: slice, slot: int) -> None:
        """Copy rows ``part`` of ``[N, n, ...]`` by column into the slots from ``slot`` on, converting dtypes if needed.

        They must not reach beyond the last slot. Absent columns are set to 0 there.
        """
        count = part.stop - part.start
        if self._library is None:
            for name, ring in self.columns.items():
                ring[:, slot : slot + count] = rows[name][:, part] if name in rows else 0
            return
        kept = [np.ascontiguousarray(rows[name][:, part], ring.dtype) if name in rows else None
                for name, ring in self.columns.items()]  # fmt: skip
        found = self._pack(*[0 if array is None else array.ctypes.data for array in kept])
        self._library.extend_rows(self._address, found, count, slot)

    # ------------------------------------------------------------------ out

    def windows(self, handles: Tensor, length: int, pin: bool = False) -> dict[str, Tensor]:
        """Return the windows of ``length`` rows from ``handles`` ``[B]`` int64 on, ``[B, length, ...]`` by column.

        Row r of stream i has the handle ``r N + i`` and is in slot ``r % slots``. Rows before row 0 are copies of it.
        ``is_last`` is also set where the next row of a window ``is_first``: a stream may have been cut without a last
        row, and returns must not bootstrap across that seam. With ``pin`` windows are in pinned memory.
        """
        handles = handles.contiguous()
        rows = self._empty(len(handles), length, pin)
        if self._library is None:
            self._take(handles.numpy(), length, rows)
            return rows
        found = self._pack(*[column.data_ptr() for column in rows.values()])
        threads = torch.get_num_threads() if len(handles) * length * self._row_bytes >= PARALLEL else 1
        self._library.gather_rows(self._address, handles.data_ptr(), len(handles), length, found, threads)
        return rows

    def _empty(self, batch: int, length: int, pin: bool) -> dict[str, Tensor]:
        """Allocate windows. Their shapes and dtypes are cached as expanded scalars, which need no memory."""
        if self._blanks_of != (batch, length):
            self._blanks_of = (batch, length)
            self._blanks = {
                name: torch.empty((), dtype=dtype, device="cpu").expand(batch, length, *shape[1:])
                for name, shape, dtype in self._expected
            }
        if pin:
            return {name: torch.empty_like(blank, pin_memory=True) for name, blank in self._blanks.items()}
        return {name: torch.empty_like(blank) for name, blank in self._blanks.items()}

    def _take(self, handles: np.ndarray, length: int, rows: Mapping[str, Tensor]) -> None:
        slots = slots_of(handles, np.arange(length), self.streams, self.slots)
        for name, ring in self.columns.items():
            rows[name].numpy()[...] = ring.reshape(-1, *ring.shape[2:])[slots]  # rows are evenly spaced: no copy
        end_at_seams(rows)


def places_of(addresses: list[int], strides: list[int]) -> dict[int, int]:
    """Return the distinct blocks of memory, as first address: bytes between rows. Interleaved rings share a block."""
    places: dict[int, int] = {}
    begin = end = 0
    for address, stride in sorted(zip(addresses, strides, strict=True)):
        if not begin <= address < end:
            begin, end = address, address + stride
            places[begin] = stride
    return places


def slots_of(handles: np.ndarray, offsets: np.ndarray, streams: int, capacity: int) -> np.ndarray:
    """Return the places ``[B, T']`` of the rows ``offsets`` ``[T']`` after ``handles`` ``[B]`` in a flat column.

    For rows before row 0 it is that of row 0.
    """
    row, stream = np.divmod(handles, streams)
    rows = np.maximum(row[:, None] + offsets, 0)
    slots: np.ndarray = stream[:, None] * capacity + rows % capacity
    return slots


def end_at_seams(rows: Mapping[str, Tensor]) -> None:
    """Also set ``is_last`` where the next row of a window ``is_first``, in place."""
    if "is_first" in rows and "is_last" in rows:
        rows["is_last"][:, :-1] |= rows["is_first"][:, 1:]


def checked(name: str, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return ``array`` if it has the given shape.

    Raises:
        DataError: it has another shape.
    """
    if array.shape != shape:
        raise DataError(f"{name} has shape {array.shape}: expected {shape} (streams first).")
    return array


def as_numpy(value: Tensor | np.ndarray) -> np.ndarray:
    """Return ``value`` as an array on the CPU, waiting for the device if needed; bfloat16 becomes float32."""
    if isinstance(value, np.ndarray):
        return value
    if value.is_cpu and not value.requires_grad and value.dtype is not torch.bfloat16:
        return value.numpy()
    return (value.float() if value.dtype is torch.bfloat16 else value).numpy(force=True)
