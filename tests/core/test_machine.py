"""The resources of this machine."""

import importlib
import sys
from pathlib import Path

import pytest

from reverie.core import machine
from reverie.core.machine import choose_device


def test_triton_is_loaded_before_environments_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Behind Mesa's OpenGL it would crash."""
    (tmp_path / "triton.py").touch()
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(machine, "loaded_by_mesa", lambda: False)
    assert choose_device("cpu") == "cpu"
    assert sys.modules.pop("triton").__file__ == str(tmp_path / "triton.py")


def test_triton_is_never_loaded_behind_mesa(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "triton.py").touch()
    monkeypatch.setitem(sys.modules, "triton", None)  # so that it is restored
    del sys.modules["triton"]
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(machine, "loaded_by_mesa", lambda: True)
    assert choose_device("cpu") == "cpu"
    with pytest.raises(ImportError):
        importlib.import_module("triton")
