"""Behaviour cloning against its definition, one action at a time."""

from dataclasses import replace

import pytest
import torch
from recorded import TinyChoices, TinyNormal, choices, close, normal_density, reaches, softmax
from torch import nn
from windows import TinyActor, batch, moves, row

from reverie.algos.bc import BCConfig, BCObjective, Categorical, Deterministic, Stochastic
from reverie.core.errors import ConfigError
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Step
from reverie.nn.actor_critic import IQL_LOG_STD
from reverie.nn.distributions import Choices, DiagonalNormal


def test_squared_error_against_the_definition():
    torch.manual_seed(0)
    made, data = BCObjective(TinyActor()), batch(size=8)
    slow = 0.0
    for b, t in moves(data):
        found = made.actor(row(data, b, t))
        slow = slow + sum((x - y) ** 2 for x, y in zip(found, data.action[b, t], strict=True)) / len(found)
    close(made(data), {"actor": slow / len(moves(data))}, {"actor": made.actor.parameters()})


def test_likelihood_against_the_definition():
    torch.manual_seed(0)
    made, data = BCObjective(TinyNormal()), batch(size=8)
    slow = -sum(normal_density(made.actor(row(data, b, t)), data.action[b, t]) for b, t in moves(data))
    close(made(data), {"actor": slow / len(moves(data))}, {"actor": made.actor.parameters()})


def test_cross_entropy_against_the_definition():
    torch.manual_seed(0)
    made, data = BCObjective(TinyChoices()), choices()
    slow = 0.0
    for b, t in moves(data):
        taken = int(data.action[b, t].argmax())
        slow = slow - torch.log(softmax(made.actor.body(row(data, b, t)))[taken])
    close(made(data), {"actor": slow / len(moves(data))}, {"actor": made.actor.parameters()})


class TwoChoices(nn.Module):
    """Among two classes, and among three."""

    def __init__(self) -> None:
        super().__init__()
        self.body = TinyActor(5)

    def forward(self, obs):
        return Choices(self.body(obs), (2, 3))


def test_cross_entropies_of_several_choices_are_added():
    torch.manual_seed(0)
    made, data = BCObjective(TwoChoices()), choices()
    both = torch.zeros(*data.shape, 5, dtype=torch.float64)
    both[..., :2], third = data.action, torch.arange(8 * 5).view(8, 5) % 3
    both.scatter_(-1, 2 + third[..., None], 1.0)
    slow = 0.0
    for b, t in moves(data):
        logits = made.actor.body(row(data, b, t))
        slow = slow - torch.log(softmax(logits[:2])[int(data.action[b, t].argmax())])
        slow = slow - torch.log(softmax(logits[2:])[int(third[b, t])])
    found = made(replace(data, action=both))
    close(found, {"actor": slow / len(moves(data))}, {"actor": made.actor.parameters()})


@pytest.mark.parametrize("actor", [TinyNormal, TinyChoices])
def test_the_term_reaches_the_actor(actor):
    reaches(BCObjective(actor()), choices(), {"actor": {"actor"}})


VECTOR = {"state": ObsPart(kind="vector", shape=(3,), dtype="float32")}
MOVE = ActionPart(kind="continuous", size=2)
JUMP, KEYS = (ActionPart(kind="categorical", classes=classes) for classes in ((3,), (2, 3)))


def build(move=MOVE, **settings):
    config = BCConfig(**settings).merge({"networks.units": (32,), "lr": 3e-3})
    return config.build(VECTOR, ActionSpec(parts={"move": move}))


def learned(agent, spread):
    """After cloning actions 0.5 s_0 + noise, 0.2."""
    torch.manual_seed(1)
    for _ in range(400):
        data = batch(64, 2, seed=int(torch.randint(10**6, ())), crossing=False, dtype=torch.float32)
        wanted = torch.stack([0.5 * data.obs["state"][..., 0].tanh(), torch.full((64, 2), 0.2)], -1)
        data.action.copy_(wanted + spread * torch.randn_like(wanted))
        agent.update(data)
    data = batch(64, 2, seed=0, dtype=torch.float32)
    return agent.objective.actor({"state": data.obs["state"][:, 0]}), 0.5 * data.obs["state"][:, 0, 0].tanh()


def test_a_clone_does_on_average_what_was_done():
    found, wanted = learned(build(clone=Deterministic(), normalise=None), 0.3)
    assert (found[:, 0] - wanted).abs().mean() < 0.06
    assert (found[:, 1] - 0.2).abs().mean() < 0.06


def test_a_stochastic_clone_varies_as_much_as_what_was_done():
    found, wanted = learned(build(clone=Stochastic(), normalise=None), 0.3)
    assert (found.mean[:, 0] - wanted).abs().mean() < 0.08
    assert (found.log_std.exp() - 0.3).abs().mean() < 0.06


@pytest.mark.parametrize("move", [JUMP, KEYS], ids=["one", "several"])
def test_a_clone_chooses_as_often_as_was_chosen(move):
    """Of the last three classes the first in seven cases of ten where s_0 > 0, else never; the second otherwise."""
    torch.manual_seed(1)
    agent = build(move, normalise=None)
    for _ in range(300):
        data = batch(64, 2, seed=int(torch.randint(10**6, ())), crossing=False, dtype=torch.float32)
        first = (data.obs["state"][..., 0] > 0) & (torch.rand(64, 2) < 0.7)
        other = [torch.ones(64, 2), torch.zeros(64, 2)] if move is KEYS else []
        agent.update(replace(data, action=torch.stack([*other, first.float(), 1 - first.float(), 0 * first], -1)))
    state = torch.tensor([[2.0, 0.0, 0.0], [-2.0, 0.0, 0.0]]).repeat(1000, 1)
    no = torch.zeros(2000, dtype=torch.bool)
    step = Step(obs={"state": state}, reward=torch.zeros(2000), is_first=no, is_last=no, is_terminal=no)
    drawn, _ = agent.policy.act(step, agent.policy.initial(2000), "explore")
    likeliest, _ = agent.policy.act(step, agent.policy.initial(2000), "eval")
    for action, share in ((drawn, 0.7), (likeliest, 1.0)):
        assert abs(action[::2, -3].mean() - share) < 0.15
        assert action[1::2, -3].mean() < 0.05
        assert action[:, -1].mean() < 0.05
        assert move is JUMP or action[:, 0].mean() > 0.95


def test_what_imitates_is_chosen_by_the_actions():
    assert isinstance(build(KEYS, clone=Categorical()).objective.actor, nn.Module)
    with pytest.raises(ConfigError, match=r"clone = stochastic is for continuous actions, but these actions are .*"
                                          "Use one of categorical, or none"):  # fmt: skip
        build(JUMP, clone=Stochastic())
    with pytest.raises(ConfigError, match=r"clone = categorical is for .* Use one of deterministic, stochastic, or"):
        build(MOVE, clone=Categorical())
    with pytest.raises(
        ConfigError,
        match=r"^bc is for .* but these are mixed\. Suitable algorithms: dreamer_v1, .*plan2explore_v3\.$",
    ):
        BCConfig().build(VECTOR, ActionSpec(parts={"move": MOVE, "jump": JUMP}))


def test_draws_are_within_bounds_and_of_their_density():
    torch.manual_seed(0)
    policy = DiagonalNormal(torch.tensor([0.9, -0.2]).expand(5000, 2), torch.tensor([-1.0, -2.0]))
    action, density = policy.sample()
    assert action.abs().max() == 1
    inside = (action.abs() < 1).all(-1)
    torch.testing.assert_close(policy.log_prob(action)[inside], density[inside], rtol=1e-4, atol=1e-4)
    assert abs(action[:, 1].mean() + 0.2) < 0.01
    assert torch.equal(policy.mode(), policy.mean)


def test_standard_deviations_stay_within_their_limits():
    actor = build(clone=Stochastic()).objective.actor
    with torch.no_grad():
        actor.body.theta *= 1e4
    found = actor({"state": torch.randn(50, 3)})
    assert found.mean.abs().max() <= 1
    assert found.log_std.min() == IQL_LOG_STD[0]
    assert found.log_std.max() == IQL_LOG_STD[1]
