"""Errors of open-loop predictions."""

import numpy as np

from reverie.agent.dreaming import measure


def test_errors_whose_squares_float32_does_not_hold():
    real = np.zeros((2, 4), np.float32)
    guess = np.array([[0, 0, 3e38, 3e38], [0, 0, 0, -3e38]], np.float32)
    errors, repeated, _ = measure({"reward": real}, {"reward": guess}, {}, 2)
    np.testing.assert_allclose(errors["reward"], [3e38 / np.sqrt(2), 3e38], rtol=1e-6)
    assert repeated["reward"].tolist() == [0, 0]
