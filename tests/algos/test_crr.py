"""CRR's losses against equations 2 to 4, one transition at a time."""

import math

import pytest
import torch
from recorded import TinyNormal, close, lag, normal_density, reaches
from windows import ACTS, ESTIMATORS, TinyCritic, batch, moves, row, slow_target

from reverie.algos.crr import All, Binary, CRRConfig, CRRObjective, Exp, Max, Mean
from reverie.nn.actor_critic import Stacked

GAMMA, SAMPLES = 0.9, 3


def objective(**settings) -> CRRObjective:
    torch.manual_seed(0)
    given = {"discount": GAMMA, "samples": SAMPLES} | settings
    made = CRRObjective(TinyNormal(), Stacked(TinyCritic(), TinyCritic()), CRRConfig(batch_length=5, **given))
    lag(made.target_actor)
    lag(made.target_critic)
    return made


def weigh(kind, advantage):
    if isinstance(kind, Exp):
        return min(math.exp(advantage / kind.beta), kind.clip)
    return 1.0 if isinstance(kind, All) or advantage > 0 else 0.0


def cut(action):
    return torch.tensor([max(-1.0, min(1.0, float(a))) for a in action], dtype=torch.float64)


def slow_losses(made, data, estimator, after, drawn):
    """``after`` ``[B, T-1, A]`` is the noise of next actions, ``drawn`` ``[m, B, T-1, A]`` that of the policy's."""
    size, length = data.shape
    worth = [[0.0] * length for _ in range(size)]
    for b in range(size):
        for t in range(1, length):
            policy = made.target_actor.model(row(data, b, t))
            action = cut(policy.mean + policy.log_std.exp() * after[b, t - 1])
            worth[b][t] = min(c(row(data, b, t), action).item() for c in made.target_critic.model.critics)
    sums, weights = {"critic": 0.0, "actor": 0.0}, []
    for b, t in moves(data):
        obs, action = row(data, b, t), data.action[b, t]
        y = slow_target(estimator, data, worth, b, t, GAMMA)
        for c in made.critic.critics:
            sums["critic"] += data.weight[b] * (c(obs, action) - y) ** 2
        policy = made.actor(obs)
        own = []
        for noise in drawn[b, t]:
            tried = cut(policy.mean + policy.log_std.exp() * noise)
            own.append(min(c(obs, tried).item() for c in made.critic.critics))
        baseline = max(own) if isinstance(made.cfg.baseline, Max) else sum(own) / len(own)
        advantage = min(c(obs, action).item() for c in made.critic.critics) - baseline
        weights.append(weigh(made.cfg.filter, advantage))
        sums["actor"] += -weights[-1] * normal_density(policy, action)
    return {name: x / len(moves(data)) for name, x in sums.items()}, weights


@pytest.mark.parametrize("estimator", ESTIMATORS[:3], ids=str)
@pytest.mark.parametrize("baseline", [Mean(), Max()], ids=str)
@pytest.mark.parametrize("kind", [Exp(0.3, 1.2), Binary(), All()], ids=str)
def test_losses_and_gradients_against_the_definition(kind, baseline, estimator):
    made, data = objective(value_estimator=estimator, filter=kind, baseline=baseline), batch(size=8)
    torch.manual_seed(7)
    losses = made(data)
    torch.manual_seed(7)
    after, drawn = (torch.randn(8, 4, *n, ACTS, dtype=torch.float64) for n in ((), (SAMPLES,)))
    slow, weights = slow_losses(made, data, estimator, after, drawn)
    assert len(set(weights)) == {Exp: len(weights), Binary: 2, All: 1}[type(kind)] or (max(weights) == 1.2)
    close(losses, slow, {"critic": made.critic.parameters(), "actor": made.actor.parameters()})


@pytest.mark.parametrize("kind", [Exp(), All()], ids=str)
def test_each_term_reaches_its_own_networks_alone(kind):
    """The advantage has no gradient, or the critic would learn to please the policy."""
    reaches(objective(filter=kind), batch(), {"critic": {"critic"}, "actor": {"actor"}})


def test_all_is_behaviour_cloning():
    made, data = objective(filter=All()), batch()
    total = -sum(normal_density(made.actor(row(data, b, t)), data.action[b, t]) for b, t in moves(data))
    torch.testing.assert_close(made.actor_loss(data).terms["actor"], total / len(moves(data)), rtol=1e-10, atol=1e-12)
