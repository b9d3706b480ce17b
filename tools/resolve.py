#!/usr/bin/env python3
"""Check that the pins of constraints.txt fit together for somebody whose pip sees PyPI and nothing else.

All extras but those of ``APART`` are resolved at once, for every Python and platform that is promised, with metadata
only and without any setting of this machine. Since each package must be pinned, what fits together also fits for one
extra alone.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parents[1]
UV = Path(sys.executable).with_name("uv")
PLATFORMS = {
    "Linux x86-64": "x86_64-unknown-linux-gnu",
    "Linux aarch64": "aarch64-unknown-linux-gnu",
    "macOS arm64": "aarch64-apple-darwin",
}
LEFT_OUT = {"Linux aarch64": ["box2d"]}
"""Extras that a platform lacks, because it has no wheel of what they need."""
FROM_SOURCE = ["crafter"]
"""Packages without wheels: pure Python, so that no compiler is needed. All others must have a wheel."""
OF_TORCH = ("nvidia-", "cuda-")
"""Beginnings of packages that PyTorch pins by itself."""
APART = ["miniworld", "memory_maze", "craftax", "flappy_bird", "robotics", "mario", "pettingzoo", "gymnax"]
"""Extras that no test installs and that exclude each other. Each must resolve alone, without the pins."""
OUTSIDE = {"uv"}
"""Packages that are pinned but belong to no extra: uv is installed by the Makefile."""


def main() -> int:
    """Return 1 if something does not fit, after saying what."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pythons = [text.rsplit(" ", 1)[-1] for text in project["classifiers"] if re.search(r":: 3\.\d+$", text)]
    targets = list(product(PLATFORMS, pythons))
    pinned = [extra for extra in project["optional-dependencies"] if extra not in APART]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        apart = list(pool.map(lambda extra: resolve("Linux x86-64", "3.11", [extra], pins=False), APART))
        done = list(pool.map(lambda target: resolve(*target, pinned), targets))
    unfit = [
        f"The extra {extra} does not resolve:\n{one.stderr}"
        for extra, one in zip(APART, apart, strict=True)
        if one.returncode
    ]
    if unfit:
        print("\n".join(unfit), file=sys.stderr)
        return 1
    complaints: dict[str, list[str]] = {}
    for (platform, python), one in zip(targets, done, strict=True):
        if one.returncode:
            complaints.setdefault(one.stderr.strip(), []).append(f"{platform} with Python {python}")
    for text, where in complaints.items():
        print(f"The pins of constraints.txt do not fit on {', '.join(where)}:\n{text}\n", file=sys.stderr)
    if complaints:
        return 1
    wrong = differences(names("".join(one.stdout for one in done).splitlines()))
    print(
        "\n".join(wrong) or f"The pins of constraints.txt fit: Python {', '.join(pythons)} on {', '.join(PLATFORMS)}."
    )
    return 1 if wrong else 0


def resolve(platform: str, python: str, extras: list[str], pins: bool = True) -> subprocess.CompletedProcess[str]:
    """Run uv; its output has a line ``name==version`` for each package. Without pins, packages may lack wheels."""
    extras = [extra for extra in extras if extra not in LEFT_OUT.get(platform, [])]
    command = [
        str(UV),
        "pip",
        "compile",
        "--quiet",
        "--no-config",
        "--system-certs",
        "--no-annotate",
        "--no-header",
        "pyproject.toml",
    ]
    if pins:
        command += ["-c", "constraints.txt", "--only-binary", ":all:"]
        command += [word for package in FROM_SOURCE for word in ("--no-binary", package)]
    command += ["--python", sys.executable, "--python-version", python, "--python-platform", PLATFORMS[platform]]
    command += [word for extra in extras for word in ("--extra", extra)]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    env["MACOSX_DEPLOYMENT_TARGET"] = "14.0"  # PyTorch's wheels ask for it
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def names(lines: Iterable[str]) -> set[str]:
    """Return the normalized names of ``name==version`` lines."""
    return {re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower() for line in lines if "==" in line}


def differences(needed: set[str]) -> list[str]:
    """Return what is needed but not pinned, or pinned but not needed."""
    pinned = names((ROOT / "constraints.txt").read_text().splitlines())
    missing = sorted(name for name in needed - pinned if not name.startswith(OF_TORCH))
    return [f"constraints.txt has no pin of {name}" for name in missing] + [
        f"constraints.txt pins {name}, which no extra needs" for name in sorted(pinned - needed - OUTSIDE)
    ]


if __name__ == "__main__":
    sys.exit(main())
