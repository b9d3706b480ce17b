"""Goal environments: what check-env says of them, and rewards of goals as they are stored."""

import contextlib
import math

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from reverie.core.errors import ConfigError, EnvError
from reverie.core.obs_codec import ObsCodec
from reverie.core.specs import ObsPart
from reverie.core.types import Step
from reverie.envs.check import run_env_check
from reverie.envs.config import EnvConfig
from reverie.envs.dummy import BitFlip
from reverie.envs.goals import GOALS, GoalFunction, call_on_rows
from reverie.experiment.build import build
from reverie.experiment.settings import Request, merge_layers
from reverie.nn.preprocess import Preprocessor

PLACE = spaces.Discrete(2)


class Shaped(BitFlip):  # its reward is not only of goals
    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, reward - 0.1, *rest


def bit_flips(num_envs):
    return gymnasium.vector.SyncVectorEnv([BitFlip] * num_envs)


class RowForElement(BitFlip):  # of many goals, it ignores the third one instead of the third bit of each
    def compute_reward(self, achieved_goal, desired_goal, info):
        goal = np.array(desired_goal)
        goal[2] = achieved_goal[2]
        return super().compute_reward(achieved_goal, goal, info)


class OneBit(BitFlip):  # the goal is less than what is achieved
    def __init__(self):
        super().__init__(bits=3)
        self.observation_space["desired_goal"] = spaces.MultiBinary(1)

    def _obs(self):
        obs = super()._obs()
        return obs | {"desired_goal": obs["desired_goal"][:1]}

    def compute_terminated(self, achieved_goal, desired_goal, info):
        return super().compute_terminated(achieved_goal[..., :1], desired_goal[..., :1], info)


class Near(gymnasium.Env):  # its goal, the place of the other, ends episodes
    observation_space = spaces.Dict(observation=PLACE, achieved_goal=PLACE, desired_goal=PLACE)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.goal = int(self.np_random.integers(2))
        return self.observed(1 - self.goal), {}

    def observed(self, place):
        return {"observation": place, "achieved_goal": place, "desired_goal": self.goal}

    def step(self, action):
        place = int(action)
        return self.observed(place), float(place == self.goal), place == self.goal, False, {}

    def compute_reward(self, achieved_goal, desired_goal, info):
        return (np.asarray(achieved_goal) == np.asarray(desired_goal)).astype(np.float32)


class Told(Near):
    def compute_terminated(self, achieved_goal, desired_goal, info):
        return np.asarray(achieved_goal) == np.asarray(desired_goal)


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (BitFlip, ""),
        (RowForElement, "compute_reward returns "),
        (Shaped, "compute_reward returns -1.0 for a step with the reward -1.1, so replay.hindsight cannot be used"),
        (
            OneBit,
            "'achieved_goal' is categorical (3,), but 'desired_goal' is categorical (1,): expected the same space",
        ),
    ],
)
def test_goal_environments_are_recognized(env, said):
    report = run_env_check(env, EnvConfig(), steps=100)
    assert report.measurements["goal_environment"] == (not said)
    texts = [finding.text for finding in report.findings if finding.name == "goals"]
    assert len(texts) == bool(said)
    assert all(text.startswith(said) for text in texts)


def test_goals_are_computed_with_as_the_environment_shows_them():
    box = spaces.Box(-1, 1, (2,), np.float64)
    space = spaces.Dict(
        observation=box, achieved_goal=spaces.Discrete(5, start=3), desired_goal=spaces.Discrete(5, start=3)
    )
    seen = []

    def compute_reward(achieved, desired, info):
        seen.append((achieved.tolist(), desired.tolist(), info))
        return -np.abs(achieved - desired)

    function = GoalFunction(compute_reward, lambda *given: False, ObsCodec(space, lambda key: key in GOALS))
    reward, terminal = function(np.array([0, 4]), np.array([1, 1]))
    assert seen == [([3, 7], [4, 4], [{}, {}])]
    assert (reward.tolist(), terminal.tolist()) == ([-1, -3], [False, False])


def test_methods_that_take_one_goal_get_one():
    achieved, desired = np.zeros((3, 2)), np.array([[0, 0], [0, 1], [0, 0.0]])

    def scalar(a, b, info):
        return float(np.linalg.norm(a - b))

    def branching(a, b, info):
        return 1.0 if np.linalg.norm(a - b, axis=-1) > 0 else 0.0

    assert call_on_rows(scalar, achieved, desired).tolist() == [0, 1, 0]
    assert call_on_rows(branching, achieved, desired).tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("algorithm", "env", "settings", "said"),
    [
        ("dqn", "CartPole-v1", {}, "'achieved_goal' is missing or not an array. Use a goal environment"),
        ("dqn", OneBit, {}, r"'achieved_goal' is categorical \(3,\), but 'desired_goal' is categorical \(1,\)"),
        ("dqn", BitFlip, {"env.frame_stack": 2}, "the rows store other goals than the environment computes with"),
        (
            "dqn",
            BitFlip,
            {"algo.networks.memory": "lstm(4)", "algo.batch_length": 4},
            "dqn samples goals itself, has a world model, or stores",
        ),
        ("dqn", bit_flips, {"env.vectorization": "native"}, "no compute_reward: name a function of goals"),
        ("dreamer_v2", BitFlip, {}, "dreamer_v2 samples goals itself, has a world model"),
        ("ppo", BitFlip, {}, "replay.hindsight = .* has no effect: on-policy learners keep one rollout"),
    ],
)
def test_hindsight_is_refused_where_it_has_no_meaning(algorithm, env, settings, said):
    config = merge_layers(Request(algorithm=algorithm)).merge(
        {"replay.hindsight": "future", "device": "cpu", "threads": 1, **settings}
    )
    if isinstance(env, str):
        config, env = config.merge({"env.id": env}), None
    with pytest.raises(ConfigError, match=said):
        build(config.merge({"eval_episodes": 0, "steps": 20_000}), env)


def test_success_is_logged_for_single_and_native_environments():
    from reverie.envs.slot_vector_env import make_vector_env

    def vector(num_envs):
        return gymnasium.vector.SyncVectorEnv([lambda: BitFlip(bits=2)] * num_envs)

    for factory, kind in ((lambda: BitFlip(bits=2), "sync"), (vector, "native")):
        env = make_vector_env(EnvConfig(num=3, vectorization=kind), seed=0, factory=factory)
        import torch

        env.reset()
        ended = 0
        for _ in range(12):
            rows = env.step(torch.tensor([[1.0, 0.0]]).repeat(3, 1))
            expected = {i: {"success_rate": float(rows.is_terminal[i])} for i in range(3) if rows.is_last[i]}
            assert env.episode_info == expected
            ended += len(expected)
        env.close()
        assert ended > 3


@pytest.mark.parametrize(("env", "names"), [(Told, []), (Near, ["ends_at_goals"])])
def test_goals_that_end_episodes_are_found(env, names):
    report = run_env_check(env, EnvConfig(), steps=100)
    assert [finding.name for finding in report.findings if finding.name == "ends_at_goals"] == names


@pytest.mark.parametrize("hindsight", [None, "future"])
def test_rewards_of_collected_goals_scale_nothing_with_hindsight(hindsight):
    settings = {"algo.reward_scale": "return_std(std=5)", "replay.hindsight": hindsight, "learning_starts": 20}
    config = merge_layers(Request(algorithm="dqn")).merge(
        settings | {"device": "cpu", "eval_episodes": 0, "steps": 200}
    )
    with contextlib.closing(build(config, BitFlip)) as experiment:
        for _ in range(50):
            experiment.collector.collect()
        scaled = experiment.algo.preprocess.scale_rewards(torch.tensor([-1.0]), torch.tensor([False]))
    assert (float(scaled) == -1) == (hindsight == "future")


@pytest.mark.parametrize(("follows", "low"), [(True, -20.0), (False, -math.inf)])
def test_rewards_of_collected_goals_bound_no_values_with_hindsight(follows, low):
    preprocess = Preprocessor(
        {"x": ObsPart(kind="vector", shape=(1,), dtype="float32")}, discount=0.9, bound_values=True
    )
    preprocess.follows_rewards, none = follows, torch.tensor([False])
    preprocess.update_statistics(
        Step(obs={"x": torch.zeros(1, 1)}, reward=torch.tensor([-2.0]), is_first=none, is_last=none, is_terminal=none)
    )
    assert float(preprocess.range.bounds[0]) == pytest.approx(low)


def test_rewards_that_need_more_than_goals_are_an_error():
    def needs_info(achieved_goal, desired_goal, info):
        return -info["distance"]

    function = GoalFunction(needs_info)
    with pytest.raises(EnvError, match=r"replay.hindsight: .* KeyError: 'distance'.* get an empty info"):
        function(np.zeros((3, 2)), np.zeros((3, 2)))
    with pytest.raises(EnvError, match="get an empty info"):
        GoalFunction(lambda *goals: np.zeros(3), needs_info)(np.zeros((3, 2)), np.zeros((3, 2)))
