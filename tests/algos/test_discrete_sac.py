"""Discrete SAC's losses against the paper, one transition and one class at a time."""

import math

import pytest
import torch
from contracts import build
from recorded import close
from torch import nn
from windows import ESTIMATORS, WIDE, batch, gradients, moves, row, slow_target

from reverie.algos.discrete_sac import DiscreteSACConfig, DiscreteSACObjective
from reverie.nn.distributions import Choices

GAMMA, ALPHA, ENTROPY, CLASSES = 0.9, 0.7, 0.9, 2  # as many classes as the batches' actions are wide


class TinyChoice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDE, CLASSES, dtype=torch.float64)

    def forward(self, obs):
        return Choices(self.layer(obs["state"]), (self.layer.out_features,))


class TinyCritics(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDE, CLASSES, dtype=torch.float64) for _ in range(2)])

    def forward(self, obs):
        return torch.stack([layer(obs["state"]) for layer in self.layers])


def objective(target_entropy=ENTROPY, **settings) -> DiscreteSACObjective:
    torch.manual_seed(0)
    given = {"discount": GAMMA, "temperature": ALPHA, "batch_length": 5} | settings
    made = DiscreteSACObjective(TinyChoice(), TinyCritics(), DiscreteSACConfig(**given), target_entropy).double()
    for p in made.target_critic.parameters():
        p.data.add_(torch.randn_like(p) * 0.3)  # targets lag behind
    return made


def one_hot(data):
    return torch.nn.functional.one_hot(data.action.argmax(-1), CLASSES).double()


def slow_losses(made, data, estimator):
    size, length = data.shape
    alpha = math.exp(made.log_temperature.item())
    value, bonus = ([[0.0] * length for _ in range(size)] for _ in range(2))
    for b in range(size):
        for t in range(1, length):
            pi = made.actor.layer(data.obs["state"][b, t]).softmax(-1).tolist()
            q = made.target_critic.model(row(data, b, t)).tolist()
            for a in range(CLASSES):
                bonus[b][t] -= alpha * pi[a] * math.log(pi[a])
                value[b][t] += pi[a] * (min(q[0][a], q[1][a]) - alpha * math.log(pi[a]))
    sums = {"critic": 0.0, "actor": 0.0, "temperature": 0.0}
    for b, t in moves(data):
        y = slow_target(estimator, data, value, b, t, GAMMA, bonus)
        q, a = made.critic(row(data, b, t)), int(data.action[b, t].argmax())
        pi = made.actor.layer(data.obs["state"][b, t]).softmax(-1)
        for k in range(2):
            sums["critic"] += 0.5 * data.weight[b] * (q[k, a] - y) ** 2
        for c in range(CLASSES):
            sums["actor"] += pi[c] * (alpha * pi[c].log() - torch.minimum(q[0, c], q[1, c]).detach())
            sums["temperature"] += pi[c].item() * -made.log_temperature.exp() * (math.log(pi[c].item()) + ENTROPY)
    return {name: x / len(moves(data)) for name, x in sums.items()}


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_losses_and_gradients_against_the_definition(estimator):
    made, data = objective(value_estimator=estimator), batch(size=8)
    data.action.copy_(one_hot(data))
    losses, slow = made(data), slow_losses(made, data, estimator)
    own = {"critic": made.critic.parameters(), "actor": made.actor.parameters(), "temperature": [made.log_temperature]}
    close(losses, slow, own)


def test_each_term_reaches_its_own_parameters_alone():
    own = {"critic": {"critic"}, "actor": {"actor"}, "temperature": {"log_temperature"}}
    for term, names in own.items():
        made = objective()
        made(batch()).terms[term].backward()
        assert {k.split(".")[0] for k in gradients(made)} == names


def test_draws_have_the_probabilities_of_the_choice():
    torch.manual_seed(0)
    logits = torch.tensor([0.0, 1.0, 2.0]).expand(20_000, 3)
    action, log_pi = Choices(logits, tuple(logits.shape[-1:])).sample()
    assert torch.equal(action.sum(-1), torch.ones(20_000))
    torch.testing.assert_close(action.mean(0), logits[0].softmax(-1), rtol=0, atol=0.02)
    torch.testing.assert_close(log_pi, logits.log_softmax(-1).gather(-1, action.argmax(-1, keepdim=True))[:, 0])
    assert torch.equal(Choices(logits, tuple(logits.shape[-1:])).mode()[0], torch.tensor([0.0, 0.0, 1.0]))


def test_the_entropy_aimed_at_is_a_share_of_the_greatest():
    assert build("discrete_sac").objective.target_entropy == pytest.approx(0.98 * math.log(3))
    assert build("discrete_sac", target_entropy=0.5).objective.target_entropy == 0.5
