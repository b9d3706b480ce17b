"""Runs that begin with the agent of another one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import reverie
from logged import logged
from reverie.agent.loading import load
from reverie.core.errors import RunError
from reverie.run.folder import read_saved

SMALL: dict[str, Any] = {
    "threads": 1, "eval_episodes": 0, "tensorboard": False, "console": False, "algo.batch_size": 8,
    "algo.networks.units": (8,),
}  # fmt: skip
LIVED = {"env": "Pendulum-v1", "replay_ratio": 0, "random_steps": 0}
LEARNING = LIVED | {"replay_ratio": 1, "learning_starts": 30}


def train(run: Path, algorithm: str = "td3_bc", **more: Any) -> list[str]:
    """What it said."""
    no_estimates = {"data.estimate_updates": 0} if "data" in more else {}
    with logged() as said:
        reverie.train(algorithm, run=run, **SMALL | no_estimates | more)
    return said


def learner(run: Path) -> dict[str, Any]:
    """Networks and optimisers; statistics go on with what is lived."""
    state = dict(load(run, env="Pendulum-v1").algo.state_dict())
    return state | {"model": {k: v for k, v in state["model"].items() if not k.startswith("preprocess.")}}


def seen(run: Path) -> torch.Tensor:
    """What observations are multiplied by."""
    return load(run, env="Pendulum-v1").algo.state_dict()["model"]["preprocess.normaliser.parts.0.factor"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noise in the shape of Pendulum, whose observations are far from 0."""
    return noise(tmp_path_factory.mktemp("data") / "noise.hdf5", spread=3)


def noise(path: Path, spread: float) -> Path:
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        file["observations"] = rng.normal(5, spread, (200, 3)).astype(np.float32)
        file["actions"] = rng.uniform(-2, 2, (200, 1)).astype(np.float32)
        file["rewards"] = rng.normal(size=200).astype(np.float32)
        file["terminals"] = np.zeros(200, bool)
        file["timeouts"] = np.arange(200) % 40 == 39
    return path


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    run = tmp_path_factory.mktemp("runs") / "offline"
    train(run, data=data, updates=30, **{"env": "none"})
    return run


@pytest.mark.parametrize("beside", [False, True])
def test_a_run_that_lives_begins_with_the_agent_of_one_that_did_not(offline, beside, tmp_path):
    other = noise(tmp_path / "other.hdf5", spread=300)  # with which that agent has nothing to do
    more = {"data": other, "experience": "mixed(0.5)"} if beside else {}
    said = train(tmp_path / "run", init=str(offline), steps=20, **LIVED, **more)  # learning never starts
    assert any(line.startswith(f"starting with the agent of {offline}/checkpoints/step-") for line in said)
    torch.testing.assert_close(learner(tmp_path / "run"), learner(offline), rtol=0, atol=0)
    torch.testing.assert_close(seen(tmp_path / "run"), seen(offline), rtol=0.2, atol=0)  # of the data, 20 rows aside


def test_it_learns_on_and_goes_on_although_that_run_is_gone(offline, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(offline, moved)
    train(tmp_path / "once", init=str(moved), steps=60, **LEARNING)
    train(tmp_path / "twice", init=str(moved), steps=45, **LEARNING)
    shutil.rmtree(moved)
    said = train(tmp_path / "twice", init=str(moved), steps=60, **LEARNING)
    assert not [line for line in said if "beginning with" in line]
    torch.testing.assert_close(learner(tmp_path / "twice"), learner(tmp_path / "once"), rtol=0, atol=0)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(learner(tmp_path / "once"), learner(offline), rtol=0, atol=0)


def test_what_a_run_began_with_stays_what_it_was(offline, tmp_path):
    run = tmp_path / "run"
    train(run, init=str(offline), steps=20, **LIVED)
    settings = (run / "config.yaml").read_text()
    for other in ({"init": str(run)}, {"replay.init": [str(run)]}):
        with pytest.raises(RunError, match=rf"applies only to a new run, but {run} began with .* choose another --run"):
            train(run, steps=30, **LIVED | other)
    assert (run / "config.yaml").read_text() == settings
    said = train(run, steps=25, **LIVED)  # without saying it again, and then as it is not written there
    said += train(run, steps=30, init=f"{offline}/", **LIVED)
    assert not [line for line in said if "init" in line]
    assert read_saved(run).experiment["init"] == str(offline)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"init": "nothing"}, r"init = 'nothing': expected a run folder, or a checkpoint in one"),
        ({"algorithm": "sac"}, r"expected a run of sac, but it is a run of td3_bc"),
        ({"env": "MountainCarContinuous-v0"}, r"the environment differs from the one that .*offline was trained on"),
        ({"algo.networks.units": (9,)}, r"does not fit these settings"),
    ],
)
def test_what_cannot_be_begun_with_leaves_nothing(offline, more, message, tmp_path):
    options = {"algorithm": "td3_bc", "init": str(offline), "steps": 20, **LIVED, **more}
    with pytest.raises(RunError, match=message):
        train(tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_what_a_run_learns_from_stays_what_it_was(data, tmp_path):
    alone = tmp_path / "alone"
    train(alone, data=data, updates=10, env="Pendulum-v1", **{"experience": "recorded"})
    with pytest.raises(RunError, match=r"was trained on recorded data alone, .* --init .*alone"):
        train(alone, steps=20, data=data, **LIVED, **{"experience": "mixed(0.5)"})
    lived = tmp_path / "lived"
    train(lived, steps=20, **LIVED)
    with pytest.raises(RunError, match=r"was trained on collected rows, which cannot change"):
        train(lived, steps=30, data=data, **LIVED, **{"experience": "mixed(0.5)"})
    both = tmp_path / "both"
    train(both, steps=20, data=data, **LIVED, **{"experience": "mixed(0.5)"})
    train(both, steps=30, data=data, **LIVED, **{"experience": "mixed(0.25)"})  # how much of each may change
