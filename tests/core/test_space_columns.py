"""Columns of recorded values against what an environment of the same space shows, one by one; and the way back."""

import re

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.core.errors import DataError
from reverie.core.spaces import ActionCodec, ObsCodec, cast, columns_in, follow, nested

OBSERVATIONS = {
    "vector": spaces.Box(-np.inf, np.inf, (3,), np.float64),
    "scalar": spaces.Box(0, 1, (), np.float32),
    "matrix": spaces.Box(-1, 1, (2, 3), np.float32),
    "whole numbers": spaces.Box(-1000, 1000, (4,), np.int32),
    "image": spaces.Box(0, 255, (36, 34, 3), np.uint8),
    "image, channels first": spaces.Box(0, 255, (3, 36, 34), np.uint8),
    "stack": spaces.Box(0, 255, (2, 36, 34, 3), np.uint8),
    "grey": spaces.Box(0, 255, (36, 34), np.uint8),
    "planes": spaces.Box(0, 1, (5, 5, 4), np.uint8),
    "floating image": spaces.Box(0.0, 1.0, (36, 34, 3), np.float32),
    "bits": spaces.MultiBinary(5),
    "discrete": spaces.Discrete(7, start=-2),
    "multi-discrete": spaces.MultiDiscrete([[3, 4], [5, 6]], start=[[0, 1], [2, 3]]),
    "text": spaces.Text(6, charset="abc"),
    "nested": spaces.Dict({"arm": spaces.Dict({"angle": spaces.Box(-1, 1, (2,))}), "both": spaces.Tuple(
        (spaces.Discrete(3), spaces.Box(0, 255, (36, 34, 3), np.uint8)))}),
}  # fmt: skip

ACTIONS = {
    "discrete": spaces.Discrete(4, start=3),
    "multi-discrete": spaces.MultiDiscrete([2, 3, 4]),
    "grid": spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 1], [2, 2]]),
    "bits": spaces.MultiBinary(3),
    "unit": spaces.Box(-1, 1, (3,), np.float32),
    "box": spaces.Box(np.float32([-2, 0, 5]), np.float32([2, 10, 5.5]), (3,), np.float32),
    "nested": spaces.Dict({"move": spaces.Box(-3, 1, (2, 2)), "grip": spaces.Discrete(3)}),
    "tuple": spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1, (1,)))),
}


def columns(space, values, root):
    """What readers make of values: a column for each leaf."""
    if isinstance(space, spaces.Dict):
        inner = [(key, inside, [value[key] for value in values]) for key, inside in space.spaces.items()]
    elif isinstance(space, spaces.Tuple):
        inner = [(key, inside, [value[key] for value in values]) for key, inside in enumerate(space.spaces)]
    else:
        kind = object if isinstance(space, spaces.Text) else None
        return {root: np.array(values, kind)}
    out = {}
    for key, inside, found in inner:
        out |= columns(inside, found, f"{root}/{key}")
    return out


@pytest.mark.parametrize("kind", OBSERVATIONS)
def test_observations(kind):
    space = OBSERVATIONS[kind]
    space.seed(0)
    values = [space.sample() for _ in range(9)]
    codec = ObsCodec(space)
    found = codec.encode(columns(space, values, "obs"))
    for key in codec.spec:
        truth = np.stack([codec(value)[key] for value in values])
        assert found[f"obs/{key}"].dtype == truth.dtype
        np.testing.assert_array_equal(found[f"obs/{key}"], truth)


@pytest.mark.parametrize("kind", ACTIONS)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_actions_lead_back(kind, seed):
    """The flat action of a recorded one means that one to the environment; nothing is done in last rows."""
    space = ACTIONS[kind]
    space.seed(seed)
    values = [space.sample() for _ in range(5)]
    last = np.random.default_rng(seed).random(5) < 0.3
    codec = ActionCodec(space)
    rows = columns(space, values, "action")
    for column in rows.values():
        column[last] = 0  # as readers leave it, whatever that means in the space
    flat = codec.encode(rows | {"is_last": last})
    assert flat.shape == (5, codec.spec.width)
    assert flat.dtype == np.float32
    assert not codec.outside
    for row, value in enumerate(values):
        if last[row]:
            assert not flat[row].any()
        else:
            again = columns(space, [codec(flat[row])], "a")
            for name, truth in columns(space, [value], "a").items():
                np.testing.assert_allclose(again[name].astype(float), truth.astype(float), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("space", "rows", "said"),
    [
        (spaces.Box(-1, 1, (2,)), np.float32([[0, 0], [0, np.nan]]), r"of row 11 is .*nan.*finite"),
        (spaces.Box(-1, 1, (2,)), np.float64([[0, 1e300], [0, 0]]), r"of row 10 is .*1e\+300"),
        (
            spaces.Box(-1, 1, (2,)),
            np.zeros((2, 3), np.float32),
            r"of row 10 has shape \(3,\); its space declares \(2,\)",
        ),
        (spaces.Discrete(3), np.array([0, 3]), r"of row 11 is 3; its space declares 0\.\.2"),
        (spaces.Discrete(3), np.array([0.0, 1.0]), r"dtype float64; its space declares int64"),
        (
            spaces.Box(0, 255, (36, 36, 3), np.uint8),
            np.zeros((2, 36, 36, 3)),
            "dtype float64; its space declares uint8",
        ),
    ],
)
def test_observations_that_are_not_of_the_space(space, rows, said):
    with pytest.raises(DataError, match=said):
        ObsCodec(space).encode({"obs": rows}, 10)


@pytest.mark.parametrize(
    ("space", "rows", "said"),
    [
        (spaces.Discrete(3), np.array([0, 3]), r"'action' of row 11 is 3; its space declares 0\.\.2"),
        (spaces.Discrete(3), np.array([0.0, 1.5]), r"of row 11 is 1\.5"),
        (spaces.MultiDiscrete([2, 2]), np.array([[0], [1]]), "has 1 discrete values; its space declares 2"),
        (spaces.Box(-1, 1, (2,)), np.float32([[0, 0], [np.inf, 0]]), "of row 11 is"),
        (spaces.Box(-1, 1, (2,)), np.zeros((2, 1), np.float32), "has shape"),
    ],
)
def test_actions_that_are_not_of_the_space(space, rows, said):
    with pytest.raises(DataError, match=said):
        ActionCodec(space).encode({"action": rows, "is_last": np.zeros(2, bool)}, 10)


SPACES = {
    "vector": spaces.Box(-3, 3, (2,), np.float32),
    "double": spaces.Box(-3, 3, (2, 2), np.float64),
    "whole": spaces.Box(-3, 9, (2,), np.int16),
    "picture": spaces.Box(0, 255, (5, 6, 3), np.uint8),
    "first": spaces.Box(0, 255, (3, 5, 6), np.uint8),
    "stack": spaces.Box(0, 255, (2, 5, 6, 3), np.uint8),
    "stack, first": spaces.Box(0, 255, (2, 3, 5, 6), np.uint8),
    "grey": spaces.Box(0, 255, (5, 6), np.uint8),
    "planes": spaces.Box(0, 1, (5, 6, 4), np.int64),
    "few": spaces.Box(-3, 7, (5, 6, 3), np.int8),
    "float": spaces.Box(0, 1, (5, 6, 3), np.float32),
    "choice": spaces.Discrete(4, start=-2),
    "choices": spaces.MultiDiscrete([[3, 4], [2, 5]], start=[[0, 1], [-1, 2]]),
    "bits": spaces.MultiBinary(3),
    "cube of bits": spaces.MultiBinary((5, 6, 3)),
    "text": spaces.Text(5, min_length=0, charset="abz 1"),
}


def there_and_back(space, keep=bool, channels="auto", n=20):
    space.seed(0)
    codec, given = ObsCodec(space, keep, channels), [space.sample() for _ in range(n)]
    flat = [codec(value) for value in given]
    rows = {f"obs/{key}": np.stack([row[key] for row in flat]) for key in codec.spec}
    if len(rows) == 1 and "/" not in next(iter(codec.spec)):
        rows = {"obs": next(iter(rows.values()))}
    found, kept = codec.decode(rows | {"reward": np.zeros(n)}), codec.kept_space()
    assert {name for name in found if name != "reward"} == {name for name, _ in columns_in(kept, "obs")}
    again = ObsCodec(kept, channels=channels)
    assert again.spec == codec.spec
    for i, row in enumerate(flat):
        one = nested(kept, {name: values[i : i + 1] for name, values in found.items()}, "obs")
        for leaf in again.leaves:
            np.testing.assert_array_equal(leaf.encode(follow(one, leaf.path)[0], 0), row[leaf.key], err_msg=leaf.key)
    for name, leaf in columns_in(kept, "obs"):
        assert all(leaf.contains(str(v) if isinstance(leaf, spaces.Text) else v) for v in found[name]), name


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("channels", ["auto", "first"])
def test_every_kind_alone_and_in_a_dictionary(name, channels):
    there_and_back(SPACES[name], channels=channels)
    there_and_back(spaces.Dict({"in": spaces.Dict({"side": SPACES[name]})}), channels=channels)


@pytest.mark.parametrize(
    ("values", "dtype", "wrong"),
    [
        ([0, 255], np.uint8, None),
        ([0, 300], np.uint8, "300"),
        ([0.0, 1.5], np.uint8, "1.5"),
        ([0.0, 0.1 * 30], np.uint8, None),
        ([0.0, np.nan], np.int64, "nan"),
        ([0, 2**40], np.int32, "1099511627776"),
        ([0, 2], np.bool_, "2"),
        ([0.1, np.inf], np.float16, None),
        ([0.1, 1e5], np.float16, "100000.0"),
        ([0, 2**53 + 1], np.float64, str(2**53 + 1)),
        (["a", "b"], object, None),
    ],
)
def test_values_that_a_dtype_cannot_hold_are_told(values, dtype, wrong):
    if wrong is None:
        found = cast(np.array(values), dtype, "obs/arm")
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, np.array(values, dtype) if dtype != np.uint8 else np.rint(values))
    else:
        with pytest.raises(DataError, match=rf"obs/arm is {re.escape(wrong)} in row 1: expected a value of "):
            cast(np.array(values), dtype, "obs/arm")
