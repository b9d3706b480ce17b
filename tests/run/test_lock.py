"""One writer a run, whatever becomes of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from reverie.core import lock as module
from reverie.core.errors import RunError
from reverie.core.lock import folder_lock, is_in_use

pytestmark = pytest.mark.usefixtures("warm")

HOLDER = """
import sys, time
from pathlib import Path
from reverie.core.lock import folder_lock
with folder_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_another_process_is_named_and_a_killed_one_forgotten(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with (
        pytest.raises(RunError, match=f"is in use by process {holder.pid} on host"),
        folder_lock(tmp_path),
    ):
        pass
    assert is_in_use(tmp_path)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    assert (tmp_path / ".lock").exists()
    assert not is_in_use(tmp_path)
    (tmp_path / ".lock").write_text(json.dumps({"pid": holder.pid, "host": "another"}))
    assert is_in_use(tmp_path)
    (tmp_path / ".lock").write_text("[" * 100_000)
    assert is_in_use(tmp_path)
    with folder_lock(tmp_path):
        said = json.loads((tmp_path / ".lock").read_text())
        assert said == {"pid": os.getpid(), "host": socket.gethostname()}
    assert not list(tmp_path.iterdir())


def test_a_link_is_no_lock(tmp_path):
    (tmp_path / "mine").write_text("text")
    (tmp_path / ".lock").symlink_to(tmp_path / "mine")
    with pytest.raises(RunError, match="cannot write to"), folder_lock(tmp_path):
        pass
    assert (tmp_path / "mine").read_text() == "text"


def test_who_holds_it_deletes_what_a_killed_process_left_half_written(tmp_path):
    others = ["config.yaml", ".hidden", ".notes.part"]
    for name in (".config.yaml.77.part", ".metrics.jsonl.4194304.part", *others):
        (tmp_path / name).write_text("")
    with folder_lock(tmp_path):
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([".lock", *others])
        (tmp_path / ".eval.json.77.part").write_text("")
        with pytest.raises(RunError, match="is in use"), folder_lock(tmp_path):
            pass
        assert (tmp_path / ".eval.json.77.part").exists()


def test_a_file_that_its_last_owner_deleted_is_not_a_lock(tmp_path, monkeypatch):
    opened = []

    def open_then_lose(path, *rest):
        opened.append(os_open(path, *rest))
        if len(opened) == 1:
            os.unlink(path)
        return opened[-1]

    os_open = os.open
    monkeypatch.setattr(module.os, "open", open_then_lose)
    with folder_lock(tmp_path):
        assert (tmp_path / ".lock").exists()
    assert len(opened) == 2
