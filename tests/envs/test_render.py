"""Pictures of what vectors tell of."""

import gymnasium
import numpy as np
import pytest

import env_zoo
from reverie.core.specs import ObsPart
from reverie.envs.config import EnvConfig
from reverie.envs.flat_env import make_flat
from reverie.envs.render import make_renderer


def drawn(name):
    pytest.importorskip("pygame")
    return make_flat(EnvConfig(id=name), None, 0, True)


@pytest.mark.parametrize("name", ["MountainCarContinuous-v0", "Pendulum-v1", "Acrobot-v1"])
def test_the_picture_of_an_observation_is_that_of_the_environment(name):
    env, other = drawn(name), drawn(name)
    paint = make_renderer(other.env, other.obs_spec)
    assert paint is not None
    obs, _ = env_zoo.Seen(env).reset(seed=3)
    env.env.action_space.seed(0)
    for action in [env.env.action_space.sample() for _ in range(9)]:
        env.unwrapped.last_u = None  # the arrow that Pendulum draws is the last action's, not the state's
        real, found = env.env.render().astype(int), paint(obs).astype(int)
        assert found.shape == real.shape
        assert np.abs(found - real).mean() < 0.05  # float32 moves an edge now and then
        raw, *_ = env.env.step(action)
        obs = dict.fromkeys(obs, raw)
    assert np.abs(paint({key: -3 * x for key, x in obs.items()}).astype(int) - real).max() > 50
    env.close()
    other.close()


@pytest.mark.parametrize("name", ["InvertedPendulum-v5", "HalfCheetah-v5"])
def test_a_simulator_is_brought_where_the_observation_says(name, monkeypatch):
    pytest.importorskip("mujoco")
    env = make_flat(EnvConfig(id=name), None, 0, False)
    monkeypatch.setattr(type(env.unwrapped), "render", lambda self: np.zeros((2, 2, 3), np.uint8))  # no driver needed
    env.unwrapped.render_mode = "rgb_array"
    paint = make_renderer(env.env, env.obs_spec)
    assert paint is not None
    other = gymnasium.make(name)
    obs, _ = other.reset(seed=1)
    for _ in range(5):
        obs, *_ = other.step(np.full(other.action_space.shape, 0.3))
    paint({"observation": obs.astype(np.float32)})
    np.testing.assert_allclose(env.unwrapped._get_obs(), obs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("full", [False, True, "map"])
def test_grids_are_drawn_with_minigrids_own_tiles(full):
    pytest.importorskip("minigrid")
    config = EnvConfig(id="MiniGrid-DoorKey-6x6-v0", full_view=full is True, map_view=full == "map")
    env = make_flat(config, None, 0, True)
    paint, inner = make_renderer(env.env, env.obs_spec), env.unwrapped
    obs, _ = env_zoo.Seen(env).reset(seed=3)
    for action in np.random.default_rng(0).integers(0, 6, 60):
        real = inner.get_frame(highlight=False) if full is True else inner.get_frame(agent_pov=True)
        np.testing.assert_array_equal(paint(obs), real)
        if not full:  # in predictions the most likely class counts
            guess = {key: np.where(x, 140.0, 130.0) for key, x in obs.items()}
            np.testing.assert_array_equal(paint(guess), real)
        obs, *_, truncated, _ = env_zoo.Seen(env).step(np.eye(7, dtype=np.float32)[action])
        assert not truncated
    keys = {True: {"agent", "grid"}, False: {"image", "direction"}, "map": {"view", "map", "map_coord"}}
    assert set(obs) == keys[full]
    assert make_renderer(env.env, {"mission": next(iter(env.obs_spec.values()))}) is None  # parts were left out


def test_planes_are_drawn_in_minatars_own_colors():
    pytest.importorskip("minatar")
    env = make_flat(EnvConfig(id="MinAtar/Breakout-v1"), None, 0, True)
    paint = make_renderer(env.env, env.obs_spec)
    obs, _ = env_zoo.Seen(env).reset(seed=3)
    for _ in range(5):
        np.testing.assert_array_equal(paint(obs), env.render_frame())
        obs, *_ = env_zoo.Seen(env).step(np.array([1, 0, 0], np.float32))
    np.testing.assert_array_equal(paint({"image": np.where(obs["image"] > 0, 140.0, 110.0)}), paint(obs))


class Own(gymnasium.Env):  # knows how to draw what it shows
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def render_observation(self, obs):
        value = obs["other"][1] if isinstance(obs, dict) else 100 * obs[0]
        return np.full((4, 4, 3), int(value), np.uint8)


def test_an_environment_may_draw_its_observations_itself():
    spec = {"observation": ObsPart(kind="vector", shape=(2,), dtype="float32")}
    assert make_renderer(Own(), spec)({"observation": np.array([0.5, 0])})[0, 0, 0] == 50
    both = make_renderer(Own(), spec | {"other": spec["observation"]})
    assert both({"observation": np.zeros(2), "other": np.array([0.0, 7.0])})[0, 0, 0] == 7
