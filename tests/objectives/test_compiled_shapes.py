"""Compiled functions get only the addresses of tensors: each refuses a shape that does not fit, and reads no other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from reverie.core.compiler import kernels
from reverie.core.types import Batch
from reverie.objectives import compiled_choices, compiled_quantile, compiled_td

pytestmark = pytest.mark.skipif(kernels() is None, reason="nothing is compiled")

B, T, A, K, N = 3, 4, 5, 2, 6
"""Windows, their rows, classes, critics, quantiles."""


def flags() -> torch.Tensor:
    return torch.zeros(B, T, dtype=torch.bool)


def batch() -> Batch:
    return Batch(
        obs={},
        action=torch.zeros(B, T, A),
        reward=torch.zeros(B, T),
        is_first=flags(),
        is_last=flags(),
        is_terminal=flags(),
        weight=torch.ones(B),
        index=torch.zeros(B, dtype=torch.int64),
    )


def quantile_error(prediction, target, **parts):
    return compiled_quantile.error_and_gradient(prediction, target, replace(batch(), **parts), 1.0)


def quantile_targets(following, **parts):
    return compiled_quantile.quantile_targets(following, replace(batch(), **parts), 1, 0.9)


def loss_and_gradient(**given):
    return compiled_choices.loss_and_gradient(classes=(2, 3), **given)


def likely_worth(**given):
    return compiled_choices.likely_worth(least=-1.0, **given)


def quantile_huber(**given):
    return compiled_quantile.quantile_huber(kappa=1.0, **given)


CASES = {
    loss_and_gradient: {
        "logits": torch.zeros(B, T - 1, A), "action": torch.zeros(B, T, A), "last": flags(),
        "weight": torch.ones(B, T - 1),
    },
    likely_worth: {name: torch.zeros(B, A) for name in ("values", "logits", "worth")},
    compiled_choices.expected_least: {
        "logits": torch.zeros(B, A), "values": torch.zeros(K, B, A), "action": torch.zeros(B, A)
    },
    quantile_huber: {"prediction": torch.zeros(B, N), "target": torch.zeros(B, N)},
    compiled_quantile.best_quantiles: {name: torch.zeros(B, A, N) for name in ("quantiles", "preferred")},
    quantile_targets: {
        "following": torch.zeros(B, T - 1, N), "reward": torch.zeros(B, T), "is_terminal": flags(), "is_last": flags()
    },
    quantile_error: {
        "prediction": torch.zeros(B, T - 1, A, N), "target": torch.zeros(B, T - 1, N), "action": torch.zeros(B, T, A),
        "is_last": flags(), "weight": torch.ones(B),
    },
    compiled_td.mean_and_shares: {"x": torch.zeros(B, T - 1), "mask": torch.ones(B, T - 1, dtype=torch.bool)},
    compiled_td.error_and_gradient: {
        "prediction": torch.zeros(K, B, T - 1), "target": torch.zeros(B, T - 1), "last": flags(),
        "weight": torch.ones(B),
    },
}  # fmt: skip
FREE = {
    quantile_huber: {("prediction", 1), ("target", 1)},  # N and N' may differ
    quantile_targets: {("following", 2)},  # any number of quantiles
    compiled_choices.expected_least: {("values", 0)},  # any number of critics
    compiled_td.error_and_gradient: {("prediction", 0)},
}
WRONG = [
    pytest.param(function, name, axis, id=f"{function.__name__}-{name}-{axis}")
    for function, given in CASES.items()
    for name, x in given.items()
    for axis in range(x.ndim)
    if (name, axis) not in FREE.get(function, ())
]


@torch.no_grad()
@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_shapes_that_fit(function):
    function(**CASES[function])


@torch.no_grad()
@pytest.mark.parametrize(("function", "name", "axis"), WRONG)
def test_a_tensor_that_is_too_short_is_refused(function, name, axis):
    given = CASES[function]
    with pytest.raises(ValueError, match="shape"):
        function(**given | {name: given[name].narrow(axis, 1, given[name].shape[axis] - 1)})
