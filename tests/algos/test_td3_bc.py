"""TD3+BC's actor against equations 3 and 5, one transition at a time; the rest is TD3's."""

import pytest
import torch
from recorded import close, lag, reaches
from windows import ESTIMATORS, TinyActor, TinyCritic, batch, moves, row

from reverie.algos.td3 import TD3Objective
from reverie.algos.td3_bc import TD3BCConfig, TD3BCObjective
from reverie.nn.actor_critic import Stacked

ALPHA = 1.7


def objective(kind=TD3BCObjective, **settings):
    torch.manual_seed(0)
    made = kind(TinyActor(), Stacked(TinyCritic(), TinyCritic()), TD3BCConfig(batch_length=5, discount=0.9, **settings))
    lag(made.target_actor)
    lag(made.target_critic)
    return made


def slow_actor(made, data):
    """Lambda is a number: what a unit of value counts."""
    first, n = made.critic.critics[0], len(moves(data))
    actions = {(b, t): made.actor(row(data, b, t)) for b, t in moves(data)}
    values = {(b, t): first(row(data, b, t), action) for (b, t), action in actions.items()}
    factor = ALPHA / (sum(abs(q.item()) for q in values.values()) / n)
    total = sum(-factor * q for q in values.values())
    for (b, t), action in actions.items():
        total = total + sum((x - y) ** 2 for x, y in zip(action, data.action[b, t], strict=True)) / len(action)
    return total / n


def test_the_actor_against_the_definition():
    made, data = objective(alpha=ALPHA), batch(size=8)
    assert len(moves(data)) < 8 * 4  # some rows are the last of an episode, and have no action
    close(made.actor_loss(data), {"actor": slow_actor(made, data)}, {"actor": made.actor.parameters()})


@pytest.mark.parametrize("estimator", ESTIMATORS[:2], ids=str)
def test_the_critics_are_those_of_td3(estimator):
    data, terms = batch(size=8), []
    for kind, more in ((TD3BCObjective, {"alpha": ALPHA}), (TD3Objective, {})):
        made = objective(kind, value_estimator=estimator, **more)
        torch.manual_seed(3)
        terms.append(made.critic_loss(data).terms["critic"])
    assert torch.equal(*terms)


def test_each_term_reaches_its_own_networks_alone():
    reaches(objective(), batch(), {"critic": {"critic"}, "actor": {"actor"}})


def test_values_count_the_same_in_any_unit():
    made, data = objective(alpha=ALPHA), batch()
    before = torch.autograd.grad(made.actor_loss(data).terms["actor"], list(made.actor.parameters()))
    with torch.no_grad():
        for critic in made.critic.critics:
            critic.layers[-1].weight *= 1000
            critic.layers[-1].bias *= 1000
    after = torch.autograd.grad(made.actor_loss(data).terms["actor"], list(made.actor.parameters()))
    torch.testing.assert_close(after, before, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("alpha", [ALPHA, 100.0])
def test_critics_that_say_nothing_leave_cloning_alone(alpha):
    made, data = objective(alpha=alpha), batch()
    with torch.no_grad():
        for p in made.critic.parameters():
            p.zero_()
    losses = made.actor_loss(data)
    assert torch.equal(losses.terms["actor"], losses.metrics["loss/cloning"])
    assert all(
        torch.isfinite(g).all() for g in torch.autograd.grad(losses.terms["actor"], list(made.actor.parameters()))
    )
