"""Discrete CRR's losses against equations 2 to 4, one transition and one class at a time."""

import math

import pytest
import torch
from recorded import TinyChoices, TinyClasses, choices, close, conservative_gap, lag, reaches, softmax
from windows import ACTS, ESTIMATORS, moves, row, slow_target

from reverie.algos.crr import All, Binary, Exp
from reverie.algos.discrete_crr import DiscreteCRRConfig, DiscreteCRRObjective
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Step

GAMMA = 0.9


def objective(critics=2, **settings) -> DiscreteCRRObjective:
    torch.manual_seed(0)
    config = DiscreteCRRConfig(**{"discount": GAMMA, "batch_length": 5} | settings)
    made = DiscreteCRRObjective(TinyChoices(), TinyClasses(copies=critics), config)
    lag(made.target_actor)
    lag(made.target_critic)
    return made


def weigh(kind, advantage):
    if isinstance(kind, Exp):
        return min(math.exp(advantage / kind.beta), kind.clip)
    return 1.0 if isinstance(kind, All) or advantage > 0 else 0.0


def least(values):
    """min_i Q_i of each class."""
    return [min(critic[a].item() for critic in values) for a in range(ACTS)]


def expected(actor, critic, obs):
    """sum_a pi(a | s) min_i Q_i(s, a)."""
    return sum(p.item() * q for p, q in zip(softmax(actor.body(obs)), least(critic(obs)), strict=True))


def slow_losses(made, data, estimator, weight):
    size, length = data.shape
    worth = [[0.0] * length for _ in range(size)]
    for b in range(size):
        for t in range(1, length):
            worth[b][t] = expected(made.target_actor.model, made.target_critic.model, row(data, b, t))
    sums, weights = {"critic": 0.0, "actor": 0.0}, []
    for b, t in moves(data):
        obs, taken = row(data, b, t), int(data.action[b, t].argmax())
        y = slow_target(estimator, data, worth, b, t, GAMMA)
        values = made.critic(obs)
        for critic in values:
            sums["critic"] += data.weight[b] * (critic[taken] - y) ** 2 + weight * conservative_gap(critic, taken)
        weights.append(weigh(made.cfg.filter, least(values)[taken] - expected(made.actor, made.critic, obs)))
        sums["actor"] += -weights[-1] * torch.log(softmax(made.actor.body(obs))[taken])
    return {name: x / len(moves(data)) for name, x in sums.items()}, weights


@pytest.mark.parametrize("estimator", ESTIMATORS[:3], ids=str)
@pytest.mark.parametrize(("critics", "weight"), [(1, 0.0), (2, 0.0), (1, 0.7), (2, 0.7)])
@pytest.mark.parametrize("kind", [Exp(0.3, 1.2), Binary(), All()], ids=str)
def test_losses_and_gradients_against_the_definition(kind, critics, weight, estimator):
    made, data = objective(critics, value_estimator=estimator, filter=kind, min_q_weight=weight), choices()
    losses = made(data)
    slow, weights = slow_losses(made, data, estimator, weight)
    assert len(set(weights)) > 1 or isinstance(kind, All)
    close(losses, slow, {"critic": made.critic.parameters(), "actor": made.actor.parameters()})
    torch.testing.assert_close(losses.metrics["train/weight"].item(), sum(weights) / len(weights))
    assert ("train/gap" in losses.metrics) == (weight > 0)
    if weight:
        plain = objective(critics, value_estimator=estimator, filter=kind)(data)
        assert losses.metrics["loss/critic"] == plain.metrics["loss/critic"]


@pytest.mark.parametrize("kind", [Exp(), All()], ids=str)
def test_each_term_reaches_its_own_networks_alone(kind):
    """The advantage has no gradient, or the critic would learn to please the policy."""
    made = objective(filter=kind, min_q_weight=1.0)
    reaches(made, choices(), {"critic": {"critic"}, "actor": {"actor"}})


def learner(**changes):
    spec = {"state": ObsPart(kind="vector", shape=(3,), dtype="float32")}
    config = DiscreteCRRConfig(normalise=None).merge({"networks.units": (16,), "batch_size": 8} | changes)
    return config.build(spec, ActionSpec(parts={"move": ActionPart(kind="categorical", classes=(3,))}), seed=1)


def test_the_policy_draws_while_it_explores():
    agent = learner()
    n = 4000
    no = torch.zeros(n, dtype=torch.bool)
    state = torch.randn(1, 3, generator=torch.Generator().manual_seed(0)).expand(n, 3)
    step = Step(obs={"state": state}, reward=torch.zeros(n), is_first=no, is_last=no, is_terminal=no)
    probability = agent.objective.actor(step.obs).log_probs[0].exp()
    torch.manual_seed(0)
    action, _ = agent.policy.act(step, agent.policy.initial(n), "explore")
    torch.testing.assert_close(action.mean(0), probability, rtol=0, atol=0.03)
    action, _ = agent.policy.act(step, agent.policy.initial(n), "eval")
    assert (action.argmax(-1) == probability.argmax()).all()
