"""Discrete BCQ's losses against algorithm 1, one transition and one class at a time; which actions it leaves."""

import math

import pytest
import torch
from recorded import TinyClasses, choices, lag, reaches, softmax
from torch import nn
from windows import ACTS, ESTIMATORS, moves, row, slow_target

from reverie.algos.discrete_bcq import DiscreteBCQConfig, DiscreteBCQObjective
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Step

GAMMA, THRESHOLD = 0.9, 0.8
OBS = {"state": ObsPart(kind="vector", shape=(3,), dtype="float32")}
CHOICE = ActionSpec(parts={"move": ActionPart(kind="categorical", classes=(4,))})


def objective(**settings) -> DiscreteBCQObjective:
    torch.manual_seed(0)
    given = {"discount": GAMMA, "threshold": THRESHOLD} | settings
    made = DiscreteBCQObjective(TinyClasses(copies=2), DiscreteBCQConfig(batch_length=5, **given))
    lag(made.target_network)
    return made


def slow_best(made, obs, threshold) -> tuple[int, int]:
    """The best of the likely classes, and how many these are."""
    values, logits = made.network(obs)
    clone = [p.item() for p in softmax(logits)]
    likely = [a for a in range(ACTS) if clone[a] / max(clone) >= threshold]
    return max(likely, key=lambda a: values[a].item()), len(likely)


def slow_losses(made, data, estimator, threshold, logit_weight, kappa):
    size, length = data.shape
    worth, left = [[0.0] * length for _ in range(size)], []
    for b in range(size):
        for t in range(1, length):
            best, count = slow_best(made, row(data, b, t), threshold)
            worth[b][t] = made.target_network.model(row(data, b, t))[0][best].item()
            left.append(count)
    critic = imitation = 0.0
    for b, t in moves(data):
        values, logits = made.network(row(data, b, t))
        taken = int(data.action[b, t].argmax())
        u = values[taken] - slow_target(estimator, data, worth, b, t, GAMMA)
        huber = u**2 / 2 if abs(u.item()) <= kappa else kappa * (u.abs() - kappa / 2)
        critic = critic + data.weight[b] * huber
        imitation = imitation - torch.log(softmax(logits)[taken]) + logit_weight * sum(i**2 for i in logits) / ACTS
    count = len(moves(data))
    return {"critic": critic / count, "imitation": imitation / count}, left


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
@pytest.mark.parametrize(("logit_weight", "kappa"), [(0.01, 1.0), (0.5, 0.7)])
def test_losses_and_gradients_against_the_definition(estimator, logit_weight, kappa):
    made, data = objective(value_estimator=estimator, logit_weight=logit_weight, kappa=kappa), choices()
    losses = made(data)
    slow, left = slow_losses(made, data, estimator, THRESHOLD, logit_weight, kappa)
    assert set(left) == {1, 2}
    parameters = list(made.network.parameters())
    for name in ("critic", "imitation"):
        torch.testing.assert_close(losses.terms[name], slow[name], rtol=1e-10, atol=1e-12)
        got, expected = (torch.autograd.grad(x[name], parameters, retain_graph=True) for x in (losses.terms, slow))
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)
    assert losses.metrics["loss/imitation"] == losses.terms["imitation"]
    assert losses.priority.shape == (8,)


@pytest.mark.parametrize(("threshold", "counts"), [(0.0, {2}), (1.0, {1})])
def test_thresholds_at_either_end(threshold, counts):
    """0 is double Q-learning; at 1 only the likeliest action is left, which is a clone's."""
    made, data = objective(threshold=threshold), choices()
    slow, left = slow_losses(made, data, made.cfg.value_estimator, threshold, 0.01, 1.0)
    assert set(left) == counts
    torch.testing.assert_close(made(data).terms["critic"], slow["critic"], rtol=1e-10, atol=1e-12)
    values, logits = made.network(data.obs)
    best = (logits if threshold else values).argmax(-1)
    assert torch.equal(made.values(data.obs).argmax(-1), best)


class Table(nn.Module):
    """Values and logits of three classes in one state."""

    def __init__(self, values, probabilities) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.tensor([values, [math.log(p) for p in probabilities]]))

    def forward(self, obs):
        return self.rows[:, None].expand(2, len(obs["at"]), 3)


def test_which_actions_are_left_by_hand():
    """The best is too unlikely by a threshold of 0.3, the second best is not; its own target says what it is worth."""
    made = DiscreteBCQObjective(Table([9.0, 5.0, 1.0], [0.1, 0.25, 0.65]), DiscreteBCQConfig(threshold=0.3))
    made.target_network.model.rows.data.copy_(torch.tensor([[70.0, 50.0, 90.0], [0.0, 0.0, 0.0]]))
    obs = {"at": torch.zeros(1)}
    assert made.values(obs).tolist() == [[-math.inf, 5.0, 1.0]]
    assert made.next_value(obs).tolist() == [50.0]
    made.log_threshold = math.log(0.1)
    assert made.next_value(obs).tolist() == [70.0]


def test_each_term_reaches_the_network_alone():
    reaches(objective(), choices(), {"critic": {"network"}, "imitation": {"network"}})


def learner(**changes):
    config = DiscreteBCQConfig().merge({"networks.units": (16,), "batch_size": 8, "normalise": None} | changes)
    return config.build(OBS, CHOICE, seed=1)


def test_the_policy_acts_among_what_is_likely():
    agent = learner(threshold=0.9, exploration="epsilon_greedy(0.5)")
    no = torch.zeros(200, dtype=torch.bool)
    step = Step(obs={"state": torch.randn(200, 3)}, reward=torch.zeros(200), is_first=no, is_last=no, is_terminal=no)
    values, logits = agent.objective.network(step.obs)
    likely = logits.softmax(-1) / logits.softmax(-1).amax(-1, keepdim=True) >= 0.9
    best = torch.where(likely, values, -torch.inf).argmax(-1)
    assert not torch.equal(best, values.argmax(-1))
    action, state = agent.policy.act(step, agent.policy.initial(200), "eval")
    assert torch.equal(action.argmax(-1), best)
    explored, _ = agent.policy.act(step, state, "explore")
    assert 0.4 < (explored.argmax(-1) == best).float().mean() < 0.85
