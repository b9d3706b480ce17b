"""Rows back to what an environment showed: the inverse of how they were made, for every kind of space."""

from __future__ import annotations

import re

import numpy as np
import pytest
from gymnasium import spaces

from reverie.core.errors import DataError
from reverie.data.readers.spaces import leaves_of, nested
from reverie.envs.base import EnvConfig
from reverie.envs.spaces import ObsCodec
from reverie.envs.unflatten import GivenBack, cast

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


def there_and_back(space: spaces.Space, config: EnvConfig, n: int = 20) -> None:
    space.seed(0)
    codec, given = ObsCodec(space, config.keeps, config.channels), [space.sample() for _ in range(n)]
    flat = [codec(value) for value in given]
    rows = {f"obs/{key}": np.stack([row[key] for row in flat]) for key in codec.spec}
    if len(rows) == 1 and "/" not in next(iter(codec.spec)):
        rows = {"obs": next(iter(rows.values()))}
    back = GivenBack(space, codec.spec, config)
    found = back(rows | {"reward": np.zeros(n)})
    assert {name for name in found if name != "reward"} == {name for name, _, _ in leaves_of(back.space, "obs")}
    again = ObsCodec(back.space, channels=config.channels)
    assert again.spec == codec.spec
    for i, row in enumerate(flat):
        one = nested(back.space, {name: values[i : i + 1] for name, values in found.items()}, "obs")
        for key, path, convert in again.leaves:
            value = one
            for name in path:
                value = value[name]
            np.testing.assert_array_equal(convert(value[0]), row[key], err_msg=key)
    for name, _, leaf in leaves_of(back.space, "obs"):
        assert all(leaf.contains(str(v) if isinstance(leaf, spaces.Text) else v) for v in found[name]), name


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("channels", ["auto", "first", "last"])
def test_every_kind_alone_and_in_a_dictionary(name: str, channels: str) -> None:
    config = EnvConfig().merge({"channels": channels})
    there_and_back(SPACES[name], config)
    there_and_back(spaces.Dict({"in": spaces.Dict({"side": SPACES[name]})}), config)


def test_all_together_and_what_was_seen_of_them() -> None:
    whole = spaces.Dict({**SPACES, "pair": spaces.Tuple((SPACES["choice"], SPACES["text"]))})
    there_and_back(whole, EnvConfig())
    there_and_back(whole, EnvConfig().merge({"exclude": "p.*|text"}))
    there_and_back(whole, EnvConfig().merge({"include": "choice"}))
    with pytest.raises(ValueError, match="a part of a tuple"):
        there_and_back(whole, EnvConfig().merge({"exclude": "pair/0"}))


def test_rows_of_something_else_are_told() -> None:
    with pytest.raises(ValueError, match="differ from the recorded ones"):
        GivenBack(SPACES["double"], ObsCodec(SPACES["vector"]).spec, EnvConfig())


@pytest.mark.parametrize(
    ("values", "dtype", "wrong"),
    [
        ([0, 255], np.uint8, None),
        ([0, 300], np.uint8, "300"),
        ([0, -1], np.uint8, "-1"),
        ([0.0, 1.5], np.uint8, "1.5"),
        ([0.0, 0.1 * 30], np.uint8, None),
        ([0.0, np.nan], np.int64, "nan"),
        ([0, 2**40], np.int32, "1099511627776"),
        ([0, 2], np.bool_, "2"),
        ([0.1, np.inf], np.float16, None),
        ([0.1, 1e5], np.float16, "100000.0"),
        ([0.1, 1e300], np.float32, "1e+300"),
        (["a", "b"], object, None),
    ],
)
def test_values_that_a_dtype_cannot_hold_are_told(values, dtype, wrong) -> None:
    if wrong is None:
        found = cast(np.array(values), dtype, "obs/arm")
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, np.array(values, dtype) if dtype != np.uint8 else np.rint(values))
    else:
        with pytest.raises(DataError, match=rf"obs/arm is {re.escape(wrong)} in row 1: expected a value of "):
            cast(np.array(values), dtype, "obs/arm")


def test_rows_beyond_the_declared_dtype_are_told() -> None:
    space = spaces.Box(0, 255, (2,), np.uint8)
    back = GivenBack(space, ObsCodec(space).spec, EnvConfig())
    with pytest.raises(DataError, match=r"obs is 300\.0 in row 0: expected a value of uint8"):
        back({"obs": np.array([[1, 300]], np.float32)})
