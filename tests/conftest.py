"""What all tests share."""

import base64
import gc
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from log_capture import logged
from reverie.core.files import write_atomic
from reverie.core.kernel_dispatch import KERNEL_PACKAGE, kernels_disabled, use_only_kernels
from trained_run import played

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported: its kernels then run on the CPU

MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 1e9:  # tests write thousands of files, durably
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    tempfile.tempdir = str(MEMORY)

HAS_KERNELS = not kernels_disabled() and find_spec(KERNEL_PACKAGE) is not None
if HAS_KERNELS:
    from reverie.kernels import capture

    capture.WARM_UPS = 2  # the minimum for detecting state that persists between updates

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where nohup or a script started the tests

GOLDEN = Path(__file__).parent / "golden"


def pytest_collection_finish():
    """Garbage collections skip all that was imported, which would take a tenth of the tests' time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(700, 10, 100)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """A test marked as ``raising`` errors must raise one: an expected failure that takes no time for a report."""
    mark = pyfuncitem.get_closest_marker("raising")
    if mark is None:
        return (yield)
    with pytest.raises(mark.kwargs["errors"]):
        yield
    return True


@pytest.fixture(autouse=True)
def _one_thread():
    """Small tensors are faster on one thread, and tests then do not fight over cores."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _no_home(tmp_path_factory):
    """Modules that tests name are not trusted in the user's own folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def _forget_scripts(tmp_path_factory):
    """Modules that a test wrote are not imported in the next one, whose modules may have their names."""
    before = set(sys.modules)
    yield
    for name in sys.modules.keys() - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path_factory.getbasetemp())):
            del sys.modules[name]


@pytest.fixture(scope="module")
def warm():
    """Python's child processes have imported PyTorch and reverie before they start."""
    if not sys.platform.startswith("linux"):
        yield
        return
    from warm_python import WarmPopen

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", WarmPopen)
        yield


@pytest.fixture
def _no_collection():
    """Garbage of other tests is not collected deep in a recursion, where its finalizers would fail."""
    gc.disable()
    yield
    gc.enable()


DOT = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg==")
"""A PNG of one pixel."""


@pytest.fixture
def drawn():
    """Figures are drawn, as a test looks at them."""


@pytest.fixture(autouse=True)
def _undrawn(request, monkeypatch):
    """Figures are made and not drawn, which takes as long as a small run; but for tests that use ``drawn``."""
    plot = sys.modules.get("reverie.log.plot")  # importing it takes long, too
    if plot is not None and "drawn" not in request.fixturenames:
        monkeypatch.setattr(plot, "save_figure", lambda figure, png: write_atomic(png, DOT) or png)
        monkeypatch.setattr("reverie.log.strip_figure.write_strip", lambda path, *_: write_atomic(path, DOT) or path)


@pytest.fixture
def definitions():
    """Without kernels."""
    with use_only_kernels():
        yield


@pytest.fixture
def plain_pytorch(request, monkeypatch):
    """As on a GPU, which has none of the compiled functions; but where a test says so."""
    if HAS_KERNELS and "compiled" not in request.node.name:
        monkeypatch.setattr("reverie.kernels.ctypes_call.load_kernels", lambda: None)


@pytest.fixture
def said():
    """What is logged during the test, line by line."""
    with logged() as lines:
        yield lines


@pytest.fixture
def golden():
    """Open a recording by file name."""
    return lambda name: np.load(GOLDEN / name)


@pytest.fixture(scope="session")
def pendulum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random actions on Pendulum-v1, of which half would go beyond [-1, 1]."""
    env, rng = gymnasium.make("Pendulum-v1", max_episode_steps=40), np.random.default_rng(0)
    path = tmp_path_factory.mktemp("data") / "pendulum.hdf5"
    return played(env, lambda obs: rng.uniform(-2, 2, 1).astype(np.float32), path, 4)


@pytest.fixture(scope="session")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random actions on CartPole-v1."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("data") / "cartpole.hdf5"
    return played(gymnasium.make("CartPole-v1"), lambda obs: rng.integers(2), path, 4)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on CartPole; tests may read it."""
    from reverie.api import train_config as train
    from tiny_configs import settings

    run = tmp_path_factory.mktemp("runs") / "cartpole"
    train(settings(steps=200), run=run)
    return run


@pytest.fixture(scope="session")
def s3_server():
    """Host and port of a stand-in for S3."""
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield server.get_host_and_port()
    server.stop()


@pytest.fixture
def d4rl(tmp_path: Path) -> Path:
    """Five short episodes in a file of D4RL's form."""
    from d4rl_files import columns, write  # here, because most tests start faster without

    return write(tmp_path / "a.hdf5", columns())
