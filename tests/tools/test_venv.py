"""Setting up: which build of PyTorch is taken, what a failed step says, and whether the pins fit together."""

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = """#!/bin/sh
# Stands in for Python and pip: writes down what is installed.
case "$*" in
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    *"import version"*) echo "$HAS" ;;
    *"pip index versions torch"*) echo "Available versions: $OFFERED" ;;
    *" install "*)
        echo "$*" >> "$CALLS"
        case "$*" in *"$BREAKS"*)
            echo "Collecting torch"; echo "ERROR: these do not fit"; echo "because of triton"; exit 1 ;;
        esac ;;
esac
"""


class Newcomer:
    """Runs tools/venv.sh on a machine whose programs are given."""

    def __init__(self, folder):
        self.folder, self.calls, self.programs = folder, folder / "calls", folder / "bin"
        self.programs.mkdir()
        self.program("python3", PYTHON)
        self.program("uname", "#!/bin/sh\necho Linux\n")
        for name in ("sh", "sed", "awk", "tail", "grep", "timeout", "mkdir", "cp", "rm", "cat"):
            (self.programs / name).symlink_to(os.path.realpath(subprocess.getoutput(f"command -v {name}")))

    def program(self, name, text="#!/bin/sh\n"):
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def sets_up(self, offered="2.13.0+cpu, 2.13.0", breaks="nothing", has="", **more):
        env = {"PATH": str(self.programs), "CALLS": str(self.calls), "OFFERED": offered, "BREAKS": breaks, "HAS": has}
        constraints = self.folder / "constraints.txt"
        constraints.write_text("numpy==2.4\ntorch==2.13.0\n")
        command = [ROOT / "tools" / "venv.sh", "python3", self.folder / "venv", "classic", constraints]
        return subprocess.run(command, env=env | more, capture_output=True, text=True, timeout=60)

    def installed(self):
        lines = self.calls.read_text().splitlines()
        self.calls.unlink()
        return lines


@pytest.fixture
def newcomer(tmp_path):
    return Newcomer(tmp_path)


without_gpu = pytest.mark.skipif(
    os.path.exists("/proc/driver/nvidia") or os.path.exists("/dev/nvidia0"), reason="this machine has a GPU"
)


@without_gpu
def test_without_a_gpu_the_cpu_build_is_taken_if_there_is_one(newcomer):
    done = newcomer.sets_up(TORCH_CPU_INDEX="https://mirror/cpu")
    torch, rest = newcomer.installed()
    assert "torch==2.13.0+cpu" in torch
    assert "--extra-index-url https://mirror/cpu" in torch
    assert "mirror" not in rest
    assert done.stdout.count("CPU build") == 1
    assert "CUDA" not in done.stdout

    done = newcomer.sets_up(offered="2.14.0+cpu, 2.13.0")
    assert "torch==2.13.0+cpu" not in "".join(newcomer.installed())
    assert "with CUDA, up to 5 GB, which takes minutes: the CPU build cannot be had from https://down" in done.stdout

    done = newcomer.sets_up(breaks="2.13.0+cpu")  # the index answers, but not the server of its files
    assert [line.rpartition(" ")[2] for line in newcomer.installed()] == ["torch==2.13.0+cpu", "torch", ".[classic]"]
    assert done.returncode == 0


def test_the_size_of_cuda_is_said_before_it_is_downloaded(newcomer):
    assert "up to 5 GB, which takes minutes: TORCH_CPU_INDEX is empty." in newcomer.sets_up(TORCH_CPU_INDEX="").stdout
    newcomer.program("nvidia-smi")
    done = newcomer.sets_up(breaks="torch")
    assert "up to 5 GB, which takes minutes: this machine has an NVIDIA GPU." in done.stdout
    assert done.returncode == 1


# ---------------------------------------------------------------- whether the pins fit

UV = """#!/bin/sh
case "$*" in *3.11*--python-platform\\ aarch64-apple*) [ -z "$BREAKS" ] || { echo "no wheel of a" >&2; exit 1; } ;; esac
printf 'a==1\\nB_b==2\\nnvidia-c==3\\n'
echo "$UV_INDEX$PIP_INDEX"
"""


@pytest.fixture
def resolve(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("resolve", ROOT / "tools" / "resolve.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "uv").write_text(UV)
    (tmp_path / "uv").chmod(0o755)
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "UV", tmp_path / "uv")
    return module


def test_every_package_has_a_pin_and_every_pin_a_package(resolve, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("UV_INDEX", "own==1")  # settings of this machine
    monkeypatch.setenv("PIP_INDEX", "own==1")
    (tmp_path / "constraints.txt").write_text("A==1\nb-b==2; sys_platform == 'linux'\nuv==1\n")
    assert resolve.main() == 0
    (tmp_path / "constraints.txt").write_text("a==1\nc==2\n")
    assert resolve.main() == 1
    assert "no pin of b-b\nconstraints.txt pins c, which" in capsys.readouterr().out
