"""Arrays of a snapshot that share memory, such as ``state`` and ``state[:2]``: they share it again when restored.

This file must not import torch: it is imported in worker processes.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

Memory = bytes | bytearray | np.ndarray
Reduced = tuple[Callable[..., Any], tuple[Any, ...]]
"""What ``pickle`` calls to make an object anew, and with which arguments."""


class NotTaken(Exception):
    """The state of this environment cannot be saved."""


class PickledArrays:
    """The arrays and tensors of one pickle. Arrays are saved as views of memory that is saved once.

    ``staying``: arrays of the environment that the pickle does not contain.
    """

    def __init__(self, staying: Iterable[np.ndarray] = ()) -> None:
        self._staying = {id(array) for array in staying}
        self._memories: dict[int, tuple[Memory, int]] = {}
        self._spans: list[tuple[int, int]] = []

    def reduced(self, array: np.ndarray) -> Reduced | None:
        """Return how to make ``array`` anew; None if ``pickle`` can do it.

        Raises:
            NotTaken: its memory belongs to a library, or to an array that is not saved.
        """
        kind = type(array)
        if not array.size:
            return None
        if (kind.__reduce__, kind.__reduce_ex__) != (np.ndarray.__reduce__, np.ndarray.__reduce_ex__):
            self._spans.append(_span(array))  # a masked array, for example
            return None
        owner = _owner(array)
        if owner is array and array.dtype.hasobject:
            return None
        memory, start = self._memory(owner, owner is array)
        offset = array.ctypes.data - start
        return _rebuilt, (kind, memory, offset, array.shape, array.strides, array.dtype, array.flags.writeable)

    def _memory(self, owner: Any, whole: bool) -> tuple[Memory, int]:
        """Return the memory of ``owner`` to save, and its address now."""
        if id(owner) in self._memories:
            return self._memories[id(owner)]
        if id(owner) in self._staying and not whole:
            raise NotTaken
        if isinstance(owner, bytes | bytearray):
            memory: Memory = owner
            span = _span(np.frombuffer(owner, np.uint8))
        elif not isinstance(owner, np.ndarray) or (owner.dtype.hasobject and not owner.flags.c_contiguous):
            raise NotTaken
        else:
            memory = owner if owner.dtype.hasobject else bytearray(np.ravel(owner, order="K").tobytes())
            span = _span(owner)
        self._spans.append(span)
        self._memories[id(owner)] = memory, span[0]
        return memory, span[0]

    def add_tensor(self, value: object) -> None:
        """Remember the memory of ``value`` if it is a tensor, which ``pickle`` saves with a memory of its own."""
        torch = sys.modules.get("torch")
        if torch and isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
            storage = value.untyped_storage()  # of a parameter, its ``data`` follows
            if storage.nbytes():
                self._spans.append((storage.data_ptr(), storage.data_ptr() + storage.nbytes()))

    def check(self) -> None:
        """Check what was saved.

        Raises:
            NotTaken: memory was saved twice, such as that of two views of a tensor, and would not be shared again.
        """
        if any(after[0] < before[1] for before, after in itertools.pairwise(sorted(self._spans))):
            raise NotTaken


def _owner(array: np.ndarray) -> Any:
    """Return the object that the memory of ``array`` belongs to."""
    owner: Any = array
    while (base := owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)) is not None:
        owner = base
    return owner


def _span(array: np.ndarray) -> tuple[int, int]:
    """Return the address of the first byte of ``array``, and that after the last one."""
    reach = [(count - 1) * stride for count, stride in zip(array.shape, array.strides, strict=True)]
    start = array.ctypes.data
    return start + sum(x for x in reach if x < 0), start + array.itemsize + sum(x for x in reach if x > 0)


def _rebuilt(
    kind: type[np.ndarray],
    memory: Memory,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: np.dtype[Any],
    writeable: bool,
) -> np.ndarray:
    array = np.ndarray.__new__(kind, shape, dtype, memory, offset, strides)
    if not writeable:
        array.flags.writeable = False
    return array
