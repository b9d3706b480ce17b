"""Checksums of the store are those of google-crc32c: by the processor's instruction, without it, and not compiled."""

import ctypes
import subprocess
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from reverie.kernels import compiler
from reverie.kernels.compiler import _compiler, load_kernels
from reverie.store import zarr

PIECES = [b"", b"123456789", *(
    np.random.default_rng(n).integers(0, 256, n, dtype=np.uint8).tobytes() for n in (7, 8, 9, 15, 4096, 100_003)
)]  # fmt: skip
EXPECTED = [google_crc32c.value(piece) for piece in PIECES]


def test_all_ways_give_the_same(tmp_path):
    assert EXPECTED[1] == 0xE3069283  # the usual check
    pieces = [memoryview(piece) for piece in PIECES]
    assert zarr.checksums.definition(pieces) == EXPECTED
    if load_kernels() is None:
        pytest.skip("there is no compiler")
    assert zarr.checksums(pieces) == EXPECTED
    assert zarr.checksums([]) == []
    source = Path(compiler.__file__).parent / "csrc" / "checksum.c"
    library, found = tmp_path / "checksum.so", np.empty(len(PIECES), np.uint32)
    subprocess.run([*_compiler(), "-O2", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    sizes = np.array([len(piece) for piece in PIECES], np.int64)
    addresses = (ctypes.c_void_p(array.ctypes.data) for array in (sizes, found))
    places = (ctypes.c_char_p * len(PIECES))(*PIECES)
    ctypes.CDLL(str(library)).checksums(places, *addresses, ctypes.c_int64(len(PIECES)))
    assert found.tolist() == EXPECTED
