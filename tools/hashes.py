#!/usr/bin/env python3
"""Write the requirements of the image with the hashes that PyPI lists for each pin of constraints.txt.

``deploy/torch.txt`` has what comes with PyTorch's build for GPUs, ``deploy/copyleft.txt`` what only the extras under
the GNU General Public License need, and ``deploy/requirements.txt`` the rest.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON = "3.12"
"""Python of the image."""
EXTRAS = ("classic", "dmc", "minigrid", "crafter", "mlflow", "s3")
COPYLEFT_EXTRAS = ("atari", "minatar")
"""ale-py is under version 2 of the GNU General Public License, MinAtar under version 3."""
OF_TORCH = r"(torch|triton|nvidia|cuda)\b"
"""Beginnings of packages that come with PyTorch."""


def pins(extras: Iterable[str]) -> list[str]:
    """Return the requirements of reverie with ``extras``, each with its hashes."""
    named = [word for extra in extras for word in ("--extra", extra)]
    command = [Path(sys.executable).with_name("uv"), "pip", "compile", "--quiet", "--universal", "--generate-hashes",
               "--python-version", PYTHON, "--no-annotate", "--no-header", *named, "-c", "constraints.txt",
               "pyproject.toml"]  # fmt: skip
    text = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return re.split(r"\n(?=\S)", text.strip())


def main() -> int:
    """Write the three files."""
    base = pins(EXTRAS)
    files = {
        "torch": [pin for pin in base if re.match(OF_TORCH, pin)],
        "requirements": [pin for pin in base if not re.match(OF_TORCH, pin)],
        "copyleft": [pin for pin in pins((*EXTRAS, *COPYLEFT_EXTRAS)) if pin not in base],
    }
    for name, chosen in files.items():
        (ROOT / f"deploy/{name}.txt").write_text("# Written by make hashes.\n" + "\n".join(chosen) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
