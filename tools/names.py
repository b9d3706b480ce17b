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
import pathlib
import re
import signal
import sys

FILLER = set(
    [
        "found",
        "said",
        "says",
        "told",
        "tells",
        "given",
        "gives",
        "held",
        "holds",
        "kept",
        "keep_",
        "shown",
        "wanted",
        "meant",
        "own",
        "one",
        "each",
        "others",
        "other",
        "place",
        "where",
        "here",
        "there",
        "then",
        "made",
        "left",
        "right_",
        "together",
        "beside",
        "about",
        "known",
        "asked",
        "taken",
        "seen",
        "led",
        "worth",
        "judged",
        "described",
        "decided",
        "counted",
        "marked",
        "looked",
        "put",
        "away",
        "luck",
        "mind",
        "most",
        "least",
        "more",
        "again",
        "elsewhere",
        "happened",
        "untold",
        "gained",
        "lacking",
        "busy",
        "settle",
        "meet",
        "as_here",
        "as_read",
        "as_read_",
        "again_",
        "first_",
        "twice_",
        "half_",
        "whole",
        "rest_",
        "of_",
        "what",
        "who",
        "said_of",
        "what_",
        "why_",
        "thing",
        "things",
        "stuff",
        "bit",
        "way",
        "ways",
        "now",
        "later",
        "earlier",
        "former",
        "latter",
        "such",
        "same_",
        "so_",
        "much",
        "many",
        "few",
        "several",
        "any_",
        "let_change",
        "put_away",
        "trusting",
        "reading_",
        "noted",
        "noticed",
        "heard",
        "felt",
        "thought",
        "called",
        "named_",
        "word",
        "words_",
        "sayings",
    ]
)
PARTICIPLE = re.compile(r"^_?[a-z]{3,}(ed|own|een|eld|aid|old|ept|ound|ought|iven|aken|ade|itten|osen)$")
ALLOWED = {  # participles that are terms, or states that Python itself names so
    "shared", "packed", "padded", "cached", "nested", "fixed", "masked", "weighted", "discounted", "normalised", "seed",
    "seeded", "embed", "stacked", "batched", "recorded", "terminated", "truncated", "timed", "trained", "squared",
    "embedded", "need", "speed", "feed", "frozen", "hidden", "broken", "written_bytes", "unused", "expected", "observed",
    "required", "requested", "elapsed", "closed", "failed", "finished", "started", "loaded", "saved", "sampled", "sorted",
    "reversed", "clipped", "scaled", "shifted", "dropped", "capped", "sealed", "accelerated", "registered", "threshold",
    "fold", "scaffold", "hold", "old", "gold", "bold", "background", "round", "bound", "sound", "ground", "down", "own_",
    "shutdown", "unknown", "known_", "between", "screen", "green", "seen_", "field", "yield", "child_", "build", "grade",
    "fade", "decade", "trade", "shade", "blade", "void", "paid", "grid", "sigmoid", "valid", "invalid",
}  # fmt: skip


def bindings(tree: ast.AST):
    """Yield (name, line, kind) of everything that the code binds."""
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
    bare = name.lstrip("_")
    if kind == "class":
        if re.search("[A-Z]", bare[1:]):  # several words
            return False
        bare = bare.lower()
    if bare in FILLER:
        return True
    return kind in ("function", "class") and bool(PARTICIPLE.match(bare)) and bare not in ALLOWED


def main() -> int:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `names.py | head` is no error
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("src", nargs="?", default="src/reverie", type=pathlib.Path)
    parser.add_argument("--file", type=pathlib.Path)
    parser.add_argument("--twice", action="store_true")
    parser.add_argument("--max", type=float)
    args = parser.parse_args()
    files = sorted(args.src.rglob("*.py"))
    if args.file:
        for name, line, kind in sorted(bindings(ast.parse(args.file.read_text())), key=lambda b: b[1]):
            if is_filler(name, kind):
                print(f"{args.file}:{line}: {kind} {name}")
        return 0
    public: dict[str, set[str]] = collections.defaultdict(set)
    rooms: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    worst, words = [], collections.Counter()
    for path in files:
        tree = ast.parse(path.read_text())
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                public[node.name].add(str(path.relative_to(args.src)))
        found = list(bindings(tree))
        bad = [name for name, _, kind in found if is_filler(name, kind)]
        words.update(bad)
        parts = path.relative_to(args.src).parts
        room = parts[0] if len(parts) > 1 else "."
        rooms[room][0] += len(found)
        rooms[room][1] += len(bad)
        worst.append((len(bad), len(found), path))
    if args.twice:
        for name, places in sorted(public.items(), key=lambda item: -len(item[1])):
            if len(places) > 1:
                print(f"{name:24} {', '.join(sorted(places))}")
        return 0
    total, bad = (sum(r[i] for r in rooms.values()) for i in (0, 1))
    print(f"{1000 * bad / max(total, 1):.1f} words that name nothing in 1,000 bindings ({bad} of {total})")
    for room, (n, b) in sorted(rooms.items(), key=lambda item: -item[1][1]):
        print(f"  {room:12} {1000 * b / max(n, 1):6.1f}   {b}")
    print("worst files:", "; ".join(f"{p.relative_to(args.src)} {b}" for b, _, p in sorted(worst, reverse=True)[:12]))
    print("most often:", ", ".join(f"{w} {n}" for w, n in words.most_common(30)))
    print(f"public names defined in several files: {sum(len(p) > 1 for p in public.values())} of {len(public)}")
    return int(args.max is not None and 1000 * bad / max(total, 1) > args.max)


if __name__ == "__main__":
    sys.exit(main())
