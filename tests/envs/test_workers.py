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

PATIENCE = 300
"""Most seconds for what a machine with other work on it may do slowly."""

SCRIPT = """
import os, signal, sys

if __name__ == "__main__":
    from reverie.envs.config import EnvConfig
    from reverie.envs.vector import make_env
    config = EnvConfig(id="reverie/Count-v0", num=3, vector="process")
    env = make_env(config, seed=0)
    env.reset()
    print(*[slot.process.pid for slot in env._slots], flush=True)
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
"""


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.parametrize("end", ["killed", "at its end"])
def test_workers_do_not_outlive_their_parent(tmp_path, end):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script, end], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == (-signal.SIGKILL if end == "killed" else 0), done.stderr
    pids = done.stdout.split()
    assert len(pids) == 3
    for _ in range(20 * PATIENCE):
        if all(gone(pid) for pid in pids):
            return
        time.sleep(0.05)
    raise AssertionError(f"of the workers {pids} some are left")


def test_signals_to_a_whole_job_are_the_parents_affair(make):
    env = make(functools.partial(Count, truncate_at=9), vector="process")
    env.reset()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        os.kill(env._slots[0].process.pid, number)
        assert not env.step(torch.zeros(1, 2)).is_first.any()
    assert env.restarts == 0


def run_python(code, *args, **kwargs):
    return subprocess.run(
        [sys.executable, *args], input=code, capture_output=True, text=True, timeout=PATIENCE, **kwargs
    )


START = """
import multiprocessing, os, signal

def start(method, num=3):  # only who starts environments imports what it takes, not workers that import this script
    from reverie.envs.config import EnvConfig
    from reverie.envs.vector import make_env
    multiprocessing.get_all_start_methods = lambda: [method]
    return make_env(EnvConfig(id="reverie/Count-v0", num=num, vector="process"), seed=0)
"""


def test_ctrl_c_right_after_a_worker_started_does_not_hang_the_end_of_the_program():
    done = run_python(
        START
        + """
from multiprocessing.process import BaseProcess
from reverie.envs import vector
vector.close = lambda *given: None  # as where nobody is left to call it
begin = BaseProcess.start
def start_and_interrupt(self):
    begin(self)
    raise KeyboardInterrupt
BaseProcess.start = start_and_interrupt
start("forkserver")
""",
        "-c",
        "import sys; exec(sys.stdin.read())",
    )
    assert "KeyboardInterrupt" in done.stderr.splitlines()[-1]


def test_a_worker_that_was_killed_is_said_to_be(make, capsys):
    env = make(Count, vector="process", num=2)
    env.reset()
    env.step(torch.zeros(2, 2))
    for slot in env._slots:
        os.kill(slot.process.pid, signal.SIGKILL)
    assert env.step(torch.zeros(2, 2)).is_first.all()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert all("(exit code -9)" in line and "It was killed (SIGKILL)" in line for line in said)


def test_a_process_of_multiprocessing_that_leaves_environments_open_ends(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        START
        + """
def leave():
    global env
    env = start("forkserver")
    env.reset()

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=leave)
    process.start()
    process.join(60)
    print("exit code", process.exitcode)
    process.kill()
"""
    )
    done = run_python(None, script)
    assert done.stdout == "exit code 0\n", done.stderr
