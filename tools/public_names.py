#!/usr/bin/env python3
"""List public functions that no other file names: each is to begin with an underscore. Exit code 1 if there is one."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "reverie"
OTHERS = ("tests", "bench", "tools", "docs", "examples", "deploy", "README.md", "pyproject.toml", "setup.py")
READ = {".py", ".pyi", ".md", ".ipynb", ".toml", ".c", ".h"}


def main() -> int:
    """Print them, as FILE: NAME."""
    places = [SOURCE, *(ROOT / name for name in OTHERS)]
    inside = [file for place in places for file in (place.rglob("*") if place.is_dir() else [place])]
    words = {file: set(re.findall(r"\w+", file.read_text("utf-8"))) for file in inside if file.suffix in READ}
    files_with = Counter(word for each in words.values() for word in each)
    unused = [
        f"{file.relative_to(SOURCE)}: {node.name}"
        for file in sorted(SOURCE.rglob("*.py"))
        for node in ast.parse(file.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name[0] != "_" and files_with[node.name] == 1
        if not node.name.endswith("_command")  # which cli/main.py finds by the name of the command
    ]
    print("\n".join([*unused, f"{len(unused)} public functions are used in their own file alone"]))
    return bool(unused)


if __name__ == "__main__":
    sys.exit(main())
