"""The wheel, on a machine without a C compiler: it brings compiled kernels, trains, evaluates and dreams."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import matplotlib
import pytest

ROOT = Path(__file__).parents[1]
WHEEL = os.environ.get("REVERIE_TESTED_WHEEL", "")
pytestmark = pytest.mark.skipif(not WHEEL, reason="`make package` builds and tests a wheel")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The content of the wheel."""
    out = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(WHEEL) as archive:
        archive.extractall(out)
    return out


def test_kernels_link_to_nothing_that_a_slim_machine_lacks(unpacked: Path) -> None:
    for path in (unpacked / "reverie" / "kernels" / "built").iterdir():
        told = subprocess.run(["readelf", "-d", str(path)], capture_output=True, text=True, check=True).stdout
        assert set(re.findall(r"NEEDED.*\[(.*)\]", told)) <= {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="names the C library of Linux")
def test_the_tag_of_the_wheel_names_every_python_and_the_oldest_c_library(unpacked: Path) -> None:
    (wheel,) = unpacked.glob("*.dist-info/WHEEL")
    assert re.search(r"^Tag: py3-none-manylinux_2_\d+_\w+$", wheel.read_text(), re.MULTILINE)


def test_the_wheel_needs_no_compiler(unpacked: Path, tmp_path: Path) -> None:
    written = {path.relative_to(ROOT / "src") for path in (ROOT / "src").rglob("*.[ch]")}
    assert {path.relative_to(unpacked) for path in unpacked.rglob("*.[ch]")} == written
    assert (unpacked / "reverie" / "py.typed").is_file()
    env = {name: value for name, value in os.environ.items() if name not in ("CC", "REVERIE_KERNELS")}
    env |= {"PATH": "", "PYTHONPATH": str(unpacked), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    env |= {
        "MPLCONFIGDIR": matplotlib.get_cachedir(),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "",
    }  # looking for fonts takes long

    def reverie(*words: str) -> str:
        command = [sys.executable, "-m", "reverie", *words]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert "apt install gcc" not in done.stdout + done.stderr
        return done.stdout

    small = ["--size", "nano", "--steps", "60", "--eval-episodes", "2", "--learning-starts", "16"]
    small += ["--algo.batch-size", "2", "--algo.batch-length", "8", "--replay-ratio", "0.05"]
    assert "finished at env step" in reverie("train", "dreamer_v3", "--env", "CartPole-v1", "--run", "run", *small)
    assert "over 2 episodes" in reverie("eval", "run", "--episodes", "2")
    assert "dream.npz" in reverie("dream", "run")
    assert not list((tmp_path / "cache").rglob("*.so"))
