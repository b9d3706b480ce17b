"""The resources of this machine; how its threads wait is settled before they exist, or by the user."""

import importlib
import os
import subprocess
import sys

import pytest

from reverie.core import hardware
from reverie.core.errors import ConfigError
from reverie.core.hardware import choose_device
from reverie.core.openmp import SPIN_ENV_VAR, SPIN_ITERATIONS, WAIT_ENV_VAR, limit_openmp_spinning


@pytest.mark.parametrize("mesa", [False, True])
def test_triton_is_loaded_before_environments_but_never_behind_mesa(monkeypatch, tmp_path, mesa):
    """Behind Mesa's OpenGL it would crash."""
    (tmp_path / "triton.py").touch()
    monkeypatch.setitem(sys.modules, "triton", None)  # so that it is restored
    del sys.modules["triton"]
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(hardware, "has_mesa_loaded", lambda: mesa)
    assert choose_device("cpu") == "cpu"
    if mesa:
        with pytest.raises(ImportError):
            importlib.import_module("triton")
    else:
        assert sys.modules["triton"].__file__ == str(tmp_path / "triton.py")


@pytest.mark.parametrize("name", ["cud", "cuda:x", "cuda:-1", ""])
def test_a_device_is_written_as_pytorch_does(name):
    with pytest.raises(ConfigError, match=f"device = '{name}': expected auto, cpu, cuda or cuda:<number>"):
        choose_device(name)


@pytest.mark.parametrize("said", [{SPIN_ENV_VAR: "7"}, {WAIT_ENV_VAR: "active"}, {WAIT_ENV_VAR: ""}])
def test_what_the_user_said_stays(said):
    environment = dict(said)
    limit_openmp_spinning(environment)
    assert environment == said


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (
            "import reverie.cli as cli; assert 'torch' not in sys.modules; cli.main(['--help'])",
            f"{SPIN_ITERATIONS} False",
        ),
        ("import reverie", f"{SPIN_ITERATIONS} False"),
        ("import torch, reverie", "None True"),  # too late: nothing is said to processes that come after this one
    ],
)
def test_it_is_settled_before_torch_is_loaded(first, expected):
    program = f"import sys, os\n{first}\nprint(os.environ.get('{SPIN_ENV_VAR}'), 'torch' in sys.modules)"
    environment = {key: value for key, value in os.environ.items() if key not in (SPIN_ENV_VAR, WAIT_ENV_VAR)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == expected
