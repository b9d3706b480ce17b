"""Compile all C files of the package for this machine, once, and load them.

Compiling takes some seconds with any C compiler; the library is kept in the user's cache folder. Without a compiler
everything runs in PyTorch, and one warning says so.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

SOURCES = sorted(Path(__file__).parents[1].glob("*/*.c"))
HEADERS = sorted(Path(__file__).parents[1].glob("*/*.h"))
SWITCH = "REVERIE_KERNELS"
"""Environment variable; ``off`` disables compiled functions and Triton kernels: everything runs in PyTorch."""

_POINTER, _COUNT, _REAL, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int
_SIGNATURES = {
    "replay_calls": [_POINTER, _COUNT],
    "move": [_POINTER] * 3 + [_COUNT],
    "plain": [_COUNT] + [_POINTER] * 4 + [_REAL] * 2,
    "norm_silu": [_POINTER] * 3 + [_COUNT] * 4 + [_REAL, _INT],
    "norm_silu_backward": [_POINTER] * 6 + [_COUNT] * 4 + [_REAL, _INT],
    "elu": [_POINTER] * 2 + [_COUNT, _INT],
    "elu_backward": [_POINTER] * 3 + [_COUNT, _INT],
    "gru": [_POINTER] * 3 + [_COUNT] * 3 + [_INT],
    "gru_backward": [_POINTER] * 5 + [_COUNT] * 3 + [_INT],
    "unimix": [_POINTER] * 2 + [_COUNT] * 2 + [_REAL, _INT],
    "unimix_backward": [_POINTER] * 3 + [_COUNT] * 2 + [_REAL, _INT],
    "draw": [_POINTER] * 3 + [_COUNT] * 2 + [_INT],
    "one_hot": [_POINTER] * 2 + [_COUNT] * 2 + [_INT],
    "sample_bits": [_POINTER] * 2 + [_COUNT, _POINTER],
    "log_sum_exp": [_POINTER] * 2 + [_COUNT] * 2 + [_INT],
    "log_sum_exp_backward": [_POINTER] * 4 + [_COUNT] * 2 + [_INT],
    "cross_entropy_backward": [_POINTER] * 6 + [_COUNT] * 3 + [_INT],
    "softmax_mean": [_POINTER] * 3 + [_COUNT] * 2 + [_POINTER, _INT],
    "head_read": [_POINTER] * 6 + [_COUNT] * 3 + [_POINTER] * 2 + [_INT],
    "head_loss": [_POINTER] * 7 + [_COUNT] * 3 + [_INT],
    "head_backward": [_POINTER] * 10 + [_COUNT] * 4 + [_POINTER] * 3 + [_INT],
    "observe": [_POINTER] * 8 + [_COUNT] * 2,
    "observe_backward": [_POINTER] * 8 + [_COUNT] * 2,
    "imagine": [_POINTER] * 6 + [_COUNT],
    "product": [_POINTER, _COUNT, _COUNT] * 2 + [_POINTER] * 3 + [_COUNT] * 3 + [_INT, _COUNT],
    "mlp": [_POINTER] * 3 + [_COUNT] + [_POINTER] * 2 + [_COUNT, _REAL],
    "pool_norm_silu": [_POINTER] * 5 + [_COUNT] * 4 + [_REAL, _INT],
    "pooled_weight_gradient": [_POINTER] * 5 + [_COUNT] * 7 + [_INT],
    "pooled_input_gradient": [_POINTER] * 5 + [_COUNT] * 7 + [_INT],
    "winograd": [_POINTER] * 5 + [_COUNT] * 7 + [_INT],
    "unfold_sigmoid": [_POINTER] * 2 + [_COUNT] * 3 + [_INT],
    "unfold_sigmoid_backward": [_POINTER] * 3 + [_COUNT] * 3 + [_INT],
    "squared_error": [_POINTER] * 3 + [_COUNT] * 2 + [_REAL] * 2 + [_INT],
    "squared_error_backward": [_POINTER] * 4 + [_COUNT] * 2 + [_REAL] * 2 + [_INT],
    "perceptron": [_POINTER] * 3 + [_COUNT] * 2 + [_POINTER] * 2 + [_COUNT] * 2,
    "perceptron_backward": [_POINTER] * 6 + [_COUNT] * 2,
    "perceptron_tiles": [_POINTER] * 4 + [_COUNT] * 2,
    "perceptron_tiles_backward": [_POINTER] * 6 + [_COUNT] * 2,
    "adam": [_POINTER] * 4 + [_COUNT, _POINTER, _POINTER, _COUNT],
    "squashed_sample": [_POINTER] * 2 + [_COUNT] + [_POINTER] * 3 + [_COUNT] * 2 + [_REAL] * 2,
    "squashed_sample_backward": [_POINTER, _COUNT] + [_POINTER] * 6 + [_COUNT] * 3 + [_REAL] * 2,
    "polyak": [_POINTER] * 2 + [_COUNT, _REAL, _POINTER, _COUNT, _COUNT],
    "td0": [_POINTER] * 5 + [_COUNT] * 2 + [_REAL],
    "masked_mean": [_POINTER] * 4 + [_COUNT],
    "td_error": [_POINTER] * 7 + [_COUNT] * 3 + [_REAL] * 2,
    "quantile_huber": [_POINTER] * 4 + [_COUNT] * 3 + [_REAL, _INT],
    "best_quantiles": [_POINTER] * 3 + [_COUNT] * 3,
    "row_means": [_POINTER] * 2 + [_COUNT] * 2,
    "quantile_targets": [_POINTER] * 5 + [_COUNT] * 4 + [_REAL],
    "quantile_error": [_POINTER] * 9 + [_COUNT] * 4 + [_REAL, _INT],
    "choice_loss": [_POINTER] * 6 + [_COUNT] * 3 + [_POINTER, _COUNT, _REAL],
    "likely_worth": [_POINTER] * 4 + [_COUNT] * 2 + [_REAL],
    "expected_least": [_POINTER] * 6 + [_COUNT] * 3,
    "draw_integers": [_POINTER] * 2 + [ctypes.c_uint32, _COUNT] + [_POINTER] * 2,
    "put_rows": [_POINTER] * 2 + [_COUNT],
    "extend_rows": [_POINTER] * 2 + [_COUNT] * 2,
    "gather_rows": [_POINTER] * 2 + [_COUNT] * 2 + [_POINTER, _INT],
    "write_files": [_POINTER] * 4 + [_COUNT, _POINTER],
    "place_files": [_POINTER] * 2 + [_COUNT, _POINTER, _COUNT, _POINTER],
    "checksums": [_POINTER] * 3 + [_COUNT],
    "tree_set": [_POINTER, _COUNT] + [_POINTER] * 2 + [_COUNT],
    "tree_draw": [_POINTER, _COUNT, _POINTER, _COUNT, _POINTER],
}

# Never -ffast-math: NaN must stay NaN, because that is how a run detects that it has diverged.
_PORTABLE = ["-O3", "-fno-math-errno", "-fno-trapping-math", "-fPIC"]
_FLAGS = [
    [*_PORTABLE, "-march=native", "-mprefer-vector-width=512", "-fopenmp"],
    [*_PORTABLE, "-march=native", "-fopenmp"],
    [*_PORTABLE, "-mcpu=native", "-fopenmp"],
    [*_PORTABLE, "-fopenmp-simd"],
    _PORTABLE,
]
"""Compiler flags, from the fastest to those that every compiler accepts."""

_PATIENCE = 120
"""Timeout of a compiler call, in seconds."""


def switched_off() -> bool:
    """Return whether the user disabled the compiled functions and Triton kernels."""
    return os.environ.get(SWITCH, "").lower() in ("off", "0", "no", "false")


@functools.cache
def kernels() -> ctypes.CDLL | None:
    """Return the compiled functions, or None if there are none; warn once unless the user disabled them."""
    library, why = _found()
    if why:
        warnings.warn(why, stacklevel=2)
    return library


def trouble() -> str:
    """Return why compilation failed, or an empty string. It does not warn: the caller reports the reason."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernels()
    return _found()[1]


def state() -> str:
    """Return ``compiled``, ``off`` (disabled by the user) or ``none`` (compilation failed)."""
    if trouble():
        return "none"
    return "off" if kernels() is None else "compiled"


@functools.cache
def _found() -> tuple[ctypes.CDLL | None, str]:
    """Return the library, or None and the reason; the reason is empty if the user disabled it."""
    if switched_off():
        return None, ""
    try:
        return _load(_compiled()), ""
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return None, f"no compiled kernels, so learning takes up to twice as long: {error}"


def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    for name, types in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = types, None
    _check(library)
    return library


def _check(library: ctypes.CDLL) -> None:
    """Raise RuntimeError if the library computes wrong results."""
    x = torch.linspace(-3, 3, 40, dtype=torch.float32, device="cpu")
    ones, y = torch.ones_like(x), torch.empty_like(x)
    library.norm_silu(x.data_ptr(), ones.data_ptr(), y.data_ptr(), 1, 40, 0, 0, 1e-4, 1)
    expected = torch.nn.functional.silu(torch.nn.functional.rms_norm(x, [40], ones, 1e-4))
    if not torch.allclose(y, expected, atol=1e-5):
        raise RuntimeError("their results differ from PyTorch's. Try another compiler: CC=clang.")


# ---------------------------------------------------------------------- the cache


def _compiled() -> Path:
    """Return the path of the library; compile it if it is not in the cache."""
    key, folder = _key(), _cache()
    return _kept(folder, key) or _compile(_writable(folder), key)


def _key() -> str:
    """Return a digest of everything that the library depends on, as machines may share a home folder."""
    parts = [
        *(path.read_text(encoding="utf-8") for path in (*HEADERS, *SOURCES)),
        str(_FLAGS),
        os.environ.get("CC", ""),
        _processor(),
    ]
    return _digest(" ".join(parts).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _processor() -> str:
    starts = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return " ".join(sorted({line for line in lines if line.startswith(starts)}))
    except OSError:
        return platform.processor() + platform.machine()


def _cache() -> Path:
    return Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")) / "reverie"


def _kept(folder: Path, key: str) -> Path | None:
    """Return the cached library if its name holds the right digest: loading an incomplete file would crash."""
    found = sorted(folder.glob(f"kernels-{key}-*.so"))
    return next((path for path in found if path.stem.endswith(_digest(path.read_bytes()))), None)


def _writable(folder: Path) -> Path:
    """Return ``folder`` if it can be written, else a temporary folder that is deleted when this process ends."""
    try:
        if folder.is_absolute():  # not if the user has no home folder
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
    except OSError:
        pass
    other = tempfile.mkdtemp(prefix="reverie-")
    atexit.register(shutil.rmtree, other, ignore_errors=True)
    return Path(other)


# ---------------------------------------------------------------------- compiling


def _compile(folder: Path, key: str) -> Path:
    """Compile the library into ``folder`` and rename it when complete, since processes may race or be killed.

    Each C file has its own compiler process, as many at a time as there are cores, because the user is waiting.
    """
    compiler, said = _compiler(), ""
    with tempfile.TemporaryDirectory(dir=folder) as inside, ThreadPoolExecutor(os.cpu_count()) as pool:
        out = Path(inside) / "kernels.so"
        longest_first = sorted(SOURCES, key=lambda source: -source.stat().st_size)
        for number, flags in enumerate(_FLAGS):
            objects = [f"{inside}/{number}-{i}.o" for i in range(len(SOURCES))]
            pairs = zip(longest_first, objects, strict=True)
            commands = [[*compiler, *flags, "-c", str(source), "-o", made] for source, made in pairs]
            said = next(filter(None, pool.map(_trouble_of, commands)), "")  # stop at the first failure
            said = said or _trouble_of([*compiler, *flags, "-shared", *objects, "-o", str(out), "-lm"])
            if not said:
                return out.replace(folder / f"kernels-{key}-{_digest(out.read_bytes())}.so")
    raise RuntimeError(f"the C compiler {shlex.join(compiler)} failed: {said[-300:]}")


def _trouble_of(command: list[str]) -> str:
    """Run a compiler command; return its error output, or an empty string if it succeeded."""
    made = Path(command[command.index("-o") + 1])
    # A compiler may write in another encoding than Python reads.
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=_PATIENCE)
    if done.returncode == 0 and made.is_file():
        return ""
    return done.stderr.strip() or f"it wrote no output (exit code {done.returncode})"


def _compiler() -> list[str]:
    """Return the command of a C compiler: that of the environment variable CC, or else the first one found."""
    for words in (shlex.split(os.environ.get("CC", "")), ["cc"], ["gcc"], ["clang"]):
        if words and shutil.which(words[0]):
            return words
    raise RuntimeError(
        "no C compiler found (cc, gcc or clang). Install one: apt install gcc libc6-dev on Debian and Ubuntu, "
        "xcode-select --install on macOS."
    )
