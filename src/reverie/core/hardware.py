"""This machine: devices, memory, hardware description, and speed of matrix products."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import platform
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reverie.core.errors import ConfigError, count_noun
from reverie.core.processor import processor_name


def choose_device(name: str) -> str:
    """Return ``name``, ``auto`` replaced by ``cuda`` or ``cpu``. Call it before environments: it loads Triton."""
    check_device_name(name)
    count = num_gpus()
    if name == "auto":
        name = "cuda" if count else "cpu"
    index = int(name.partition(":")[2] or 0)
    if name.startswith("cuda") and index >= count:
        raise ConfigError(f"device = '{name}': PyTorch sees {count_noun(count, 'CUDA device')} here. Use auto or cpu.")
    _load_triton()
    return name


def set_up_pytorch(device: str, threads: int, cudnn_benchmark: bool) -> str:
    """Set PyTorch's number of CPU threads, unless 0, and how cuDNN chooses; return ``device``."""
    if device == "cpu":
        keep_freed_memory()
    if threads:
        torch.set_num_threads(threads)
    torch.backends.cudnn.benchmark = cudnn_benchmark
    return device


def with_number(device: torch.device) -> torch.device:
    """Return ``device`` as tensors on it name it: ``cuda`` is the current one, such as ``cuda:0``."""
    return torch.empty(0, device=device).device


def check_device_name(name: str) -> None:
    """Raise ConfigError unless ``name`` is written like a device. It may not exist on this machine."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise ConfigError(f"device = '{name}': expected auto, cpu, cuda or cuda:<number>.")


def num_gpus() -> int:
    """Return the number of GPUs that PyTorch can use."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def num_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _load_triton() -> None:
    """Import Triton, if it is installed, before an environment loads Mesa's OpenGL: afterwards the import crashes.

    Both contain LLVM. If Mesa is already loaded, PyTorch and ``kernels/gpu.py`` do not use Triton.
    """
    if "triton" not in sys.modules and has_mesa_loaded():
        sys.modules["triton"] = None  # type: ignore[assignment]  # the import raises ModuleNotFoundError from now on
    with contextlib.suppress(Exception):  # a broken installation counts as none (kernels/gpu.py)
        importlib.import_module("triton")


def has_mesa_loaded() -> bool:
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

    Otherwise glibc returns large blocks to the system, which clears every page of the next one: a sixth of the time of
    an update. Call this after allocating large arrays that are filled slowly, such as a replay.
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


# ---------------------------------------------------------------- description


Product = Callable[[Tensor, Tensor], Tensor]
"""``[n, n]`` times ``[n, n]``."""

GPU_SIZES, CPU_SIZES = (4096, 8192), (512, 1024, 2048)
"""Side lengths of the square matrices that are multiplied."""


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Return the facts needed to interpret timings of this machine; ``load`` is the load average of the last minute."""
    return {
        "processor": processor_name(),
        "cores": num_cores(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def peak_memory() -> int:
    """Return the peak resident memory of this process in bytes; 0 if the system does not report it."""
    with contextlib.suppress(OSError, IndexError):  # of this program only; getrusage can report the parent's
        return 1024 * int(re.findall(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)[0])
    try:
        import resource  # not on Windows
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def synchronize(device: torch.device) -> None:
    """Wait until ``device`` has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def matrix_rates(device: torch.device) -> dict[str, float]:
    """Return the highest rate of square products by precision, in multiplications and additions a second."""
    sizes = GPU_SIZES if device.type == "cuda" else CPU_SIZES
    rates: dict[str, float] = {}
    for dtype in _precisions(device):
        samples = [_measure_rate(product, n, dtype, device) for n in sizes for product in _products(device)]
        rates[str(dtype).removeprefix("torch.")] = max(samples)
    return rates


def _precisions(device: torch.device) -> list[torch.dtype]:
    if device.type == "cuda":
        return [torch.float32, *([torch.bfloat16] if torch.cuda.is_bf16_supported() else []), torch.float16]
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    half = supported is not None and bool(supported())
    return [torch.float32, torch.bfloat16] if half else [torch.float32]


def _products(device: torch.device) -> list[Product]:
    """Return PyTorch's implementations of a product: MKL's (or the GPU's) and, on CPUs, oneDNN's if available."""
    operator = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    if device.type == "cuda" or operator is None:
        return [torch.mm]
    return [torch.mm, lambda x, y: operator(x, y, None, "none", [], "")]


def _measure_rate(product: Product, n: int, dtype: torch.dtype, device: torch.device) -> float:
    x, y = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    seconds = []
    for _ in range(6):
        synchronize(device)
        started = time.perf_counter()
        product(x, y)
        synchronize(device)
        seconds.append(time.perf_counter() - started)
    return 2 * n**3 / min(seconds)
