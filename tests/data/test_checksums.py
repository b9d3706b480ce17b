"""Checksums of the store are those of google-crc32c, compiled, by the processor's instruction or without, and not."""

import ctypes
import subprocess
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from reverie.core import compiler
from reverie.core.compiler import _compiler, kernels
from reverie.store import zarr

PIECES = [b"", b"1", b"123456789", bytes(32), b"\xff" * 32, *(
    np.random.default_rng(n).integers(0, 256, n, dtype=np.uint8).tobytes() for n in (7, 8, 9, 15, 4096, 100_003)
)]  # fmt: skip
EXPECTED = [google_crc32c.value(piece) for piece in PIECES]


def test_the_values_of_the_standard():
    """RFC 3720, appendix B.4, as numbers; and the usual check of "123456789"."""
    assert EXPECTED[2:5] == [0xE3069283, 0x8A9136AA, 0x62A8AB43]


def test_compiled():
    if kernels() is None:
        pytest.skip("there is no compiler")
    assert zarr.checksums([memoryview(piece) for piece in PIECES]) == EXPECTED
    assert zarr.checksums([]) == []


def test_without_a_compiler():
    assert zarr.checksums.definition([memoryview(piece) for piece in PIECES]) == EXPECTED


def test_on_a_processor_without_the_instruction(tmp_path):
    if kernels() is None:
        pytest.skip("there is no compiler")
    source = Path(compiler.__file__).parents[1] / "kernels" / "csrc" / "checksum.c"
    library = tmp_path / "checksum.so"
    subprocess.run([*_compiler(), "-O2", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    found = np.empty(len(PIECES), np.uint32)
    sizes = np.array([len(piece) for piece in PIECES], np.int64)
    places = (ctypes.c_char_p * len(PIECES))(*PIECES)
    ctypes.CDLL(str(library)).checksums(
        places, ctypes.c_void_p(sizes.ctypes.data), ctypes.c_void_p(found.ctypes.data), ctypes.c_int64(len(PIECES))
    )
    assert found.tolist() == EXPECTED
