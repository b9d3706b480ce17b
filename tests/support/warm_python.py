"""Python processes that start in milliseconds: forked from one that has imported what they would import.

They are children of this process, as :class:`subprocess.Popen` has them: waited for, signalled, and told of its end.
What is about the start of Python itself, such as the order of imports, needs a process of its own.
"""

from __future__ import annotations

import atexit
import ctypes
import io
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from multiprocessing import reduction, spawn
from pathlib import Path
from typing import Any
from unittest.mock import patch

PRELOADED = [
    "reverie.api", "reverie.cli.main", "reverie.cli.train", "reverie.distributed.actors", "reverie.envs.worker",
]  # fmt: skip
SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER: orphans become children of this process."""


class WarmPopen(subprocess.Popen):
    """Plays Popen; what is no plain start of this Python starts as ever."""

    def _execute_child(
        self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, restore_signals, gid, gids, uid, umask,
        start_new_session, process_group,
    ):  # fmt: skip
        words = [] if isinstance(args, str | bytes | os.PathLike) else [os.fspath(word) for word in args]
        if shell or preexec_fn or pass_fds or executable or words[:1] != [sys.executable] or words[1:2] == ["-E"]:
            super()._execute_child(
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
                p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, restore_signals, gid, gids, uid, umask,
                start_new_session, process_group,
            )  # fmt: skip
            return
        fds = [own if fd == -1 else fd for own, fd in enumerate((p2cread, c2pwrite, errwrite))]
        self.pid = fork(words[1:], dict(os.environ if env is None else env), os.fspath(cwd or os.getcwd()), fds,
                        bool(start_new_session))  # fmt: skip
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


def fork(words: Sequence[str], env: dict[str, str], folder: str, fds: Sequence[int], own_session: bool) -> int:
    """Start ``python WORDS``; return its number."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    near, far = os.pipe()
    prctl = ctypes.CDLL(None).prctl
    try:
        prctl(SUBREAPER, 1)
        process = context.Process(target=_divide, args=(words, env, folder, *map(_Fd, (*fds, far)), own_session))
        with patch.object(spawn, "get_preparation_data", _nothing_of_main):
            process.start()
        process.join()
        os.close(far)
        pid = int.from_bytes(os.read(near, 4), "little")
        while not _is_own(pid, own_session):
            time.sleep(0.001)
    finally:
        prctl(SUBREAPER, 0)
        os.close(near)
    return pid


def _is_own(pid: int, own_session: bool) -> bool:
    """Return whether it is a child of this process by now, with a session that can be killed if it has its own."""
    _, parent, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
    return int(parent) == os.getpid() and (not own_session or int(session) == pid)


def _nothing_of_main(name: str, prepare: Any = spawn.get_preparation_data) -> dict[str, Any]:
    """Not even the script that was started: the grandchild has another one."""
    return {key: value for key, value in prepare(name).items() if not key.startswith("init_main")}


class _Fd:
    """A file descriptor that goes along."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> Any:
        return _opened, (reduction.DupFd(self.fd),)


def _opened(there: Any) -> int:
    return there.detach()


def _divide(words, env, folder, stdin, stdout, stderr, told, own_session):
    """Fork once more, and end: the grandchild becomes a child of whoever asked."""
    middle = os.getpid()
    if pid := os.fork():
        os.write(told, pid.to_bytes(4, "little"))
        os._exit(0)
    os.close(told)
    while os.getppid() == middle:
        time.sleep(0.001)
    for own, fd in enumerate((stdin, stdout, stderr)):
        os.dup2(fd, own)
    for fd in {stdin, stdout, stderr} - {0, 1, 2}:
        os.close(fd)
    if own_session:
        os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    sys.path[:0] = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
    os._exit(_run(list(words)))


def _run(words: list[str]) -> int:  # noqa: C901 - as Python itself begins and ends
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    while words[0].startswith("-") and words[0] not in ("-c", "-m"):
        unbuffered |= words.pop(0) == "-u"
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    for fd, name in ((1, "stdout"), (2, "stderr")):
        stream = io.TextIOWrapper(
            open(fd, "wb", 0 if unbuffered else -1, closefd=False), encoding="utf-8",  # noqa: SIM115
            errors="backslashreplace" if fd == 2 else "strict", write_through=unbuffered, line_buffering=fd == 2,
        )  # fmt: skip
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code = 0
    try:
        if words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            sys.path.insert(0, "")
            main = type(sys)("__main__")
            sys.modules["__main__"] = main
            exec(compile(words[1], "<string>", "exec"), vars(main))
        elif words[0] == "-m":
            sys.argv = words[1:]
            sys.path.insert(0, os.getcwd())
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = words
            sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if ended.code is not None and not isinstance(ended.code, int):
            print(ended.code, file=sys.stderr)
    except KeyboardInterrupt:
        traceback.print_exc()
        code = -signal.SIGINT
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if code < 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code & 0xFF
