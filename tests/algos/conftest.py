"""What the tests of algorithms share."""

import pytest


@pytest.fixture
def plain_pytorch(request, monkeypatch):
    """As on a GPU, which has none of the compiled functions; but where a test says so."""
    if "compiled" not in request.node.name:
        monkeypatch.setattr("reverie.kernels.ctypes_call.load_kernels", lambda: None)
