"""Workers and signals: theirs is to step environments, for as long as somebody asks them."""

import functools
import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from env_steps import play
from reverie.envs.dummy import Count
from reverie.envs.flat_env import Outcome
from reverie.envs.worker import PipeEnd

PATIENCE = 300
"""Most seconds for what a machine with other work on it may do slowly."""

START = """
import functools, multiprocessing, os, signal, sys, time

def start(num=3):  # only who starts environments imports what it takes, not workers with this script
    from reverie.envs.config import EnvConfig
    from reverie.envs.slot_vector_env import make_vector_env
    return make_vector_env(EnvConfig(id="reverie/Count-v0", num=num, vectorization="async"), seed=0)
"""
LEFT = """
if __name__ == "__main__":
    env = start()
    env.reset()
    print(*[slot.process.pid for slot in env.vector._slots], flush=True)
    if sys.argv[1] == "killed as environments hang":
        env.set_attr("_begin", functools.partial(time.sleep, 3600))
        env.send(__import__("torch").zeros(3, 2))
    if sys.argv[1] != "at its end":
        os.kill(os.getpid(), signal.SIGKILL)
"""
INTERRUPTED = """
from multiprocessing.process import BaseProcess
from reverie.envs import slot_vector_env
slot_vector_env.close = lambda *given: None  # as where nobody is left to call it
begin = BaseProcess.start
def start_and_interrupt(self):
    begin(self)
    raise KeyboardInterrupt
BaseProcess.start = start_and_interrupt
start()
"""
OPEN = """
def leave():
    global env
    env = start()
    env.reset()

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=leave)
    process.start()
    process.join(60)
    print("exit code", process.exitcode)
    process.kill()
"""


def run_python(*args, code=None):
    command = [sys.executable, *args]
    return subprocess.run(command, input=code, capture_output=True, text=True, timeout=PATIENCE)


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.parametrize(
    "end", [pytest.param("killed", marks=pytest.mark.nightly), "killed as environments hang", "at its end"]
)
def test_workers_do_not_outlive_their_parent(tmp_path, end):
    script = tmp_path / "script.py"
    script.write_text(START + LEFT)
    done = run_python(script, end)
    assert done.returncode == (0 if end == "at its end" else -signal.SIGKILL), done.stderr
    pids = done.stdout.split()
    assert len(pids) == 3
    for _ in range(20 * PATIENCE):
        if all(gone(pid) for pid in pids):
            return
        time.sleep(0.05)
    raise AssertionError(f"of the workers {pids} some are left")


@pytest.mark.parametrize(
    "setting",
    [
        "env_options={'vectorization': 'async', 'num': 2}",
        pytest.param("actors=2, **{'algo.reward_scale': None}", marks=pytest.mark.nightly),
    ],  # ends at the same line
)
def test_workers_do_not_run_an_unguarded_script_again(tmp_path, setting):
    script = tmp_path / "script.py"
    script.write_text(
        f"import reverie\nprint('begun', flush=True)\nreverie.train('dqn', 'reverie/Count-v0', steps=300, "
        f"eval_episodes=0, run={str(tmp_path / 'run')!r}, {setting})\nprint('done')\n"
    )
    done = run_python(script)
    assert 'must do so under `if __name__ == "__main__":`' in done.stderr.splitlines()[-1]
    assert done.stderr.count("Traceback") == 1
    assert "multiprocessing/spawn.py" not in done.stderr  # where a worker imports the script
    assert "begun" in done.stdout
    assert "done" not in done.stdout


def test_signals_to_a_whole_job_are_the_parents_affair(make):
    env = make(functools.partial(Count, truncate_at=9), vectorization="async")
    env.reset()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        os.kill(env.vector._slots[0].process.pid, number)
        assert not env.step(torch.zeros(1, 2)).is_first.any()
    assert env.restarts == 0


def test_ctrl_c_right_after_a_worker_started_does_not_hang_the_end_of_the_program():
    done = run_python("-c", "import sys; exec(sys.stdin.read())", code=START + INTERRUPTED)
    assert "KeyboardInterrupt" in done.stderr.splitlines()[-1]


def test_a_worker_that_was_killed_is_said_to_be(make, capsys):
    env = make(Count, vectorization="async", num=2)
    play(env, 2)
    for slot in env.vector._slots:
        os.kill(slot.process.pid, signal.SIGKILL)
    assert env.step(torch.zeros(2, 2)).is_first.all()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert all("(exit code -9)" in line and "It was killed (SIGKILL)" in line for line in said)


def test_a_process_of_multiprocessing_that_leaves_environments_open_ends(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(START + OPEN)
    done = run_python(script)
    assert done.stdout == "exit code 0\n", done.stderr


# What goes between a vector and a worker comes out as it went in


@pytest.fixture
def ends():
    near, far = multiprocessing.Pipe()
    yield PipeEnd(near), PipeEnd(far)
    near.close()
    far.close()


@pytest.mark.parametrize("outcome", [(0.1, False, False, 0), (-1e300, True, False, 1), (5e-324, False, True, 2)])
def test_steps_are_told_exactly(ends, outcome):
    vector, worker = ends
    vector.step(2**40)
    assert worker.receive()[:2] == (2**40, "step")
    worker.step(7, Outcome(*outcome))
    turn, what, row = vector.receive()
    assert (turn, what, row) == (7, "step", outcome)
    assert [*map(type, row)] == [float, bool, bool, int]


def test_what_was_said_before_the_end_is_heard_first_and_the_end_stays(ends):
    vector, worker = ends
    assert not vector.ready(0.01)
    worker.send(1, "done", "the last word")
    worker.pipe.close()
    assert vector.ready(0.0)
    assert vector.receive() == (1, "done", "the last word")
    for _ in range(2):
        assert vector.ready(0.0)
        with pytest.raises((EOFError, OSError)):
            vector.receive()
    with pytest.raises(OSError):  # noqa: PT011 - of several kinds
        vector.step(1)


@pytest.mark.parametrize("size", [0, 2**16, 2**24 + 1])
def test_pickles_of_any_size(ends, size):
    """More than a pipe holds: whoever says it waits until the other end listens, and ``ready`` tells that it comes."""
    vector, worker = ends
    snapshot = np.random.default_rng(0).bytes(size)
    speaker = threading.Thread(target=worker.send, args=(5, "done", snapshot), daemon=True)
    speaker.start()
    assert vector.ready(30.0)
    assert vector.receive() == (5, "done", snapshot)
    speaker.join(30.0)


def test_half_a_pickle_is_an_end(ends):
    """A worker that is killed while it speaks."""
    vector, worker = ends
    os.write(worker.pipe.fileno(), struct.pack("!i", 1000) + b"only so much")
    worker.pipe.close()
    assert vector.ready(0.0)
    with pytest.raises((EOFError, OSError)):
        vector.receive()
