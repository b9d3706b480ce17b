"""Optimizers with a loss scale: where a gradient overflows nothing changes, and else what would change without it."""

import math

import pytest
import torch
from torch import nn

from reverie.nn.adam import Adam, GlobalAdamConfig, joint_gradient_step
from reverie.nn.loss_scale import GROWTH_INTERVAL, INITIAL, LOWEST, LossScale
from reverie.nn.optim import GlobalRMSpropConfig, LaPropAGCConfig, ReleasedLaPropConfig, gradient_steps

CPU = torch.device("cpu")


class Pair:
    """Two optimizers of a parameter each, or one optimizer of both; they minimize a loss that is linear in each."""

    def __init__(self, kind: str, scale: LossScale | None) -> None:
        self.params = [nn.Parameter(torch.linspace(1, 2, n)) for n in (3, 4)]
        made = {
            "adam": lambda p: Adam(p, 0.1, weight_decay=0.1, decoupled_decay=0.1),
            "joint": lambda p: Adam(p, 0.1),
            "agc": LaPropAGCConfig(lr=0.1, warmup=0).build,
            "laprop": ReleasedLaPropConfig(lr=0.1, warmup=2).build,
            "rmsprop": GlobalRMSpropConfig(lr=0.1).build,
            "global_adam": GlobalAdamConfig(lr=0.1, weight_decay=0.1).build,
            "torchs_adam": GlobalAdamConfig(lr=0.1, implementation="torch").build,
        }[kind]
        self.kind = kind
        self.optims = [made([p]) for p in self.params] if kind == "joint" else [made(self.params)]
        self.scale = scale
        for optim in self.optims:
            optim.loss_scale = scale

    def step(self, slope: float) -> None:
        loss = slope * self.params[0].sum() - 0.5 * self.params[1].sum()
        if self.kind == "joint":
            joint_gradient_step(loss, self.optims, 1.0)
        elif self.kind == "agc":
            gradient_steps({"it": loss}, {"it": self.optims[0]})
        else:
            self.optims[0].step(loss)
        if self.scale is not None:
            self.scale.adjust()

    def tensors(self) -> list[torch.Tensor]:
        return [x.clone() for optim in self.optims for x in optim.tensors()]


@pytest.mark.parametrize("kind", ["adam", "joint", "agc", "laprop", "rmsprop", "global_adam", "torchs_adam"])
def test_steps_are_those_without_a_scale_but_where_a_gradient_overflows(kind: str) -> None:
    """Also of the second parameter, whose gradient is finite."""
    scaled, plain = Pair(kind, LossScale(CPU)), Pair(kind, None)
    for slope in (0.3, math.inf, -0.2, math.nan, 0.1):
        before = scaled.tensors()
        scaled.step(slope)
        if math.isfinite(slope):
            plain.step(slope)
        else:
            torch.testing.assert_close(scaled.tensors(), before, rtol=0, atol=0)
        torch.testing.assert_close(scaled.tensors(), plain.tensors(), rtol=0, atol=0)
    assert not torch.equal(scaled.params[1], Pair(kind, None).params[1])
    assert scaled.scale is not None
    assert scaled.scale.value == INITIAL / 4


def test_the_scale_doubles_after_many_updates_without_overflow_and_ends_where_nothing_is_finite() -> None:
    pair = Pair("adam", scale := LossScale(CPU))
    pair.step(math.inf)
    used = []
    for _ in range(GROWTH_INTERVAL + 1):
        pair.step(0.1)
        used.append(float(scale.value))
    assert used == [INITIAL / 2] * (GROWTH_INTERVAL - 1) + [INITIAL] * 2
    assert scale.streak == 1
    while scale.value >= LOWEST:
        pair.step(math.nan)
        assert pair.params[0].isfinite().all()
    pair.step(math.nan)  # a run finds weights that are not finite, and ends
    assert pair.params[0].isnan().all()
