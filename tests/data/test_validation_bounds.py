"""The rules that recorded episodes must satisfy, on single columns."""

import numpy as np
import pytest
from gymnasium import spaces

from d4rl_files import columns, write
from reverie.datasets.convert import write as copy
from reverie.datasets.detect import open_reader
from reverie.datasets.validate import outside, validate


def broken(values, space):
    """Return the rules that some of ``values`` ``[n, ...]`` break."""
    found = outside("obs", values, space)
    return [rule for rule, wrong in found if wrong.any()]


def test_bools_are_numbers(tmp_path):
    values = columns()
    numbers = np.arange(1, 15)[:, None] >> np.arange(4) & 1 == 1  # no two rows are the same
    path = write(tmp_path / "a.hdf5", values | {"observations": numbers, "next_observations": np.roll(numbers, -1, 0)})
    with open_reader(str(path)) as reader:
        assert validate(reader).sound
        copy(reader, str(tmp_path / "table"), "parquet")
    with open_reader(str(tmp_path / "table")) as reader:
        assert validate(reader).sound
    assert broken(np.full((2, 3), "a"), spaces.Box(-1, 1, (3,), np.float32)) == [
        "obs has dtype <U1; its space declares float32"
    ]


@pytest.mark.parametrize(
    ("low", "high", "inside", "beyond"),
    [
        (-1e-6, 1e-6, [-1e-6, 1.00001e-6], [2e-6, -1.1e-6]),
        (-1, 1000, [-1.005, 1000.005], [-1.1, 1000.1]),  # the error of sums grows with the range
        (7, 7, [6.99999, 7.00001], [6.999, 7.001]),
        (0, np.inf, [-0.99e-5, 1e38], [-1.01e-5]),  # as with a range of 1
        (-np.inf, -5, [-4.99996, -1e38], [-4.9999]),
        (-3e38, 3e38, [-3e38, 3e38], [3.2e38]),
    ],
)
def test_a_tolerance_in_units_of_the_bounds(low, high, inside, beyond):
    space = spaces.Box(low, high, (1,), np.float32)
    assert not broken(np.array(inside, np.float32)[:, None], space)
    for value in beyond:
        assert broken(np.array([[value]], np.float32), space) == ["obs is outside the bounds of its space"]
