#!/usr/bin/env python3
"""List the licenses of all installed dependencies; fail if a plain installation or the image needs one with copyleft.

The GNU Lesser General Public License is no such one: it covers a library, not what imports it. Programs that a package
brings along can be under another license than the package: those whose text names the GNU General Public License are
listed with it. They run as processes of their own, so that they do not fail this.
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
PROGRAMS = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"MZ")
"""Beginnings of programs, and of libraries, of Linux, macOS and Windows."""
LIBRARY = re.compile(r"\.(so|pyd|dylib|dll)\b")


def license_of(package: Distribution) -> str:
    """Return the license that a package declares; "" if it declares none."""
    declared = package.metadata
    classes = [line.rpartition(" :: ")[2] for line in declared.get_all("Classifier", []) if line.startswith("License")]
    return declared.get("License-Expression") or ", ".join(classes) or (declared.get("License") or "").split("\n")[0]


def copyleft_programs(package: Distribution) -> list[str]:
    """Return the names of the programs of a package whose text names the GNU General Public License."""
    paths = (Path(str(package.locate_file(file))) for file in package.files or () if not LIBRARY.search(file.name))
    return [path.name for path in paths if path.is_file() and is_copyleft_program(path)]


def is_copyleft_program(path: Path) -> bool:
    """Return whether a file is a program whose text names the GNU General Public License."""
    with path.open("rb") as file:
        beginning = file.read(4)
        return beginning.startswith(PROGRAMS) and b"GNU General Public License" in beginning + file.read()


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
        programs = "".join(f"; its program {program}: GPL" for program in copyleft_programs(package))
        print(f"{name:<32} {package.version:<16} {text[:70]}{programs}")
        wrong += [name] if name in image - CHOICES and COPYLEFT.search(text) else []
    if wrong:
        print(f"copyleft in the image: {', '.join(wrong)}", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
