"""Adapters of environments with other interfaces, against what their packages document, and with those installed."""

import sys
import types
from importlib.util import find_spec
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

import env_steps
from reverie.core.errors import EnvError
from reverie.envs.adapters import OldGym
from reverie.envs.config import EnvConfig
from reverie.envs.slot_vector_env import make_vector_env
from reverie.envs.suites import SUITES, register_suite


def play(count=30, **options):
    """An environment and its rows under random actions."""
    env = make_vector_env(EnvConfig(restarts=0, **options), seed=3)
    steps = env_steps.play(env, count, env_steps.actions(env))
    env.close()
    return env, steps


RANDOM = [suite for suite in SUITES if not suite.untested_reason and suite.package != "pyspiel"]
"""The suites in which any action is legal; test_turn_based.py plays OpenSpiel's games."""


@pytest.mark.parametrize("suite", RANDOM, ids=lambda suite: suite.title)
def test_each_suite_that_is_installed(suite):
    if find_spec(suite.package) is None:  # not imported: MiniWorld must learn first that there is no screen
        pytest.skip(suite.package)
    env_id = suite.example.split("--env ")[1].split()[0]
    small = {"kwargs": {"area": (16, 16)}} if suite.title == "Crafter" else {}  # a world takes a second
    (_, one), (_, two) = play(id=env_id, **small), play(id=env_id, **small)
    assert [*map(env_steps.as_bytes, one)] == [*map(env_steps.as_bytes, two)]


def test_ids_of_minigrid_and_babyai():
    register_suite("MiniGrid-Empty-5x5-v0")
    ids = [name for name in gymnasium.registry if name.startswith(("MiniGrid-", "BabyAI-"))]
    assert len(ids) > 150
    for name in ids[::20]:
        if "-WFC-" not in name:  # they read images that the package lacks
            env, _ = play(10, id=name)
            assert env.obs_spec["image"].shape[2] == 20, name


def test_a_package_that_is_missing_and_a_users_id_that_looks_like_its(monkeypatch):
    monkeypatch.setitem(sys.modules, "miniworld", None)
    monkeypatch.delitem(gymnasium.registry, "MiniWorld-OneRoom-v0", raising=False)
    for env_id, said in (
        ("MiniWorld-OneRoom-v0", r"needs the package 'miniworld' .*pip install \"reverie-rl\[min"),
        ("minedojo/harvest_milk", "needs the package 'minedojo' .*Note that its Minecraft needs Java 8"),
    ):
        with pytest.raises(EnvError, match=said):
            make_vector_env(EnvConfig(id=env_id), seed=0)
    monkeypatch.setitem(sys.modules, "Box2D", None)  # of ids that Gymnasium has registered
    monkeypatch.setattr("reverie.envs.suites.find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "gymnasium.envs.box2d.lunar_lander", raising=False)
    monkeypatch.delitem(sys.modules, "gymnasium.envs.box2d", raising=False)
    with pytest.raises(EnvError, match=r"'LunarLander-v3' could not be created: .*pip install \"reverie-rl\[box2d\]\""):
        make_vector_env(EnvConfig(id="LunarLander-v3"), seed=0)
    own = gymnasium.envs.registration.EnvSpec("MiniWorld-Mine-v0", entry_point="reverie.envs.dummy:Grid")
    monkeypatch.setitem(gymnasium.registry, own.id, own)
    assert play(3, id=own.id)[0].obs_spec["image"].kind == "image"


# Spaces of the old Gym have these names; an Enum is MineRL's: choices that have names.
NAMES = ("Box", "Discrete", "MultiDiscrete", "Dict")
Box, Discrete, MultiDiscrete, Dict = (type(name, (types.SimpleNamespace,), {}) for name in NAMES)
Enum = type("Enum", (Discrete,), {})

CAMERA = Box(low=np.full(2, -180, np.float32), high=np.full(2, 180, np.float32), shape=(2,), dtype=np.float32)
IMAGE = Box(low=0, high=255, shape=(8, 8, 3), dtype=np.uint8)


class Old:  # an environment of the Gym before 0.26: episodes of three steps
    observation_space = Dict(spaces={"pov": IMAGE, "inventory": Dict(spaces={"dirt": Discrete(n=5)})})
    action_space = Dict(spaces={"camera": CAMERA, "craft": Enum(n=2, values=np.array(["none", "planks"]))})

    def __init__(self, **given):
        self.given, self.seeds, self.actions, self.time = given, [], [], 0
        self.unwrapped = self

    def seed(self, seed):
        self.seeds.append(seed)

    def _seen(self):
        return {"pov": np.full((8, 8, 3), self.time, np.uint8), "inventory": {"dirt": self.time}}

    def reset(self):
        self.time = 0
        return self._seen()

    def step(self, action):
        self.time += 1
        self.actions.append(action)
        return self._seen(), 1, self.time == 3, {"TimeLimit.truncated": True} if self.given.get("limit") else {}

    def render(self, mode="human"):
        return np.zeros((4, 4, 3), np.uint8) if mode == "rgb_array" else None

    def close(self):
        pass


@pytest.mark.parametrize("limit", [False, True])
def test_the_old_step_tells_truncations_by_its_info(limit):
    env = OldGym(old := Old(limit=limit), render_mode="rgb_array")
    obs, info = env.reset(seed=5)
    assert (old.seeds, obs["inventory"]["dirt"], info) == ([5], 0, {})
    action = {"camera": np.zeros(2, np.float32), "craft": 1}
    ends = [env.step(action)[2:4] for _ in range(3)]
    assert (ends[0], ends[2]) == ((False, limit), (not limit, limit))
    assert old.actions[0]["craft"] == "planks"
    assert env.render().shape == (4, 4, 3)
    assert env.observation_space.contains(obs)


@pytest.fixture
def packages(monkeypatch):
    """Puts modules in the place of packages."""

    def put(**modules):
        for name, parts in modules.items():
            module = types.ModuleType(name)
            vars(module).update(parts)
            monkeypatch.setitem(sys.modules, name, module)
        before = dict(gymnasium.registry)
        monkeypatch.setattr(gymnasium.envs.registration, "registry", before)
        monkeypatch.setattr(gymnasium, "registry", before)

    return put


def test_minedojo(packages):
    class Dojo(Old):
        action_space = MultiDiscrete(nvec=np.array([3, 3, 4, 25, 25, 8, 244, 36]))

    made = []
    packages(minedojo={"make": lambda task_id, **given: made.append(Dojo(task=task_id, **given)) or made[-1]})
    env, _ = play(8, id="minedojo/harvest_milk")
    assert made[0].given == {"task": "harvest_milk", "image_size": (64, 64)}
    assert env.action_spec.width == 348
    assert made[0].actions[0].shape == (8,)


def test_a_suite_of_ones_own(packages, monkeypatch):
    """The example for DeepMind Lab, with a stand-in."""
    labs = []

    class Lab:
        def __init__(self, level, observations, config, renderer):
            labs.append((level, observations, config, renderer))
            self.left = 0

        def reset(self, seed):
            self.left = 3

        def observations(self):
            assert self.left  # fails after the end, as the package does
            return {"RGB_INTERLEAVED": np.full((64, 64, 3), self.left, np.uint8)}

        def is_running(self):
            return self.left > 0

        def step(self, action, num_steps):
            assert (action.dtype, action.shape, num_steps) == (np.intc, (7,), 4)
            self.left -= 1
            return 1.0

    packages(deepmind_lab={"Lab": Lab})
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    monkeypatch.delitem(sys.modules, "dmlab", raising=False)
    env, steps = play(6, id="dmlab:explore_goals-v0")
    size = {"height": "64", "width": "64"}
    assert labs == [("contributed/dmlab30/explore_goal_locations_small", ["RGB_INTERLEAVED"], size, "hardware")]
    assert env.action_spec.width == 15
    assert [int(step.obs["image"][0, 0, 0, 0]) for step in steps] == [3, 2, 1, 1, 3, 2]
    assert (steps[3].is_last.item(), steps[3].is_terminal.item()) == (True, False)


# ---------------------------------------------------------------- packages that are optional


def test_the_other_agents_of_pettingzoo_take_legal_actions():
    pytest.importorskip("pettingzoo")
    pytest.importorskip("pygame")
    for agent in (0, 1):
        _, steps = play(60, id="pettingzoo/classic.tictactoe_v3", kwargs={"agent": agent})
        marks = [int((step.obs["observation"] > 0).sum()) for step in steps if step.is_first]
        assert set(marks) == {agent}  # whoever is second sees the first move
        assert any(step.is_terminal for step in steps)


def test_procgen_shows_no_frame_of_the_next_level_at_an_end():
    pytest.importorskip("procgen")
    _, steps = play(400, id="procgen-bigfish-v0")
    ends = [t for t, step in enumerate(steps) if step.is_last]
    for t in ends[:-1]:
        assert torch.equal(steps[t].obs["image"], steps[t - 1].obs["image"])
        assert not torch.equal(steps[t + 1].obs["image"], steps[t].obs["image"])
    _, cut = play(12, id="procgen-bigfish-v0", max_episode_steps=5)
    assert [t for t, step in enumerate(cut) if step.is_last] == [5, 11]
