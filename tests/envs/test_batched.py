"""Environments that are a vector already: the rows of environments that are stepped one by one."""

import functools
import sys

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import DictInfoToList

import env_zoo
import reverie
from env_steps import play, rows
from reverie.core.errors import ConfigError, DataError, EnvError
from reverie.envs.config import EnvConfig
from reverie.envs.dummy import Count
from reverie.envs.limits import own_limit
from reverie.envs.make import make_gym
from reverie.envs.slot_vector_env import make_vector_env
from tiny_configs import FEW

ENDS = [(0, 3), (2, 5), (0, 1)]
UP = torch.tensor([[0.0, 1.0]])


def vector(kind, mode, num_envs):
    """Counting environments with these ends."""
    return kind([functools.partial(Count, *ends) for ends in ENDS], autoreset_mode=mode)


@pytest.mark.parametrize(
    ("kind", "mode"),
    [*((SyncVectorEnv, mode) for mode in AutoresetMode), (AsyncVectorEnv, AutoresetMode.NEXT_STEP)],
)
def test_rows_are_those_of_serial_environments(kind, mode):
    env = make_vector_env(
        EnvConfig(num=3, vectorization="native"), seed=0, factory=functools.partial(vector, kind, mode)
    )
    got = rows(env, 15, UP.expand(3, 2))
    env.close()
    env.close()
    queue = list(ENDS)
    sync = rows(make_vector_env(EnvConfig(num=3), seed=0, factory=lambda: Count(*queue.pop(0))), 15, UP.expand(3, 2))
    torch.testing.assert_close(got, sync, rtol=0, atol=0)


class Together(VectorEnv):
    """A vector in arrays: dictionaries with a mask, and images; its environments count by 1, 2 ... up to 6."""

    single_observation_space = spaces.Dict({"eye": spaces.Box(0, 255, (4, 4, 3), np.uint8),
                                            "action_mask": spaces.MultiBinary(5)})  # fmt: skip
    single_action_space = spaces.Dict({"turn": spaces.Discrete(3, start=1), "push": spaces.Box(-2, 2, (2,))})

    def __init__(self, num_envs):
        self.num_envs, self.time, self.over, self.given = num_envs, np.zeros(num_envs, int), False, []

    def _seen(self, time):
        mask = np.array([[1, 1, 1, 1, t % 2] for t in time], np.int8)
        return {"eye": np.tile(time.astype(np.uint8)[:, None, None, None], (1, 4, 4, 3)), "action_mask": mask}

    def reset(self, *, seed=None, options=None):
        self.time[:] = 0
        return self._seen(self.time), {}

    def step(self, actions):
        self.given.append(actions)
        self.time = np.where(self.over, 0, self.time + np.arange(1, self.num_envs + 1))
        self.over = self.time >= 6
        flags = np.zeros(self.num_envs, bool)
        return self._seen(self.time), np.full(self.num_envs, -3.0), self.over, flags, {}


def test_dictionaries_masks_images_and_options():
    made = []
    config = EnvConfig(num=2, vectorization="native", resize=(2, 2), grayscale=True, clip_reward="sign")
    env = make_vector_env(config, seed=0, factory=lambda num_envs: made.append(Together(num_envs)) or made[-1])
    assert (env.obs_spec["eye"].shape, env.action_spec.width) == ((2, 2, 1), 5)
    got = rows(env, 8, torch.tensor([[0.5, -1.0, 0.0, 0.0, 1.0]] * 2))
    assert got["eye"][:, 1, 0, 0, 0].tolist() == [0, 2, 4, 6, 0, 2, 4, 6]
    assert got["is_last"][:, 1].tolist() == [False, False, False, True] * 2
    assert got["eye"][:, 0, 0, 0, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 0]
    assert got["reward"][:, 1].tolist() == [0, -1, -1, -1] * 2
    assert got["action_mask"][1, :, -1].tolist() == [1, 0]
    assert made[0].given[0]["turn"].tolist() == [3, 3]
    np.testing.assert_array_equal(made[0].given[0]["push"], [[1.0, -2.0]] * 2)


class Disabled(Together):
    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012


class Laps(gymnasium.Env):
    """Counts its steps, and succeeds after ``laps``."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Dict({"count": spaces.Box(-9, 9, (1,)), "pair": spaces.Tuple([spaces.Box(-9, 9, (1,))])})

    def __init__(self, laps):
        self.laps = laps

    def _seen(self):
        return {"count": np.full(1, self.time, np.float32), "pair": (np.full(1, -self.time, np.float32),)}

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return self._seen(), {}

    def step(self, action):
        self.time += 1
        over = self.time >= self.laps
        return self._seen(), float(self.time), over, False, {"is_success": True} if over else {}


class SimulatedLaps(VectorEnv):
    """``Laps`` as a simulator on a GPU: resets in the same step, and says so at most in the info."""

    metadata = {}  # noqa: RUF012

    def __init__(self, num_envs, laps=(2, 4)):
        self.envs, self.num_envs = [Laps(number) for number in laps], num_envs
        self.single_observation_space, self.single_action_space = Laps.observation_space, Laps.action_space

    def reset(self, *, seed=None, options=None):
        return self.batch([env.reset()[0] for env in self.envs]), {}

    @staticmethod
    def batch(seen):
        return {"count": np.stack([x["count"] for x in seen]), "pair": (np.stack([x["pair"][0] for x in seen]),)}

    def step(self, actions):
        seen, reward, over, _, infos = zip(*[env.step(0) for env in self.envs], strict=True)
        info = {"final_observation": self.batch(seen), "_final_observation": np.array(over), "final_info": list(infos)}
        now = [env.reset()[0] if ended else x for env, x, ended in zip(self.envs, seen, over, strict=True)]
        return self.batch(now), np.array(reward), np.array(over), np.zeros(self.num_envs, bool), info


def declared_laps(num_envs):
    return AsyncVectorEnv([functools.partial(Laps, number) for number in (2, 4)], autoreset_mode="SameStep")


def listed_laps(num_envs):
    return DictInfoToList(declared_laps(num_envs))


@pytest.mark.parametrize("factory", [SimulatedLaps, declared_laps, listed_laps])
def test_the_last_row_of_a_reset_in_the_same_step_is_the_final_observation(factory):
    config = EnvConfig(num=2, vectorization="native")
    env = make_vector_env(config, seed=0, factory=factory)
    got = rows(env, 8, UP.expand(2, 2))
    env.close()
    assert got["count"][..., 0].T.tolist() == [[0, 1, 2, 1, 2, 1, 2, 1], [0, 1, 2, 3, 4, 1, 2, 3]]
    assert torch.equal(got["pair/0"], -got["count"])
    assert got["reward"].T.tolist() == [[0, 1, 2, 0, 2, 0, 2, 0], [0, 1, 2, 3, 4, 0, 2, 3]]
    ends = [[0, 0, 1, 0, 1, 0, 1, 0], [0, 0, 0, 0, 1, 0, 0, 0]]
    assert got["is_last"].T.int().tolist() == got["is_terminal"].T.int().tolist() == ends
    assert got["is_first"].T.int().tolist() == [[1, 0, 0, 1, 0, 1, 0, 1], [1, 0, 0, 0, 0, 1, 0, 0]]


@pytest.mark.parametrize("factory", [SimulatedLaps, declared_laps, listed_laps, lambda num_envs: SyncVectorEnv(
    [functools.partial(Laps, number) for number in (2, 4)])])  # fmt: skip
def test_success_is_that_of_the_environment_whose_episode_ends(factory):
    env = make_vector_env(EnvConfig(num=2, vectorization="native"), seed=0, factory=factory)
    env.reset()
    reports = []
    for _ in range(4):
        env.step(UP.expand(2, 2))
        reports.append(env.episode_info)
    env.close()
    assert (reports[:3], reports[3][1]) == ([{}, {0: {"success_rate": 1.0}}, {}], {"success_rate": 1.0})


def test_a_single_environment_of_a_vector_has_its_info():
    config = EnvConfig(vectorization="native")
    env = make_gym(config, lambda num_envs: SimulatedLaps(num_envs, laps=(2,)), render=False)
    env.reset()
    env.step(0)
    obs, reward, terminated, _, info = env.step(0)
    assert (obs["count"].tolist(), reward, terminated, info) == ([2], 2.0, True, {"is_success": True})


@pytest.mark.parametrize(
    ("options", "factory", "message"),
    [
        ({"frame_stack": 2}, None, "env.frame_stack = 2 with env.vectorization = native"),
        ({"restarts": 3}, None, "env.restarts = 3 with env.vectorization = native: .* Set env.restarts = 10, or"),
        ({"restart_window": 60.0, "tasks": (1, 2)}, None, r"env.restart_window = 60.0, env.tasks = \(1, 2\) with"),
        ({"id": "Acrobot-v1"}, None, "Acrobot-v1 with num_envs = 2 could not be made: .*vector entry point"),
        ({}, lambda num_envs: Together(3), "expected a gymnasium.vector.VectorEnv of 2"),
        ({}, lambda: Together(2), "could not be made: TypeError"),
        ({}, Disabled, r"AutoresetMode\.DISABLED: expected NEXT_STEP or SAME_STEP"),
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
    got, same, other = (rows(env, 40, UP.expand(3, 2)) for env in envs)
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


def test_a_reward_that_float32_does_not_hold_is_an_error():
    rich = functools.partial(env_zoo.Scripted, spaces.Discrete(2), [0], [0.0, 1e39])
    env = make_vector_env(
        EnvConfig(num=1, vectorization="native"), seed=0, factory=lambda num_envs: SyncVectorEnv([rich])
    )
    with pytest.raises(DataError, match=r"environment 0: the reward is 1e\+39: expected a finite float32 number"):
        play(env, 2)


@pytest.mark.parametrize(
    ("info", "how", "message"),
    [
        (
            {"action_mask": np.ones((2, 2))},
            None,
            "the info has an action_mask, which is only supported for single environments",
        ),
        ({}, SystemExit(0), "the environments failed with SystemExit: 0"),
        ({}, OSError("gone"), "the environments failed with OSError: gone"),
    ],
)
def test_failures_of_a_vector(info, how, message):
    class Failing(SyncVectorEnv):
        def step(self, actions):
            if how is not None:
                raise how
            return *super().step(actions)[:4], info

    config = EnvConfig(num=2, vectorization="native")
    env = make_vector_env(config, seed=0, factory=lambda num_envs: Failing([Count] * num_envs))
    with pytest.raises(EnvError, match=message):
        play(env, 2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({1: np.zeros((2, 1))}, r"Wrong: reward has shape \(2, 1\) .*expected numbers of shape \(2,\)"),
        ({2: np.zeros((2, 1), bool)}, r"Wrong: terminated has shape \(2, 1\)"),
        ({3: np.array([0, np.nan])}, r"Wrong: truncated is .*nan.*expected bools"),
        ({1: np.array(["a", "b"])}, "Wrong: reward has shape .* and dtype <U1"),
        ({4: {"final_obs": np.zeros((2, 1)), "_final_obs": np.zeros(2, bool)}}, "Wrong resets in the step .* lacks"),
    ],
)
def test_wrong_answers_name_the_vector(values, message):
    class Wrong(SyncVectorEnv):
        def step(self, actions):
            answer = [*super().step(actions)]
            answer[3] = np.ones(2, bool)
            for place, value in values.items():
                answer[place] = value
            return tuple(answer)

    env = make_vector_env(
        EnvConfig(num=2, vectorization="native"), seed=0, factory=lambda num_envs: Wrong([Count] * num_envs)
    )
    with pytest.raises((DataError, EnvError), match=message):
        play(env, 2)


def test_numbers_outside_of_their_space_are_said_once(said):
    space = spaces.Box(-1, 1, (1,))
    made = functools.partial(env_zoo.Scripted, space, [np.zeros(1, np.float32), np.full(1, 3, np.float32)])
    config = EnvConfig(num=2, vectorization="native")
    play(make_vector_env(config, seed=0, factory=lambda num_envs: SyncVectorEnv([made] * num_envs)), 5)
    (line,) = said
    assert "environment 0: observation 'observation' is 3 at index (0,), but its space declares -1 to 1" in line


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


def one_lap(num_envs):
    return SimulatedLaps(num_envs, laps=(4,))


@pytest.mark.parametrize("env", [one_lap, "CartPole-v1", "envpool/CartPole-v1", "ALE/Pong-v5"])
def test_vectors_are_checked(env):
    report = reverie.check_env(env, env_options={"vectorization": "native"}, steps=60)
    assert report.ok, report.findings
    assert report.measurements["steps"] >= 60


def test_envpool_ids_are_checked():
    assert reverie.check_env("envpool/CartPole-v1", steps=60).ok
