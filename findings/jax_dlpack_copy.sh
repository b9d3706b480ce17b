#!/bin/sh
# JAX 0.10.2 with PyTorch 2.13.0 on a CPU: from_dlpack(copy=True) can share memory, and from_dlpack(copy=False) can copy.
#
# A simulator in JAX beside a learner in PyTorch exchanges rows by DLPack. Either side may write into its own tensor
# later, so one asks for a copy where one is needed, and for the memory itself where none is wanted.
#
# Guess, written down first: with copy=True the array has memory of its own ("a copy is always performed"). With
# copy=False, integers of 64 bits, which JAX narrows to 32 unless jax_enable_x64 is set, raise a ValueError ("the copy is
# never performed and will raise an error if necessary").
#
# Seen:
#   copy=True, address a multiple of 64: the array and the tensor are the same memory, and a later write shows in both.
#   copy=True, any other address: a copy. The allocators of torch and jax give multiples of 64, so that a test with a
#     whole tensor sees the sharing, and one with its slice does not.
#   copy=True, an array of jax itself: the same memory, too.
#   copy=False, int64: no error, an int32 array elsewhere, 2**40 + 5 became 5. float64: a float32 array, 1e300 became inf.
#
# So a program that keeps a row has to copy it itself: jax.numpy.array(row, copy=True), or tensor.clone() before.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 torch==2.13.0
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy as np
import torch

def shares(array, address):
    jax.block_until_ready(array)
    return array.unsafe_buffer_pointer() == address

whole = torch.arange(64, dtype=torch.float32)
start = (-whole.data_ptr() % 64) // 4
aligned, shifted = whole[start : start + 16], whole[start + 1 : start + 17]
row = jax.dlpack.from_dlpack(aligned, copy=True)
before = float(row[0])
aligned[0] = -1.0
print("aligned, copy=True:", "shared" if shares(row, aligned.data_ptr()) else "copied", before, "->", float(row[0]))
assert shares(row, aligned.data_ptr()) and float(row[0]) == -1.0
assert not shares(jax.dlpack.from_dlpack(shifted, copy=True), shifted.data_ptr())
print("4 bytes further, copy=True: copied")

numbers = np.arange(64, dtype=np.float32)
start = (-numbers.ctypes.data % 64) // 4
numbers = numbers[start : start + 16]
assert shares(jnp.from_dlpack(numbers, copy=True), numbers.ctypes.data)
mine = jnp.arange(16.0)
assert shares(jnp.from_dlpack(mine, copy=True), mine.unsafe_buffer_pointer())
print("numpy's and jax's own arrays, copy=True: shared")

wide = torch.tensor([2**40 + 5, -1])
narrow = jax.dlpack.from_dlpack(wide, copy=False)
print("int64, copy=False:", narrow.dtype, narrow)
assert narrow.dtype == jnp.int32 and narrow.tolist() == [5, -1] and not shares(narrow, wide.data_ptr())
real = jax.dlpack.from_dlpack(torch.tensor([1.0, 1e300], dtype=torch.float64), copy=False)
print("float64, copy=False:", real.dtype, real)
assert real.dtype == jnp.float32 and real.tolist() == [1.0, float("inf")]
print("as described")
PYTHON
