"""Vectors of Gymnasium, EnvPool and ALE: how they are made, and what they refuse."""

import functools
import sys

import gymnasium
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList

import env_zoo
import reverie
from env_steps import rows
from reverie.core.errors import ConfigError, EnvError
from reverie.envs.config import EnvConfig
from reverie.envs.limits import own_limit
from reverie.envs.make import make_gym
from roads import MAKERS, OwnTensors, Stories, make_vector_env, open_env
from story_env import LENGTHS, Story, reward_at
from tiny_configs import FEW


@pytest.mark.parametrize(
    ("kind", "mode", "road"),
    [*((SyncVectorEnv, mode, "arrays_next") for mode in AutoresetMode),
     (AsyncVectorEnv, AutoresetMode.NEXT_STEP, "arrays_next"), (AsyncVectorEnv, AutoresetMode.SAME_STEP, "arrays_same"),
     (lambda *args, **options: DictInfoToList(AsyncVectorEnv(*args, **options)), "SameStep", "arrays_list_infos")],
)  # fmt: skip
def test_rows_of_gymnasiums_own_vectors(kind, mode, road):
    def make(num_envs):
        return kind([functools.partial(Story, number) for number in range(num_envs)], autoreset_mode=mode)

    env = make_vector_env(EnvConfig(num=3, vectorization="native"), seed=0, factory=make)
    got, other = rows(env, 15), rows(open_env(road), 15)
    env.close()
    env.close()
    torch.testing.assert_close(got, other, rtol=0, atol=0)


def test_a_single_environment_of_a_vector_has_its_info():
    env = make_gym(EnvConfig(vectorization="native"), MAKERS["arrays_undeclared"], render=False)
    env.reset()
    ends = False
    while not ends:
        obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
        ends = terminated or truncated
    number, episode, time = obs["key"][:3]
    assert (reward, info) == (reward_at(time), {"is_success": Story.is_lucky(number, episode), "cost": time})
    assert time == LENGTHS[0][int(episode) % 4]


@pytest.mark.parametrize(
    ("options", "factory", "message"),
    [
        ({"restart_window": 60.0, "tasks": (1, 2)}, None, r"env.restart_window = 60.0, env.tasks = \(1, 2\) with"),
        ({"restarts": 3}, None, "env.restarts = 3 with env.vectorization = native: .* Set env.restarts = 10, or"),
        ({"id": "Acrobot-v1"}, None, "Acrobot-v1 with num_envs = 2 could not be made: .*vector entry point"),
        ({}, lambda num_envs: Stories(3), "expected a gymnasium.vector.VectorEnv of 2"),
        ({}, lambda: Stories(2), "could not be made: TypeError"),
        ({}, lambda num_envs: Stories(num_envs, AutoresetMode.DISABLED), r"AutoresetMode\.DISABLED: expected NEXT"),
        ({"id": "envpool/Pong-v5"}, None, r"pip install .reverie-rl\[envpool\]"),
    ],
)
def test_what_does_not_fit(options, factory, message, monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)  # not installed
    with pytest.raises((ConfigError, EnvError), match=message):
        make_vector_env(EnvConfig(num=2, vectorization="native").merge(options), seed=0, factory=factory)


def test_a_run_with_gymnasiums_own_vector_is_trained_loaded_and_evaluated(tmp_path):
    options = {"vectorization": "native", "num": 3}
    run = reverie.train("dqn", "CartPole-v1", env_options=options, run=tmp_path / "run", **FEW)
    assert run.evaluation.lengths[0] > 5
    agent = reverie.load(tmp_path / "run")
    env = agent.make_env()
    obs, _ = env.reset(seed=3)
    action, _ = agent.act(obs, None)
    assert env.observation_space.contains(env.step(action)[0])
    assert agent.evaluate(episodes=2).scores[0] > 5
    alone = gymnasium.make("CartPole-v1")
    scores = agent.evaluate(2, env=alone).scores
    assert reverie.load(tmp_path / "run", env=alone).evaluate(2).scores == scores
    with pytest.raises(EnvError, match="makes single environments, set env"):
        agent.evaluate(2, env=CartPoleEnv)


def test_a_vector_of_ones_own_class_is_made_again(tmp_path):
    options = {"vectorization": "native", "num": 3}
    few = {name: FEW[name] for name in ("steps", "eval_episodes", "console", "tensorboard")}
    few |= {"algo.rollout": 2, "algo.batch_size": 6}
    reverie.train("ppo", OwnTensors, env_options=options, run=tmp_path / "run", eval_env=Story(), **few)
    assert len(reverie.load(tmp_path / "run").evaluate(2).scores) == 2


def test_environments_of_a_vector_are_reached_if_it_lets_them():
    config = EnvConfig(id="CartPole-v1", num=2, vectorization="native")
    env = make_vector_env(config, seed=0, factory=lambda num_envs: SyncVectorEnv([env_zoo.Seeded] * num_envs))
    env.set_attr("height", 3)
    assert (env.call("raise_to", 2, twice=True), env.call("height")) == ([4, 4], [3, 3])
    with pytest.raises(AttributeError, match="hight"):
        env.set_attr("hight", 3)
    with pytest.raises(EnvError, match=r"CartPoleVectorEnv has no method 'call'.* sync or async"):
        make_vector_env(config, seed=0).call("gravity")


def test_envpool():
    config = EnvConfig(id="envpool/CartPole-v1", vectorization="native", num=3)
    envs = [make_vector_env(config, seed=seed) for seed in (4, 4, 5)]
    got, same, other = (rows(env, 40) for env in envs)
    torch.testing.assert_close(got, same, rtol=0, atol=0)
    assert got["is_last"].any()
    assert torch.equal(got["is_first"][1:], got["is_last"][:-1])
    assert not torch.equal(other["observation"][0], got["observation"][0])
    assert (envs[0].max_episode_steps, envs[0].frames_per_action) == (500, 1)
    single = make_gym(EnvConfig(id="envpool/CartPole-v1"), None, render=False)
    assert own_limit([single]) == 500


ATARI = {"action_repeat": 4, "pool_frames": 2, "noop_max": 5, "terminal_on_life_loss": True, "resize": (84, 84),
         "grayscale": True, "max_episode_steps": 300, "kwargs": {"repeat_action_probability": 0.0}}  # fmt: skip


@pytest.mark.parametrize("env_id", ["ALE/MsPacman-v5", "envpool/MsPacman-v5"])
def test_a_vector_of_atari_games_applies_the_settings_and_clips_no_rewards(env_id):
    env = make_vector_env(EnvConfig(id=env_id, vectorization="native", num=2, **ATARI), seed=0)
    assert (env.obs_spec["image"].shape, env.frames_per_action, env.max_episode_steps) == ((84, 84, 1), 4, 300)
    reward = rows(env, 200)["reward"]
    assert reward.max() == 10
    env.close()


@pytest.mark.parametrize(
    ("env_id", "options", "message"),
    [
        (
            "ALE/Pong-v5",
            {"kwargs": {"reward_clipping": True}},
            "clips rewards, in evaluations, too.* set env.clip_reward = sign",
        ),
        ("envpool/Pong-v5", {"kwargs": {"reward_clip": True}}, "clips rewards, in evaluations, too"),
        ("envpool/Pong-v5", {"kwargs": {"episodic_life": True}}, "set env.terminal_on_life_loss = True"),
        ("envpool/Pong-v5", {"vectorization": "sync", "action_repeat": 4}, "frames are skipped twice"),
        ("CartPole-v1", {"noop_max": 3, "action_repeat": 2}, "Set env.action_repeat = 1, env.noop_max = 0, or use"),
    ],
)
def test_settings_that_a_vector_cannot_apply(env_id, options, message):
    with pytest.raises(ConfigError, match=message):
        make_vector_env(EnvConfig(id=env_id, **{"vectorization": "native", **options}), seed=0)


def test_a_function_cannot_return_a_vector_that_clips_rewards():
    gymnasium.register_envs(pytest.importorskip("ale_py"))

    def pacman(num_envs):
        return gymnasium.make_vec("ALE/MsPacman-v5", num_envs, vectorization_mode="vector_entry_point")

    with pytest.raises(ConfigError, match="clips rewards, in evaluations, too"):
        make_vector_env(EnvConfig(num=2, vectorization="native"), seed=0, factory=pacman)


@pytest.mark.parametrize("is_said", [False, True])
def test_a_vector_of_atari_that_was_made_directly_does_not_say_whether_it_clips(is_said, said):
    ale = pytest.importorskip("ale_py.vector_env")
    kwargs = {"game": "pong", "reward_clipping": False}
    named = EnvConfig(id="ale_py.vector_env:AtariVectorEnv", num=2, vectorization="native", kwargs=kwargs)
    made = functools.partial(ale.AtariVectorEnv, **kwargs)
    env = make_vector_env(named if is_said else named.merge({"kwargs": {}}), seed=0, factory=None if is_said else made)
    env.close()
    assert any("does not say whether it clips rewards" in line for line in said) != is_said


@pytest.mark.parametrize("env", [MAKERS["arrays_undeclared"], "CartPole-v1", "envpool/CartPole-v1", "ALE/Pong-v5"])
def test_vectors_are_checked(env):
    report = reverie.check_env(env, env_options={"vectorization": "native"}, steps=60)
    assert report.ok, report.findings
    assert report.measurements["steps"] >= 60


def test_envpool_ids_are_checked():
    assert reverie.check_env("envpool/CartPole-v1", steps=60).ok
