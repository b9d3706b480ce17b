"""How far a reader walks through an update without kernels: the functions of this library, and how deep they lie."""

import subprocess
import sys
from pathlib import Path

WALK = """
import os, sys, torch
sys.path.insert(0, sys.argv[1])
import reverie
from speed_pairs import learner_and_batch
library = os.path.dirname(reverie.__file__) + os.sep
functions, depth, deepest = set(), 0, 0

def follow(frame, event, arg):
    global depth, deepest
    code = frame.f_code
    if code.co_filename.startswith(library) and not code.co_name.startswith("<"):
        depth += {"call": 1, "return": -1}.get(event, 0)
        deepest = max(deepest, depth)
        functions.add((code.co_filename, code.co_qualname))

for name, rows in (("td3", 2), ("dreamer_v3", 8)):
    settings = {"graph": False, "batch_size": 2, "batch_length": rows, "horizon": 4}
    learner, batch = learner_and_batch(name, settings)
    for _ in range(4):
        learner.update(batch)
    for _ in range(2):  # TD3 moves the actor at every second update
        functions.clear()
        deepest = depth = 0
        sys.setprofile(follow)
        learner.update(batch)
        sys.setprofile(None)
    print(len(functions), deepest)
"""


def test_an_update_is_a_short_walk() -> None:
    tools = Path(__file__).parents[2] / "tools"
    command = [sys.executable, "-c", WALK, str(tools)]
    env = {"REVERIE_KERNELS": "off", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tools.parent / "src")}
    lines = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.splitlines()
    for line, functions, depth in zip(lines, (42, 112), (10, 12), strict=True):
        assert int(line.split()[0]) <= functions
        assert int(line.split()[1]) <= depth
