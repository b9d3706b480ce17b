"""The options of one environment: what it sees, what its actions and rewards mean, and how bad ids are answered."""

import dataclasses
import functools
import math

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.envs.registration import EnvSpec

import env_zoo
from env_steps import play
from reverie.core.errors import ConfigError, DataError, EnvError
from reverie.core.images import grayscale, resize
from reverie.envs.config import EnvConfig, Mark, marked
from reverie.envs.dummy import Count
from reverie.envs.flat_env import make_flat
from reverie.envs.slot_vector_env import make_vector_env
from reverie.envs.wrappers import check_flag, check_reward


def steps(count, factory=None, action=None, **options):
    """``count`` steps of one environment."""
    env = make_vector_env(EnvConfig(**options), seed=0, factory=factory)
    out = play(env, count, action)
    env.close()
    return out


def test_action_repeat_sums_rewards_and_stops_at_the_end():
    got = steps(4, lambda: Count(truncate_at=5), torch.tensor([[0.0, 1.0]]), action_repeat=2)
    assert [s.obs["observation"].item() for s in got] == [0, 2, 4, 5]
    assert [s.reward.item() for s in got] == [0, 2, 2, 1]
    assert [s.is_last.item() for s in got] == [False, False, False, True]


def test_each_setting_says_what_holds_for_it():
    unmarked = {f.name for f in dataclasses.fields(EnvConfig)} - {*marked(*Mark)}
    observed = {"max_image_size", "channel_axis", "include_keys", "exclude_keys"}  # whose shapes or keys are compared
    assert unmarked == {"id", *observed}
    assert {*marked(Mark.ATARI)} < {*marked(Mark.SINGLE)}


def frames(count):
    """Images whose every pixel is the number of the frame times ten."""
    return [np.full((4, 6, 3), 10 * t, np.uint8) for t in range(count)]


IMAGES = spaces.Box(0, 255, (4, 6, 3), np.uint8)


def test_pooling_takes_the_maximum_of_the_last_frames():
    lit = frames(9)
    lit[3][0, 0] = 255  # the frame before the last of the first decision
    lit[1][1, 1] = 255  # too old to be seen
    image = steps(2, lambda: env_zoo.Scripted(IMAGES, lit), action_repeat=4, pool_frames=2)[1].obs["image"][0]
    assert image[0, 0].tolist() == [255, 255, 255]
    assert image[1, 1].tolist() == [40, 40, 40]
    with pytest.raises(EnvError, match="pool_frames = 2 needs uint8 images"):
        steps(1, action_repeat=2, pool_frames=2)


def test_frame_stack_repeats_the_first_and_forgets_at_the_end():
    got = steps(6, lambda: env_zoo.Scripted(IMAGES, frames(9), truncated=(4,)), frame_stack=3, grayscale=True)
    assert got[0].obs["image"].shape == (1, 4, 6, 3)
    expected = [[0, 0, 0], [0, 0, 10], [0, 10, 20], [10, 20, 30], [20, 30, 40], [0, 0, 0]]
    assert [s.obs["image"][0, 0, 0].tolist() for s in got] == expected


@pytest.mark.parametrize(("how", "expected"), [("none", -7.0), ("sign", -1.0), ("tanh", np.tanh(-7.0))])
def test_reward_clipping(how, expected):
    factory = functools.partial(env_zoo.Scripted, spaces.Discrete(2), [0], rewards=[0.0, -7.0])
    assert steps(2, factory, clip_reward=how)[1].reward.item() == pytest.approx(expected)


def test_resize_and_grayscale():
    image = np.zeros((10, 10, 4), np.uint8)
    image[:5] = 255
    small = resize(image, (4, 8))
    assert (small.shape, small.dtype) == ((4, 8, 4), np.uint8)
    assert (small[0] == 255).all()
    assert (small[-1] == 0).all()
    floats = resize(np.full((6, 6, 2), 0.25, np.float32), (3, 9))
    np.testing.assert_allclose(floats, np.full((3, 9, 2), 0.25, np.float32), rtol=1e-6)
    assert (resize(np.full((10, 12, 3), (1, 2, 3), np.uint8), (5, 5)) == (1, 2, 3)).all()
    assert grayscale(np.eye(3, dtype=np.uint8).reshape(1, 3, 3) * 255).ravel().tolist() == [76, 150, 29]


def test_pixels_only_and_added():
    only = steps(2, id="CartPole-v1", pixels="only", resize=(40, 60))
    assert {key: tuple(v.shape) for key, v in only[1].obs.items()} == {"image": (1, 40, 60, 3)}
    assert not (only[0].obs["image"] == 255).all()
    assert set(steps(1, id="CartPole-v1", pixels="add")[0].obs) == {"image", "observation"}
    own = steps(1, CartPoleEnv, pixels="only", resize=(40, 60))  # a class is asked to draw
    assert torch.equal(own[0].obs["image"], steps(1, id="CartPole-v1", pixels="only", resize=(40, 60))[0].obs["image"])


@pytest.mark.parametrize(
    ("factory", "options", "message"),
    [
        (env_zoo.Seeded, {"pixels": "only"}, "cannot render images: its render_mode is None"),
        (None, {"id": "reverie/Grid-v0", "pixels": "add"}, "adds the observation 'image', but .* already has one"),
        (None, {"id": "reverie/Count-v0", "pixels": "only"}, r"reverie/Count-v0.*render_mode"),
    ],
)
def test_pixels_of_what_cannot_be_drawn(factory, options, message):
    with pytest.raises(EnvError, match=message):
        steps(1, factory, **options)


def test_keys_are_chosen_by_pattern():
    bit = spaces.Discrete(2)
    space = spaces.Dict({"arm": spaces.Dict({"x": bit, "y": bit}), "z": bit})
    obs = [{"arm": {"x": 0, "y": 1}, "z": 1}]

    def keys(**options):
        return set(steps(1, lambda: env_zoo.Scripted(space, obs), **options)[0].obs)

    assert keys() == {"arm/x", "arm/y", "z"}
    assert keys(include_keys="arm/.*") == {"arm/x", "arm/y"}
    assert keys(exclude_keys="arm/.*|q") == {"z"}
    assert keys(include_keys=".*", exclude_keys=".*/x") == {"arm/y", "z"}
    with pytest.raises(EnvError, match=r"no observations are left. Available keys, .*: 'arm/x'"):
        keys(include_keys="nothing")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pool_frames": 2}, "env.pool_frames = 2: expected at most env.action_repeat = 1"),
        ({"pool_frames": 2, "action_repeat": 2, "pixels": "only"}, "images are rendered only after the last repeat"),
        ({"include_keys": "("}, r"env.include_keys = '\(': expected a valid regular expression \(missing"),
    ],
)
def test_config_errors(options, message):
    with pytest.raises(ConfigError, match=message):
        EnvConfig().merge(options, "env")


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("CartPole-v7", "unknown environment 'CartPole-v7'. Did you mean 'CartPole-v1'"),
        ("Pong-v5", "Did you mean .*ALE/Pong-v5"),
        ("no_such_module:Env-v0", "module 'no_such_module' cannot be imported"),
        ("env_zoo:Env-v0", "unknown environment 'env_zoo:Env-v0'.*importing 'env_zoo' does not register it: gymnasium"),
        ("env_zoo:without_a_seat", r"register it.*If without_a_seat\(num_envs\) .*, set env.vectorization = native"),
    ],
)
def test_unknown_ids(env_id, message):
    with pytest.raises(EnvError, match=message):
        make_vector_env(EnvConfig(id=env_id), seed=0)


def test_an_id_that_is_the_name_of_a_file(tmp_path, monkeypatch):
    (tmp_path / "shop.py").touch()
    monkeypatch.chdir(tmp_path)
    for env_id in ("shop", "shop.py"):
        with pytest.raises(EnvError, match=r"shop.py is a file: use 'shop:Id' in its folder"):
            make_vector_env(EnvConfig(id=env_id), seed=0)


def test_a_mistake_in_the_users_own_code_is_told_with_its_line(tmp_path, monkeypatch):
    (tmp_path / "lost_walk.py").write_text("import no_such_legs\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EnvError, match=r"module 'lost_walk' cannot be imported .*'no_such_legs' \(.*lost_walk.py:1 in"):
        make_vector_env(EnvConfig(id="lost_walk:Walk-v0"), seed=0)
    with pytest.raises(EnvError, match=r"Did you mean 'lost_walk'\? If it is not there"):
        make_vector_env(EnvConfig(id="lost_wlak:Walk-v0"), seed=0)
    monkeypatch.setitem(gymnasium.registry, "NoLegs-v0", EnvSpec("NoLegs-v0", entry_point=env_zoo.without_a_seat))
    with pytest.raises(EnvError, match=r"'NoLegs-v0' could not be created: OSError: no seat \(.*env_zoo.py:\d+ in"):
        make_vector_env(EnvConfig(id="NoLegs-v0"), seed=0)


def test_missing_arguments_of_a_constructor_are_told_with_the_setting_that_passes_them():
    def sized(size, load):
        raise AssertionError

    with pytest.raises(EnvError, match=r"missing 2 .*--env\.kwargs '\{size: VALUE, load: VALUE\}', in Python env_opt"):
        make_vector_env(EnvConfig(), seed=0, factory=sized)


def test_a_module_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "my_pond.py").write_text(
        "import gymnasium\ngymnasium.register('Pond-v0', entry_point='reverie.envs.dummy:Grid', kwargs={'size': 5})\n"
    )
    monkeypatch.chdir(tmp_path)
    assert steps(2, id="my_pond:Pond-v0")[1].obs["image"].shape == (1, 5, 5, 3)


@pytest.mark.parametrize("reward", [2, 2.0, np.float32(2), np.int64(2), np.array([2.0]), torch.tensor(2.0)])
def test_one_number_of_any_type(reward):
    assert (check_reward(reward), type(check_reward(reward))) == (2.0, float)


@pytest.mark.parametrize("reward", ["1.5", [1.0, 2.0], np.nan, 1e39])
def test_a_reward_is_one_number_that_float32_holds(reward):
    with pytest.raises(DataError, match=r"the reward is .*: expected a (finite float32 )?number"):
        check_reward(reward)


@pytest.mark.parametrize("kind", [bool, int, np.bool_, lambda x: np.array([x]), torch.tensor])
def test_one_flag_of_any_type(kind):
    assert check_flag("terminated", kind(True)) is True
    assert check_flag("terminated", kind(False)) is False


@pytest.mark.parametrize("ends", ["False", [False, True], math.nan, None, 2, {"a": False}, [[0], [0, 1]]])
def test_what_is_no_flag_is_refused(ends):
    with pytest.raises(DataError, match=r"terminated is .*: expected a bool, whether"):
        check_flag("terminated", ends)


def first_reward(rewards, repeat):
    env = env_zoo.Scripted(spaces.Discrete(2), [0, 1, 1], rewards=[0.0, *rewards])
    flat = env_zoo.Seen(make_flat(EnvConfig(id="Odd-v0", action_repeat=repeat), lambda: env, 0, False))
    flat.reset()
    return flat.step(np.zeros(2, np.float32))[1]


@pytest.mark.parametrize("repeat", [1, 2])
def test_the_error_says_which_environment_and_step(repeat):
    with pytest.raises(DataError, match=r"environment 0.*step 1.*the reward is None: expected a number"):
        first_reward([None], repeat)


def test_rewards_of_repeats_are_summed_whatever_their_type():
    assert first_reward([np.array([1.5]), torch.tensor(2)], 2) == 3.5


@pytest.mark.parametrize("reward", [[1.0, 0.0], {"a": 1.0}, np.zeros(2), [[1], [1, 2]]])
def test_rewards_of_several_agents_or_objectives(reward):
    with pytest.raises(DataError, match=r"the reward is .* Multi-agent and vector rewards are not supported"):
        first_reward([reward], 1)


@pytest.mark.parametrize("channels", [2, 4, 7, 12])
def test_gray_of_what_has_no_three_colors(channels, said):
    """Stacks of gray frames stay as they are, which is said."""
    space = spaces.Box(0, 255, (8, 9, channels), np.uint8)

    def make():
        return env_zoo.Scripted(space, [space.sample()] * 2)

    steps(1, make, grayscale=True)
    assert any("env.grayscale leaves the image" in line and f"{channels} channels" in line for line in said)


class Spaceless(gymnasium.Env):
    """Has only those spaces that are given."""

    def __init__(self, **given):
        for name, space in given.items():
            setattr(self, name, space)


@pytest.mark.parametrize("name", ["observation_space", "action_space"])
@pytest.mark.parametrize("space", [None, {"a": spaces.Discrete(3)}, [2], "missing"])
def test_spaces_that_are_none(name, space):
    given = {"observation_space": spaces.Discrete(2), "action_space": spaces.Discrete(2), name: space}
    given = {key: value for key, value in given.items() if value != "missing"}
    said = "is missing" if space == "missing" else "is .*"
    with pytest.raises(EnvError, match=f"Spaceless.{name} {said}: expected a Gymnasium space"):
        steps(1, lambda: Spaceless(**given))
