"""IQL's losses against equations 5 to 7, one transition at a time."""

import math

import pytest
import torch
from recorded import TinyNormal, TinyValue, close, lag, normal_density, reaches
from windows import ESTIMATORS, TinyCritic, batch, moves, row, slow_target

from reverie.algos.iql import IQLConfig, IQLObjective, expectile_loss
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.nn.actor_critic import Stacked

GAMMA, TAU, BETA, MOST = 0.9, 0.8, 4.0, 0.3


def objective(**settings) -> IQLObjective:
    torch.manual_seed(0)
    given = {"discount": GAMMA, "expectile": TAU, "beta": BETA, "max_weight": MOST} | settings
    critics, config = Stacked(TinyCritic(), TinyCritic()), IQLConfig(batch_length=5, **given)
    made = IQLObjective(TinyNormal(), critics, TinyValue(), config)
    lag(made.target_critic)
    return made


def slow_losses(made, data, estimator):
    size, length = data.shape
    values = [[made.value(row(data, b, t)).item() for t in range(length)] for b in range(size)]
    sums, weights = {"value": 0.0, "actor": 0.0, "critic": 0.0}, []
    for b, t in moves(data):
        obs, action = row(data, b, t), data.action[b, t]
        q = min(c(obs, action).item() for c in made.target_critic.model.critics)
        u = q - made.value(obs)
        sums["value"] += abs(TAU - (1 if u < 0 else 0)) * u**2
        weights.append(min(math.exp(BETA * (q - values[b][t])), MOST))
        sums["actor"] += -weights[-1] * normal_density(made.actor(obs), action)
        y = slow_target(estimator, data, values, b, t, GAMMA)
        for c in made.critic.critics:
            sums["critic"] += data.weight[b] * (c(obs, action) - y) ** 2
    assert max(weights) == MOST
    assert min(weights) < MOST
    return {name: x / len(moves(data)) for name, x in sums.items()}


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_losses_and_gradients_against_the_definition(estimator):
    made, data = objective(value_estimator=estimator), batch(size=8)
    own = {name: getattr(made, name).parameters() for name in ("value", "actor", "critic")}
    close(made(data), slow_losses(made, data, estimator), own)


def test_each_term_reaches_its_own_networks_alone():
    reaches(objective(), batch(), {"value": {"value"}, "actor": {"actor"}, "critic": {"critic"}})


def test_an_expectile_is_what_minimises_its_loss():
    """That of 0.5 is the mean, and those of larger tau go on towards the maximum."""
    data = torch.tensor([0.0, 1.0, 5.0], dtype=torch.float64)
    grid = torch.linspace(0, 5, 5001, dtype=torch.float64)
    found = [grid[expectile_loss(data - grid[:, None], tau).sum(1).argmin()].item() for tau in (0.5, 0.9, 0.999)]
    assert found[0] == pytest.approx(2.0, abs=1e-3)
    # 0.9 (5 - m) = 0.1 m + 0.1 (m - 1): written by hand for m above 1
    assert found[1] == pytest.approx(4.6 / 1.1, abs=1e-3)
    assert found[2] > 4.98


def agent(**settings):
    vector = ObsPart(kind="vector", shape=(3,), dtype="float32")
    spec = ActionSpec(parts={"move": ActionPart(kind="continuous", size=2)})
    config = IQLConfig(batch_size=4, normalise=None, **settings).merge({"networks.units": (8,)})
    return config.build({"state": vector}, spec)


def test_the_actors_learning_rate_may_fall_to_nothing():
    made, seen = agent(actor_cosine=2), []
    data = batch(4, 2, dtype=torch.float32)
    for _ in range(4):
        made.update(data)
        seen.append([torch.cat([p.detach().flatten() for p in x.parameters()])
                     for x in (made.objective.actor, made.objective.critic)])  # fmt: skip
    (first, _), (second, critic), _, (last, later) = seen
    assert not torch.equal(first, second)
    assert torch.equal(second, last)
    assert not torch.equal(critic, later)


def test_the_value_comes_first_and_the_critics_learn_from_the_new_one():
    """The order of the authors' code."""
    made = agent(value_lr=0.5)
    data = batch(4, 2, crossing=False, dtype=torch.float32)
    before = made.objective.state_values(data)
    update = made.update(data)
    after = made.objective.state_values(data)
    assert not torch.allclose(before, after)
    live = ~data.is_terminal[:, 1]
    expected = (data.reward[:, 1] + 0.99 * live * after[:, 1]).mean()
    torch.testing.assert_close(update.metrics["train/target"], expected)
