"""The resources of this machine: devices and memory."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import re
import sys
from pathlib import Path

import torch

from reverie.core.errors import ConfigError


def choose_device(name: str) -> str:
    """Return ``name``, with ``auto`` replaced by ``cuda`` if PyTorch sees a GPU and else by ``cpu``.

    Call it before environments are made: it loads Triton (``load_triton``).
    """
    count = gpus()
    if name == "auto":
        name = "cuda" if count else "cpu"
    index = int(name.partition(":")[2] or 0)
    if name.startswith("cuda") and index >= count:
        found = "1 CUDA device" if count == 1 else f"{count} CUDA devices"
        raise ConfigError(f"device = '{name}': PyTorch sees {found} here. Use auto or cpu.")
    load_triton()
    return name


def gpus() -> int:
    """Return the number of GPUs that PyTorch can use."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def load_triton() -> None:
    """Import Triton, if it is installed, before an environment loads Mesa's OpenGL: behind that the import crashes.

    Both contain LLVM. PyTorch imports Triton when it first needs it, also on CPUs. Where the program has already drawn
    something by Mesa, nobody can import Triton any more: PyTorch and ``kernels/gpu.py`` then go without it.
    """
    if "triton" not in sys.modules and loaded_by_mesa():
        sys.modules["triton"] = None  # type: ignore[assignment]  # the import raises ModuleNotFoundError from now on
    with contextlib.suppress(Exception):  # a broken one is not used, as none is (kernels/gpu.py)
        importlib.import_module("triton")


def loaded_by_mesa() -> bool:
    """Return whether this process has loaded Mesa's drivers or their LLVM (Linux only)."""
    with contextlib.suppress(OSError):
        return re.search(r"libLLVM|libgallium|_dri\.so", Path("/proc/self/maps").read_text()) is not None
    return False


def available_memory() -> int | None:
    """Return the bytes of memory available without swapping, or None if the system does not report it."""
    limits: list[int] = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = Path("/proc/meminfo").read_text()
        limits.append(1024 * int(re.findall(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)[0]))
    with contextlib.suppress(OSError, ValueError, IndexError):
        group = Path("/sys/fs/cgroup")  # the limit of a container; its file cache can be reclaimed
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = int(re.findall(r"^inactive_file (\d+)", (group / "memory.stat").read_text(), re.MULTILINE)[0])
        limits.append(limit - used + cached)
    return min(limits, default=None)


def keep_freed_memory() -> bool:
    """Make the allocator keep freed memory for later tensors. Return whether that succeeded (glibc on Linux only).

    By default glibc returns large blocks to the system at once, and the system clears every page of the next one: a
    sixth of the time of an update on a CPU. Call this after allocating large arrays that are filled slowly, such as a
    replay, because all later memory comes from one heap.
    """
    if not sys.platform.startswith("linux"):
        return False
    trim_threshold, mmap_max, arena_max = -1, -4, -8  # constants of <malloc.h>
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    settings = ((trim_threshold, 2**31 - 1), (mmap_max, 0), (arena_max, 1))
    return [int(mallopt(name, value)) for name, value in settings] == [1, 1, 1]
