"""Data and runs that name code to import: only that of installed packages runs, unless the user trusts it."""

import functools
import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import yaml
from gymnasium import spaces

import reverie
from minari_files import buffer
from minari_files import write as write_minari
from recordings import LIVED
from reverie.algos.bc import BCConfig
from reverie.algos.dqn import DQNConfig
from reverie.cli import main
from reverie.core.errors import ConfigError, EnvError, RunError, UntrustedError
from reverie.core.imports import (
    check_module,
    ensure_importable,
    import_module_of,
    is_installed_module,
    is_offered,
    trust_modules,
    trusted_entries,
)
from reverie.core.locations import is_plain, is_typed
from reverie.core.signing import is_mine, sign
from reverie.datasets.config import DatasetConfig
from reverie.envs.config import EnvConfig
from reverie.experiment.config import DATASET_ENV, NO_ENV, ExperimentConfig
from reverie.experiment.dataset_env import with_dataset_env
from reverie.replay.persistent import PersistentReplay
from reverie.run.collect import ENVIRONMENTS
from reverie.run.folder import RunFolder, SavedConfig, check_module_names, write_saved_config
from reverie.run.manifest import MANIFEST, manifest_bytes, manifest_entry

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
    assert all(map(is_installed_module, ("json", "gymnasium.envs", "reverie.envs.dummy")))
    (stranger / "zarr").mkdir()  # a folder without code does not come before a package
    (stranger / "h5py.py").touch()
    (stranger / "plain").mkdir()
    assert is_installed_module("zarr")
    assert not any(map(is_installed_module, ("h5py", "stranger", "plain.stranger", "missing")))


def test_a_dataset_does_not_choose_code(stranger, capsys, said):
    write_minari(stranger / "d", [buffer(e) for e in LIVED], action=spaces.Box(-2, 4, (1,), np.float32))
    file = stranger / "d" / "data" / "metadata.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"reverie_env_id": "stranger:Stranger-v0"}))
    for command in ("info d", "validate d", "convert d copy"):
        main(["data", *command.split()])
        assert "stranger" not in sys.modules
    assert "--trust-code" in "".join(capsys.readouterr())
    learner = ExperimentConfig(algo=BCConfig(), data=DatasetConfig(path="d"), env=EnvConfig(id=DATASET_ENV))
    assert with_dataset_env(learner, None).env.id == NO_ENV
    assert "stranger" not in sys.modules
    assert "--trust-code" in said[0]
    main(["data", "validate", "d", "--trust-code"])
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
    ("eval .", "dqn", {"replay": {"hindsight": "future(reward='stranger:reward')"}}),
    ("eval .", "dqn", {"env.id": "stranger:Stranger-v0"}),
])  # fmt: skip
def test_a_run_does_not_choose_code(command, algorithm, settings, stranger, capsys):
    write_saved_config(RunFolder(stranger).config, SavedConfig(algorithm=algorithm, experiment=settings))
    assert main(command.split()) == 1
    assert f"reverie {command} --trust-code" in capsys.readouterr().err
    assert "stranger" not in sys.modules
    if not command.startswith("train"):  # which would train
        assert main([*command.split(), "--trust-code"]) == 1  # there is no checkpoint, or no such class
        assert "--trust-code" not in capsys.readouterr().err


def test_callbacks_of_a_run_are_no_matter_of_who_loads_it(stranger):
    write_saved_config(RunFolder(stranger).config, SavedConfig(algorithm="dqn", experiment=CALLED))
    with pytest.raises(RunError, match="has no checkpoint yet"):
        reverie.load(stranger)
    assert "stranger" not in sys.modules


@pytest.mark.parametrize("place", ["reverie.cli.train", "reverie.api"])
def test_callbacks_that_the_user_names_again_are_trusted(place, stranger, monkeypatch):
    (stranger / "stranger.py").write_text("import reverie\nclass Mine(reverie.Callback): pass")
    write_saved_config(
        RunFolder(stranger).config, SavedConfig(algorithm="dqn", experiment=CALLED | {"callbacks": ["stranger:Mine"]})
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
    for name in ("stranger", "package", "spread", "spread.walk", "gone", "walk", "proj"):
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
        import_module_of(name, "environment")
    assert all(map(trusted, names))
    new = f"from reverie.core.imports import check_module; check_module({names[0]!r}, '')"
    assert subprocess.run([sys.executable, "-c", new], check=False).returncode == 0
    there = stranger / "there"
    there.mkdir()
    (stranger / "alias").symlink_to(stranger)
    monkeypatch.chdir(there)
    for path in ("stranger.py", "package", "spread"):  # each would import its neighbors from this folder
        (there / path).symlink_to(stranger / path)
    assert not any(map(trusted, names))
    (there / "stranger.py").unlink()
    shutil.copy(stranger / "stranger.py", there)
    assert not trusted()
    monkeypatch.setattr(sys, "path", [str(stranger / "alias"), *sys.path[1:]])
    assert trusted()
    ensure_importable("stranger")
    assert str(there) not in sys.path  # which might have a module that the trusted one looks for


def test_what_is_trusted_is_the_file_that_ran(stranger, monkeypatch):
    import_module_of("stranger:Walk", "environment")
    (stranger / "state" / "reverie" / "trusted").unlink()
    (stranger / "other").mkdir()
    (stranger / "gone.py").touch()
    shutil.copy("stranger.py", "other")
    import_module_of("gone:Walk", "environment")
    (stranger / "gone.py").unlink()
    monkeypatch.chdir("other")
    import_module_of("stranger:Walk", "environment")  # imported, from the folder before
    assert not trusted()
    listed = (stranger / "state" / "reverie" / "trusted").read_text()
    digest = hashlib.sha256((stranger / "stranger.py").read_bytes()).hexdigest()
    assert listed == "".join(sorted(f"{mark} {stranger}/stranger.py\n" for mark in (digest, "named")))


@pytest.mark.parametrize("home", ["stranger.py", "relative"])
def test_without_a_home_nothing_is_trusted(home, stranger, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", home if home == "relative" else str(stranger / home))  # a file is no folder
    import_module_of("stranger:Walk", "environment")
    assert not trusted()
    Path("relative/reverie").mkdir(parents=True)
    digest = hashlib.sha256((stranger / "stranger.py").read_bytes()).hexdigest()
    Path("relative/reverie/trusted").write_text(f"{digest} {stranger}/stranger.py\n")  # brought along
    assert not trusted()


def test_child_processes_of_seeds_are_told(monkeypatch, tmp_path):
    told = []

    def commanded(queue, *_):
        told.append("--trust-code" in queue.command(queue.runs[0]))
        raise InterruptedError

    monkeypatch.setattr("reverie.distributed.seeds.train_runs", commanded)
    config = ExperimentConfig(algo=DQNConfig(), env=EnvConfig(id="CartPole-v1"))
    for trust in (True, False):
        with trust_modules(trust), pytest.raises(InterruptedError):
            reverie.train_seeds(config, seeds=2, run=tmp_path / "seeds")
    assert told == [True, False]


# ---------------------------------------------------------------- what a stranger's run names


DOORS = ("eval .", "dream .", "export .", "extract . --out x.npz", "data record . to --steps 1", "push . pushed",
         "register . --name x")  # fmt: skip
"""Commands that make the environment of a run, or pass it on."""
OTHER_DOORS = ("estimate . --data d", "train --resume .", "pull file://{here} --to pulled",
               "train dqn --config config.yaml --run new")  # fmt: skip
NAMES = {
    "os:system": {"command": "touch PWNED"}, "posix:system": {"command": "touch PWNED"},
    "subprocess:Popen": {"args": ["touch", "PWNED"]}, "runpy:run_path": {"path_name": "evil.py"},
    "shutil:rmtree": {"path": "victim"}, "importlib:import_module": {"name": "evil"},
    "torch.hub:load": {"repo_or_dir": ".", "model": "x", "source": "local"}, "gymnasium:make": {"id": "evil:X-v0"},
    "evil:Env": {}, "__main__:Env": {}, "evil.Env:x": {},
}  # fmt: skip
IN_TRUSTED = {
    "walk:os.system": {"command": "touch PWNED"}, "walk:system": {"command": "touch PWNED"},
    "walk:Popen": {"args": ["touch", "PWNED"]}, "walk:Tool": {"path": "PWNED"},
    "gymnasium.envs.registration:load_env_creator": {},
    "reverie.core.imports:import_module_of": {},
    "reverie.distributed.run_processes:Child": {"command": ["--version"], "log": "PWNED"},
    "reverie.algos.dqn:DQNConfig": {},
}  # fmt: skip
"""What is in modules that are trusted, or that packages offer, and is no environment."""
EVIL = "import pathlib; pathlib.Path('PWNED').touch()\n"


@pytest.fixture
def got(stranger, capsys):
    """Write the folder of a run with settings of a stranger; afterwards nothing of his has run."""
    (stranger / "evil.py").write_text(EVIL)
    (stranger / "victim").mkdir()
    (stranger / "agent.json").write_text("{}")
    (stranger / "walk.py").write_text(
        "from os import system\nimport os, pathlib\nfrom subprocess import Popen\n"
        "class Tool:\n    def __init__(self, path): pathlib.Path(path).touch()\n" + WALK
    )
    import_module_of("walk:Walk", "environment")

    def run(command, experiment, custom=None, algorithm="dqn"):
        content = {"schema": 1, "algorithm": algorithm, "experiment": experiment, "custom": custom or {}}
        RunFolder(stranger).config.write_text(yaml.safe_dump(content))
        code = main(command.format(here=stranger).split())
        assert not Path("PWNED").exists()
        assert Path("victim").exists()
        assert not sys.modules.keys() & {"evil", "antigravity", "this"}
        return code, capsys.readouterr().err

    return run


@pytest.mark.parametrize(("command", "place", "name"), [
    *(("eval .", place, name) for name in NAMES | IN_TRUSTED for place in ("env", "eval_env")),
    *((door, "env", name) for name in ("os:system", "evil:Env") for door in (*DOORS[1:], *OTHER_DOORS)),
    *((door, "env", "walk:system") for door in (*DOORS[1:], OTHER_DOORS[0])),
])  # fmt: skip
def test_a_run_calls_nothing_but_environments(command, place, name, got):
    settings = {"env": {"id": "CartPole-v1"}, place: {"kwargs": (NAMES | IN_TRUSTED)[name]}}
    code, said = got(command, settings, {place: name})
    assert code == 1
    assert name in said or "evil:X-v0" in said  # which an argument of gymnasium:make names; either is refused


@pytest.mark.parametrize("name", ["os:system", "subprocess:Popen", "runpy:run_path", "shutil:rmtree", *IN_TRUSTED])
def test_trust_makes_no_environment_of_what_is_none(name, got):
    settings = {"env": {"id": "CartPole-v1", "kwargs": (NAMES | IN_TRUSTED)[name]}}
    assert got("eval . --trust-code", settings, {"env": name})[0] == 1


SETTINGS = (
    ("antigravity:X-v0", {"env": {"id": "antigravity:X-v0"}}),
    ("this:X-v0", {"env.id": "this:X-v0"}),
    ("evil:X-v0", {"env": {"id": "evil:X-v0"}}),
    ("evil:W", {"env": {"wrappers": ["evil:W(3)"]}}),
    ("os:system", {"env": {"wrappers": ["os:system('touch PWNED')"]}}),
    ("gymnasium.wrappers:RecordVideo", {"env": {"wrappers": ["gymnasium.wrappers:RecordVideo('PWNED')"]}}),
    ("evil:K-v0", {"env": {"kwargs": {"env_id": "evil:K-v0"}}}),
    ("evil:K-v0", {"env": {"kwargs": {"make_kwargs": [{"id": "evil:K-v0"}]}}}),
    ("evil:E", {"experience": "evil:E(0.5)"}),
    ("evil:Explore", {"algo": {"epsilon": " evil:Explore(0.5)"}}),
    ("evil:R", {"data": {"reader": "evil:R"}}),
    ("evil:J-v0", {"eval_env": "evil:J-v0"}),
    ("evil:J", {"eval_env": {"wrappers": ["evil:J"]}}),
)


@pytest.mark.parametrize(("command", "name", "settings"), [
    *(("push . pushed", *setting) for setting in SETTINGS),
    *(("eval .", *setting) for setting in SETTINGS if setting[0] != "evil:R"),  # which reads no data
    *((door, *SETTINGS[7]) for door in (*DOORS[1:5], *OTHER_DOORS)),
])  # fmt: skip
def test_no_setting_of_a_run_names_a_strangers_module(command, name, settings, got):
    code, said = got(command, {"env": {"id": "CartPole-v1"}} | settings)
    assert code == 1
    assert name in said


def test_arguments_that_stay_beside_a_named_environment_are_checked(got, stranger):
    assert got("eval . --env CartPole-v1", dict(SETTINGS[6][1]))[0] == 1
    with pytest.raises(UntrustedError, match="evil:K-v0"):
        reverie.load(stranger, env="CartPole-v1")


@pytest.mark.parametrize("file", ["evil-mod.py", "1evil.py", "·evil.py"])
def test_no_file_whose_name_is_no_identifier_is_imported(file, stranger):
    (stranger / file).write_text(EVIL)
    name = f"{file.removesuffix('.py')}:X-v0"
    with pytest.raises(ConfigError, match="is not the name of a module"):
        import_module_of(name, "environment")
    settings = {"env": {"id": "CartPole-v1", "kwargs": {"id": name}}}  # which Gymnasium would import
    with pytest.raises(UntrustedError):
        check_module_names(SavedConfig(algorithm="dqn", experiment=settings), "the run")
    assert not Path("PWNED").exists()


def test_loading_checks_names_at_the_import_itself(stranger, monkeypatch):
    write_saved_config(RunFolder(stranger).config, SavedConfig(algorithm="dqn", experiment=ENV))
    (stranger / "checkpoints" / "step-000000001").mkdir(parents=True)
    monkeypatch.setattr("reverie.agent.loading.check_module_names", lambda *_: None)
    monkeypatch.setattr("reverie.run.checkpoint.Checkpoints.select", lambda *_: stranger)
    with pytest.raises(EnvError, match="No installed package offers 'stranger'"):
        reverie.load(stranger)
    assert "stranger" not in sys.modules


def test_no_file_of_a_search_names_a_strangers_module(got, stranger, capsys):
    Path("space.yaml").write_text("algo.exploration: ['evil:Explore(0.5)']")
    with pytest.raises(UntrustedError, match=r"space\.yaml names 'evil:Explore'"):
        reverie.tune("dqn", "CartPole-v1", space="space.yaml", run="new")
    assert main(["tune", "dqn", "--env", "CartPole-v1", "--space", "space.yaml", "--run", "new"]) == 1
    assert "evil:Explore" in capsys.readouterr().err
    assert "evil" not in sys.modules


@pytest.mark.parametrize(
    "algorithm", ["evil:Algo", "os:system", "reverie.distributed.run_processes:Child", "walk:Tool"]
)
@pytest.mark.parametrize(
    "command", ["eval .", "push . pushed", "train dqn --init-from . --run new --env CartPole-v1 --steps 100"]
)
def test_no_algorithm_of_a_run_is_a_strangers(command, algorithm, got):
    code, said = got(command, {"env": {"id": "CartPole-v1"}}, algorithm=algorithm)
    assert code == 1
    assert algorithm in said or "no checkpoint" in said


def test_a_run_that_goes_on_with_a_preset_is_asked_for_its_names(stranger, capsys):
    small = {"steps": 10, "eval_episodes": 0, "device": "cpu", "tensorboard": False, "console": False}
    reverie.train("dqn", "CartPole-v1", run="own", **small)
    file = Path("own/config.yaml")
    file.write_text(file.read_text().replace("experience: online", "experience: stranger:E(0.5)"))
    assert main(["train", "dqn", "--run", "own", "--preset", "dqn", "--env", "CartPole-v1", "--steps", "20"]) == 1
    assert "stranger:E" in capsys.readouterr().err
    assert "stranger" not in sys.modules


@pytest.mark.parametrize("name", ["antigravity:X-v0", "evil:X-v0"])
def test_an_id_in_data_imports_nothing(name, got, stranger):
    write_minari(stranger / "d", [buffer(e) for e in LIVED], action=spaces.Box(-2, 4, (1,), np.float32))
    file = stranger / "d" / "data" / "metadata.json"
    spec = json.dumps({"id": name, "kwargs": {}, "additional_wrappers": [{"name": "W", "entry_point": "evil:W"}]})
    file.write_text(json.dumps(json.loads(file.read_text()) | {"env_spec": spec, "reverie_env_id": name}))
    for command in ("info d", "validate d", "convert d copy", "convert d store --format store"):
        main(["data", *command.split()])
        assert not sys.modules.keys() & {"evil", "antigravity"}
    assert not Path("PWNED").exists()


def test_what_installed_packages_offer_to_files():
    assert all(map(is_offered, ("reverie.envs.dummy", "gymnasium.envs.classic_control.cartpole", "minigrid.envs")))
    assert not any(map(is_offered, ("torch", "gymnasium.wrappers", "reverie.__main__", "os", "numpy")))


def test_no_process_imports_a_module_of_python_from_the_current_folder(tmp_path):
    """A script's own process does not either."""
    (tmp_path / "here").mkdir()
    for name in ("multiprocessing", "runpy", "numpy"):
        (tmp_path / "here" / f"{name}.py").write_text(EVIL)
    (tmp_path / "script.py").write_text(
        "import multiprocessing, pathlib, reverie.envs.worker, reverie.distributed.run_processes as runs\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('forkserver').Process(target=print)\n"
        "    process.start(), process.join()\n"
        "    child = runs.Child(['--version'], pathlib.Path('log')).process\n"
        "    raise SystemExit(process.exitcode or child.wait())"
    )
    words = [sys.executable, str(tmp_path / "script.py")]
    env = os.environ | {"PYTHONPATH": str(Path(reverie.__file__).parents[1])}
    subprocess.run(words, executable=sys.executable, cwd=tmp_path / "here", env=env, check=True)
    assert not (tmp_path / "here/PWNED").exists()


# ---------------------------------------------------------------- files are trusted, not folders


def test_a_trusted_package_is_no_license_for_what_lies_below_it(stranger):
    (stranger / "proj" / "runs" / "got").mkdir(parents=True)
    (stranger / "proj" / "__init__.py").touch()
    (stranger / "proj" / "runs" / "got" / "evil.py").write_text(EVIL)
    import_module_of("proj:Walk", "environment")
    with pytest.raises(UntrustedError, match=r"proj\.runs\.got\.evil:X'. No installed package"):
        check_module("proj.runs.got.evil:X", "the run")


@pytest.mark.parametrize("case", ["mine", "writable", "folder", "link", "another's", "not named"])
def test_a_changed_file_is_trusted_if_the_user_named_it_and_nobody_else_can_write_it(case, stranger, monkeypatch):
    file = stranger / "stranger.py"
    with trust_modules(case == "not named", ["--trust-code"] if case == "not named" else None):
        import_module_of("stranger:Walk", "environment")
    before = file.read_text()
    file.write_text(before + "# tuned\n")
    file.chmod(0o666 if case == "writable" else 0o644)
    stranger.chmod(0o777 if case == "folder" else 0o755)
    if case == "link":
        file = file.rename(stranger / "other.py")
        (stranger / "stranger.py").symlink_to(file)
    if case == "another's":
        monkeypatch.setattr("os.getuid", lambda: 65534)
    assert trusted() == (case == "mine")
    if case != "mine":
        with pytest.raises(UntrustedError, match=r"/stranger.py has changed since you named it last.*--trust-code, or"):
            check_module("stranger:Walk", "the run")
        import_module_of("stranger:Walk", "environment")
        assert trusted()
    file.write_text(before)  # another branch of his
    assert trusted()


class Evil:
    """Touches a file when it is unpickled."""

    def __reduce__(self):
        return os.system, ("touch PWNED",)


@pytest.mark.parametrize("trust", [False, True])
def test_only_the_users_own_environments_are_unpickled(trust, stranger, said):
    small = {"steps": 10, "eval_episodes": 0, "device": "cpu", "tensorboard": False, "console": False}
    run = reverie.train("dqn", "CartPole-v1", run="own", **small).run
    (checkpoint,) = (Path(run) / "checkpoints").glob("step-*")
    file = checkpoint / "collector" / ENVIRONMENTS
    with zipfile.ZipFile(file) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, pickle.dumps(Evil()) if name == "0" else content)
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    del manifest["seal"]
    manifest["files"][file.relative_to(checkpoint).as_posix()] = manifest_entry(file)
    (checkpoint / MANIFEST).write_bytes(manifest_bytes(manifest))
    main(["train", "--resume", "own", "--steps", "20", *["--trust-code"] * trust])
    assert Path("PWNED").exists() == trust
    assert any(str(file.name) in line and "you did not write" in line for line in said) != trust


def test_the_users_own_environments_go_on(stranger, said):
    small = {"steps": 10, "eval_episodes": 0, "device": "cpu", "tensorboard": False, "console": False}
    reverie.train("dqn", "CartPole-v1", run="own", **small)
    reverie.train("dqn", "CartPole-v1", run="own", **small | {"steps": 20})
    assert not any("new episodes" in line or "new ones" in line for line in said)


@pytest.mark.parametrize("settings", [
    {"algo": {"exploration": "été:Kind(1)"}}, {"replay": {"hindsight": "future(reward='été:reward')"}},
    {"env": {"id": "été:Walk-v0"}},
])  # fmt: skip
def test_a_name_of_a_module_may_begin_with_any_letter(settings):
    with pytest.raises(UntrustedError, match="No installed package offers 'été'"):
        check_module_names(SavedConfig(algorithm="dqn", experiment=settings), "the run")


def test_no_moment_in_which_others_can_read_the_key(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    modes, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (modes.append(os.fstat(file).st_mode & 0o777), fsync(file)))
    before = os.umask(0)
    try:
        assert is_mine([b"x"], sign([b"x"]))
    finally:
        os.umask(before)
    assert modes == [0o600]


# ---------------------------------------------------------------- locations in files


ELSEWHERE = ("http://localhost:1/x", "memory://x", "simplecache::s3://bucket/x", "file:///x::memory://x")
SMALL = {"steps": 10, "eval_episodes": 0, "device": "cpu", "tensorboard": False, "console": False}


@pytest.fixture
def contacted(monkeypatch):
    """The URLs that are contacted, each in vain."""
    urls = []

    def file_system(url, kind):
        urls.append(url)
        raise RunError(f"cannot reach {url}")

    monkeypatch.setattr("reverie.store.remote_objects.file_system", file_system)
    return urls


@pytest.mark.parametrize("url", ELSEWHERE)
@pytest.mark.parametrize(("command", "settings"), [
    ("train --resume .", {"replay": {"store_path": "URL"}}),
    ("train dqn --config config.yaml --run new", {"replay.init_from": ["URL"]}),
    ("train bc --config config.yaml --run new", {"data": {"path": ["d", "URL"]}}),
    ("estimate .", {"data": {"path": "URL"}}),
    ("data info .", {"replay": {"store_path": "URL"}}),
    ("train dqn --data . --run new", {"replay": {"store_path": "URL"}}),
])  # fmt: skip
def test_a_file_does_not_choose_what_is_contacted(url, command, settings, stranger, contacted, capsys, said):
    text = yaml.safe_dump({"env": {"id": "CartPole-v1"}} | settings).replace("URL", url)
    algorithm = "bc" if "bc" in command else "dqn"
    content = {"schema": 1, "algorithm": algorithm, "experiment": yaml.safe_load(text)}
    RunFolder(stranger).config.write_text(yaml.safe_dump(content))
    assert main(command.split()) == 1
    assert f"names '{url}'" in "".join(capsys.readouterr().err.split("\n")).replace("  ", " ")
    assert contacted == []
    said.clear()
    main([*command.split(), "--trust-code"])
    assert any(f"names {url}, which is used now" in line for line in said)


def test_rows_go_where_a_run_says_only_inside_of_it_or_if_the_user_named_the_place(stranger, monkeypatch):
    reverie.train("dqn", "CartPole-v1", run="own", **SMALL, replay={"store_path": "rows"})
    reverie.train("dqn", "CartPole-v1", run="own", **SMALL | {"steps": 20})
    shutil.copytree("own", "got")
    monkeypatch.setenv("XDG_STATE_HOME", str(stranger / "other"))  # another user
    with pytest.raises(UntrustedError, match="Files may name datasets on this machine, stores inside the run"):
        reverie.train("dqn", "CartPole-v1", run="got", **SMALL | {"steps": 30})
    file = Path("got/config.yaml")
    file.write_text(file.read_text().replace(str(stranger / "rows"), str(stranger / "got" / "mine")))
    reverie.train("dqn", "CartPole-v1", run="got", **SMALL | {"steps": 30})
    assert Path("got/mine/zarr.json").exists()
    Path("settings.yaml").write_text(f"replay.store_path: {stranger.parent / 'rows'}")
    with pytest.raises(UntrustedError, match=r"settings\.yaml names .*rows"):
        reverie.train("dqn", "CartPole-v1", run="new", config="settings.yaml", **SMALL)


def test_no_file_of_a_search_chooses_what_is_contacted(stranger, contacted):
    Path("space.yaml").write_text("replay.init_from: ['memory://x']")
    with pytest.raises(UntrustedError, match=r"space\.yaml names 'memory://x'"):
        reverie.tune("dqn", "CartPole-v1", space="space.yaml", run="new")
    assert contacted == []


def test_a_checkpoint_does_not_choose_what_is_contacted(stranger, contacted):
    replay = PersistentReplay.__new__(PersistentReplay)
    replay.location, replay.run = "auto", stranger
    for url in ELSEWHERE:
        with pytest.raises(UntrustedError, match="a checkpoint of"):
            replay.find_store({"place": url})
    assert contacted == []


@pytest.mark.parametrize(
    "location", ["s3://b/x", "gs://b", "az://b/x", "data/x.npz", "file:///x", "minari:a/b-v0", "auto"]
)
def test_what_any_file_may_name(location):
    assert is_plain(location)


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        ("--data memory://x", True),
        ("--replay.store-path=memory://x", True),
        ("--data.path [a,'memory://x']", True),
        ("--data memory://xy", False),
        ("memory:// x", False),
        ("--data=[memory://x", False),
        ("", False),
    ],
)
def test_a_location_is_named_by_a_whole_word_or_by_what_a_flag_carries(words, typed):
    with trust_modules(False, words.split(" ")):
        assert is_typed("memory://x") == typed
    with trust_modules(False, ["--run", "notes on memory://x", "--grid={replay.store_path: [memory://y]}"]):
        assert (is_typed("memory://x"), is_typed("memory://y")) == (False, True)


def test_a_path_is_named_however_it_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with trust_modules(False, ["train", "--replay.store-path=rows", "--run="]):
        assert is_typed(str(tmp_path / "rows"))
        assert not is_typed(str(tmp_path))


@pytest.mark.parametrize(("flags", "remains"), [([], False), (["--replay.store-path=rows"], True)])
def test_trust_in_a_file_ends_with_the_command(flags, remains, stranger):
    """What the settings of a stranger name is not trusted in other files later; what the user names is."""
    Path("s.yaml").write_text(f"replay.store_path: {stranger / 'rows'}")
    small = ["--steps", "10", "--eval-episodes", "0", "--device", "cpu", "--no-tensorboard", "--no-console"]
    assert main(["train", "dqn", "--env=CartPole-v1", "--config", "s.yaml", *small, *flags, "--trust-code"]) == 0
    assert (Path("rows") / "zarr.json").exists()
    assert any("rows" in entry for entry in trusted_entries()) == remains
