"""Runs the command line again and again, each time in a fork of a process that has imported everything already.

Each line of the input is a run: its arguments, its environment, the file that its output goes to, and perhaps the
seconds after which it is killed. Each line of the output is its exit code, negative for the signal that killed it, and
its seconds. Nothing but imports happens before the fork, so that a run is what it would be in a process of its own,
two seconds sooner.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import signal
import sys
import time
import traceback
from typing import Any

import gymnasium  # noqa: F401 - imported before the fork, as the rest
import matplotlib.pyplot  # noqa: F401
import torch  # noqa: F401
import zarr  # noqa: F401

import reverie.algos.dreamer_v3
import reverie.cli.train
import reverie.experiment.config  # noqa: F401
from reverie.cli import main


def run(asked: dict[str, Any]) -> None:
    """In the forked process: the run, and its end."""
    file = os.open(asked["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ.update(asked["environment"])
    begin = getattr(ctypes.CDLL(None), "faults_begin", None)
    if begin is not None:
        begin()
    sys.argv = ["reverie", *asked["arguments"]]
    try:
        sys.exit(main())
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        sys.exit(1)


for line in sys.stdin:
    asked, started = json.loads(line), time.perf_counter()
    child = os.fork()
    if not child:
        run(asked)
    end = started + (asked.get("kill_after") or math.inf)
    while (ended := os.waitpid(child, os.WNOHANG if end < math.inf else 0))[0] == 0:
        if time.perf_counter() > end:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.002)
    print(os.waitstatus_to_exitcode(ended[1]), time.perf_counter() - started, flush=True)
