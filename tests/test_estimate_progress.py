"""The progress of long estimates, and what is left of those that were interrupted."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import reverie
from reverie.agent.estimate import Estimator
from reverie.cli import main
from reverie.cli.estimate import Watched

SMALL: dict[str, Any] = {"env": "none", "console": False, "tensorboard": False, "threads": 1,
                         "algo.networks.units": (8,), "algo.batch_size": 8}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run on one recorded episode, without an environment and without an estimate."""
    train(tmp_path, {"data.estimate_updates": 0})
    return tmp_path / "run"


def train(folder: Path, more: dict[str, Any]) -> reverie.Result:
    rng, last = np.random.default_rng(0), np.arange(20) == 19
    seen = rng.normal(size=(21, 2)).astype(np.float32)
    with h5py.File(folder / "data.hdf5", "w") as file:
        values = {"observations": seen[:-1], "next_observations": seen[1:], "actions": rng.integers(2, size=20)}
        for name, value in (values | {"rewards": np.ones(20), "terminals": last, "timeouts": ~last & last}).items():
            file[name] = value
    given = SMALL | {} | more
    return reverie.train("discrete_bcq", data=folder / "data.hdf5", run=folder / "run", updates=2, **given)


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody presses Ctrl-C during the third update of an estimate."""
    update, made = Estimator._update, [0]

    def pressed(self: Estimator, chosen: np.ndarray) -> Any:
        made[0] += 1
        if made[0] == 3:
            signal.raise_signal(signal.SIGINT)
        return update(self, chosen)

    monkeypatch.setattr(Estimator, "_update", pressed)


@pytest.mark.usefixtures("interrupted")
def test_an_interrupted_estimate_is_that_after_the_updates_made(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", str(run), "--updates", "50"]) == 130
    said = capsys.readouterr()
    assert "discount 0.99, 3 updates" in said.out
    assert "interrupted: the estimate is that after 3 of 50 updates" in said.err
    assert json.loads((run / "estimate.json").read_text())["updates"] == 3


def test_ctrl_c_ends_the_command_at_once_before_the_first_update_and_the_second_time() -> None:
    with pytest.raises(KeyboardInterrupt), Watched():
        signal.raise_signal(signal.SIGINT)
    with Watched() as watch:
        assert watch(1, 5)
        signal.raise_signal(signal.SIGINT)
        assert not watch(2, 5)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
