"""Data and runs that name code to import: only that of installed packages runs, unless the user trusts it."""

import functools
import json
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import reverie
from minari_files import buffer
from minari_files import write as write_minari
from recordings import LIVED
from reverie.algos.bc import BCConfig
from reverie.algos.dqn import DQNConfig
from reverie.cli import main
from reverie.core.errors import RunError, UntrustedError
from reverie.core.importing import installed, trusting
from reverie.datasets.dataset import DatasetConfig
from reverie.envs.config import EnvConfig
from reverie.experiment.config import NO_ENV, OWN_ENV, ExperimentConfig, resolved
from reverie.run.folder import RunFolder, Saved, write_saved

WALK = """
import gymnasium, numpy as np
class Walk(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 10, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(2, np.float32), {}
    def step(self, action):
        self.t += 1
        return np.full(2, self.t, np.float32), float(action), self.t >= 5, False, {}
"""


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """A current folder with a module that nobody has asked for."""
    (tmp_path / "stranger.py").write_text(WALK + 'gymnasium.register("Stranger-v0", entry_point=Walk)')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    yield tmp_path
    sys.modules.pop("stranger", None)
    gymnasium.registry.pop("Stranger-v0", None)


def test_only_modules_of_packages_are_installed(stranger):
    assert all(map(installed, ("json", "gymnasium.envs", "reverie.envs.dummy")))
    (stranger / "zarr").mkdir()  # a folder without code does not come before a package
    (stranger / "h5py.py").touch()
    (stranger / "plain").mkdir()
    assert installed("zarr")
    assert not any(map(installed, ("h5py", "stranger", "plain.stranger", "missing")))


def test_a_dataset_does_not_choose_code(stranger, capsys, said):
    write_minari(stranger / "d", [buffer(e) for e in LIVED], action=spaces.Box(-2, 4, (1,), np.float32))
    file = stranger / "d" / "data" / "metadata.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"reverie_env_id": "stranger:Stranger-v0"}))
    for command in ("info d", "validate d", "convert d copy"):
        main(["data", *command.split()])
        assert "stranger" not in sys.modules
    assert "--trust" in "".join(capsys.readouterr())
    learner = ExperimentConfig(algo=BCConfig(), data=DatasetConfig(path="d"), env=EnvConfig(id=OWN_ENV))
    assert resolved(learner, None).env.id == NO_ENV
    assert "stranger" not in sys.modules
    assert "--trust" in said[0]
    main(["data", "validate", "d", "--trust"])
    assert "stranger" in sys.modules


ENV, CHOICE = {"env": {"id": "stranger:Stranger-v0"}}, {"algo": {"epsilon": "stranger:Epsilon(0.1)"}}
WRAPPED = {"env": {"id": "CartPole-v1", "wrappers": ["stranger:Wrapper(3)"]}}
CALLED = {"env": {"id": "CartPole-v1"}, "callbacks": ["stranger:Callback(3)"]}
COMMANDS = ("eval .", "dream .", "estimate . --data d", "train --resume .", "data record . to --steps 1")


@pytest.mark.parametrize(("command", "algorithm", "settings"), [
    *((command, "dqn", ENV) for command in COMMANDS),
    ("eval .", "dqn", WRAPPED),
    ("train --resume .", "dqn", WRAPPED),
    ("train --resume .", "dqn", CALLED),
    ("eval .", "dqn", CHOICE),
    ("eval .", "stranger:Config", {}),
])  # fmt: skip
def test_a_run_does_not_choose_code(command, algorithm, settings, stranger, capsys):
    write_saved(RunFolder(stranger).config, Saved(algorithm=algorithm, experiment=settings))
    assert main(command.split()) == 1
    assert f"reverie {command} --trust" in capsys.readouterr().err
    assert "stranger" not in sys.modules
    if not command.startswith("train"):  # which would train
        assert main([*command.split(), "--trust"]) == 1  # there is no checkpoint, or no such class
        assert "--trust" not in capsys.readouterr().err


def test_callbacks_of_a_run_are_no_matter_of_who_loads_it(stranger):
    write_saved(RunFolder(stranger).config, Saved(algorithm="dqn", experiment=CALLED))
    with pytest.raises(RunError, match="has no checkpoint yet"):
        reverie.load(stranger)
    assert "stranger" not in sys.modules


@pytest.mark.parametrize("place", ["reverie.cli.train", "reverie.api"])
def test_callbacks_that_the_user_names_again_are_trusted(place, stranger, monkeypatch):
    (stranger / "stranger.py").write_text("import reverie\nclass Mine(reverie.Callback): pass")
    write_saved(
        RunFolder(stranger).config, Saved(algorithm="dqn", experiment=CALLED | {"callbacks": ["stranger:Mine"]})
    )
    got = []
    monkeypatch.setattr(f"{place}.train_config", lambda config, **_: got.append(config.callbacks) or 1 / 0)
    by_name = functools.partial(main, ["train", "--resume", ".", "--callbacks", "stranger:Mine"])
    in_python = functools.partial(reverie.train, "dqn", run=stranger, callbacks=["stranger:Mine"])
    with pytest.raises(ZeroDivisionError):
        (in_python if place == "reverie.api" else by_name)()
    assert got == [("stranger:Mine",)]


def test_a_run_on_an_importable_class_is_loaded(stranger):
    import stranger as module

    small = {
        "steps": 10,
        "eval_episodes": 0,
        "device": "cpu",
        "tensorboard": False,
    }
    reverie.train("dqn", module.Walk, run="own", **small)
    reverie.train("dqn", "Stranger-v0", run="registered", **small)
    del sys.modules["stranger"]
    with pytest.raises(UntrustedError, match="stranger:Walk"):
        reverie.load("own")
    assert reverie.load("own", trust=True).factory.__name__ == "Walk"
    del sys.modules["stranger"]
    assert reverie.load("own", env="stranger:Walk").factory.__name__ == "Walk"
    assert reverie.load("registered", env="stranger:Stranger-v0").config.env.id == "stranger:Stranger-v0"


def test_child_processes_of_seeds_are_told(monkeypatch, tmp_path):
    told = []

    def commanded(turns, *_):
        told.append("--trust" in turns.command(turns.runs[0]))
        raise InterruptedError

    monkeypatch.setattr("reverie.scale.seeds.train_runs", commanded)
    config = ExperimentConfig(algo=DQNConfig(), env=EnvConfig(id="CartPole-v1"))
    for trust in (True, False):
        with trusting(trust), pytest.raises(InterruptedError):
            reverie.train_seeds(config, seeds=2, run=tmp_path / "seeds")
    assert told == [True, False]
