"""No module imports itself by way of others: not at its top, not within a function, not for its types alone."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (SOURCE / "reverie").rglob("*.py")
}


def imported_modules(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in MODULES else str(node.module) for name in members}
    return names & MODULES.keys()


def test_imports_have_no_circle() -> None:
    graph = {name: imported_modules(path) for name, path in MODULES.items()}
    assert sum(map(len, graph.values())) > 1000
    TopologicalSorter(graph).prepare()  # CycleError names the modules of a circle
