"""Episodes of an agent, recorded as a dataset: played again, with noise, and as the environment gave them."""

import json
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control import PendulumEnv

import reverie
from recordings import assert_same, joined
from reverie.agent import recording
from reverie.agent.agent import Agent
from reverie.agent.conversion import ObsConverter
from reverie.agent.loading import load
from reverie.agent.recording import add_noise, record_agent, record_episode
from reverie.core.errors import ConfigError, DataError, EnvError, RunError
from reverie.datasets.convert import check_target
from reverie.datasets.format_detection import open_reader
from reverie.datasets.options import RecordConfig
from reverie.datasets.validate import validate
from reverie.envs.config import EnvConfig
from reverie.envs.flat_env import make_flat
from reverie.experiment.config import ExperimentConfig
from tiny_configs import SETTINGS

pytest.importorskip("minari")


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    settings = {name: value for name, value in SETTINGS.items() if name not in ("algo", "env")}
    more = {"steps": 30, "learning_starts": 10, "replay_ratio": 0.1, "eval_episodes": 0}
    small = {"algo.batch_size": 4, "algo.networks.units": (8,)}
    reverie.train("td3", "Pendulum-v1", run=folder, **settings | more, random_steps=5, **small)
    return reverie.load(folder)


def test_record_episodes_and_play_them_again(agent, tmp_path, said):
    for name in "de":
        done = record_agent(agent, str(tmp_path / name), RecordConfig(episodes=2, epsilon=0.3, noise=0.2, seed=4))
        assert (done.episodes, done.steps) == (2, 400)
    assert "recording 2 episodes: about 0.0 MB per 1,000 steps" in said[0]
    readers = [open_reader(str(tmp_path / name)) for name in "de"]
    about = readers[0].info()
    assert about.env_spec == json.loads(
        gymnasium.make("Pendulum-v1").spec.to_json()
    )  # as minari.combine_datasets needs
    assert (about.env, about.action) == ("Pendulum-v1", agent.action_space)
    assert validate(readers[0], replayed=2).is_valid
    one, two = (joined(reader.parts()) for reader in readers)
    assert_same(two, one)
    actions = one["action"][~one["is_last"]]
    assert np.abs(actions).max() <= 2
    assert len(np.unique(actions)) > 300


@pytest.mark.parametrize("name", ["e.hdf5", "e.parquet"])
def test_the_suffix_names_the_format(agent, tmp_path, name):
    done, _ = (record_agent(agent, str(tmp_path / n), RecordConfig(episodes=1, seed=4)) for n in (name, "minari"))
    with open_reader(done.path) as reader:
        assert reader.info().action == agent.action_space
        assert_same(joined(reader.parts()), joined(open_reader(tmp_path / "minari").parts()))


def test_an_end_that_is_terminal_and_truncated_is_recorded_as_both(agent):
    class Short(gymnasium.Wrapper):
        def step(self, action):
            obs, reward, _, _, info = self.env.step(action)
            return obs, reward, True, True, info

    env = Short(gymnasium.make("Pendulum-v1"))
    episode, _ = record_episode(agent, env, RecordConfig(episodes=1), np.random.default_rng(0), 0, 9)
    assert episode["terminations"].tolist() == episode["truncations"].tolist() == [True]


def test_environments_that_reuse_their_arrays(agent):
    """Each step is recorded as it was, whatever becomes of the arrays that it came and went with."""

    class Reuses(gymnasium.Wrapper):
        def reset(self, **options):
            obs, info = self.env.reset(**options)
            self.held = obs.copy()
            return self.held, info

        def step(self, action):
            obs, *rest = self.env.step(action.copy())
            action[:], self.held[:] = 0, obs
            return self.held, *rest

    plain = gymnasium.make("Pendulum-v1")
    one, two = (
        record_episode(agent, env, RecordConfig(steps=4), np.random.default_rng(0), 0, 4)[0]
        for env in (plain, Reuses(plain))
    )
    assert one["truncations"].tolist() == [False] * 3 + [True]  # the recording ends there
    for name in ("observations", "actions"):
        np.testing.assert_array_equal(one[name], two[name])
        assert len(np.unique(one[name], axis=0)) == len(one[name])


def test_noise_is_in_half_of_the_range_and_stays_inside():
    rng = np.random.default_rng(0)
    space = spaces.Dict({"a": spaces.Box(-10, 30, (2,), np.float32), "b": spaces.Discrete(3)})
    found = [add_noise(space, {"a": np.full(2, 10, np.float32), "b": 1}, 0.1, rng) for _ in range(2000)]
    values = np.array([one["a"] for one in found])
    assert (values.mean(), values.std()) == (pytest.approx(10.0, abs=0.2), pytest.approx(2.0, rel=0.1))
    assert {one["b"] for one in found} == {1}
    wide = np.array([add_noise(space, {"a": np.full(2, 30, np.float32), "b": 1}, 5.0, rng)["a"] for _ in range(50)])
    assert -10 <= wide.min() <= wide.max() <= 30


@pytest.mark.parametrize("name", ["d.h5", "d.parquet"])
def test_a_format_that_cannot_store_observations_is_refused_before_playing(agent, tmp_path, monkeypatch, name):
    nested = spaces.Dict({"a": spaces.Box(-1, 1, (3,)), "b": spaces.Box(-1, 1, (2, 2))})
    monkeypatch.setattr(recording.View, "from_agent", lambda *_: recording.View(nested, lambda obs: obs))
    monkeypatch.setattr(recording, "record_episodes", lambda *_: pytest.fail("an episode is played"))
    with pytest.raises(ConfigError, match=r"can only store .*obs/b"):
        record_agent(agent, str(tmp_path / name), RecordConfig(steps=3))
    assert not list(tmp_path.iterdir())


def test_recordings_that_cannot_be(agent, tmp_path):
    for values in ({}, {"episodes": 1, "steps": 1}):
        with pytest.raises(ConfigError, match="expected exactly one of them"):
            RecordConfig(**values)
    with pytest.raises(ConfigError, match=r"d\.h5 is the name of a dataset in the format HDF5"):
        record_agent(agent, str(tmp_path / "d.h5"), RecordConfig(steps=3), "minari")
    for name, kind in (("d.csv", "CSV"), ("d.toy", r"\.toy")):
        with pytest.raises(ConfigError, match=rf"{name}: no {kind} file can be written\. Expected a name"):
            record_agent(agent, str(tmp_path / name), RecordConfig(steps=3))
    assert {check_target(str(tmp_path / name), "auto") for name in ("d", "data-v1.5", "medium-v2.1")} == {"minari"}
    record_agent(agent, str(tmp_path / "d"), RecordConfig(steps=3))
    with pytest.raises(RunError, match="d exists"):
        record_agent(agent, str(tmp_path / "d"), RecordConfig(steps=3))
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_actions_that_a_recording_replaces_are_told_to_the_agent(trained, monkeypatch):
    agent, known = load(trained), []
    turn = Agent.turn

    def watched(self, obs, reward, mask, state, **more):
        if state is not None:
            known.append(int(state.policy.action.argmax()))
        return turn(self, obs, reward, mask, state, **more)

    monkeypatch.setattr(Agent, "turn", watched)
    config = RecordConfig(episodes=1, epsilon=0.5)
    episode, _ = record_episode(agent, agent.make_env(), config, np.random.default_rng(0), seed=1, max_steps=30)
    assert episode["actions"].tolist()[:-1] == known


class Scripted(gymnasium.Env):
    """Three steps with observations and rewards from lists."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, seen, rewards):
        self.seen, self.rewards, self.time = seen, rewards, 0

    def reset(self, *, seed=None, options=None):
        return self.seen[0], {}

    def step(self, action):
        self.time += 1
        return self.seen[self.time], self.rewards[self.time], self.time == 3, False, {}


@pytest.mark.parametrize(
    ("at", "obs", "reward", "said"),
    [
        (2, 1.0, np.nan, "the reward is nan: expected a finite float32 number"),
        (3, 1.0, 1e39, "the reward is 1e[+]39"),
        (2, np.nan, 1.0, "observation 'observation' is nan at index"),
        (3, np.inf, 1.0, "observation 'observation' is inf at index"),  # which no action follows
    ],
)
@pytest.mark.parametrize("frames", [1, 2])
def test_what_is_not_finite_is_not_recorded(at, obs, reward, said, frames):
    seen, rewards = [np.full(1, t, np.float32) for t in range(4)], [1.0] * 4
    seen[at][0], rewards[at] = obs, reward
    env = Scripted(seen, rewards)
    config = EnvConfig(frame_stack=frames)
    observer = ObsConverter(make_flat(config, lambda: env, 0, False), config)

    def turn(obs, reward, mask, state, **more):
        state = state or observer.stacks(1)
        observer(obs, *state, env.time == 0)
        return 0, state

    agent = SimpleNamespace(turn=turn, observer=observer, config=ExperimentConfig())
    with pytest.raises(DataError, match=said):
        record_episode(agent, env, RecordConfig(episodes=1), np.random.default_rng(), 0, 9)


def test_episodes_that_do_not_end_are_truncated_and_told(agent, tmp_path):
    limited = load(agent.run, env={"max_episode_steps": 10**6})
    limited.config = limited.config.merge({"eval_episode_steps": 12})
    limited.factory = lambda: PendulumEnv()
    limited.config = limited.config.merge({"env.max_episode_steps": None})
    done = record_agent(limited, str(tmp_path / "d"), RecordConfig(episodes=2))
    assert (done.episodes, done.steps) == (2, 24)
    assert "2 episodes had not ended after 12 steps (eval_episode_steps), and were truncated there" in done.remarks


def test_an_environment_that_ends_the_program(agent, tmp_path):
    class Leaves(PendulumEnv):
        def step(self, action):
            raise SystemExit(0)

    leaving = load(agent.run)
    leaving.factory = Leaves
    with pytest.raises(EnvError, match="the environment ended the recording: SystemExit: 0"):
        record_agent(leaving, str(tmp_path / "d"), RecordConfig(episodes=1))
    assert not (tmp_path / "d").exists()
