"""QR-DQN's loss against algorithm 1, one transition and one pair of quantiles at a time; what it learns."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from windows import ACTS, WIDE, batch, gradients, moves, row

from reverie.algos.qr_dqn import QRDQN, QRDQNConfig, QRDQNObjective
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Batch
from reverie.objectives.estimators import TD0, TD1, NStep

GAMMA, N = 0.9, 4
OBS = {"state": ObsPart(kind="vector", shape=(WIDE,), dtype="float32")}
CHOICE = ActionSpec(parts={"move": ActionPart(kind="categorical", classes=(3,))})
ESTIMATORS = [TD0(), TD1(), NStep(2), NStep(3)]


class TinyQuantiles(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(WIDE, 5, dtype=torch.float64), nn.Tanh(), nn.Linear(5, ACTS * N, dtype=torch.float64)
        )

    def forward(self, obs):
        return self.layers(obs["state"]).unflatten(-1, (ACTS, N))


def objective(**settings) -> QRDQNObjective:
    torch.manual_seed(0)
    made = QRDQNObjective(TinyQuantiles(), QRDQNConfig(batch_length=5, discount=GAMMA, **settings))
    for p in made.target_network.parameters():
        p.data.add_(torch.randn_like(p) * 0.5)  # the target lags behind
    return made


def chosen(size=8, **settings) -> Batch:
    data = batch(size=size, **settings)
    data.action.copy_(F.one_hot(data.action.argmax(-1), ACTS) * ~data.is_last[..., None])
    return data


def slow_targets(made, data, b, t, steps) -> Tensor:
    """T theta_j of row t: rewards one by one up to the row that is bootstrapped from, whose best action is taken."""
    end, reward, discount = data.reward.shape[1] - 1, 0.0, 1.0
    for _ in range(steps):
        t += 1
        reward, discount = reward + discount * float(data.reward[b, t]), discount * GAMMA
        if data.is_terminal[b, t]:
            return torch.full((N,), reward, dtype=torch.float64)
        if data.is_last[b, t] or t == end:
            break
    theirs, mine = (net(row(data, b, t)).detach() for net in (made.target_network.model, made.network))
    means = [float(sum(x) / N) for x in (mine if made.cfg.double else theirs)]
    return torch.stack([reward + discount * theirs[means.index(max(means)), j] for j in range(N)])


def slow_loss(made, data, steps):
    total, wrong = 0.0, [[] for _ in range(len(data.reward))]
    for b, t in moves(data):
        y = slow_targets(made, data, b, t, steps)
        theta = made.network(row(data, b, t))[int(data.action[b, t].argmax())]
        loss = 0.0
        for i in range(N):
            for j in range(N):
                u, kappa = y[j] - theta[i], made.cfg.kappa
                huber = u.abs() if not kappa else u**2 / 2 if u.abs() <= kappa else kappa * (u.abs() - kappa / 2)
                loss = loss + abs((2 * i + 1) / (2 * N) - float(u < 0)) * huber / N
        total = total + data.weight[b] * loss
        wrong[b].append(loss.item() / N)
    return total / len(moves(data)), [sum(w) / max(1, len(w)) for w in wrong]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
@pytest.mark.parametrize("crossing", [False, True])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("kappa", [0.0, 1.0])
def test_loss_and_gradient_against_the_definition(estimator, crossing, double, kappa):
    made, data = objective(value_estimator=estimator, double=double, kappa=kappa), chosen(crossing=crossing)
    assert (data.is_last & ~data.is_terminal).any()
    losses, steps = made(data), estimator.steps(data.shape[1])
    slow, wrong = slow_loss(made, data, steps)
    torch.testing.assert_close(losses.terms["critic"], slow, rtol=1e-10, atol=1e-12)
    parameters = list(made.network.parameters())
    expected = torch.autograd.grad(slow, parameters)
    got = torch.autograd.grad(losses.terms["critic"], parameters)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(losses.priority, torch.tensor(wrong, dtype=torch.float64), rtol=1e-10, atol=1e-12)
    assert not any(v.requires_grad for v in losses.metrics.values())


class Table(nn.Module):
    """Two quantiles of two actions in each of two states; the state is a number."""

    def __init__(self, values) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor(values))

    def forward(self, obs):
        return self.values[obs["at"].long()]


def test_by_hand():
    """The action with the highest mean is not that with the highest quantile; doubly, the network's mean decides."""
    made = QRDQNObjective(Table([[[0.0, 0.0], [0.0, 0.0]], [[0.0, 9.0], [1.0, 1.0]]]), QRDQNConfig(discount=0.5))
    made.target_network.model.values.data[1] = torch.tensor([[-10.0, 12.0], [2.0, 4.0]])
    no = torch.zeros(1, 2, dtype=torch.bool)
    data = Batch(
        obs={"at": torch.tensor([[0, 1]])}, action=torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]),
        reward=torch.tensor([[0.0, 10.0]]), is_first=no, is_last=no, is_terminal=no, weight=torch.ones(1),
        index=torch.zeros(1, dtype=torch.int64),
    )  # fmt: skip
    assert made.targets(data).tolist() == [[[11.0, 12.0]]]  # means 1 and 3
    made.cfg = replace(made.cfg, double=True)
    assert made.targets(data).tolist() == [[[5.0, 16.0]]]  # the network's means are 4.5 and 1
    assert made.values(data.obs).tolist() == [[[0.0, 0.0], [4.5, 1.0]]]
    made.cfg = replace(made.cfg, double=False)
    # Of errors 11 and 12, twice, all above: tau^ 1/4 and 3/4 times (11 - 1/2) and (12 - 1/2), means of the targets.
    assert made(data).terms["critic"].item() == pytest.approx((0.25 + 0.75) * (10.5 + 11.5) / 2)


def test_the_gradient_reaches_the_network_alone():
    made = objective(double=True)
    made(chosen()).total().backward()
    assert gradients(made.network).keys() == dict(made.network.named_parameters()).keys()
    assert not gradients(made.target_network)


def learner(**changes) -> QRDQN:
    config = QRDQNConfig().merge({"networks.units": (8, 8), "batch_size": 64, "quantiles": 16, "lr": 0.01} | changes)
    return config.build(OBS, CHOICE, seed=1)


def test_quantiles_of_a_reward_that_is_drawn():
    """Episodes of one step that pay 0 or 10 by chance: the lower quantiles become 0, the upper ones 10."""
    agent = learner(exploration="epsilon_greedy(0.1)", target_every=10, kappa=0.1)
    torch.manual_seed(0)
    b = agent.window.batch
    last = torch.tensor([[False, True]]).expand(b, 2)
    for _ in range(400):
        paid = 10.0 * (torch.rand(b) < 0.3)
        agent.update(Batch(
            obs={"state": torch.ones(b, 2, WIDE)}, action=F.one_hot(torch.zeros(b, 2, dtype=torch.int64), 3).float(),
            reward=torch.stack([torch.zeros(b), paid], 1), is_first=~last, is_last=last, is_terminal=last,
            weight=torch.ones(b), index=torch.arange(b),
        ))  # fmt: skip
    learned = agent.objective.network({"state": torch.ones(1, WIDE)})[0, 0]
    taus = (torch.arange(16) + 0.5) / 16
    torch.testing.assert_close(learned[taus < 0.65], torch.zeros(int((taus < 0.65).sum())), rtol=0, atol=1.0)
    torch.testing.assert_close(learned[taus > 0.75], torch.full((int((taus > 0.75).sum()),), 10.0), rtol=0, atol=1.0)
