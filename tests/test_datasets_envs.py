"""The environment that data name: asked for its actions and spaces, and found again by others."""

from __future__ import annotations

import json
import re
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import reverie
from minari_files import buffer
from minari_files import write as write_minari
from recordings import LIVED, joined, same_rows
from reverie.algos.bc import BCConfig
from reverie.cli import main as cli
from reverie.core.importing import trusting
from reverie.datasets.convert import write
from reverie.datasets.detect import open_reader
from reverie.datasets.recorded_env import env_of
from reverie.datasets.validate import validate
from reverie.experiment import OWN_ENV, ExperimentConfig, resolved

minari = pytest.importorskip("minari")


def test_the_environment_goes_along(tmp_path):
    env = gymnasium.make("CartPole-v1")
    source = write_minari(tmp_path / "d", [buffer(LIVED[0], np.zeros((4, 4), np.float32), np.zeros(3, int))],
                          env.observation_space, env.action_space, env_spec=env.spec)  # fmt: skip
    write(open_reader(str(source)), str(tmp_path / "out"))
    assert minari.MinariDataset(tmp_path / "out/data").recover_environment().spec.id == "CartPole-v1"
    for to in ("store", "d4rl"):
        write(open_reader(str(source)), str(tmp_path / to), to)
        with open_reader(str(tmp_path / to)) as reader:
            assert reader.env_id() == reader.about().env == "CartPole-v1"
            assert reader.about().action == spaces.Discrete(2)


def a_run(d4rl, folder, env):
    """A run's own rows: actions in [-1, 1], and settings that name the environment."""
    write(open_reader(str(d4rl)), str(folder), "store")
    (folder / "about.json").unlink()
    (folder / "config.yaml").write_text(json.dumps({"algorithm": "sac", "experiment": {"env": env}}))
    return folder


@pytest.mark.parametrize("to", ["minari", "d4rl"])
def test_actions_of_a_run_are_those_of_the_environment_that_is_named(d4rl, tmp_path, to):
    run = a_run(d4rl, tmp_path / "run", {"id": "Pendulum-v1", "kwargs": {"g": 9.0}, "time_limit": 50})
    with open_reader(str(run)) as reader:
        write(reader, str(tmp_path / "copy"), to)
        assert not reader.remarks()
    with open_reader(str(tmp_path / "copy")) as reader:
        about, rows = reader.about(), joined(reader.parts())
    assert (about.env, about.action) == ("Pendulum-v1", spaces.Box(-2, 2, (1,), np.float32))
    whole = joined(open_reader(str(d4rl)).parts())
    np.testing.assert_array_equal(rows["action"], 2 * whole["action"])
    same_rows(run, tmp_path / "copy")  # to learn from
    if to == "minari":
        env = minari.MinariDataset(tmp_path / "copy/data").recover_environment()
        assert (env.unwrapped.g, env.spec.max_episode_steps) == (9.0, 50)


@pytest.mark.parametrize("id", ["Pendulum-v1", ""])
def test_settings_of_a_run_are_kept_by_a_store_and_said_to_be_lost_by_other_copies(d4rl, tmp_path, id):
    """An environment that has no name has settings as well."""
    env = {"num": 4, "action_repeat": 2, "clip_reward": "sign"} | ({"id": id} if id else {})
    run = a_run(d4rl, tmp_path / "run", env)
    with open_reader(str(run)) as reader:
        write(reader, str(tmp_path / "store"), "store")
        assert not any("settings" in line for line in reader.remarks())
        before = reader.about()
    with open_reader(str(tmp_path / "store")) as reader:
        about = reader.about()
    assert (about.env, about.env_settings) == (id, env)
    assert env_of(about) == env_of(before)
    said = "the copy does not name the environment's settings while recording: env.clip_reward = sign, env.action_re"
    for to in ("pydreamer", "parquet", *(() if id else ("d4rl", "minari"))):
        with open_reader(str(tmp_path / "store")) as reader:
            write(reader, str(tmp_path / f"{to}-copy"), to)
            assert any(line.startswith(said) for line in reader.remarks()), to


@pytest.mark.parametrize(
    ("env", "why"),
    [("Nowhere-v0", "Nowhere"), ("CartPole-v1", r"categorical of 2 classes"), ("Ant:gone", "gone|Ant")],
)
@pytest.mark.parametrize("to", ["minari", "d4rl"])
def test_an_environment_that_does_not_answer_is_not_named(d4rl, tmp_path, to, env, why):
    run = a_run(d4rl, tmp_path / "run", {"id": env})
    with open_reader(str(run)) as reader:
        write(reader, str(tmp_path / "copy"), to)
        assert re.search(f"do not name it .*({why})", str(reader.remarks()))
    assert open_reader(str(tmp_path / "copy")).about().env == ""
    same_rows(run, tmp_path / "copy")


# ---------------------------------------------------------------- environments of one's own


WALK = """
import gymnasium, numpy as np

class Walk(gymnasium.Env):
    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Dict({
        "at": gymnasium.spaces.Box(-5, 5, (1,), np.float32), "last": gymnasium.spaces.Discrete(3, start=-1)})

    def __init__(self, first=0.0):
        self.first = first

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.first + self.np_random.uniform(-0.5, 0.5)
        return {"at": np.full(1, self.x, np.float32), "last": np.int64(-1)}, {}

    def step(self, action):
        self.x += 2 * action - 1
        return {"at": np.full(1, self.x, np.float32), "last": np.int64(action)}, 1.0, abs(self.x) >= 3, False, {}

gymnasium.register("Walk-v0", entry_point=Walk, max_episode_steps=7)
gymnasium.register("Made-v0", entry_point=lambda: Walk(), max_episode_steps=7)
"""


@pytest.fixture
def walked(tmp_path, monkeypatch):
    """What trains on an environment of somebody's own, and what forgets its module, as another process has."""
    (tmp_path / "walk_module.py").write_text(WALK)
    monkeypatch.syspath_prepend(str(tmp_path))

    def forget():
        sys.modules.pop("walk_module", None)
        for name in ("Walk-v0", "Made-v0"):
            gymnasium.registry.pop(name, None)

    def trained(name, **more):
        settings = {"steps": 40, "learning_starts": 20, "eval_episodes": 0, "tensorboard": False, "console": False}
        reverie.train("dqn", f"walk_module:{name}", run=tmp_path / "run", say=lambda text: None, **settings | more)
        return tmp_path / "run"

    yield trained, forget
    forget()


@pytest.fixture
def trust():
    with trusting(True):
        yield


def test_an_environment_of_ones_own_is_found_again(walked, tmp_path, capsys, trust):
    """Of a class, whose module registers it: recorded, converted, and by who does not know us."""
    trained, forget = walked
    run = trained("Walk-v0", env_options={"kwargs": {"first": 1.0}})
    assert cli(["data", "record", str(run), str(tmp_path / "recorded"), "--episodes", "2"]) == 0
    assert "remark" not in capsys.readouterr().err
    for source, name in (("run", "converted"), ("recorded", "again")):
        forget()
        with open_reader(str(tmp_path / source)) as reader:
            write(reader, str(tmp_path / name))
    for name in ("recorded", "converted", "again"):
        forget()
        with open_reader(str(tmp_path / name)) as reader:
            about = reader.about()
            assert (reader.env_id(), about.env, about.time_limit) == (*["walk_module:Walk-v0"] * 2, 7)
            report = validate(reader)
            assert (report.sound, "in an environment:" in str(report.remarks)) == (True, False)
        found = minari.MinariDataset(tmp_path / name / "data").recover_environment()
        assert (found.spec.id, found.unwrapped.first) == ("Walk-v0", 1.0)
    config = ExperimentConfig(algo=BCConfig()).merge({"data.path": str(tmp_path / "recorded"), "env.id": OWN_ENV})
    assert resolved(config, None, str).env.id == "walk_module:Walk-v0"
