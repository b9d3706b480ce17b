"""Behaviour cloning against its definition, one action at a time."""

import torch
from recorded import TinyNormal, close, normal_density, reaches
from windows import TinyActor, batch, moves, row

from reverie.algos.bc import BCConfig, BCObjective, Deterministic, Stochastic
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.nn.gaussian import LOG_STD, DiagonalNormal


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


def test_the_term_reaches_the_actor():
    reaches(BCObjective(TinyNormal()), batch(), {"actor": {"actor"}})


def build(**settings):
    config = BCConfig(**settings).merge({"networks.units": (32,), "lr": 3e-3})
    vector = ObsPart(kind="vector", shape=(3,), dtype="float32")
    return config.build({"state": vector}, ActionSpec(parts={"move": ActionPart(kind="continuous", size=2)}))


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
    assert found.log_std.min() == LOG_STD[0]
    assert found.log_std.max() == LOG_STD[1]
