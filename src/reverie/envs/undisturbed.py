"""Environments in this process share it with the learner: what they may change for it is put back.

This file must not import torch: it is imported in worker processes.
"""

from __future__ import annotations

import contextlib
import sys
import zlib
from collections.abc import Iterator


@contextlib.contextmanager
def generator_kept(*name: object) -> Iterator[None]:
    """Put PyTorch's global CPU generator back: seeded by an environment, it would repeat the learner's random numbers.

    Inside, it is seeded with a function of its state and of ``name``. Otherwise two resets, between which nobody else
    draws, would draw the same.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(zlib.crc32(repr(name).encode(), zlib.crc32(before.numpy())))
    try:
        yield
    finally:
        torch.set_rng_state(before)
