"""Compile the C files of ``kernels/csrc`` for this machine, once, and load them.

An installation from source contains the library, and wheels contain libraries for levels of processors (``setup.py``).
Otherwise it is compiled at first use and kept in the user's cache folder. This file imports torch only to load it.
Without a compiler and such a wheel everything runs in PyTorch, and one warning says so.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from reverie.core.files import user_folder
from reverie.core.kernel_dispatch import kernels_disabled
from reverie.core.logger import logger

_FILES = sorted((Path(__file__).parent / "csrc").glob("*.[ch]"))
SOURCES, HEADERS = ([path for path in _FILES if path.suffix == end] for end in (".c", ".h"))
_PROTOTYPE = re.compile(r"^(void|int) (\w+)\(((?:[^(){};]|\(\*\w+\)\([^()]*\))*)\) \{", re.MULTILINE)
"""The start of an exported function in a C file: its type, name and parameters."""
_TYPES: dict[str, type[Any] | None] = {
    "void": None, "int": ctypes.c_int, "int64_t": ctypes.c_int64, "uint32_t": ctypes.c_uint32, "float": ctypes.c_float,
    "double": ctypes.c_double,
}  # fmt: skip

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

_BUILT = Path(__file__).parent / "built"
"""Folder of the libraries that wheels contain."""
_LEVELS = {
    "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "x86-64-v3": {"avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"},
    "aarch64": {"asimd", "asimdhp"},
}
"""Flags in /proc/cpuinfo that each of a wheel's libraries needs, the fastest library first."""

_PATIENCE = 120
"""Timeout of a compiler call, in seconds."""


@functools.cache
def load_kernels() -> ctypes.CDLL | None:
    """Return the compiled functions, or None if there are none; warn once unless the user disabled them."""
    library, reason = _find_library()
    if reason:
        warnings.warn(reason, stacklevel=2)
    return library


def compile_problem() -> str:
    """Return why compilation failed, or an empty string. It does not warn: the caller reports the reason."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load_kernels()
    return _find_library()[1]


def compile_state() -> str:
    """Return ``compiled``, ``off`` (disabled by the user) or ``none`` (compilation failed)."""
    if compile_problem():
        return "none"
    return "off" if load_kernels() is None else "compiled"


@functools.cache
def _find_library() -> tuple[ctypes.CDLL | None, str]:
    """Return the library, or None and the reason; the reason is empty if the user disabled it."""
    if kernels_disabled():
        return None, ""
    try:
        return _load(_find_prebuilt() or _cached_or_compiled()), ""
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return None, f"no compiled kernels, so learning takes up to twice as long: {error}"


def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    for source in SOURCES:
        if source.stem == "thread_pool":  # only the other files call it
            continue
        for result, name, parameters in _PROTOTYPE.findall(source.read_text(encoding="utf-8")):
            function = getattr(library, name)
            types = [x for x in re.split(r",(?![^()]*\))", parameters) if x != "void"]  # such as "const float *x"
            function.argtypes = [ctypes.c_void_p if "*" in x else _TYPES[x.split()[0]] for x in types]
            function.restype = _TYPES[result]
    _check(library)
    return library


def _check(library: ctypes.CDLL) -> None:
    """Raise RuntimeError if the library computes wrong results."""
    import torch

    x = torch.linspace(-3, 3, 40, dtype=torch.float32, device="cpu")
    ones, zeros, y = torch.ones_like(x), torch.zeros_like(x), torch.empty_like(x)
    library.hidden(*(a.data_ptr() for a in (x, ones, zeros, y)), 1, 40, True, False, 1e-4, 1)
    expected = torch.nn.functional.gelu(torch.nn.functional.layer_norm(x, [40], eps=1e-4), approximate="tanh")
    if not torch.allclose(y, expected, atol=1e-5):
        raise RuntimeError("their results differ from PyTorch's. Try another compiler: CC=clang.")


def _find_prebuilt() -> Path | None:
    """Return the best library of a wheel for this processor; None if there is none."""
    features = set(_processor().split())
    candidates = (_BUILT / f"{level}.so" for level, needed in _LEVELS.items() if needed <= features)
    return next((path for path in candidates if path.is_file()), None)


# ---------------------------------------------------------------------- the cache


def _cached_or_compiled() -> Path:
    """Return the path of the library; compile it if it is not in the cache."""
    return _find_cached() or _compile(_writable(_cache_folder()), _key())


def _cache_folder() -> Path | None:
    return user_folder("XDG_CACHE_HOME", "~/.cache")


def _find_cached() -> Path | None:
    """Return the library compiled at installation, or earlier; None if there is none for this code and processor."""
    key, folders = _key(), filter(None, (_BUILT, _cache_folder()))
    return next(filter(None, (_cached_library(folder, key) for folder in folders)), None)


def is_uncompiled() -> bool:
    """Return whether the first use would compile, which takes a while."""
    return not (kernels_disabled() or _find_library.cache_info().currsize or _find_prebuilt() or _find_cached())


def compile_for_installation() -> None:
    """Compile into this package, when it is installed; print why that failed: the first use then tries again."""
    try:
        _BUILT.mkdir(exist_ok=True)
        print(f"compiled kernels: {_compile(_BUILT, _key()).name}")
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        print(f"no compiled kernels, so learning takes up to twice as long: {error}")


def _key() -> str:
    """Return a digest of everything that the library depends on, as machines may share a home folder."""
    code = [path.read_text(encoding="utf-8") for path in (*HEADERS, *SOURCES)]
    return _digest(" ".join([*code, str(_FLAGS), os.environ.get("CC", ""), _processor()]).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _processor() -> str:
    starts = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return " ".join(sorted({line for line in lines if line.startswith(starts)}))
    except OSError:
        return platform.processor() + platform.machine()


def _cached_library(folder: Path, key: str) -> Path | None:
    """Return the cached library if its name holds the right digest: loading an incomplete file would crash."""
    candidates = sorted(folder.glob(f"kernels-{key}-*.so"))
    return next((path for path in candidates if path.stem.endswith(_digest(path.read_bytes()))), None)


def _writable(folder: Path | None) -> Path:
    """Return ``folder`` if it can be written, else a temporary folder that is deleted when this process ends."""
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
    except OSError:
        pass
    temporary = tempfile.mkdtemp(prefix="reverie-")
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    return Path(temporary)


# ---------------------------------------------------------------------- compiling


def _compile(folder: Path, key: str) -> Path:
    """Compile the library into ``folder``, each file by its own process, and rename it when it is complete."""
    compiler, message = _compiler(), ""
    logger.info("compiling kernels for this processor, once: about 10 s on two cores")
    with tempfile.TemporaryDirectory(dir=folder) as inside, ThreadPoolExecutor(os.cpu_count()) as pool:
        out = Path(inside) / "kernels.so"
        longest_first = sorted(SOURCES, key=lambda source: -source.stat().st_size)
        for number, flags in enumerate(_FLAGS):
            objects = [f"{inside}/{number}-{i}.o" for i in range(len(SOURCES))]
            pairs = zip(longest_first, objects, strict=True)
            commands = [[*compiler, *flags, "-c", str(source), "-o", target] for source, target in pairs]
            message = next(filter(None, pool.map(_compile_error, commands)), "")  # stop at the first failure
            message = message or _compile_error([*compiler, *flags, "-shared", *objects, "-o", str(out), "-lm"])
            if not message:
                return out.replace(folder / f"kernels-{key}-{_digest(out.read_bytes())}.so")
    raise RuntimeError(f"the C compiler {shlex.join(compiler)} failed: {message[-300:]}")


def _compile_error(command: list[str]) -> str:
    """Run a compiler command; return its error output, or an empty string if it succeeded."""
    output = Path(command[command.index("-o") + 1])
    # A compiler may write in another encoding than Python reads.
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=_PATIENCE)
    if done.returncode == 0 and output.is_file():
        return ""
    return done.stderr.strip() or f"it wrote no output (exit code {done.returncode})"


def _compiler() -> list[str]:
    """Return the command of a C compiler: the environment variable CC, or else the first compiler found."""
    for words in (shlex.split(os.environ.get("CC", "")), ["cc"], ["gcc"], ["clang"]):
        if words and shutil.which(words[0]):
            return words
    raise RuntimeError(
        "no C compiler found (cc, gcc or clang). Install one: apt install gcc libc6-dev on Debian and "
        "Ubuntu, xcode-select --install on macOS."
    )
