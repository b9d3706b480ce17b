"""Workers and signals: theirs is to step environments, for as long as somebody asks them."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from reverie.envs.dummy import Count

SCRIPT = """
import os, signal, sys
from reverie.envs.base import EnvConfig
from reverie.envs.vector import make_env

if __name__ == "__main__":
    config = EnvConfig(id="reverie/Count-v0", num=3, vector="process", start_method=sys.argv[1])
    env = make_env(config, seed=0)
    env.reset()
    print(*[slot.process.pid for slot in env._slots], flush=True)
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
"""


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.parametrize(("method", "end"), [("fork", "killed"), ("forkserver", "killed"), ("fork", "at its end")])
def test_workers_do_not_outlive_their_parent(tmp_path, method, end):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script, method, end], capture_output=True, text=True, timeout=60)
    assert done.returncode == (-signal.SIGKILL if end == "killed" else 0), done.stderr
    pids = done.stdout.split()
    assert len(pids) == 3
    for _ in range(1000):
        if all(gone(pid) for pid in pids):
            return
        time.sleep(0.01)
    raise AssertionError(f"of the workers {pids} some are left")


def test_signals_to_a_whole_job_are_the_parents_affair(make):
    env = make(functools.partial(Count, truncate_at=9), vector="process")
    env.reset()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        os.kill(env._slots[0].process.pid, number)
        assert not env.step(torch.zeros(1, 2)).is_first.any()
    assert env.restarts == 0
