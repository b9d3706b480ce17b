"""No module imports itself by way of others: not at its top, not within a function, not for its types alone.

A run imports what it needs.
"""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (SOURCE / "reverie").rglob("*.py")
}
SCRIPTS = {path.stem: path for path in (ROOT / "bench").glob("*.py")}


def imported_modules(path: Path, modules: dict[str, Path]) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in modules else str(node.module) for name in members}
    return names & modules.keys()


@pytest.mark.parametrize(("modules", "least"), [(MODULES, 1000), (SCRIPTS, 30)])
def test_imports_have_no_circle(modules: dict[str, Path], least: int) -> None:
    graph = {name: imported_modules(path, modules) - {name} for name, path in modules.items()}  # examples/demo.py
    assert sum(map(len, graph.values())) > least
    TopologicalSorter(graph).prepare()  # CycleError names the modules of a circle


SLOW = ("boto3", "h5py", "matplotlib", "numcodecs", "pandas", "reverie.datasets.format_detection", "rich", "scipy",
        "sympy", "tensorboard", "torch._dynamo", "torch.distributed.elastic", "zarr")  # fmt: skip
"""Modules that a run needs later, or that other runs need."""
FIRST_STEP = """
import os, sys
from reverie.cli import main
from reverie.run.collect import EnvCollector

def collect(collector):
    print("at the first env step:", *sys.modules, flush=True)
    os._exit(0)

EnvCollector.collect = collect
main(["train", "sac", "--env", "Pendulum-v1", "--run", sys.argv[1]])
"""


def test_a_run_starts_without_slow_imports(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FIRST_STEP, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = done.stdout.partition("at the first env step:")[2].split()
    assert "reverie.algos.sac" in imported
    assert not {*SLOW} & {*imported}
