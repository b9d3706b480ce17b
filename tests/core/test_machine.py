"""The resources of this machine."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

from reverie.core import machine
from reverie.core.errors import ConfigError
from reverie.core.machine import available_memory, choose_device


def test_triton_is_loaded_before_environments_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Behind Mesa's OpenGL it would crash."""
    (tmp_path / "triton.py").touch()
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(machine, "loaded_by_mesa", lambda: False)
    assert choose_device("cpu") == "cpu"
    assert sys.modules.pop("triton").__file__ == str(tmp_path / "triton.py")


def test_a_broken_triton_stops_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "triton.py").write_text("raise AttributeError('of another version')")
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert choose_device("cpu") == "cpu"


def test_triton_is_never_loaded_behind_mesa(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "triton.py").touch()
    monkeypatch.setitem(sys.modules, "triton", None)  # so that it is restored
    del sys.modules["triton"]
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(machine, "loaded_by_mesa", lambda: True)
    assert choose_device("cpu") == "cpu"
    with pytest.raises(ImportError):
        importlib.import_module("triton")


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == "cpu"
    with pytest.raises(ConfigError, match="PyTorch sees 0 CUDA devices"):
        choose_device("cuda:1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [choose_device(name) for name in ("auto", "cpu", "cuda:1")] == ["cuda", "cpu", "cuda:1"]


def test_memory_is_known_here() -> None:
    free = available_memory()
    assert free is None or free > 0
