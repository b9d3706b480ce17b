"""A GPU that the kernels' tests pretend to have, if there is none."""

import os

import pytest
import torch

from reverie.kernels import gpu

if os.environ.get("REVERIE_KERNELS") == "off":
    collect_ignore_glob = ["test_*.py"]
DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


@pytest.fixture
def on_gpu(monkeypatch):
    """The CPU counts as a GPU. The result switches that off and on."""
    assert DEVICE.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1", "tests/conftest.py sets it"
    monkeypatch.setattr("reverie.kernels.ctypes_call.load_kernels", lambda: None)
    torch.manual_seed(0)

    def switch(on: bool) -> None:
        monkeypatch.setattr(gpu, "can_use_triton", lambda *xs, family="": on and all(x.dtype in gpu.DTYPES for x in xs))

    switch(True)
    return switch
