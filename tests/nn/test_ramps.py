"""Numbers that change with env steps: their values, where they are used, and how they are written."""

import copy

import pytest
import torch
from torch import nn

from reverie.algos.dqn import DQNConfig
from reverie.algos.dreamer_v3 import DreamerV3Config
from reverie.algos.sac import SACConfig
from reverie.core.bounds import PiecewiseLinear
from reverie.core.errors import ConfigError
from reverie.nn.adam import Adam, GlobalAdamConfig
from reverie.nn.exploration import EpsilonGreedy, EpsilonSchedule
from reverie.nn.optim import LaPropAGCConfig, advance_schedules

POINTS = [[100, 0.0], [200, 1e-2], [400, 5e-3]]


def test_a_ramp_is_linear_between_its_points_and_constant_outside():
    ramp = PiecewiseLinear.from_points(POINTS, "lr")
    found = [ramp.value_at(step) for step in (0, 100, 125, 200, 300, 400, 10**9)]
    assert found == pytest.approx([0.0, 0.0, 2.5e-3, 1e-2, 7.5e-3, 5e-3, 5e-3])


@pytest.mark.parametrize("wrong", [[], [[0, 1], [0, 2]], [[5, 1], [3, 2]], [[0, -1.0]], [[0, 1, 2]], [["a", 1]]])
def test_points_that_are_no_ramp_are_refused(wrong):
    with pytest.raises(ConfigError, match="pairs"):
        DQNConfig().merge({"lr": wrong})


@pytest.mark.parametrize(("kind", "points", "said"), [
    (DQNConfig().replace, ("lr", [[0, 0], [10, 0]]), "lr = "), (EpsilonGreedy, ([[0, 0], [10, 2]],), "epsilon = 2.0"),
])  # fmt: skip
def test_ramps_of_numbers_that_cannot_be_are_refused(kind, points, said):
    with pytest.raises(ConfigError, match=said):
        kind(*points)


def test_ramps_are_written_as_they_are_read():
    config = DQNConfig(lr=POINTS, exploration=EpsilonGreedy([[0, 1], [1000, 0.1]]))
    plain = config.to_dict()
    assert plain["lr"] == POINTS
    assert DQNConfig().merge(plain) == config
    assert DreamerV3Config(entropy_coef=POINTS).to_dict()["entropy_coef"] == POINTS
    assert EpsilonSchedule.parse("epsilon_greedy([[0, 1], [1e3, 0.1]])") == config.exploration
    assert config.exploration.epsilon_at(torch.tensor([300, 200])) == pytest.approx(0.55)


@pytest.mark.parametrize("made", [
    lambda p, lr: Adam(p, lr), lambda p, lr: LaPropAGCConfig(lr=lr, warmup=0).build(p),
    lambda p, lr: GlobalAdamConfig(lr=lr, weight_decay=0.01, implementation="torch").build(p),
])  # fmt: skip
def test_a_step_on_a_ramp_is_that_of_its_present_rate(made):
    start = nn.Parameter(torch.tensor([1.0, -2.0]))
    ramped, constant = copy.deepcopy(start), copy.deepcopy(start)
    rising = made([ramped], PiecewiseLinear.from_points(POINTS, "lr"))
    ramps = {ramp: [rate] for ramp, rate in rising.ramps}
    advance_schedules(ramps, 125)
    for optim, p in ((rising, ramped), (made([constant], 2.5e-3), constant)):
        optim.step((p * torch.tensor([1.0, 3.0])).sum())
    torch.testing.assert_close(ramped, constant)
    assert not torch.equal(ramped, start)
    advance_schedules(ramps, 0)
    before = ramped.detach().clone()
    rising.step(ramped.sum())
    assert torch.equal(ramped, before)


def test_a_temperature_on_a_ramp_is_not_learned():
    with pytest.raises(ConfigError, match="temperature_lr = 0"):
        SACConfig(temperature=[[0, 1], [10, 0]])
