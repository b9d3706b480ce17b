"""Runs the command line again and again, each time in a fork of a process that has imported everything already.

Each line of the input is a run: its arguments, its environment, and the file that its output goes to. Each line of the
output is what it exited with, negative for the signal that killed it. Nothing but imports happens before the fork, so
that a run is what it would be in a process of its own, two seconds sooner.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
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
        main()
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        sys.exit(1)


for line in sys.stdin:
    child = os.fork()
    if not child:
        run(json.loads(line))
        sys.exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
