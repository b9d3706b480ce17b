"""Flat actions to what spaces hold: parts, scaling, and the errors for what cannot be chosen."""

from __future__ import annotations

import env_zoo
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import ClipAction, RescaleAction, TransformAction
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.core.errors import EnvError
from reverie.core.spaces import ActionCodec

ACTIONS = spaces.Dict(
    {
        "walk": spaces.Box(np.array([-2.0, 0.0]), np.array([4.0, 1.0])),
        "hand": spaces.Tuple((spaces.Discrete(3, start=5), spaces.MultiBinary(2))),
        "aim": spaces.MultiDiscrete([[2, 3], [1, 4]], start=[[0, 1], [2, -1]]),
    }
)


def test_action_parts_in_order_of_keys():
    spec = ActionCodec(ACTIONS).spec
    assert {key: (part.kind, part.width) for key, part in spec.parts.items()} == {
        "aim": ("categorical", 10),
        "hand/0": ("categorical", 3),
        "hand/1": ("categorical", 4),
        "walk": ("continuous", 2),
    }
    assert list(spec.slices()) == ["aim", "hand/0", "hand/1", "walk"]
    assert list(ActionCodec(spaces.Discrete(2)).spec.parts) == ["action"]


def test_flat_actions_mean_what_they_say():
    flat = np.zeros(19, np.float32)
    flat[[1, 4, 5, 8, 12, 13, 16]] = 1  # aim [1, 2+1, 0+2, 2-1], hand 2+5 and [0, 1]
    flat[17:] = [-1.0, 0.5]
    action = ActionCodec(ACTIONS)(flat)
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
    np.testing.assert_array_equal(ActionCodec(space)(-np.ones(2, np.float32)), space.low)
    np.testing.assert_array_equal(ActionCodec(space)(np.full(2, 7.0, np.float32)), space.high)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int8])
def test_whole_numbers_do_not_overflow_at_the_ends(dtype):
    """The largest int64 is no float64: rounded up, it would become the smallest."""
    ends = np.iinfo(dtype)
    codec = ActionCodec(spaces.Box(ends.min, ends.max, (1,), dtype))
    low, high = (int(codec(np.array([x], np.float32))[0]) for x in (-1, 1))
    assert low == ends.min
    assert ends.max - 1024 * (ends.bits == 64) * 2 <= high <= ends.max


def test_unbounded_actions_say_which_and_what_to_do():
    space = spaces.Dict({"arm": spaces.Box(np.array([-1, -np.inf, -1]), np.array([1, 1, np.inf]))})
    with pytest.raises(EnvError, match=r"action 'arm' is unbounded in dimensions \[1, 2\].*TransformAction.*Box\(-1.0"):
        ActionCodec(space)
    with pytest.raises(EnvError, match="unbounded"):
        ActionCodec(spaces.Box(-np.inf, np.inf, ()))


@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))})])
def test_actions_that_cannot_be_chosen(space):
    with pytest.raises(EnvError, match="which is not supported: expected Discrete"):
        ActionCodec(space)


def test_two_actions_of_one_name():
    with pytest.raises(EnvError, match=r"two actions have the same key: found only \['a/b'\]"):
        ActionCodec(spaces.Dict({"a/b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(2)})}))


@pytest.mark.parametrize("space", [spaces.Dict({}), spaces.Box(-1, 1, (0,))])
def test_nothing_to_choose(space):
    with pytest.raises(EnvError, match="expected at least one"):
        ActionCodec(space)


def test_the_remedy_for_unbounded_actions_works(unbounded_env):
    wrapped = TransformAction(unbounded_env, lambda action: action, spaces.Box(-1.0, 1.0, (2,)))
    assert ActionCodec(wrapped.action_space).spec.width == 2
    inside = TransformAction(ClipAction(unbounded_env), lambda action: action, spaces.Box(-1.0, 1.0, (2,)))
    assert ActionCodec(inside.action_space).spec.width == 2
    with pytest.raises((ValueError, AssertionError)):  # earlier versions of Gymnasium assert it
        RescaleAction(unbounded_env, -1.0, 1.0)


@pytest.fixture
def unbounded_env():
    box = spaces.Box(-np.inf, np.inf, (2,))
    return env_zoo.Scripted(spaces.Discrete(2), [0], action_space=box)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(6,), (2, 3), (17,), (40,)])
def test_few_numbers_and_many_are_scaled_alike(shape, dtype):
    rng = np.random.default_rng(0)
    low = (-10 * rng.random(shape)).astype(dtype)
    space = spaces.Box(low, (low + 1e-3 + 20 * rng.random(shape)).astype(dtype), shape, dtype)
    half, middle = ((space.high.astype(float) / 2 + sign * space.low.astype(float) / 2) for sign in (-1, 1))
    codec = ActionCodec(space)
    for _ in range(50):
        flat = (2 * rng.normal(size=low.size)).astype(np.float32)
        expected = (np.clip(flat.astype(float), -1, 1).reshape(shape) * half + middle).astype(dtype)
        got = codec(flat)
        assert got.dtype == dtype
        assert np.array_equal(got, np.clip(expected, space.low, space.high))
