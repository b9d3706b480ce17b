"""Whole numbers drawn at random, in one compiled call (``chance.c``)."""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from torch import Tensor

from reverie.core.compiler import kernels
from reverie.data.handles import HandleQueue


class Integers:
    """``rng.integers(bound, size=count)``: the same numbers, and the generator then stands where it would.

    NumPy's way to them is long, and after an update none of it is left in the caches: 50 us for 256 numbers, here 5.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        """Of ``rng``, which others may draw from as well."""
        self.rng = rng
        source = rng.bit_generator.ctypes
        self._source = (source.state_address, ctypes.cast(source.next_uint32, ctypes.c_void_p).value)

    def __call__(self, bound: int, count: int, among: HandleQueue | None = None) -> Tensor:
        """``count`` numbers of 0 to ``bound - 1``, int64, or what stands there ``among`` as many handles."""
        library = kernels()
        if library is None or not 1 < bound < 2**32:  # where NumPy draws nothing, or 64 bits at a time
            positions = self.rng.integers(bound, size=count)
            return torch.from_numpy(positions if among is None else among.held[positions])
        numbers = torch.empty(count, dtype=torch.int64)
        where = 0 if among is None else among.address
        library.draw_integers(*self._source, bound, count, where, numbers.data_ptr())
        return numbers
