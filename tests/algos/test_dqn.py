"""DQN's loss against the paper, one transition at a time; double and dueling by hand; how targets move; exploration."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from windows import ACTS, ESTIMATORS, WIDE, batch, gradients, moves, row, slow_target

from reverie.algos.dqn import DQN, DQNConfig, DQNObjective
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Batch, Step
from reverie.nn.actor_critic import Dueling
from reverie.objectives.estimators import NStep

GAMMA = 0.9
OBS = {"state": ObsPart(kind="vector", shape=(WIDE,), dtype="float32")}
CHOICE = ActionSpec(parts={"move": ActionPart(kind="categorical", classes=(3,))})


class TinyValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(WIDE, 5, dtype=torch.float64), nn.Tanh(), nn.Linear(5, ACTS, dtype=torch.float64)
        )

    def forward(self, obs):
        return self.layers(obs["state"])


def objective(**settings) -> DQNObjective:
    torch.manual_seed(0)
    made = DQNObjective(TinyValues(), DQNConfig(batch_length=5, discount=GAMMA, **settings))
    for p in made.target_network.parameters():
        p.data.add_(torch.randn_like(p) * 0.5)  # the target lags behind
    return made


def chosen(size=8, **settings) -> Batch:
    """Rows whose actions are a choice; rewards large enough for errors beyond 1."""
    data = batch(size=size, **settings)
    data.reward.mul_(2)
    data.action.copy_(F.one_hot(data.action.argmax(-1), ACTS) * ~data.is_last[..., None])
    return data


def slow_loss(made, data, estimator, double, kappa):
    """Algorithm 1: for each transition on its own."""
    size, length = data.shape
    value = [[0.0] * length for _ in range(size)]
    for b in range(size):
        for t in range(length):
            theirs, mine = (net(row(data, b, t)).tolist() for net in (made.target_network.model, made.network))
            value[b][t] = theirs[mine.index(max(mine))] if double else max(theirs)
    total, wrong = 0.0, [[] for _ in range(size)]
    for b, t in moves(data):
        y = slow_target(estimator, data, value, b, t, GAMMA)
        u = made.network(row(data, b, t))[int(data.action[b, t].argmax())] - y
        loss = u**2 / 2 if abs(u.item()) <= kappa else kappa * (u.abs() - kappa / 2)
        total = total + data.weight[b] * loss
        wrong[b].append(abs(u.item()))
    return total / len(moves(data)), [sum(w) / max(1, len(w)) for w in wrong]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
@pytest.mark.parametrize("crossing", [False, True])
@pytest.mark.parametrize("double", [False, True])
def test_loss_and_gradient_against_the_definition(estimator, crossing, double):
    made, data = objective(value_estimator=estimator, double=double), chosen(crossing=crossing)
    assert data.is_terminal.any()
    assert (data.is_last & ~data.is_terminal).any()
    losses = made(data)
    slow, wrong = slow_loss(made, data, estimator, double, 1.0)
    assert set(losses.terms) == {"critic"}
    torch.testing.assert_close(losses.terms["critic"], slow, rtol=1e-10, atol=1e-12)
    parameters = list(made.network.parameters())
    expected = torch.autograd.grad(slow, parameters)
    got = torch.autograd.grad(losses.terms["critic"], parameters)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(losses.priority, torch.tensor(wrong, dtype=torch.float64), rtol=1e-10, atol=1e-12)
    assert not any(v.requires_grad for v in losses.metrics.values())
    assert losses.metrics["loss/critic"] == losses.terms["critic"]


@pytest.mark.parametrize("kappa", [0.8, 1.5, float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # compiled, and as it is written
def test_errors_are_squares_up_to_kappa(kappa, dtype):
    made, data = objective(kappa=kappa).to(dtype), chosen(size=40, length=2, dtype=dtype)
    slow, wrong = slow_loss(made, data, made.cfg.value_estimator, False, kappa)
    assert min(w for w in wrong if w) < 0.8 < 1.5 < max(wrong)
    losses, close = made(data), {"rtol": 1e-5 if dtype is torch.float32 else 1e-10, "atol": 1e-6}
    torch.testing.assert_close(losses.terms["critic"], slow, **close)
    parameters = list(made.network.parameters())
    got, expected = (torch.autograd.grad(x, parameters) for x in (losses.terms["critic"], slow))
    torch.testing.assert_close(got, expected, **close)
    torch.testing.assert_close(losses.priority, torch.tensor(wrong, dtype=dtype), **close)


class Table(nn.Module):
    """Values of two actions in three states; the state is a number."""

    def __init__(self, values) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor(values))

    def forward(self, obs):
        return self.values[obs["at"].long()]


def window(at, rewards, actions, ends=None) -> Batch:
    """One window of float32 rows."""
    no = torch.zeros(1, len(at), dtype=torch.bool)
    last = no.clone()
    last[0, -1] = ends is not None
    return Batch(
        obs={"at": torch.tensor([at])}, action=F.one_hot(torch.tensor([actions]), 2).float(),
        reward=torch.tensor([rewards]), is_first=no, is_last=last, is_terminal=last if ends == "terminal" else no,
        weight=torch.ones(1), index=torch.zeros(1, dtype=torch.int64),
    )  # fmt: skip


def tables(**settings) -> DQNObjective:
    """Q prefers action 1 in state 1, its target action 0."""
    config = DQNConfig(batch_length=5, discount=0.5, **settings)
    made = DQNObjective(Table([[0.0, 0.0], [1.0, 2.0], [3.0, 0.0]]), config)
    made.target_network.model.values.data.copy_(torch.tensor([[0.0, 0.0], [8.0, 4.0], [2.0, 6.0]]))
    return made


def test_by_hand():
    """Where the network and its target prefer other actions, double Q-learning asks for the network's."""
    data = window([0, 1], [0.0, 10.0], [1, 0])
    assert tables().targets(data).tolist() == [[10 + 0.5 * 8]]
    assert tables(double=True).targets(data).tolist() == [[10 + 0.5 * 4]]
    assert tables(double=True).targets(window([0, 1], [0.0, 10.0], [1, 0], "terminal")).tolist() == [[10.0]]
    assert tables(double=True).targets(window([0, 1], [0.0, 10.0], [1, 0], "clock")).tolist() == [[12.0]]


def test_returns_of_several_steps_by_hand():
    data = window([0, 1, 2], [0.0, 10.0, 20.0], [1, 0, 0])
    assert tables(value_estimator=NStep(2)).targets(data).tolist() == [[10 + 0.5 * 20 + 0.25 * 6, 20 + 0.5 * 6]]
    doubly = tables(value_estimator=NStep(2), double=True).targets(data)
    assert doubly.tolist() == [[10 + 0.5 * 20 + 0.25 * 2, 20 + 0.5 * 2]]


def test_the_gradient_reaches_the_network_alone():
    made = objective(double=True)
    made(chosen()).total().backward()
    assert gradients(made.network).keys() == dict(made.network.named_parameters()).keys()
    assert not gradients(made.target_network)


# ---------------------------------------------------------------- networks


def test_dueling_streams_are_joined_by_equation_9():
    torch.manual_seed(0)
    made, x = Dueling(4, (6, 5), classes=3), torch.randn(2, 7, 4)
    hidden = made.shared(x).relu()
    value, advantage = made.value(hidden), made.advantage(hidden)
    assert (made.shared.layout.widths, made.value.layout.widths, made.advantage.layout.widths) == (
        (4, 6), (6, 5, 1), (6, 5, 3),
    )  # fmt: skip
    torch.testing.assert_close(made(x), value + advantage - advantage.mean(-1, keepdim=True))
    alone = Dueling(4, (5,), classes=3)
    assert alone.shared is None
    torch.testing.assert_close(
        alone(x), alone.value(x) + alone.advantage(x) - alone.advantage(x).mean(-1, keepdim=True)
    )


def test_dueling_quantiles_are_joined_one_by_one():
    made, x = Dueling(4, (5,), classes=3, each=2), torch.randn(7, 4)
    advantage = made.advantage(x).view(7, 3, 2)
    expected = made.value(x)[:, None] + advantage - advantage.mean(1, keepdim=True)
    torch.testing.assert_close(made(x).view(7, 3, 2), expected)


# ---------------------------------------------------------------- the learner


def shown(envs: int, seed: int = 0) -> Step:
    no = torch.zeros(envs, dtype=torch.bool)
    state = torch.randn(envs, WIDE, generator=torch.Generator().manual_seed(seed))
    return Step(obs={"state": state}, reward=torch.zeros(envs), is_first=no, is_last=no, is_terminal=no)


def learner(**changes) -> DQN:
    return DQNConfig().merge({"networks.units": (8,), "batch_size": 4} | changes).build(OBS, CHOICE, seed=1)


def test_evaluation_takes_the_action_of_the_highest_value():
    agent, step = learner(), shown(50)
    action, _ = agent.policy.act(step, agent.policy.initial(50), "eval")
    assert torch.equal(action.argmax(-1), agent.objective.network(step.obs).argmax(-1))
    assert torch.equal(action.sum(-1), torch.ones(50))


def test_exploration_is_by_its_schedule():
    agent, step = learner(exploration="epsilon_greedy(1.0, 0.0, 100)"), shown(50)
    best = agent.objective.network(step.obs).argmax(-1)
    state, same = agent.policy.initial(50), []
    for _ in range(3):
        action, state = agent.policy.act(step, state, "explore")
        same.append(float((action.argmax(-1) == best).float().mean()))
    assert same[0] < 0.6  # all at random among three
    assert same[1] < 1.0  # half at random
    assert same[2] == 1.0  # none


def test_the_policy_acts_with_the_newest_weights_also_of_a_copy():
    agent = learner()
    other = copy.deepcopy(agent)
    with torch.no_grad():
        for p in other.objective.network.parameters():
            p.neg_()
    step = shown(50)
    for one in (agent, other):
        action, _ = one.policy.act(step, one.policy.initial(50), "eval")
        assert torch.equal(action.argmax(-1), one.objective.network(step.obs).argmax(-1))
    assert not torch.equal(agent.objective.network(step.obs), other.objective.network(step.obs))
