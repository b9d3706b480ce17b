"""The import closure of a file: all files of ``reverie`` that reading it can lead to, and their lines.

    tools/closure.py experiment.config              how large it is
    tools/closure.py --list experiment.config       which files
    tools/closure.py --max experiment.config=10000 algos.td3=11200      exit status 1 if one has more lines

Imports are read, not executed. Those in functions count: a reader follows them too. Those below ``if TYPE_CHECKING`` do
not, since they name types alone. Lines are all lines of the files, without the ``__init__.py`` files on the way.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"


def module_path(name: str) -> Path:
    """Return the file of a module, which need not exist."""
    return SOURCE / f"{name.replace('.', '/')}.py"


def iter_imports(node: ast.AST) -> Iterator[str]:
    """Yield the names of all modules, and perhaps of objects in them, that a file imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names))
    elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
        for child in ast.iter_child_nodes(node):
            yield from iter_imports(child)


def find_closure(path: Path) -> set[Path]:
    """Return ``path`` and all files of ``reverie`` that it imports, directly or not."""
    closure, pending = {path}, [path]
    while pending:
        names = {*iter_imports(ast.parse(pending.pop().read_text(encoding="utf-8")))}
        files = {module_path(name) for name in names if name.startswith("reverie.")}
        pending += (new := {file for file in files - closure if file.is_file()})
        closure |= new
    return closure


def print_closure(name: str, bound: int | None, *, list_files: bool) -> bool:
    """Print how large the closure of ``reverie.NAME`` is; return whether it has at most ``bound`` lines."""
    closure = find_closure(module_path(f"reverie.{name}"))
    lines = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in sorted(closure)}
    count = sum(lines.values())
    is_within = bound is None or count <= bound
    print(f"{name:<24}{count:>8,} lines in {len(lines)} files{'' if is_within else f': more than {bound:,}'}")
    if list_files:
        print(*(f"{number:>8} {file.relative_to(SOURCE / 'reverie')}" for file, number in lines.items()), sep="\n")
    return is_within


def main() -> int:
    """Print the closures; return 1 if one is larger than its bound."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="a module, without reverie.")
    parser.add_argument("--max", nargs="+", default=[], metavar="NAME=N", help="a module, and its maximum of lines")
    parser.add_argument("--list", action="store_true", help="list the files too")
    options = parser.parse_args()
    bounds = {name: int(bound) for name, _, bound in (text.partition("=") for text in options.max)}
    names = dict.fromkeys(options.names) | bounds
    results = [print_closure(name, bound, list_files=options.list) for name, bound in names.items()]
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
