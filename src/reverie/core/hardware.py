"""Description of this machine: its parts, its speed at matrix products, and the peak memory of this process."""

from __future__ import annotations

import contextlib
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

Product = Callable[[Tensor, Tensor], Tensor]
"""``[n, n]`` times ``[n, n]``."""

GPU_SIZES, CPU_SIZES = (4096, 8192), (512, 1024, 2048)
"""Side lengths of the square matrices that are multiplied."""


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's model name, as precisely as the system reports it.

    Virtual machines may report a name without a number, such as "AMD EPYC": the numbers of its family and model are
    appended, since generations differ twofold in speed.
    """
    with contextlib.suppress(OSError, KeyError):
        facts: dict[str, str] = dict(re.findall(r"^(\w[\w ]*?)[ \t]*:[ \t]*(.+)$", cpuinfo.read_text(), re.MULTILINE))
        name = facts["model name"]
        if re.search(r"\d", name) or not {"cpu family", "model"} <= set(facts):
            return name
        return f"{name} (family {facts['cpu family']}, model {facts['model']})"
    return platform.processor() or platform.machine()


def describe(device: torch.device) -> dict[str, Any]:
    """Return the facts needed to interpret timings of this machine; ``load`` is the load average of the last minute."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": processor(),
        "cores": cores,
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def peak_memory() -> int:
    """Return the peak resident memory of this process in bytes; 0 if the system does not report it."""
    with contextlib.suppress(OSError, IndexError):  # this program's only; getrusage may report that of its parent
        return 1024 * int(re.findall(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)[0])
    try:
        import resource  # not on Windows
    except ImportError:
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def wait_for(device: torch.device) -> None:
    """Wait until ``device`` has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def matrix_rates(device: torch.device) -> dict[str, float]:
    """Return the highest measured rate of square matrix products by precision, in floating-point operations a second.

    A multiplication and an addition are two operations. On CPUs the faster of MKL and oneDNN counts. Precisions that
    the hardware does not support are left out.
    """
    sizes = GPU_SIZES if device.type == "cuda" else CPU_SIZES
    rates: dict[str, float] = {}
    for dtype in _precisions(device):
        found = [_rate(product, n, dtype, device) for n in sizes for product in _products(device)]
        rates[str(dtype).removeprefix("torch.")] = max(found)
    return rates


def _precisions(device: torch.device) -> list[torch.dtype]:
    if device.type == "cuda":
        half = torch.cuda.is_bf16_supported()
    else:
        supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
        half = supported is not None and bool(supported())
    return [torch.float32, torch.bfloat16] if half else [torch.float32]


def _products(device: torch.device) -> list[Product]:
    """Return PyTorch's implementations of a product: MKL's (or the GPU's) and, on CPUs, oneDNN's if available."""
    operator = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    if device.type == "cuda" or operator is None:
        return [torch.mm]
    return [torch.mm, lambda x, y: operator(x, y, None, "none", [], "")]


def _rate(product: Product, n: int, dtype: torch.dtype, device: torch.device, times: int = 6) -> float:
    x, y = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    seconds = []
    for _ in range(times):
        wait_for(device)
        started = time.perf_counter()
        product(x, y)
        wait_for(device)
        seconds.append(time.perf_counter() - started)
    return 2 * n**3 / min(seconds)
