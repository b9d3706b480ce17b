"""Runs the command line again and again, each time in a fork of a process that has imported everything already.

Each line of the input is a run: its commands, one after the other, its environment, the file that its output goes to,
and perhaps the seconds after which it is killed: of the processor, so that they are the same on a busy machine, or of
the clock. Each line of the output is the exit code of the last command, negative for the signal that killed the run,
and its seconds of the processor; the exit codes of earlier commands follow their output. Nothing but imports happens
before the fork, so that a run is what it would be in a process of its own, seconds sooner.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import math
import os
import pkgutil
import signal
import sys
import time
import traceback
from typing import Any

import reverie
from reverie.cli import main

OTHERS = (
    *("gymnasium.envs.classic_control", "matplotlib.pyplot", "matplotlib.backends.backend_agg", "PIL.PngImagePlugin"),
    *("zarr", "h5py", "pyarrow.csv", "pyarrow.dataset", "pyarrow.feather", "pyarrow.parquet"),
)
"""What runs and readers import when they need it."""
END = "\x1e"
"""Around an exit code in the output."""


def import_all() -> None:
    """Import the library and what it needs later; what is not installed here is not needed here."""
    modules = (module.name for module in pkgutil.walk_packages(reverie.__path__, "reverie."))
    for name in (*OTHERS, *(name for name in modules if not name.endswith("__main__"))):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def run(asked: dict[str, Any]) -> None:
    """In the forked process: the commands, and its end."""
    file = os.open(asked["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ.update(asked["environment"])
    begin = getattr(ctypes.CDLL(None), "faults_begin", None)
    if begin is not None:
        begin()
    *others, last = asked["commands"]
    for arguments in others:
        print(f"{END}{call(arguments)}{END}", flush=True)
    sys.exit(call(last))


def call(arguments: list[str]) -> int:
    """One command; its exit code."""
    sys.argv = ["reverie", *arguments]
    try:
        return main() or 0
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1


def is_over(child: int, asked: dict[str, Any], started: float) -> bool:
    """Whether it is time to kill a run."""
    processor = time.clock_gettime(~child << 3 | 2)  # as clock_getcpuclockid of Linux
    return processor > asked["kill_after"] or time.perf_counter() > started + asked["longest"]


import_all()
gc.freeze()  # or each run copies what its first collection looks at
for line in sys.stdin:
    asked, started = json.loads(line), time.perf_counter()
    child = os.fork()
    if not child:
        run(asked)
    is_watched = min(asked["kill_after"], asked["longest"]) < math.inf
    while (ended := os.wait4(child, os.WNOHANG if is_watched else 0))[0] == 0:
        if is_over(child, asked, started):
            os.kill(child, signal.SIGKILL)
        time.sleep(0.002)
    print(os.waitstatus_to_exitcode(ended[1]), ended[2].ru_utime + ended[2].ru_stime, flush=True)
