"""Rows, their statistics, sum trees and random integers in compiled calls (``rows.c``, ``moments.c``, ``tree.c``, ...).

Copying a small row takes less time than looking up the addresses of its source and target in Python. So addresses that
do not change are looked up once, and stored as the attribute ``fast`` of their object.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from reverie.core.columns import RingBuffer, StepRows, as_numpy, check_column_shape
from reverie.kernels.buffers import layout_of
from reverie.kernels.compiler import load_kernels
from reverie.kernels.ctypes_call import compiled_library, is_cpu_float32
from reverie.nn.normalization import CHUNK_ROWS, CONSTANT_ATOL, CONSTANT_RTOL
from reverie.replay.prioritized import SumTree
from reverie.replay.windows import HandleQueue, RandomIntegers

PARALLEL = 2**20
"""Bytes of a batch from which several threads are faster than one."""


class RingAddresses(NamedTuple):
    """What a compiled function needs to access a ring buffer."""

    library: Any
    table: np.ndarray  # see rows.c
    address: int  # of the table
    pack: Callable[..., bytes]
    row_bytes: int
    layouts: list[tuple[Any, ...]]  # of the tensors that are copied as they are: see layout_of


def has_compiled_functions(*_: object) -> bool:
    """Return whether there are compiled functions."""
    return load_kernels() is not None


def _addresses(ring: RingBuffer) -> RingAddresses:
    if ring.fast is None:
        columns = list(ring.columns.values())
        sizes, strides = [c[:1, :1].nbytes for c in columns], [c.strides[1] for c in columns]
        starts, names = [c.ctypes.data for c in columns], list(ring.columns)
        flags = [names.index(name) if name in names else -1 for name in ("is_first", "is_last")]
        blocks = _blocks(starts, strides)
        counts = [len(columns), ring.streams, ring.slots, len(blocks)]
        table = np.array([*counts, *flags, *sizes, *strides, *starts, *blocks.values(), *blocks], np.int64)
        pack = struct.Struct(f"{len(columns)}P").pack
        layouts = [(shape, dtype, True) for _, shape, dtype in ring.rows]
        ring.fast = RingAddresses(load_kernels(), table, table.ctypes.data, pack, sum(sizes), layouts)
    addresses: RingAddresses = ring.fast
    return addresses


def _blocks(addresses: Sequence[int], strides: Sequence[int]) -> dict[int, int]:
    """Return the distinct blocks of memory, as first address: bytes between rows. Interleaved rings share a block."""
    blocks: dict[int, int] = {}
    begin = end = 0
    for address, stride in sorted(zip(addresses, strides, strict=True)):
        if not begin <= address < end:
            begin, end = address, address + stride
            blocks[begin] = stride
    return blocks


def put_rows_cpu(ring: RingBuffer, rows: StepRows, slot: int) -> None:
    """See ``core.columns``."""
    fast = ring.fast or _addresses(ring)
    columns: list[Any] = [rows[name] for name in ring.columns]
    are_tensors = set(map(type, columns)) == {Tensor}
    if are_tensors and [*map(layout_of, columns)] == fast.layouts and all(map(Tensor.is_contiguous, columns)):
        pointers = fast.pack(*map(Tensor.data_ptr, columns))
    else:
        arrays = [as_numpy(x) for x in columns]
        for (name, shape, _), array in zip(ring.rows, arrays, strict=True):
            check_column_shape(name, array.shape, shape)
        arrays = [np.ascontiguousarray(x, c.dtype) for x, c in zip(arrays, ring.columns.values(), strict=True)]
        pointers = fast.pack(*[x.ctypes.data for x in arrays])
    fast.library.put_rows(fast.address, pointers, slot)


def extend_rows_cpu(ring: RingBuffer, rows: Mapping[str, np.ndarray], part: slice, slot: int) -> None:
    """See ``core.columns``."""
    fast = _addresses(ring)
    arrays = [np.ascontiguousarray(rows[name][:, part], column.dtype) if name in rows else None
            for name, column in ring.columns.items()]  # fmt: skip
    pointers = fast.pack(*[0 if array is None else array.ctypes.data for array in arrays])
    fast.library.extend_rows(fast.address, pointers, part.stop - part.start, slot)


def gather_rows_cpu(ring: RingBuffer, handles: Tensor, length: int, out: Mapping[str, Tensor]) -> None:
    """See ``core.columns``."""
    fast, handles = ring.fast or _addresses(ring), handles.contiguous()
    pointers = fast.pack(*map(Tensor.data_ptr, out.values()))
    count = handles.shape[0]
    threads = torch.get_num_threads() if count * length * fast.row_bytes >= PARALLEL else 1
    fast.library.gather_rows(fast.address, handles.data_ptr(), count, length, pointers, threads)


# ---------------------------------------------------------------- sum trees


def _levels(tree: SumTree) -> tuple[Any, int, int]:
    """Return the library, the address of the addresses of the levels, and their number."""
    if tree.fast is None:
        addresses = np.array([level.ctypes.data for level in tree.levels], np.int64)
        tree.fast = load_kernels(), addresses.ctypes.data, len(addresses), addresses
    library, address, count, _ = tree.fast
    return library, address, count


def tree_set_cpu(tree: SumTree, slots: np.ndarray, weights: np.ndarray) -> None:
    """See ``replay.priority``."""
    library, address, count = _levels(tree)
    slots, weights = np.ascontiguousarray(slots, np.int64), np.ascontiguousarray(weights, np.float64)
    library.tree_set(address, count, slots.ctypes.data, weights.ctypes.data, len(slots))


def tree_draw_cpu(tree: SumTree, numbers: np.ndarray) -> np.ndarray:
    """See ``replay.priority``."""
    library, address, count = _levels(tree)
    slots, target = np.zeros(len(numbers), np.int64), numbers * tree.total
    library.tree_draw(address, count, target.ctypes.data, len(target), slots.ctypes.data)
    return slots


# ---------------------------------------------------------------- statistics


def _dense(x: Tensor, count: int, dtype: torch.dtype = torch.float32) -> bool:
    return x.is_cpu and x.dtype is dtype and x.numel() == count and x.is_contiguous()


def supports_add_and_standardize(moments: Tensor, x: Tensor, shift: Tensor, factor: Tensor) -> bool:
    """Return whether there are few enough rows, and all is dense on the CPU."""
    width, count = factor.numel(), x.shape[0]
    dense = _dense(moments, 3 * width, torch.float64) and _dense(shift, width) and _dense(factor, width)
    return dense and count <= CHUNK_ROWS and _dense(x, count * width) and is_cpu_float32(x)


def add_and_standardize_cpu(moments: Tensor, x: Tensor, shift: Tensor, factor: Tensor) -> None:
    """Compute ``nn/normalization.py: add_and_standardize``: in PyTorch as slow as a step of HalfCheetah."""
    library: Any = compiled_library()
    library.add_rows(moments.data_ptr(), x.data_ptr(), x.shape[0], moments.shape[1], CONSTANT_RTOL, CONSTANT_ATOL,
        shift.data_ptr(),
                      factor.data_ptr())  # fmt: skip


def supports_add_returns(
    returns: Tensor, reward: Tensor, is_first: Tensor, discount: float, moments: Tensor, factor: Tensor
) -> bool:
    """Return whether all is dense on the CPU."""
    count, double = returns.shape[0], torch.float64
    dense = _dense(returns, count, double) and _dense(reward, count) and _dense(is_first, count, torch.bool)
    return dense and _dense(moments, 3, double) and _dense(factor, 1) and is_cpu_float32(reward)


def add_returns_cpu(
    returns: Tensor, reward: Tensor, is_first: Tensor, discount: float, moments: Tensor, factor: Tensor
) -> None:
    """See ``nn.rewards``."""
    library: Any = compiled_library()
    library.add_returns(returns.data_ptr(), reward.data_ptr(), is_first.data_ptr(), returns.shape[0], discount,
                         moments.data_ptr(), CONSTANT_ATOL, factor.data_ptr())  # fmt: skip


# ---------------------------------------------------------------- random integers


def supports_random_integers(source: object, bound: int, *_: object) -> bool:
    """Return whether NumPy draws 32 bits for each number: for other bounds it draws nothing, or 64 bits."""
    return 1 < bound < 2**32 and load_kernels() is not None


def random_integers_cpu(
    source: RandomIntegers, bound: int, count: int, among: HandleQueue | None = None, out: Tensor | None = None
) -> Tensor:
    """Compute ``replay/windows.py: random_integers``: 256 in 5 us, where NumPy takes 50 us with cold caches."""
    if source.fast is None:
        interface = source.rng.bit_generator.ctypes
        draw_one = ctypes.cast(interface.next_uint32, ctypes.c_void_p).value
        source.fast = load_kernels(), interface.state_address, draw_one
    library, state, draw_one = source.fast
    numbers = torch.empty(count, dtype=torch.int64, device="cpu") if out is None else out
    among_address = 0 if among is None else among.address
    library.draw_integers(state, draw_one, bound, count, among_address, numbers.data_ptr())
    return numbers
