"""Discrete CQL's loss against equation 4 on quantiles, one transition and one pair of quantiles at a time."""

from dataclasses import replace

import pytest
import torch
from recorded import TinyClasses, choices, conservative_gap, lag, reaches
from windows import moves, row

from reverie.algos.discrete_cql import DiscreteCQLConfig, DiscreteCQLObjective
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.objectives.conservative import choice_gap
from reverie.objectives.estimators import TD0, TD1, NStep

GAMMA, N = 0.9, 4
OBS = {"state": ObsPart(kind="vector", shape=(3,), dtype="float32")}
CHOICE = ActionSpec(parts={"move": ActionPart(kind="categorical", classes=(3,))})


def objective(**settings) -> DiscreteCQLObjective:
    torch.manual_seed(0)
    made = DiscreteCQLObjective(TinyClasses(each=N), DiscreteCQLConfig(batch_length=5, discount=GAMMA, **settings))
    lag(made.target_network)
    return made


def slow_targets(made, data, b, t, steps) -> list[float]:
    """Rewards one by one up to the row that is bootstrapped from, and the quantiles of its best class there."""
    end, reward, discount = data.reward.shape[1] - 1, 0.0, 1.0
    for _ in range(steps):
        t += 1
        reward, discount = reward + discount * float(data.reward[b, t]), discount * GAMMA
        if data.is_terminal[b, t]:
            return [reward] * N
        if data.is_last[b, t] or t == end:
            break
    theirs, mine = (net(row(data, b, t)).tolist() for net in (made.target_network.model, made.network))
    means = [sum(x) / N for x in (mine if made.cfg.double else theirs)]
    return [reward + discount * x for x in theirs[means.index(max(means))]]


def slow_loss(made, data, steps):
    """The quantile loss and the gap, summed over all actions that were taken."""
    quantile, gap = 0.0, 0.0
    for b, t in moves(data):
        theta, taken = made.network(row(data, b, t)), int(data.action[b, t].argmax())
        for i in range(N):
            for y in slow_targets(made, data, b, t, steps):
                u = y - theta[taken][i]
                huber = u**2 / 2 if u.abs() <= made.cfg.kappa else made.cfg.kappa * (u.abs() - made.cfg.kappa / 2)
                quantile = quantile + data.weight[b] * abs((2 * i + 1) / (2 * N) - float(u < 0)) * huber / N
        gap = gap + conservative_gap(torch.stack([x.sum() / N for x in theta]), taken)
    return quantile / len(moves(data)), gap / len(moves(data))


@pytest.mark.parametrize("estimator", [TD0(), TD1(), NStep(2)], ids=str)
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_loss_and_gradient_against_the_definition(estimator, double, weight):
    made, data = objective(value_estimator=estimator, double=double, min_q_weight=weight), choices()
    losses = made(data)
    quantile, gap = slow_loss(made, data, estimator.steps(data.shape[1]))
    slow = quantile + weight * gap
    torch.testing.assert_close(losses.terms["critic"], slow, rtol=1e-10, atol=1e-12)
    parameters = list(made.network.parameters())
    got, expected = (torch.autograd.grad(x, parameters) for x in (losses.terms["critic"], slow))
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)
    said = {"loss/critic": quantile, "train/gap": gap, "loss/conservative": weight * gap}
    for name, value in said.items():
        torch.testing.assert_close(losses.metrics[name], value.detach(), rtol=1e-10, atol=1e-12)


def test_the_gap_by_hand():
    """Of two classes as good as each other it is ln 2, and more where the other one is better."""
    data = choices(size=1, length=2)
    data.is_last.fill_(False)
    data.action.copy_(torch.tensor([1.0, 0.0]))
    for other, gap in ((0.0, 0.6931472), (3.0, 3.0485874), (-50.0, 0.0)):
        values = torch.tensor([[[0.0, other]]], dtype=torch.float64)
        assert choice_gap(values, data).item() == pytest.approx(gap, abs=1e-6)
        assert choice_gap(torch.stack([values, values]), data).item() == pytest.approx(2 * gap, abs=1e-6)


def test_the_gradient_reaches_the_network_alone():
    reaches(objective(), choices(), {"critic": {"network"}})


def test_values_of_what_was_never_tried_are_pressed_down():
    """All actions are the first class: the others become worth less, and with more weight still less."""
    distance = []
    for weight in (0.0, 1.0, 10.0):
        config = DiscreteCQLConfig(min_q_weight=weight, quantiles=8, lr=3e-3, normalise=None, batch_size=32)
        agent = config.merge({"networks.units": (16,)}).build(OBS, CHOICE, seed=0)
        data = choices(32, length=2, dtype=torch.float32)
        first = torch.zeros(32, 2, 3)
        first[..., 0] = 1.0
        data = replace(data, action=first)
        for _ in range(60):
            agent.update(data)
        q = agent.objective.values({"state": data.obs["state"][:, 0]})
        distance.append((q[:, 0] - q[:, 1:].amax(-1)).mean().item())
    assert distance[0] + 0.5 < distance[1] < distance[2] - 0.5
