"""Files written and put in their places: what is done, and in which order."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reverie.store.local_objects import rename_files, write_files

CONTENTS = {
    "a": [b"one part"],
    "b/c/d": [b"several ", memoryview(b"parts"), b"", memoryview(bytes(range(256)))],
    "empty": [],
    "b/nothing": [b""],
    "ünï": [memoryview(b"x" * 3_000_000)],
}


def test_files_hold_their_parts(tmp_path):
    paths = {name: tmp_path / name for name in CONTENTS}
    write_files({paths[name]: parts for name, parts in CONTENTS.items()})
    for name, parts in CONTENTS.items():
        assert paths[name].read_bytes() == b"".join(parts)
    write_files({paths["a"]: [b"new"]})
    assert paths["a"].read_bytes() == b"new"
    places = {tmp_path / "b" / f"{i}": path for i, path in enumerate(paths.values())}
    (tmp_path / "b" / "0").write_bytes(b"replaced")
    rename_files(places)
    assert not any(path.exists() for path in paths.values())
    expected = [b"new", *(b"".join(parts) for parts in list(CONTENTS.values())[1:])]
    assert [path.read_bytes() for path in places] == expected


@pytest.mark.parametrize("missing", [0, 1])
def test_what_is_not_there_is_not_placed(tmp_path, missing):
    staged = {tmp_path / "to" / "0": tmp_path / "0", tmp_path / "to" / "1": tmp_path / "1"}
    (tmp_path / "to").mkdir()
    (tmp_path / str(1 - missing)).write_bytes(b"here")
    with pytest.raises(FileNotFoundError):
        rename_files(staged)
    assert not list((tmp_path / "to").iterdir())
    with pytest.raises(IsADirectoryError):
        rename_files({tmp_path / "to": tmp_path / str(1 - missing)})


# ---------------------------------------------------------------- what is done, and in which order

FAULTS = Path(__file__).parents[2] / "bench" / "faults" / "faults.c"
WORKER = """
import ctypes, os, sys
from pathlib import Path
from reverie.store.local_objects import rename_files, write_files
folder, counted = Path(os.environ["FAULT_BELOW"]), int(sys.argv[1])
for at in range(1, counted + 2):
    here = folder / str(at)
    here.mkdir()
    child = os.fork()
    if not child:
        os.environ["FAULT_AT"] = str(at)
        ctypes.CDLL(None).faults_begin()
        write_files({here / f"part{i}": [b"content"] for i in range(3)})
        rename_files({here / str(i): here / f"part{i}" for i in range(3)})
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(code, sum((here / str(i)).exists() for i in range(3)), flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler")
def test_everything_is_synchronized_before_anything_is_renamed(tmp_path):
    """Killed before each call: 3 files opened and written, 3 synchronized, 3 renamed, their folder synchronized."""
    library, folder = tmp_path / "faults.so", tmp_path / "files"
    folder.mkdir()
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", str(FAULTS), "-o", str(library), "-ldl"], check=True)
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    setting = {"LD_PRELOAD": str(library), "FAULT_BELOW": str(folder)}
    done = subprocess.run([sys.executable, str(script), "13"], env={**os.environ, **setting},
                          capture_output=True, text=True, check=True)  # fmt: skip
    found = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    placed = [0] * 10 + [1, 2, 3]  # when the k-th call does not come: opened, written, synchronized; then one by one
    assert found == [*((-9, n) for n in placed), (0, 3)]
