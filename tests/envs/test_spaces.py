"""Every kind of space into parts and back; what cannot be learned from or chosen says so."""

from __future__ import annotations

import re

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.core.errors import ConfigError, DataError, EnvError
from reverie.core.spaces import ActionCodec, ObsCodec, surely_finite
from reverie.core.specs import ActionPart, ObsPart
from reverie.envs.config import EnvConfig

NUMBERS = (np.float32, np.float64, np.int32, np.uint8)


def leaf_spaces(actions):
    """Spaces of one array, such as environments have."""
    shapes = st.lists(st.integers(1, 3), max_size=3).map(tuple)
    starts = st.integers(-3, 3)
    found = [
        st.builds(lambda low, width, shape, dtype: spaces.Box(low, low + width, shape, dtype),
                  st.integers(0, 9), st.integers(1, 90), shapes, st.sampled_from(NUMBERS)),
        st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 5), starts),
        st.builds(lambda nvec, start: spaces.MultiDiscrete(nvec, start=[start] * len(nvec)),
                  st.lists(st.integers(1, 4), min_size=1, max_size=3), starts),
        st.builds(spaces.MultiBinary, st.integers(1, 4)),
    ]  # fmt: skip
    text = st.builds(lambda most: spaces.Text(most, min_length=0, charset="abc"), st.integers(1, 5))
    return st.one_of(*found, *([] if actions else [text]))


def any_space(actions):
    """Nested spaces."""
    return st.recursive(
        leaf_spaces(actions),
        lambda inner: st.one_of(
            st.dictionaries(st.sampled_from(["a", "b", "cam", "z"]), inner, min_size=1).map(spaces.Dict),
            st.lists(inner, min_size=1, max_size=3).map(lambda parts: spaces.Tuple(tuple(parts))),
        ),
        max_leaves=5,
    )


def leaves(value, key=""):
    """The arrays of a nested value by key."""
    if not isinstance(value, dict | tuple):
        return {key or "observation": value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {k: x for name, inner in items for k, x in leaves(inner, f"{key}/{name}".lstrip("/")).items()}


@given(space=any_space(actions=False), seed=st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_samples_of_any_space_fit_their_spec_and_keep_their_values(space, seed):
    space.seed(seed)
    codec, value = ObsCodec(space), space.sample()
    flat, found = codec(value), leaves(value)
    assert flat.keys() == codec.spec.keys()
    for key, part in codec.spec.items():
        assert (flat[key].shape, str(flat[key].dtype)) == (part.shape, part.dtype)
        if part.kind == "categorical":
            assert (flat[key].ravel() >= 0).all()
            assert (flat[key].ravel() < part.classes).all()
        if part.kind == "vector":
            np.testing.assert_allclose(flat[key], found[key], rtol=1e-6)


@given(space=any_space(actions=True), seed=st.integers(0, 2**31), scale=st.sampled_from([0.3, 1.0, 10.0]))
@settings(max_examples=60, deadline=None)
def test_any_flat_action_is_inside_its_space(space, seed, scale):
    codec = ActionCodec(space)
    flat = np.random.default_rng(seed).normal(0, scale, codec.spec.width).astype(np.float32)
    action = codec(flat)
    assert space.contains(np.int64(action) if isinstance(space, spaces.Discrete) else action)
    assert list(codec.spec.slices()) == sorted(codec.spec.parts)


def only(space):
    """The single key and part of ``space``."""
    ((key, part),) = ObsCodec(space).spec.items()
    return key, part


IMAGE = ObsPart(kind="image", shape=(4, 5, 3), dtype="uint8")


def vector(*shape):
    return ObsPart(kind="vector", shape=shape, dtype="float32")


@pytest.mark.parametrize(
    ("space", "key", "part"),
    [
        (spaces.Box(0, 255, (4, 5, 3), np.uint8), "image", IMAGE),
        (spaces.Box(0, 1, (4, 5, 3), bool), "image", IMAGE),
        (spaces.MultiBinary((4, 5, 3)), "image", IMAGE),
        (spaces.Box(0, 255, (6, 7), np.uint8), "image", ObsPart(kind="image", shape=(6, 7, 1), dtype="uint8")),
        (spaces.Box(-1, 2, (4, 5, 3), np.float64), "image",
         ObsPart(kind="image", shape=(4, 5, 3), dtype="float32", low=-1.0, high=2.0)),
        (spaces.Box(0, 9, (6, 7), np.uint8), "observation", vector(6, 7)),
        (spaces.Box(-np.inf, np.inf, (4, 5, 3)), "observation", vector(4, 5, 3)),
        (spaces.Box(5, 5, (4, 5, 3)), "observation", vector(4, 5, 3)),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), "observation",
         ObsPart(kind="categorical", shape=(2, 2), dtype="int64", classes=(2, 3, 4, 5))),
        (spaces.Text(5, charset="abc"), "observation",
         ObsPart(kind="categorical", shape=(5,), dtype="int64", classes=(4,) * 5)),
    ],
)  # fmt: skip
def test_bare_spaces_have_one_part(space, key, part):
    assert only(space) == (key, part)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((3, 64, 48), (64, 48, 3)), ((12, 96, 64), (96, 64, 12)), ((64, 48, 3), (64, 48, 3)), ((7, 7, 20), (7, 7, 20)),
     ((3, 64, 3), (3, 64, 3)), ((5, 7, 20), (5, 7, 20))],
)  # fmt: skip
def test_channels_first_is_recognised(shape, expected):
    assert only(spaces.Box(0, 255, shape, np.uint8))[1].shape == expected


@given(text=st.text("abz", max_size=6))
@settings(deadline=None)
def test_text_is_one_class_for_each_character_and_zero_for_padding(text):
    flat = ObsCodec(spaces.Text(6, min_length=0, charset="zab"))(text)["observation"]
    assert "".join("abz"[i - 1] for i in flat if i) == text
    assert (flat[len(text) :] == 0).all()


@pytest.mark.parametrize(
    ("space", "obs", "message"),
    [
        (spaces.Box(-1, 1, (3,)), np.zeros(2, np.float32), r"'observation' has shape \(2,\)"),
        (spaces.Box(-1, 1, (3,)), np.array([0, np.nan, 0]), r"is nan at index \(1,\): expected finite float32"),
        (spaces.Box(0, 255, (2, 2, 3), np.uint8), np.zeros((2, 2, 3)), "'image' has dtype float64; .* uint8"),
        (spaces.Box(0, 255, (2, 2, 3), np.uint8), np.full((2, 2, 3), 256), r"values 256..256; .* 0..255"),
        (spaces.Discrete(3, start=1), 0, "is 0; its space declares 1..3"),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 3]), r"is 3 at index \(1,\); its space declares 0..2"),
    ],
)
def test_observations_outside_their_space(space, obs, message):
    codec = ObsCodec(space)
    with pytest.raises(DataError, match=message):
        codec(obs)


@pytest.mark.parametrize("key", ["a//b", "..", "zarr.json"])
def test_keys_that_cannot_be_folders(key):
    space = spaces.Dict({key: spaces.Discrete(2), "b": spaces.Discrete(2)})
    with pytest.raises(EnvError, match=rf"observation {re.escape(repr(key))} cannot be stored"):
        ObsCodec(space, EnvConfig().keeps)
    assert list(ObsCodec(space, lambda name: name == "b").spec) == ["b"]


@pytest.mark.parametrize("size", [1, 64, 65, 1024, 1025])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_are_surely_finite_only_if_float32_holds_them(size, dtype):
    array = np.full(size, -3.5, dtype)
    assert surely_finite(array) == (size <= 1024)
    for bad in (np.nan, np.inf, -np.inf):
        array[0] = bad
        assert not surely_finite(array)
    if dtype == "float64" and size > 1:
        array[:2] = 1e39, -1e39  # their sum is 0
        assert not surely_finite(array)


# ---------------------------------------------------------------- actions

ACTIONS = spaces.Dict(
    {
        "walk": spaces.Box(np.array([-2.0, 0.0]), np.array([4.0, 1.0])),
        "hand": spaces.Tuple((spaces.Discrete(3, start=5), spaces.MultiBinary(2))),
        "aim": spaces.MultiDiscrete([[2, 3], [1, 4]], start=[[0, 1], [2, -1]]),
    }
)


def test_flat_actions_mean_what_they_say():
    codec = ActionCodec(ACTIONS)
    widths = {key: (part.kind, part.width) for key, part in codec.spec.parts.items()}
    assert widths == {"aim": ("categorical", 10), "hand/0": ("categorical", 3), "hand/1": ("categorical", 4),
                      "walk": ("continuous", 2)}  # fmt: skip
    flat = np.zeros(19, np.float32)
    flat[[1, 4, 5, 8, 12, 13, 16]] = 1  # aim [1, 2+1, 0+2, 2-1], hand 2+5 and [0, 1]
    flat[17:] = [-1.0, 0.5]
    action = codec(flat)
    assert action["aim"].tolist() == [[1, 3], [2, 1]]
    assert action["hand"][0] == 7
    assert action["hand"][1].tolist() == [0, 1]
    np.testing.assert_allclose(action["walk"], [-2.0, 0.75])


def test_box_ends_are_reached_exactly():
    space = spaces.Box(np.array([-0.1, 2.0], np.float32), np.array([0.3, 5.0], np.float32))
    np.testing.assert_array_equal(ActionCodec(space)(-np.ones(2, np.float32)), space.low)
    np.testing.assert_array_equal(ActionCodec(space)(np.full(2, 7.0, np.float32)), space.high)
    ends = np.iinfo(np.int64)  # the largest is no float64: rounded up, it would become the smallest
    low, high = (
        int(ActionCodec(spaces.Box(ends.min, ends.max, (1,), np.int64))(np.array([x], np.float32))[0]) for x in (-1, 1)
    )
    assert low == ends.min
    assert ends.max - 2048 <= high <= ends.max


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(2, 3), (17,)])
def test_few_numbers_and_many_are_scaled_alike(shape, dtype):
    rng = np.random.default_rng(0)
    low = (-10 * rng.random(shape)).astype(dtype)
    space = spaces.Box(low, (low + 1e-3 + 20 * rng.random(shape)).astype(dtype), shape, dtype)
    half, middle = ((space.high.astype(float) / 2 + sign * space.low.astype(float) / 2) for sign in (-1, 1))
    codec = ActionCodec(space)
    for _ in range(50):
        flat = (2 * rng.normal(size=low.size)).astype(np.float32)
        expected = (np.clip(flat.astype(float), -1, 1).reshape(shape) * half + middle).astype(dtype)
        assert codec(flat).dtype == dtype
        assert np.array_equal(codec(flat), np.clip(expected, space.low, space.high))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Dict({"arm": spaces.Box(np.array([-1, -np.inf]), np.array([1, 1]))}),
         r"action 'arm' is unbounded .low array.*-inf.*TransformAction"),
        (spaces.Text(3), "which is not supported: expected Discrete"),
        (spaces.Dict({"a/b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(2)})}), "the same key"),
    ],
)  # fmt: skip
def test_actions_that_cannot_be_chosen(space, message):
    with pytest.raises(EnvError, match=message):
        ActionCodec(space)


@pytest.mark.parametrize("given", [{"kind": "discrete", "classes": (4,)}, {"kind": "continuous"}])
def test_actions_of_no_numbers_are_refused(given):
    with pytest.raises(ConfigError, match="expected a categorical part with classes, or a continuous one"):
        ActionPart(**given)


def test_observations_of_another_kind_are_refused():
    with pytest.raises(ConfigError, match="kind = 'discrete': expected one of image, vector"):
        ObsPart(kind="discrete", shape=(), dtype="int64")
