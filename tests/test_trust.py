"""Data and runs that name code to import: only that of installed packages runs, unless the user trusts it."""

import functools
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

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
from reverie.core.importing import check_module, importable, installed, module_of, trusting
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
    """A current folder with a module that nobody has asked for, and a user who trusts nothing yet."""
    (tmp_path / "stranger.py").write_text(WALK + 'gymnasium.register("Stranger-v0", entry_point=Walk)')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield tmp_path
    forget()
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
JUDGED = {"env": {"id": "CartPole-v1"}, "eval_env": "stranger:Stranger-v0"}
JUDGED_WRAPPED = {"env": {"id": "CartPole-v1"}, "eval_env": {"wrappers": ["stranger:Wrapper(3)"]}}
CALLED = {"env": {"id": "CartPole-v1"}, "callbacks": ["stranger:Callback(3)"]}
COMMANDS = ("eval .", "dream .", "estimate . --data d", "train --resume .", "data record . to --steps 1")


@pytest.mark.parametrize(("command", "algorithm", "settings"), [
    *((command, "dqn", ENV) for command in COMMANDS),
    ("eval .", "dqn", WRAPPED),
    ("train --resume .", "dqn", WRAPPED),
    ("eval .", "dqn", JUDGED),
    ("eval .", "dqn", JUDGED_WRAPPED),
    ("train --resume .", "dqn", CALLED),
    ("eval .", "dqn", CHOICE),
    ("eval .", "stranger:Config", {}),
    ("eval .", "dqn", {"experience": "stranger:Experience(0.5)"}),
    ("eval .", "dqn", {"env.id": "stranger:Stranger-v0"}),
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


def test_a_run_on_an_importable_class_is_loaded(stranger, monkeypatch):
    import stranger as module

    small = {
        "steps": 10,
        "eval_episodes": 0,
        "device": "cpu",
        "tensorboard": False,
    }
    reverie.train("dqn", module.Walk, run="own", **small)
    reverie.train("dqn", "Stranger-v0", run="registered", **small)
    forget()
    assert reverie.load("own").factory.__name__ == "Walk"  # it was named in Python
    shutil.copytree(stranger, stranger / "copy")
    monkeypatch.chdir("copy")
    forget()
    with pytest.raises(UntrustedError, match="stranger:Walk"):
        reverie.load("own")
    assert reverie.load("own", env="stranger:Walk").factory.__name__ == "Walk"
    assert reverie.load("registered", env="stranger:Stranger-v0").config.env.id == "stranger:Stranger-v0"


def forget():
    """As if this were a new process."""
    for name in ("stranger", "package", "spread", "spread.walk", "gone"):
        sys.modules.pop(name, None)
    sys.path_importer_cache.clear()


def trusted(name="stranger:Walk"):
    forget()
    try:
        check_module(name, "the run")
    except UntrustedError:
        return False
    return True


def test_a_file_that_the_user_has_named_is_trusted_from_then_on_and_no_other(stranger, monkeypatch):
    (stranger / "package").mkdir()
    (stranger / "spread").mkdir()
    (stranger / "package" / "__init__.py").touch()
    (stranger / "spread" / "walk.py").touch()
    names = ("stranger:Walk", "package:Walk", "spread.walk:Walk")
    assert not any(map(trusted, names))
    for name in names:
        module_of(name, "environment")
    assert all(map(trusted, names))
    new = f"from reverie.core.importing import check_module; check_module({names[0]!r}, '')"
    assert subprocess.run([sys.executable, "-c", new], check=False).returncode == 0
    there = stranger / "there"
    there.mkdir()
    (stranger / "alias").symlink_to(stranger)
    monkeypatch.chdir(there)
    for path in ("stranger.py", "package", "spread"):  # each would import its neighbours from this folder
        (there / path).symlink_to(stranger / path)
    assert not any(map(trusted, names))
    (there / "stranger.py").unlink()
    shutil.copy(stranger / "stranger.py", there)
    assert not trusted()
    monkeypatch.setattr(sys, "path", [str(stranger / "alias"), *sys.path[1:]])
    assert trusted()
    importable("stranger")
    assert str(there) not in sys.path  # which might have a module that the trusted one looks for


def test_what_is_trusted_is_the_file_that_ran(stranger, monkeypatch):
    module_of("stranger:Walk", "environment")
    (stranger / "state" / "reverie" / "trusted").unlink()
    (stranger / "other").mkdir()
    (stranger / "gone.py").touch()
    shutil.copy("stranger.py", "other")
    module_of("gone:Walk", "environment")
    (stranger / "gone.py").unlink()
    monkeypatch.chdir("other")
    module_of("stranger:Walk", "environment")  # imported, from the folder before
    assert not trusted()
    listed = (stranger / "state" / "reverie" / "trusted").read_text()
    assert listed == f"{hashlib.sha256((stranger / 'stranger.py').read_bytes()).hexdigest()} {stranger}/stranger.py\n"


@pytest.mark.parametrize("home", ["stranger.py", "relative"])
def test_without_a_home_nothing_is_trusted(home, stranger, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", home if home == "relative" else str(stranger / home))  # a file is no folder
    module_of("stranger:Walk", "environment")
    assert not trusted()
    Path("relative/reverie").mkdir(parents=True)
    digest = hashlib.sha256((stranger / "stranger.py").read_bytes()).hexdigest()
    Path("relative/reverie/trusted").write_text(f"{digest} {stranger}/stranger.py\n")  # brought along
    assert not trusted()


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
