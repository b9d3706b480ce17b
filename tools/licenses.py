#!/usr/bin/env python3
"""List the licenses of all installed dependencies; fail if a plain installation or the image needs one with copyleft.

The GNU Lesser General Public License is no such one: it covers a library, not what imports it.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
COPYLEFT = re.compile(r"(?<!L)(?<!Lesser General Public License \()\bA?GPL|(?<!Lesser )General Public License")
CHOICES = {"docutils"}
"""Packages with a choice of licenses, or with one file under another that is not part of the package's code."""


def license_of(package: Distribution) -> str:
    """Return the license that a package declares; "" if it declares none."""
    declared = package.metadata
    classes = [line.rpartition(" :: ")[2] for line in declared.get_all("Classifier", []) if line.startswith("License")]
    return declared.get("License-Expression") or ", ".join(classes) or (declared.get("License") or "").split("\n")[0]


def main() -> int:
    """Print one line for each package; return 1 if one of the image has copyleft."""
    image = {
        name.lower()
        for file in ("requirements", "torch")
        for name in re.findall(r"^([\w.-]+)==", (ROOT / f"deploy/{file}.txt").read_text(), re.MULTILINE)
    }
    found = {re.sub(r"[-_.]+", "-", package.name).lower(): package for package in distributions()}
    wrong = []
    for name, package in sorted(found.items()):
        text = license_of(package)
        print(f"{name:<32} {package.version:<16} {text[:70]}")
        wrong += [name] if name in image - CHOICES and COPYLEFT.search(text) else []
    if wrong:
        print(f"copyleft in the image: {', '.join(wrong)}", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
