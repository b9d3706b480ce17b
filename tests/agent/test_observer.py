"""Raw observations become those of training: frames, stacks and symbols."""

import gymnasium
import numpy as np
import pytest

from reverie.agent.conversion import ObsConverter
from reverie.agent.loading import load
from reverie.agent.recording import record_episode
from reverie.api import train_config as train
from reverie.core.errors import DataError
from reverie.datasets.options import RecordConfig
from reverie.envs.config import EnvConfig
from reverie.envs.dummy import Count
from reverie.envs.flat_env import make_flat
from reverie.experiment.config import ExperimentConfig
from tiny_configs import SMALL


def seeing(space):
    """Return the observer of an environment whose observations are of ``space``."""
    env = Count()
    env.observation_space = space
    return ObsConverter(make_flat(EnvConfig(), lambda: env, 0, False), EnvConfig())


def test_all_that_reset_or_step_returned_is_refused():
    vector = gymnasium.spaces.Box(-1, 1, (2,))
    seen = np.zeros(2, np.float32)
    for space, obs in ((vector, seen), (gymnasium.spaces.Dict(state=vector), {"state": seen})):
        observer = seeing(space)
        for given in ((obs, {}), (obs, 0.0, False, False, {"success": True})):
            with pytest.raises(DataError, match=r"obs has \d values, .* as reset\(\) .*: pass only the first value"):
                observer.count_obs(given)
    both = gymnasium.spaces.Tuple([vector, gymnasium.spaces.Dict(state=vector)])
    assert seeing(both).count_obs((seen, {"state": seen}))[0] is None


def test_options_of_training_apply_to_raw_observations(tmp_path):
    options = {"id": "CartPole-v1", "pixels": "add", "resize": [8, 10], "grayscale": True, "frame_stack": 2}
    config = ExperimentConfig().merge(SMALL).merge({"env": options})
    train(config.merge({"eval_episodes": 0}), run=tmp_path / "run")
    agent = load(tmp_path / "run")
    shapes = {name: part.shape for name, part in agent.obs_spec.items()}
    assert (shapes, agent.observation_space) == ({"image": (8, 10, 2), "observation": (2, 4)}, None)
    env = agent.make_env(render=True)
    obs, _ = env.reset(seed=0)
    action, state = agent.act({"image": env.render(), "observation": obs})
    assert env.action_space.contains(action)
    _, floats = agent.act({"image": env.render() / 255.0, "observation": obs})  # read as in training
    np.testing.assert_array_equal(floats.stacks[0].past["image"], state.stacks[0].past["image"])
    again = [agent.act({"image": env.render(), "observation": obs + n}, state)[1].stacks[0] for n in (1, 2)]
    assert [(one.past["observation"][0] == obs).all() for one in again] == [True, True]  # the caller may go back
    stacked = state.stacks[0]({"image": np.full((8, 10, 1), 7, np.uint8), "observation": obs}, False)
    assert (stacked["image"] == 7).all((0, 1)).tolist() == [False, True]
    with pytest.raises(DataError, match=r"'image' is env\.render\(\)"):
        agent.act(obs)
    recorded, _ = record_episode(
        agent, agent.make_env(), RecordConfig(episodes=1), np.random.default_rng(0), seed=0, max_steps=3
    )
    np.testing.assert_array_equal(recorded["observations"][0], obs)  # what the environment gave, without the frames
    assert recorded["observations"].shape == (4, 4)


def test_of_a_list_of_frames_the_last_one_is_read():
    config = EnvConfig(pixels="only")

    def make():
        return gymnasium.wrappers.RenderCollection(gymnasium.make("CartPole-v1", render_mode="rgb_array"))

    flat, env = make_flat(config, make, 0, False), make()
    observer = ObsConverter(flat, config)
    obs, _ = env.reset(seed=0)
    first, second = ({"image": np.zeros(flat.obs_spec["image"].shape, np.uint8)} for _ in range(2))
    flat.reset_into(0, first)
    flat.step_into(np.array([0, 1], np.float32), second)
    np.testing.assert_array_equal(observer.raw_input(env, obs)["image"], first["image"])
    env.step(0)
    env.step(1)
    count, one = observer.count_obs({"image": [*env.render()[:1], second["image"]]})
    assert count is None
    np.testing.assert_array_equal(observer(one, None, False)["image"], second["image"])
    count, both = observer.count_obs({"image": np.stack([first["image"], second["image"]])})
    assert count == 2
    np.testing.assert_array_equal(observer.batch(both, 2, [None] * 2, np.ones(2, bool))["image"], both["image"])


def test_minigrids_symbols_are_read_as_in_training(tmp_path):
    pytest.importorskip("minigrid")
    config = ExperimentConfig().merge(SMALL).merge({"env.id": "MiniGrid-Empty-5x5-v0", "eval_episodes": 0})
    train(config, run=tmp_path / "run")
    agent = load(tmp_path / "run")
    env = gymnasium.make("MiniGrid-Empty-5x5-v0")
    obs, _ = env.reset(seed=0)
    assert agent.observation_space == env.observation_space
    assert env.action_space.contains(agent.act(obs)[0])
