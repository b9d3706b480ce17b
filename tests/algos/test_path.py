"""How far a reader walks through an update without kernels: the functions of this library, and how deep they lie."""

import subprocess
import sys
from pathlib import Path

import pytest

WALK = """
import sys, torch
sys.path.insert(0, sys.argv[2])
from speed_pairs import learner_and_batch
settings = {"graph": False, "batch_size": 2, "batch_length": int(sys.argv[3]), "horizon": 4}
learner, batch = learner_and_batch(sys.argv[1], settings)
for _ in range(4):
    learner.update(batch)
functions, depth, deepest = set(), 0, 0

def follow(frame, event, arg):
    global depth, deepest
    code = frame.f_code
    if "/reverie/" in code.co_filename and not code.co_name.startswith("<"):
        depth += {"call": 1, "return": -1}.get(event, 0)
        deepest = max(deepest, depth)
        functions.add((code.co_filename, code.co_qualname))

for _ in range(2):  # TD3 moves the actor at every second update
    functions.clear()
    deepest = depth = 0
    sys.setprofile(follow)
    learner.update(batch)
    sys.setprofile(None)
print(len(functions), deepest)
"""


@pytest.mark.parametrize(("name", "rows", "functions", "depth"), [("td3", 2, 39, 10), ("dreamer_v3", 8, 116, 13)])
def test_an_update_is_a_short_walk(name: str, rows: int, functions: int, depth: int) -> None:
    tools = Path(__file__).parents[2] / "tools"
    command = [sys.executable, "-c", WALK, name, str(tools), str(rows)]
    env = {"REVERIE_KERNELS": "off", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tools.parent / "src")}
    counts = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.split()
    assert int(counts[0]) <= functions
    assert int(counts[1]) <= depth
