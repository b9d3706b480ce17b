"""Environments in this process share it with the learner: what they may change for it is put back.

This file must not import torch: it is imported in worker processes.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import threading
import zlib
from collections.abc import Iterator

from reverie.core.errors import warn
from reverie.core.signals import SIGNALS


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


@contextlib.contextmanager
def handlers_kept() -> Iterator[None]:
    """Put the handlers of ``SIGNALS`` back if an environment replaces them, and say so once for each."""
    main = threading.current_thread() is threading.main_thread()  # no other thread may set handlers
    before = [(number, signal.getsignal(number)) for number in SIGNALS] if main else []
    try:
        yield
    finally:
        for number, handler in before:
            if handler is not None and signal.getsignal(number) is not handler:  # None: not set by Python
                signal.signal(number, handler)
                _say_replaced(number.name)


@functools.cache
def _say_replaced(name: str) -> None:
    warn(
        f"an environment set a handler of {name} while it was reset or started again: the one before was put back, "
        "which the run needs."
    )
