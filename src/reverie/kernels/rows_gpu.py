"""Windows of rows that lie on a GPU: one launch gathers all columns (``triton_rows.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reverie.core.columns import DeviceRing, gather_device_rows, load_numbers
from reverie.kernels import gpu
from reverie.kernels.gpu import Compared, Numbers

BLOCK = 1024
"""Integers that a program copies."""

UNITS = (8, 4, 2, 1)
"""Bytes of the integers that rows are copied as: the largest of which a row has a whole number."""


class Gathering(NamedTuple):
    """What launches for the same ring have in common."""

    names: tuple[str, ...]
    columns: tuple[Tensor, ...]
    tiles: tuple[tuple[int, int], ...]  # by column: rows that a program copies, and programs for each row
    constants: dict[str, Any]


def supports_gather_device_rows(ring: DeviceRing, handles: Tensor, length: int, out: Mapping[str, Tensor]) -> bool:
    """Return whether :func:`gather_device_rows_triton` can be used."""
    return gpu.can_use_triton(out["reward"], family="replay")


def gather_device_rows_triton(ring: DeviceRing, handles: Tensor, length: int, out: Mapping[str, Tensor]) -> None:
    """Compute ``core/columns.py: gather_device_rows``."""
    if ring.fast is None:
        ring.fast = _prepare(ring)
    names, columns, tiles, constants = ring.fast
    rows = handles.shape[0] * length
    gpu._launch("gather_rows_kernel", (sum(-(-rows // tall) * parts for tall, parts in tiles),), columns,
                tuple(map(out.__getitem__, names)), load_numbers(handles.numpy(), ring.device), rows, length,
                ring.streams, ring.rows, **constants)  # fmt: skip


def _prepare(ring: DeviceRing) -> Gathering:
    columns = {name: x for name, x in ring.columns.items() if x.numel()}
    names, row_bytes = tuple(columns), [x[0].nbytes for x in columns.values()]
    units = tuple(next(unit for unit in UNITS if size % unit == 0) for size in row_bytes)
    widths = tuple(size // unit for size, unit in zip(row_bytes, units, strict=True))
    lanes = tuple(min(BLOCK, 1 << (width - 1).bit_length()) for width in widths)
    tiles = tuple((BLOCK // wide, -(-width // wide)) for width, wide in zip(widths, lanes, strict=True))
    flags = {"FIRST": names.index("is_first"), "LAST": names.index("is_last")}
    constants = {"UNITS": units, "WIDTHS": widths, "LANES": lanes, **flags, "BLOCK": BLOCK}
    return Gathering(names, tuple(columns.values()), tiles, constants)


def compare_replay(numbers: Numbers) -> Compared:
    """Return windows by the kernel and by its definition; ``numbers`` returns random tensors of a shape."""
    rows, streams = 33, 3
    columns = {f"obs/{width}": numbers(rows, width) for width in (1, 3, 17, 6)}
    columns["obs/image"] = (50 * numbers(rows, 2 * BLOCK + 1, 8).abs()).to(torch.uint8)  # three programs for a row
    columns |= {"obs/half": numbers(rows, 3).half(), "reward": numbers(rows)}
    columns |= {name: numbers(rows) > 0 for name in ("is_first", "is_last", "is_terminal")}
    ring, compared = DeviceRing(columns, streams), []
    for length, handles in ((1, [5, 32]), (4, [-9, -1, 0, 40, 1000])):
        size, windows = (len(handles), length), []
        for gather in (gather_device_rows_triton, gather_device_rows.definition):  # type: ignore[attr-defined]  # without kernels
            out = {name: x.new_ones(*size, *x.shape[1:]) for name, x in columns.items()}
            gather(ring, torch.tensor(handles, device="cpu"), length, out)
            windows.append(out)
        compared += [("gather_rows", a.float(), b.float()) for a, b in zip(*map(dict.values, windows), strict=True)]
    return compared


gpu.COMPARISONS["replay"] = compare_replay
