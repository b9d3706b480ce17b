"""Paths of runs, targets and datasets: no URL, ~ is the home folder, and a changed working directory moves nothing."""

import os
import re
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import reverie
from reverie.cli import main
from reverie.core.errors import ConfigError, RunError


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_is_no_url(here):
    said = r"run = s3://bucket: expected a path on this machine\. Only a replay store can be at a URL"
    settings = {
        "env": "CartPole-v1",
        "run": "s3://bucket",
    }
    with pytest.raises(ConfigError, match=said):
        reverie.train("dqn", **settings)
    with pytest.raises(ConfigError, match=said):
        reverie.train_seeds("dqn", **settings)
    with pytest.raises(ConfigError, match=said):
        reverie.load(Path("s3://bucket"))  # as a text it would be an agent in a storage
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        ("train dqn --env CartPole-v1 --run s3://bucket/run", "--run"),
        ("bench --json s3://bucket/rates.json", "--json"),
        ("data info data.hdf5 --plot gs://bucket/data.png", "--plot"),
    ],
)
def test_no_option_makes_a_folder_of_a_url(here, capsys, words, flag):
    assert main(words.split()) in (1, 2)
    assert re.search(rf"({flag}|{flag[2:]}) = \w+://bucket.*: expected a path on this machine", capsys.readouterr().err)
    assert not list(here.iterdir())


class Moves(gymnasium.Env):  # changes the working directory, as simulators that write files of their own do
    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        os.makedirs("own", exist_ok=True)
        os.chdir("own")
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, True, False, {}


def test_a_run_stays_in_its_folder_where_the_working_directory_changes(here, monkeypatch, said):
    settings = {"steps": 5, "eval_episodes": 1, "console": False, "tensorboard": False,
                "threads": 1, "algo.networks.units": (4,)}  # fmt: skip
    result = reverie.train("dqn", env=Moves, run="runs/x", **settings)
    assert result.run == here / "runs" / "x"
    assert all(path.exists() for path in result.files.values())
    assert not list(here.glob("own/**/runs"))
    os.chdir(here)
    agent = reverie.load("runs/x", env=Moves)
    assert (agent.run, agent.checkpoint.parent) == (result.run, result.run / "checkpoints")
    os.chdir(here)  # making the environment resets it: its masks may be in info
    reverie.train("dqn", env=Moves, run="runs/x", **settings)
    assert "runs/x has already made" in said[-1]
    with pytest.raises(RunError, match=r"there is no run in .*runs/y:"):
        reverie.load("runs/y")
    monkeypatch.setenv("HOME", str(here / "home"))
    reverie.train("dqn", env=Moves, run="~/x", **settings)
    assert (here / "home" / "x" / "config.yaml").is_file()
