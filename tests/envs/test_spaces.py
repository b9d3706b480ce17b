"""Every kind of space into parts and back; what cannot be learned from says so."""

from __future__ import annotations

import string

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import ClipAction, RescaleAction, TransformAction
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.core.errors import DataError, EnvError
from reverie.core.specs import ObsPart
from reverie.envs.spaces import ActionCodec, ObsCodec, action_spec, flatten_obs, obs_spec, unflatten_action


def only(space):
    """The single key and part of ``space``."""
    ((key, part),) = obs_spec(space).items()
    return key, part


IMAGE = ObsPart(kind="image", shape=(4, 5, 3), dtype="uint8")


@pytest.mark.parametrize(
    ("space", "key", "part"),
    [
        (spaces.Box(0, 255, (4, 5, 3), np.uint8), "image", IMAGE),
        (spaces.Box(0, 1, (4, 5, 3), bool), "image", IMAGE),
        (spaces.Box(0, 3, (4, 5, 3), np.int32), "image", IMAGE),
        (spaces.MultiBinary((4, 5, 3)), "image", IMAGE),
        (spaces.Box(0, 255, (6, 7), np.uint8), "image", ObsPart(kind="image", shape=(6, 7, 1), dtype="uint8")),
        (
            spaces.Box(-1, 2, (4, 5, 3), np.float64),
            "image",
            ObsPart(kind="image", shape=(4, 5, 3), dtype="float32", low=-1.0, high=2.0),
        ),
        (spaces.Box(0, 9, (6, 7), np.uint8), "observation", ObsPart(kind="vector", shape=(6, 7), dtype="float32")),
        (
            spaces.Box(-np.inf, np.inf, (4, 5, 3)),
            "observation",
            ObsPart(kind="vector", shape=(4, 5, 3), dtype="float32"),
        ),
        (spaces.Box(0, 1, (), np.float64), "observation", ObsPart(kind="vector", shape=(), dtype="float32")),
        (spaces.Box(-5, 5, (3,), np.int64), "observation", ObsPart(kind="vector", shape=(3,), dtype="float32")),
        (
            spaces.Discrete(4, start=-2),
            "observation",
            ObsPart(kind="categorical", shape=(), dtype="int64", classes=(4,)),
        ),
        (
            spaces.MultiDiscrete([[2, 3], [4, 5]]),
            "observation",
            ObsPart(kind="categorical", shape=(2, 2), dtype="int64", classes=(2, 3, 4, 5)),
        ),
        (
            spaces.MultiBinary(3),
            "observation",
            ObsPart(kind="categorical", shape=(3,), dtype="int64", classes=(2, 2, 2)),
        ),
        (
            spaces.Text(5, charset="abc"),
            "observation",
            ObsPart(kind="categorical", shape=(5,), dtype="int64", classes=(4,) * 5),
        ),
    ],
)
def test_bare_spaces_have_one_part(space, key, part):
    assert only(space) == (key, part)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((3, 64, 48), (64, 48, 3)),
        ((1, 10, 9), (10, 9, 1)),
        ((4, 84, 84), (84, 84, 4)),
        ((12, 96, 64), (96, 64, 12)),
        ((64, 48, 3), (64, 48, 3)),
        ((7, 7, 20), (7, 7, 20)),
        ((10, 10, 4), (10, 10, 4)),
        ((3, 64, 3), (3, 64, 3)),
        ((3, 3, 20), (3, 3, 20)),
        ((5, 7, 20), (5, 7, 20)),
    ],
)
def test_channels_first_is_recognised(shape, expected):
    assert only(spaces.Box(0, 255, shape, np.uint8))[1].shape == expected


def test_channels_can_be_said():
    space = spaces.Box(0, 255, (5, 7, 20), np.uint8)
    obs = np.arange(700, dtype=np.uint8).reshape(5, 7, 20)
    first = ObsCodec(space, channels="first")
    assert first.spec["image"].shape == (7, 20, 5)
    np.testing.assert_array_equal(first(obs)["image"][2, 3], obs[:, 2, 3])
    np.testing.assert_array_equal(ObsCodec(space, channels="last")(obs)["image"], obs)


def test_whole_number_images_are_stretched_to_black_and_white():
    planes = spaces.Box(-1, 1, (2, 2, 1), np.int8)
    obs = np.array([-1, 0, 1, 1], np.int8).reshape(2, 2, 1)
    assert flatten_obs(planes, obs)["image"].ravel().tolist() == [0, 128, 255, 255]
    bits = np.array([True, False, True, False]).reshape(2, 2, 1)
    assert flatten_obs(spaces.Box(0, 1, (2, 2, 1), bool), bits)["image"].ravel().tolist() == [255, 0, 255, 0]


def test_nested_keys():
    space = spaces.Dict(
        {
            "arm": spaces.Dict({"camera": spaces.Box(0, 255, (8, 8, 3), np.uint8), "touch": spaces.MultiBinary(2)}),
            "pair": spaces.Tuple((spaces.Discrete(3), spaces.Tuple((spaces.Box(-1, 1, (2,)),)))),
            "empty": spaces.Box(0, 1, (0,)),
        }
    )
    obs = space.sample()
    flat = flatten_obs(space, obs)
    assert set(flat) == {"arm/camera", "arm/touch", "pair/0", "pair/1/0"} == set(obs_spec(space))
    np.testing.assert_array_equal(flat["arm/camera"], obs["arm"]["camera"])
    np.testing.assert_array_equal(flat["pair/1/0"], obs["pair"][1][0])
    assert flat["pair/0"] == obs["pair"][0]


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (2, 3)),
        spaces.Discrete(4, start=3),
        spaces.MultiDiscrete([3, 4], start=[1, -1]),
        spaces.MultiBinary((2, 2)),
        spaces.Text(6, charset=string.ascii_letters),
        spaces.Box(0, 255, (3, 9, 8), np.uint8),
        spaces.Tuple((spaces.Discrete(2), spaces.Dict({"x": spaces.Box(-9, 9, (1,), np.float64)}))),
    ],
)
@given(seed=st.integers(0, 2**31))
@settings(max_examples=20, deadline=None)
def test_samples_fit_their_spec(space, seed):
    space.seed(seed)
    codec = ObsCodec(space)
    flat = codec(space.sample())
    assert flat.keys() == codec.spec.keys()
    for key, part in codec.spec.items():
        assert flat[key].shape == part.shape
        assert flat[key].dtype == part.dtype
        if part.kind == "categorical":
            assert (flat[key].ravel() >= 0).all()
            assert (flat[key].ravel() < part.classes).all()


@given(text=st.text("abz", max_size=6))
@settings(deadline=None)
def test_text_is_one_class_for_each_character_and_zero_for_padding(text):
    flat = flatten_obs(spaces.Text(6, min_length=0, charset="zab"), text)["observation"]
    assert "".join("abz"[i - 1] for i in flat if i) == text
    assert (flat[len(text) :] == 0).all()


@pytest.mark.parametrize(
    ("space", "obs", "message"),
    [
        (
            spaces.Box(-1, 1, (3,)),
            np.zeros(2, np.float32),
            r"'observation' has shape \(2,\); its space declares \(3,\)",
        ),
        (spaces.Box(-1, 1, (3,)), np.array([0, np.nan, 0]), r"is nan at index \(1,\); expected finite float32"),
        (spaces.Box(-1, 1, (3,)), np.array([0, 0, -np.inf]), r"is -inf at index \(2,\)"),
        (spaces.Box(-1, 1, (1,)), np.array([None]), "has dtype object; its space declares float32"),
        (spaces.Box(0, 255, (2, 2, 3), np.uint8), np.zeros((2, 2, 3)), "'image' has dtype float64; .* uint8"),
        (spaces.Box(0, 255, (2, 2, 3), np.uint8), np.full((2, 2, 3), 256), r"values 256..256; .* 0..255"),
        (spaces.Box(0, 1, (2, 2, 3)), np.full((2, 2, 3), 255.0), r"values 255..255; its space declares 0..1"),
        (spaces.Discrete(3, start=1), 0, "is 0; its space declares 1..3"),
        (spaces.Discrete(3), 1.5, "has dtype float64"),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 3]), r"is 3 at index \(1,\); its space declares 0..2"),
        (spaces.Text(3, charset="ab"), "abba", "'abba', 4 characters; its space declares at most 3"),
        (spaces.Text(3, charset="ab"), "abc", "does not declare the character 'c'"),
        (spaces.Text(3, charset="ab"), 5, "is 5; its space declares text"),
        (spaces.Box(-1, 1, (2,)), [[1.0], [1.0, 2.0]], "'observation' cannot be read as an array"),
        (spaces.Dict({"a": spaces.Discrete(2)}), {"b": 1}, r"the observation is \['b'\]; .* keys \['a'\]"),
        (spaces.Dict({"a": spaces.Discrete(2)}), {"a": 1, "b": 1}, r"is \['a', 'b'\]"),
        (spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(2)})}), {"a": 1}, r"observation 'a' is int; .* \['b'\]"),
        (spaces.Tuple((spaces.Discrete(2),)), (1, 1), r"is \(1, 1\); its space declares a tuple of 1"),
    ],
)
def test_observations_outside_their_space(space, obs, message):
    codec = ObsCodec(space)
    with pytest.raises(DataError, match=message):
        codec(obs)


@pytest.mark.parametrize("space", [spaces.Graph(spaces.Discrete(2), None), spaces.Sequence(spaces.Discrete(3))])
def test_spaces_that_cannot_be_learned_from(space):
    nested = spaces.Dict({"net": space, "x": spaces.Discrete(2)})
    with pytest.raises(EnvError, match=rf"observation 'net' is a {type(space).__name__} space.*exclude='net'"):
        obs_spec(nested)
    assert set(ObsCodec(nested, keep=lambda key: key != "net").spec) == {"x"}


def test_object_dtype():
    space = spaces.Box(-1, 1, (2,))
    space.dtype = np.dtype(object)
    with pytest.raises(EnvError, match="'observation' holds elements of dtype object; expected numbers"):
        obs_spec(space)


def test_nothing_left_and_equal_keys():
    space = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(2)})
    with pytest.raises(EnvError, match=r"no observation is left.*'a', 'b'"):
        ObsCodec(space, keep=lambda key: False)
    twice = spaces.Dict({"a/b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(2)})})
    with pytest.raises(EnvError, match="two observations are both called 'a/b'"):
        obs_spec(twice)


ACTIONS = spaces.Dict(
    {
        "walk": spaces.Box(np.array([-2.0, 0.0]), np.array([4.0, 1.0])),
        "hand": spaces.Tuple((spaces.Discrete(3, start=5), spaces.MultiBinary(2))),
        "aim": spaces.MultiDiscrete([[2, 3], [1, 4]], start=[[0, 1], [2, -1]]),
    }
)


def test_action_parts_in_order_of_keys():
    spec = action_spec(ACTIONS)
    assert {key: (part.kind, part.width) for key, part in spec.parts.items()} == {
        "aim": ("categorical", 10),
        "hand/0": ("categorical", 3),
        "hand/1": ("categorical", 4),
        "walk": ("continuous", 2),
    }
    assert list(spec.slices()) == ["aim", "hand/0", "hand/1", "walk"]
    assert list(action_spec(spaces.Discrete(2)).parts) == ["action"]


def test_flat_actions_mean_what_they_say():
    flat = np.zeros(19, np.float32)
    flat[[1, 4, 5, 8, 12, 13, 16]] = 1  # aim [1, 2+1, 0+2, 2-1], hand 2+5 and [0, 1]
    flat[17:] = [-1.0, 0.5]
    action = unflatten_action(ACTIONS, flat)
    assert action["aim"].tolist() == [[1, 3], [2, 1]]
    assert action["hand"][0] == 7
    assert action["hand"][1].tolist() == [0, 1]
    np.testing.assert_allclose(action["walk"], [-2.0, 0.75])
    assert ACTIONS.contains(action)


@pytest.mark.parametrize(
    "space",
    [
        ACTIONS,
        spaces.Box(-0.1, 0.3, (2, 3)),
        spaces.Box(np.float32(0.1), np.float32(0.7), ()),
        spaces.Box(-3, 7, (4,), np.int32),
        spaces.Box(0, 255, (2,), np.uint8),
        spaces.Box(-3e38, 3e38, (2,)),
        spaces.Box(-1e308, 1.5e308, (2,), np.float64),
        spaces.MultiDiscrete([2, 5, 1]),
        spaces.Discrete(1, start=-4),
    ],
)
@given(seed=st.integers(0, 2**31), scale=st.sampled_from([0.3, 1.0, 10.0]))
@settings(max_examples=25, deadline=None)
def test_any_flat_action_is_inside_its_space(space, seed, scale):
    codec = ActionCodec(space)
    flat = np.random.default_rng(seed).normal(0, scale, codec.spec.width).astype(np.float32)
    assert space.contains(np.int64(codec(flat)) if isinstance(space, spaces.Discrete) else codec(flat))


def test_box_ends_are_reached_exactly():
    space = spaces.Box(np.array([-0.1, 2.0], np.float32), np.array([0.3, 5.0], np.float32))
    np.testing.assert_array_equal(unflatten_action(space, -np.ones(2, np.float32)), space.low)
    np.testing.assert_array_equal(unflatten_action(space, np.full(2, 7.0, np.float32)), space.high)


def test_unbounded_actions_say_which_and_what_to_do():
    space = spaces.Dict({"arm": spaces.Box(np.array([-1, -np.inf, -1]), np.array([1, 1, np.inf]))})
    with pytest.raises(EnvError, match=r"action 'arm' is unbounded in dimensions \[1, 2\].*TransformAction.*Box\(-1.0"):
        action_spec(space)
    with pytest.raises(EnvError, match="unbounded"):
        action_spec(spaces.Box(-np.inf, np.inf, ()))


@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))})])
def test_actions_that_cannot_be_chosen(space):
    with pytest.raises(EnvError, match="which a policy cannot choose from"):
        action_spec(space)


def test_two_actions_of_one_name():
    with pytest.raises(EnvError, match=r"two of the actions \['a/b', 'a/b'\]"):
        action_spec(spaces.Dict({"a/b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(2)})}))


@pytest.mark.parametrize("space", [spaces.Dict({}), spaces.Box(-1, 1, (0,))])
def test_nothing_to_choose(space):
    with pytest.raises(EnvError, match="nothing to choose"):
        action_spec(space)


def test_the_remedy_for_unbounded_actions_works(unbounded_env):
    wrapped = TransformAction(unbounded_env, lambda action: action, spaces.Box(-1.0, 1.0, (2,)))
    assert action_spec(wrapped.action_space).width == 2
    inside = TransformAction(ClipAction(unbounded_env), lambda action: action, spaces.Box(-1.0, 1.0, (2,)))
    assert action_spec(inside.action_space).width == 2
    with pytest.raises(ValueError, match="unbounded"):
        RescaleAction(unbounded_env, -1.0, 1.0)


@pytest.fixture
def unbounded_env():
    from env_zoo import Scripted

    box = spaces.Box(-np.inf, np.inf, (2,))
    return Scripted(spaces.Discrete(2), [0], action_space=box)
