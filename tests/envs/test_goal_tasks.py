"""Environments with tasks, in a stand-in with OGBench's interface, and in OGBench if it is installed."""

import json
from collections import Counter

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import env_steps
import reverie
from reverie.agent.evaluating import evaluate_run
from reverie.core.errors import ConfigError
from reverie.envs.check import run_env_check
from reverie.envs.config import EnvConfig
from reverie.envs.make import make_gym
from reverie.envs.slot_vector_env import make_vector_env
from reverie.run.evaluate import evaluate


class Tasks(gymnasium.Env):
    """Three tasks, of which only the second succeeds; draws as OGBench does: globally, and from unseeded spaces."""

    num_tasks = 3
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def __init__(self):
        self.fixed_space = spaces.Box(-1, 1, (2,), np.float32)

    @property
    def action_space(self):
        return spaces.Box(-1, 1, (1,), np.float32)

    def drawn(self):
        draws = np.random.uniform(), self.action_space.sample()[0], self.np_random.uniform()  # noqa: NPY002
        return np.array([sum(draws), self.task], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.task, self.time = (options or {}).get("task_id", 0), 0
        return self.drawn(), {"goal": self.drawn() + np.array([0, 10], np.float32)}

    def step(self, action):
        self.time += 1
        return self.drawn(), 0.0, self.time == 1 + self.task, False, {"success": self.task == 2}


class Fixed(Tasks):
    """As OGBench's mazes: one action space, which no seed reaches."""

    def __init__(self):
        self.one = spaces.Box(-1, 1, (1,), np.float32)

    action_space = property(lambda self: self.one)


class Policy:
    def initial(self, num_envs):
        return None

    def act(self, step, state, mode):
        return torch.zeros(len(step), 1), state


def test_an_evaluation_plays_tasks_in_turn_and_tells_the_success_of_each():
    env = make_vector_env(EnvConfig(num=2), seed=0, factory=Tasks)
    for _ in range(2):  # the second one begins with the first task too, whatever was played besides
        result = evaluate(env, Policy(), 7, seed=1)
        rates = {name: value for name, value in result.metrics().items() if "success" in name}
        assert rates == {"eval/success_rate": 2 / 7, "eval/success_rate/task1": 0.0, "eval/success_rate/task2": 1.0,
                         "eval/success_rate/task3": 0.0}  # fmt: skip
        assert Counter(result.lengths) == {2: 3, 3: 2, 4: 2}
    assert result.to_dict()["success_rate/task2"] == 1.0
    env = make_vector_env(EnvConfig(num=2, tasks=(1, 3)), seed=0, factory=Tasks)
    assert evaluate(env, Policy(), 5, seed=1).lengths == [2, 2, 2, 4, 4]


def test_goals_that_are_no_observations_are_refused_before_training():
    class Oracle(Tasks):
        def reset(self, **kwargs):
            obs, info = super().reset(**kwargs)
            return obs, {"goal": info["goal"][:1]}

    with pytest.raises(ConfigError, match=r"goals have shape \(1,\): expected \(2,\)"):
        make_gym(EnvConfig(), Oracle, render=False)


@pytest.mark.parametrize("kind", [Tasks, Fixed])
def test_the_seed_of_a_reset_seeds_all_that_an_environment_draws(kind):
    env = make_vector_env(EnvConfig(num=2), seed=0, factory=kind)
    assert list(env.obs_spec) == ["goal/observation", "observation"]
    np.random.seed(3)  # noqa: NPY002
    expected = np.random.RandomState(3).uniform(size=2)
    assert np.random.uniform() == expected[0]  # noqa: NPY002

    def play():
        steps = [env.reset(5), *(env.step(torch.zeros(2, 1)) for _ in range(12))]
        return [env_steps.as_bytes(step) for step in steps], steps

    (one, steps), (two, _) = play(), play()
    assert one == two
    assert np.random.uniform() == expected[1]  # noqa: NPY002 - the generator of everybody else is unchanged
    goals = torch.stack([step.obs["goal/observation"][0] for step in steps])
    assert torch.equal(goals[0], goals[1])  # within an episode
    assert goals[:4, 1].tolist() == [11, 11, 11, 13]  # of task 1, and then of task 3


def test_an_agent_is_evaluated_in_some_tasks(tmp_path):
    small = {"console": False, "tensorboard": False, "eval_episodes": 0, "learning_starts": 50}
    reverie.train("sac", env=Tasks, steps=60, run=tmp_path / "run", **small)
    agent = reverie.load(tmp_path / "run", env=Tasks)
    report = evaluate_run(agent, episodes=6, tasks=(2, 3))
    assert Counter(report.evaluation.lengths) == {3: 3, 4: 3}
    content = json.loads(report.files["evaluation"].read_text())
    assert (content["tasks"], content["success_rate/task2"]) == ([2, 3], 1.0)
    with pytest.raises(ConfigError, match="no task 4, only 1 to 3"):
        agent.evaluate(1, tasks=(4,))


def test_tasks_that_do_not_exist():
    with pytest.raises(ConfigError, match=r"env.tasks = \(1, 4\): the environment has no task 4, only 1 to 3\."):
        make_vector_env(EnvConfig(tasks=(1, 4)), seed=0, factory=Tasks)
    with pytest.raises(ConfigError, match=r"env.tasks = \(1,\): the environment has no tasks to choose\."):
        make_vector_env(EnvConfig(id="CartPole-v1", tasks=(1,)), seed=0)


def test_a_check_of_tasks():
    report = run_env_check(Tasks, EnvConfig(max_episode_steps=9), 300)
    assert {finding.name for finding in report.findings} <= {"sparse", "unsaved"}
    assert report.measurements["tasks"] == "1, 2, 3"
    assert 0.2 < report.measurements["success_rate"] < 0.5

    class Silent(Tasks):
        def step(self, action):
            return *super().step(action)[:4], {}

    report = run_env_check(Silent, EnvConfig(max_episode_steps=9), 300)
    assert "success" in {finding.name for finding in report.findings}

    class AtGoal(Tasks):
        def step(self, action):
            obs, reward, over, late, info = super().step(action)
            return obs, reward, over or info["success"], late, info

    report = run_env_check(AtGoal, EnvConfig(max_episode_steps=9), 300)
    assert "33% of random episodes succeed in their first step" in str(report)


@pytest.mark.parametrize(
    ("env_id", "shape", "tasks"),
    [("pointmaze-medium-v0", (2,), 5), ("antmaze-medium-v0", (29,), 5), ("scene-v0", (40,), 5),
     *(pytest.param(*other, 5, marks=pytest.mark.nightly)  # robots of the same class as in scenes
       for other in (("cube-single-v0", (28,)), ("puzzle-3x3-v0", (55,)))),
     ("powderworld-easy-v0", (32, 32, 6), 5), ("pointmaze-medium-singletask-v0", (2,), 0)],
)  # fmt: skip
def test_environments_of_ogbench(env_id, shape, tasks):
    pytest.importorskip("ogbench")
    env, name = make_vector_env(EnvConfig(id=env_id), seed=0), "image" if len(shape) == 3 else "observation"
    keys = [f"goal/{name}", name] if tasks else [name]
    assert {key: part.shape for key, part in env.obs_spec.items()} == dict.fromkeys(keys, shape)
    assert env.call("get_wrapper_attr", "tasks") == [tuple(range(1, tasks + 1))] if tasks else True
    env.close()
    assert make_gym(EnvConfig(id=env_id), None, render=True).render_mode == "rgb_array"


class Maze(Fixed):
    def set_goal(self, goal_xy):
        self.goal_xy = goal_xy


@pytest.mark.parametrize("goal", [np.array([7.0, 8.0], np.float32), {"observation": np.array([7.0, 8.0], np.float32)}])
def test_a_goal_as_an_option_is_the_goal_of_a_maze(goal):
    env = make_gym(EnvConfig(), Maze, render=False)
    obs, _ = env.reset(seed=0, options={"goal": goal})
    assert obs["goal"]["observation"].tolist() == env.unwrapped.goal_xy.tolist() == [7, 8]
    assert env.step(np.zeros(1))[0]["goal"]["observation"].tolist() == [7, 8]
    assert env.reset(seed=0)[0]["goal"]["observation"].tolist() != [7, 8]
