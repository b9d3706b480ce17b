"""Every kind of space into parts and back; what cannot be learned from says so."""

from __future__ import annotations

import re
import string

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.core.errors import DataError, EnvError
from reverie.core.spaces import ObsCodec, surely_finite
from reverie.core.specs import ObsPart
from reverie.envs.config import EnvConfig
from reverie.envs.wrappers import FrameStack


def only(space):
    """The single key and part of ``space``."""
    ((key, part),) = ObsCodec(space).spec.items()
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
        ((5, 84, 84), (84, 84, 5)),
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


@pytest.mark.parametrize(
    ("low", "high", "kind"),
    [(0, 0, "vector"), (5, 5, "vector"), (0, 1e-40, "vector"), (-3e38, 3e38, "vector"), (-1e30, 1e30, "image"),
     (np.zeros((4, 5, 3), np.float32), np.full((4, 5, 3), [0, 1, 2], np.float32), "image")],
)  # fmt: skip
def test_floats_are_an_image_if_pixels_can_be_divided_by_their_range(low, high, kind):
    assert only(spaces.Box(low, high, (4, 5, 3), np.float32))[1].kind == kind


def test_stacked_images_become_channels_as_by_env_frame_stack():
    stacked = FrameStack(ObsCodec(spaces.Box(0, 255, (9, 8, 3), np.uint8)).spec, 4)
    for shape, axes in {(4, 9, 8, 3): (0, 1, 2, 3), (4, 3, 9, 8): (0, 2, 3, 1)}.items():
        space = spaces.Box(0, 255, shape, np.uint8)
        frames, codec = space.sample(), ObsCodec(space)
        assert codec.spec == stacked.spec
        for i, frame in enumerate(frames.transpose(axes)):
            whole = stacked({"image": frame}, i == 0)
        np.testing.assert_array_equal(codec(frames)["image"], whole["image"])
    assert only(spaces.Box(0, 255, (4, 9, 8, 1), np.uint8))[1].shape == (9, 8, 4)
    assert only(spaces.Box(0, 255, (4, 5, 6, 7), np.uint8))[1].kind == "vector"


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
    assert ObsCodec(planes)(obs)["image"].ravel().tolist() == [0, 128, 255, 255]
    bits = np.array([True, False, True, False]).reshape(2, 2, 1)
    assert ObsCodec(spaces.Box(0, 1, (2, 2, 1), bool))(bits)["image"].ravel().tolist() == [255, 0, 255, 0]


def test_nested_keys():
    space = spaces.Dict(
        {
            "arm": spaces.Dict({"camera": spaces.Box(0, 255, (8, 8, 3), np.uint8), "touch": spaces.MultiBinary(2)}),
            "pair": spaces.Tuple((spaces.Discrete(3), spaces.Tuple((spaces.Box(-1, 1, (2,)),)))),
            "empty": spaces.Box(0, 1, (0,)),
        }
    )
    obs = space.sample()
    flat = ObsCodec(space)(obs)
    assert set(flat) == {"arm/camera", "arm/touch", "pair/0", "pair/1/0"} == set(ObsCodec(space).spec)
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
    flat = ObsCodec(spaces.Text(6, min_length=0, charset="zab"))(text)["observation"]
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
        (spaces.Box(-1, 1, (3,)), np.array([0, np.nan, 0]), r"is nan at index \(1,\): expected finite float32"),
        (spaces.Box(-1, 1, (3,)), np.array([0, 0, -np.inf]), r"is -inf at index \(2,\)"),
        (spaces.Box(-1, 1, (1,)), np.array([None]), "has dtype object; its space declares float32"),
        (spaces.Box(0, 255, (2, 2, 3), np.uint8), np.zeros((2, 2, 3)), "'image' has dtype float64; .* uint8"),
        (spaces.Box(0, 255, (2, 2, 3), np.uint8), np.full((2, 2, 3), 256), r"values 256..256; .* 0..255"),
        (spaces.Box(0, 1, (2, 2, 3)), np.full((2, 2, 3), 255.0), r"values 255..255; its space declares 0..1"),
        (spaces.Discrete(3, start=1), 0, "is 0; its space declares 1..3"),
        (spaces.Discrete(3), 1.5, "has dtype float64"),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 3]), r"is 3 at index \(1,\); its space declares 0..2"),
        (spaces.Text(3, charset="ab"), "abba", "'abba' with 4 characters; its space declares at most 3"),
        (spaces.Text(3, charset="ab"), "abc", "with the character 'c' that its space does not declare"),
        (spaces.Text(3, charset="ab"), 5, "is 5; its space declares text"),
        (spaces.Box(-1, 1, (2,)), [[1.0], [1.0, 2.0]], "'observation' cannot be converted to an array"),
        (spaces.Dict({"a": spaces.Discrete(2)}), {"b": 1}, r"the observation has the keys \['b'\]; .* keys \['a'\]"),
        (spaces.Dict({"a": spaces.Discrete(2)}), {"a": 1, "b": 1}, r"has the keys \['a', 'b'\]"),
        (
            spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(2)})}),
            {"a": 1},
            r"observation 'a' is of type int; .* \['b'\]",
        ),
        (spaces.Tuple((spaces.Discrete(2),)), (1, 1), r"is \(1, 1\); its space declares a tuple of length 1"),
    ],
)
def test_observations_outside_their_space(space, obs, message):
    codec = ObsCodec(space)
    with pytest.raises(DataError, match=message):
        codec(obs)


@pytest.mark.parametrize("space", [spaces.Graph(spaces.Discrete(2), None), spaces.Sequence(spaces.Discrete(3))])
def test_spaces_that_cannot_be_learned_from(space):
    nested = spaces.Dict({"net": space, "x": spaces.Discrete(2)})
    with pytest.raises(EnvError, match=rf"observation 'net' has a {type(space).__name__} space.*exclude = 'net'"):
        ObsCodec(nested)
    assert set(ObsCodec(nested, keep=lambda key: key != "net").spec) == {"x"}


def test_object_dtype():
    space = spaces.Box(-1, 1, (2,))
    space.dtype = np.dtype(object)
    with pytest.raises(EnvError, match="'observation' has dtype object: expected a numeric dtype"):
        ObsCodec(space)


def test_no_key_is_the_folder_of_another():
    box = spaces.Box(-1, 1, (2,))
    for space in (
        spaces.Dict({"camera": box, "camera/depth": box, "cameras": box}),
        spaces.Dict({"camera/depth": spaces.Dict({"near": box}), "camera": spaces.Dict({"depth": box})}),
    ):
        with pytest.raises(EnvError, match=r"'camera(/depth)?' and 'camera/depth(/near)?'.*env\.exclude"):
            ObsCodec(space)
        assert ObsCodec(space, keep=lambda key: not key.startswith("camera/depth") or key.endswith("near"))


def test_nothing_left_and_equal_keys():
    space = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(2)})
    with pytest.raises(EnvError, match=r"no observations are left.*'a', 'b'"):
        ObsCodec(space, keep=lambda key: False)
    twice = spaces.Dict({"a/b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(2)})})
    with pytest.raises(EnvError, match="two observations have the same key 'a/b'"):
        ObsCodec(twice)


@pytest.mark.parametrize("key", ["/x", "a//b", ".", "..", "a/..", "zarr.json", "a\n", "a\0", "x" * 300])
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
    array[-1] = 0
    for bad in (np.nan, np.inf, -np.inf):
        array[0] = bad
        assert not surely_finite(array)
    if dtype == "float64" and size > 1:
        array[:2] = 1e39, -1e39  # their sum is 0
        assert not surely_finite(array)
    assert not surely_finite(np.ones(size, np.int64))


def test_of_many_and_of_few_dimensions_numbers_are_looked_at_alike():
    assert surely_finite(np.ones((2, 3), np.float32))
    assert surely_finite(np.float64(2).reshape(()))
