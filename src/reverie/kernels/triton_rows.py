"""The Triton kernel that gathers windows of rows, all columns in one launch. ``kernels/rows_gpu.py`` launches it."""

import triton
import triton.language as tl


@triton.jit
def _ring_index(handle, streams, total):
    """Return the index of the row with this handle; before row 0, that of row 0 (``core/columns.py: DeviceRing``)."""
    stream = (handle % streams + streams) % streams
    return tl.maximum(handle, stream) % total


@triton.jit
def _as_integers(x, UNIT: tl.constexpr):
    """Return the address ``x`` as that of integers of UNIT bytes."""
    if UNIT == 8:
        return x.to(tl.pointer_type(tl.int64), bitcast=True)
    elif UNIT == 4:
        return x.to(tl.pointer_type(tl.int32), bitcast=True)
    elif UNIT == 2:
        return x.to(tl.pointer_type(tl.int16), bitcast=True)
    else:
        return x.to(tl.pointer_type(tl.int8), bitcast=True)


@triton.jit
def _gather_column(
    program, column, out, first, handles, rows, length, streams, total,
    WIDTH: tl.constexpr, LANES: tl.constexpr, PARTS: tl.constexpr, MARK: tl.constexpr, TALL: tl.constexpr,
):  # fmt: skip
    """Copy LANES integers of each of TALL rows. With MARK, rows before a row that is ``first`` are marked."""
    row = program // PARTS * TALL + tl.arange(0, TALL)
    lane = program % PARTS * LANES + tl.arange(0, LANES)
    row_mask, t = row < rows, row % length
    mask = row_mask[:, None] & (lane < WIDTH)[None, :]
    handle = tl.load(handles + row // length, mask=row_mask, other=0) + t.to(tl.int64) * streams
    source = _ring_index(handle, streams, total)
    v = tl.load(column + source[:, None] * WIDTH + lane[None, :], mask=mask, other=0)
    if MARK:
        following = _ring_index(handle + streams, streams, total)
        v |= tl.load(first + following, mask=row_mask & (t + 1 < length), other=0)[:, None]
    tl.store(out + row.to(tl.int64)[:, None] * WIDTH + lane[None, :], v, mask=mask)


@triton.jit
def gather_rows_kernel(
    columns, out, handles, rows, length, streams, total,
    UNITS: tl.constexpr, WIDTHS: tl.constexpr, LANES: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Write windows of ``length`` rows from ``handles`` ``[B]`` on to ``out``: ``core/columns.py: gather_device_rows``.

    ``rows`` = B * length. A row of column k has WIDTHS[k] integers of UNITS[k] bytes. A program copies LANES[k] of each
    of BLOCK / LANES[k] rows, a power of two; the programs of the first column come first. FIRST and LAST are the
    numbers of the columns is_first and is_last.
    """
    program = tl.program_id(0)
    for k in tl.static_range(len(columns)):
        parts = (WIDTHS[k] + LANES[k] - 1) // LANES[k]
        count = tl.cdiv(rows, BLOCK // LANES[k]) * parts
        if (program >= 0) & (program < count):
            _gather_column(
                program, _as_integers(columns[k], UNITS[k]), _as_integers(out[k], UNITS[k]),
                _as_integers(columns[FIRST], 1), handles, rows, length, streams, total,
                WIDTHS[k], LANES[k], parts, k == LAST, BLOCK // LANES[k],
            )  # fmt: skip
        program -= count
