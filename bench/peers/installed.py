"""Virtual environments of other libraries, each made once from the package index, all with the PyTorch of our tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

WHERE = Path.home() / ".cache" / "reverie-peers"
CPU_BUILDS = ("--extra-index-url", "https://download.pytorch.org/whl/cpu")


def pin() -> str:
    """The PyTorch of this Python, with its build: the same for everybody."""
    return f"torch=={version('torch')}"


def environment(name: str, packages: Sequence[str], where: Path) -> Path:
    """The Python of the environment called ``name``, which is made unless one with these packages is there.

    Raises:
        CalledProcessError: they cannot be installed.
    """
    folder, wanted = where / name, [pin(), *packages]
    python, made = folder / "bin" / "python", folder / "packages.txt"
    if made.exists() and made.read_text().split() == wanted:
        return python
    print(f"{name}: installing into {folder} (minutes, once)", flush=True)
    uv = shutil.which("uv")
    subprocess.run([sys.executable, "-m", "venv", "--clear", *(["--without-pip"] if uv else []), folder], check=True)
    install = _with_uv(uv, python) if uv else [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    index = CPU_BUILDS if pin().endswith("+cpu") else ()
    subprocess.run([*install, *index, pin()], check=True)  # first, so that nothing chooses another build
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraint:
        constraint.write(pin())
        constraint.flush()
        subprocess.run([*install, "-c", constraint.name, *packages], check=True)
    made.write_text("\n".join(wanted))
    return python


def _with_uv(uv: str, python: Path) -> list[str]:
    """Its command, looking for files where pip does."""
    links = [word for link in os.environ.get("PIP_FIND_LINKS", "").split() for word in ("--find-links", link)]
    return [uv, "pip", "install", "--quiet", "--python", str(python), *links]


def installed(wanted: dict[str, Sequence[str]], where: Path) -> dict[str, Path]:
    """The Pythons of those that can be installed, by name; of the others, it says that they are left out."""
    out = {}
    for name, packages in wanted.items():
        try:
            out[name] = environment(name, packages, where)
        except subprocess.CalledProcessError as error:
            print(f"{name}: left out, it cannot be installed: {error}", file=sys.stderr, flush=True)
    return out
