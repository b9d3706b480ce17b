"""A recording names its environment and how it was set up, so that others replay and evaluate in the same task."""

from types import SimpleNamespace
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import ClipReward

from reverie.agent.recording import record_agent
from reverie.algos.bc import BCConfig
from reverie.core.errors import ConfigError, DataError
from reverie.datasets.config import DatasetConfig
from reverie.datasets.convert import write_dataset
from reverie.datasets.dataset_env import dataset_env_config, make_dataset_env, settings_to_apply
from reverie.datasets.format_detection import open_reader
from reverie.datasets.options import RecordConfig
from reverie.datasets.reader import DatasetInfo
from reverie.datasets.validate import validate
from reverie.envs.config import EnvConfig
from reverie.envs.make import InstanceWrapper, env_settings, make_gym, to_learnable_obs
from reverie.experiment.config import NO_ENV, ExperimentConfig
from reverie.experiment.dataset_env import with_dataset_env

minari = pytest.importorskip("minari")


class Frames(gymnasium.Env):
    """Frames of a number that grows, and an idle action, as in Atari."""

    observation_space = spaces.Box(0, 255, (2, 2, 1), np.uint8)
    action_space = spaces.Discrete(2)

    def get_action_meanings(self):
        return ["NOOP", "GO"]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = 0
        return np.full((2, 2, 1), self.x, np.uint8), {}

    def step(self, action):
        self.x += 1
        return np.full((2, 2, 1), self.x, np.uint8), float(action), self.x >= 40, False, {}


class Raw:
    """Stands for an observer that takes the environment's own observations."""

    raw_input, to_learner_obs = staticmethod(lambda env, obs: obs), staticmethod(lambda obs, *_: obs)
    stacks, read_mask = staticmethod(lambda count: (None,) * count), staticmethod(lambda env, info, *_: None)
    learner_space: spaces.Space

    def reduced_view(self):
        return self.learner_space, lambda obs: obs

    def __call__(self, obs, *_):
        return {"observation": obs}


class Player:
    """Stands for an agent that always takes action 1."""

    label, origin = "latest", "latest of run"
    episode_limit = 1000
    observer = Raw()

    def __init__(self, factory=None, **settings):
        self.config, self.factory = SimpleNamespace(env=EnvConfig(**settings)), factory

    def make_env(self):
        self.env = make_gym(self.config.env, self.factory, render=False)
        self.observer.learner_space = self.env.observation_space
        return self.env

    obs_spec: ClassVar = {}

    def turn(self, obs, reward, mask, state, **more):
        return 1, None


@pytest.fixture(autouse=True)
def _registered():
    gymnasium.register("Frames-v0", entry_point=Frames)
    yield
    del gymnasium.registry["Frames-v0"]


def recorded(folder, agent, episodes=2):
    done = record_agent(agent, str(folder), RecordConfig(episodes=episodes))
    return done, open_reader(str(folder))


def car(**options):
    return gymnasium.make("MountainCar-v0", **options)


SETTINGS = [
    (None, {"id": "MountainCar-v0", "action_repeat": 4, "max_episode_steps": 10}, 10),
    (None, {"id": "MountainCar-v0", "action_repeat": 4, "kwargs": {"max_episode_steps": 20}}, 5),
    (lambda: car(max_episode_steps=20), {"action_repeat": 4, "max_episode_steps": 50}, 5),
    (lambda: car(max_episode_steps=-1), {"max_episode_steps": 30}, 30),
    (lambda: InstanceWrapper(car())(), {"action_repeat": 4, "max_episode_steps": 10}, 10),
    (None, {"id": "Frames-v0", "action_repeat": 3, "pool_frames": 2, "noop_max": 9, "max_episode_steps": 4}, 4),
    (None, {"id": "MountainCar-v0", "max_episode_steps": 10, "log_info": ("x",)}, 10),
]


def doubts(report):
    """The remarks of a validation but that on equal rewards, which episodes as short as these have."""
    return [remark for remark in report.remarks if "every policy is worth the same" not in remark]


@pytest.mark.parametrize(("factory", "settings", "length"), SETTINGS)
def test_settings_of_the_environment_are_recorded(tmp_path, factory, settings, length):
    done, reader = recorded(tmp_path / "d", Player(factory, **settings))
    assert (done.steps, done.remarks) == (2 * length, [])
    report = validate(reader)
    assert (report.is_valid, doubts(report)) == (True, [])
    usual = {"action_repeat": 1, "pool_frames": 1, "noop_max": 0}
    expected = {name: settings.get(name, value) for name, value in usual.items()}
    assert reader.info().env_settings.items() >= expected.items()
    recovered = minari.MinariDataset(tmp_path / "d/data").recover_environment()
    for env in (make_gym(dataset_env_config(reader.info()), None, render=False), recovered):
        env.reset(seed=0)
        ends = [any(env.step(1)[2:4]) for _ in range(length)]
        assert ends == [False] * (length - 1) + [True]


def test_what_settings_rule_out_is_said(tmp_path):
    about = recorded(tmp_path / "a", Player(id="MountainCar-v0", max_episode_steps=10))[1].info()
    with pytest.raises(ConfigError, match=r"recorded with env\.action_repeat = 1"):
        settings_to_apply(about, EnvConfig(action_repeat=4))
    assert dataset_env_config(about, EnvConfig(max_episode_steps=5)).max_episode_steps == 5
    recorded(tmp_path / "b", Player(id="MountainCar-v0", action_repeat=2, max_episode_steps=10))
    with pytest.raises(DataError, match="action_repeat"):
        open_reader(str(tmp_path / "[ab]")).info()


@pytest.mark.parametrize("setting", ["mission", "full_view", "map_view"])
def test_what_is_seen_of_a_grid_is_recorded_and_cannot_be_seen_later(setting):
    def about(config):
        env = to_learnable_obs(make_gym(config, None, render=False), config.mission)
        return DatasetInfo(
            observation=env.observation_space, action=env.action_space, env=config.id,
            env_settings={"id": config.id} | env_settings(env, config),
        )  # fmt: skip

    usual = EnvConfig(id="MiniGrid-Empty-5x5-v0")
    changed = usual.merge({setting: True})
    assert make_dataset_env(about(changed)).observation_space == about(changed).observation
    with pytest.raises(ConfigError, match=f"env.{setting} = True: the rows were recorded with env.{setting} = False"):
        settings_to_apply(about(usual), changed)


@pytest.mark.parametrize(("settings", "to"), [({}, ""), ({"action_repeat": 2}, "minari"), ({}, "store")])
def test_wrappers_of_the_environment_make_it_another_task(tmp_path, settings, to, said):
    """Neither replays nor evaluations leave them out, of the recording and of copies that can name them."""
    agent = Player(lambda: ClipReward(car(max_episode_steps=9), -0.5, 0.5), **settings)
    _, reader = recorded(tmp_path / "d", agent)
    if to:
        write_dataset(reader, str(tmp_path / to), to)
        seeds = ["the format store does not store the seed of an episode (2 times)"]
        assert reader.remarks() == (seeds if to == "store" else [])
    path = str(tmp_path / (to or "d"))
    report = validate(open_reader(path))
    assert report.is_valid
    assert any("no episodes were replayed" in one and ":ClipReward" in one for one in report.remarks)
    config = ExperimentConfig(algo=BCConfig(), data=DatasetConfig(path=path), env=EnvConfig(id="auto"))
    assert with_dataset_env(config, None).env.id == NO_ENV
    assert "no evaluations: the dataset was recorded in MountainCar-v0 with the wrappers gymnasium" in said[-1]
