#!/usr/bin/env python3
"""Check that names say what they are: words that name nothing, and public names that stand for several things.

    python tools/names.py                     totals, a table by room, and the worst files of src/reverie
    python tools/names.py SRC --file F        every binding of such a word in F, with its line
    python tools/names.py SRC --twice         public names that are defined in two files or more
    python tools/names.py SRC --max 5         exits 1 if there are more than 5 in 1,000 bindings

Counted are names that the code binds: variables, arguments, functions, classes.
"""

from __future__ import annotations

import argparse
import ast
import collections
import re
import sys
from collections.abc import Iterator
from pathlib import Path

FILLER = """
found said says told tells given gives held holds kept keep_ shown wanted meant own one each others other place where
here there then made left right_ together beside about known asked taken seen led worth judged described decided
counted marked looked put away luck mind most least more again elsewhere happened untold gained lacking busy settle
meet as_here as_read as_read_ again_ first_ twice_ half_ whole rest_ of_ what who said_of what_ why_ thing things
stuff bit way ways now later earlier former latter such same_ so_ much many few several any_ let_change put_away
trusting reading_ noted noticed heard felt thought called named_ word words_ sayings
"""
PARTICIPLE = re.compile(r"^_?[a-z]{3,}(ed|own|een|eld|aid|old|ept|ound|ought|iven|aken|ade|itten|osen)$")
TERMS = """
shared packed padded cached nested fixed masked weighted discounted normalized seed seeded embed stacked batched
recorded terminated truncated timed trained squared embedded need speed feed frozen hidden broken written_bytes unused
expected observed required requested elapsed closed failed finished started loaded saved sampled sorted reversed
clipped scaled shifted dropped capped sealed accelerated registered threshold fold scaffold hold old gold bold
background round bound sound ground down own_ shutdown unknown known_ between screen green seen_ field yield child_
build grade fade decade trade shade blade void paid grid sigmoid valid invalid
"""
"""Participles that are terms, or states that Python itself names so."""
FILLERS, ALLOWED = frozenset(FILLER.split()), frozenset(TERMS.split())


def bindings(tree: ast.AST) -> Iterator[tuple[str, int, str]]:
    """Yield the name, line and kind of everything that the code binds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno, "variable"
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno, "argument"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno, "function"
        elif isinstance(node, ast.ClassDef):
            yield node.name, node.lineno, "class"


def is_filler(name: str, kind: str) -> bool:
    """Return whether a bound name is one word that names nothing."""
    word = name.lstrip("_")
    if kind == "class" and re.search("[A-Z]", word[1:]):  # several words
        return False
    word = word.lower() if kind == "class" else word
    is_participle = kind in ("function", "class") and PARTICIPLE.match(word) and word not in ALLOWED
    return word in FILLERS or bool(is_participle)


def main() -> int:
    """Print the table, or a list; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("src", nargs="?", default="src/reverie", type=Path)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--twice", action="store_true")
    parser.add_argument("--max", type=float)
    args = parser.parse_args()
    public: dict[str, set[str]] = collections.defaultdict(set)
    counts: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])  # by room: bindings, fillers
    for path in sorted(args.src.rglob("*.py")):
        tree, relative = ast.parse(path.read_text(encoding="utf-8")), path.relative_to(args.src)
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                public[node.name].add(str(relative))
        names = list(bindings(tree))
        fillers = [(line, kind, name) for name, line, kind in names if is_filler(name, kind)]
        if args.file is not None and path.resolve() == args.file.resolve():
            print(*(f"{path}:{line}: {kind} {name}" for line, kind, name in sorted(fillers)), sep="\n")
        for room in ("in all", relative.parts[0]):
            counts[room][0] += len(names)
            counts[room][1] += len(fillers)
    twice = {name: sorted(files) for name, files in public.items() if len(files) > 1}
    if args.twice:
        print(*(f"{name:24} {', '.join(files)}" for name, files in sorted(twice.items())), sep="\n")
    if args.twice or args.file:
        return 0
    rates = {room: 1000 * bad / max(count, 1) for room, (count, bad) in counts.items()}
    for room, rate in sorted(rates.items(), key=lambda item: -item[1]):
        if room == "in all" or args.max is None:
            print(f"{room:<16} {rate:5.1f} words that name nothing in 1,000 bindings")
    print(f"{len(twice)} of {len(public)} public names are defined in several files")
    return int(args.max is not None and rates["in all"] > args.max)


if __name__ == "__main__":
    sys.exit(main())
