"""The loss of FQE against its definition, one transition at a time."""

from dataclasses import replace

import pytest
import torch

from batches import ACTS, MOVE, OBS, TinyCritic, batch, close, moves, row, same_gradients
from reverie.algos.fqe import CHOSEN, NO_UNITS, FQEConfig, FQEObjective, ValueUnits

GAMMA = 0.9


def objective(units=NO_UNITS, **settings):
    torch.manual_seed(0)
    made = FQEObjective(TinyCritic(), FQEConfig(discount=GAMMA, **settings), units)
    for p in made.target_critic.model.parameters():
        p.data += 0.3
    return made


def chosen(data, draws=3):
    g = torch.Generator().manual_seed(9)
    return torch.rand(*data.shape, draws, ACTS, generator=g, dtype=torch.float64) * 2 - 1


def slow(made, data, acts, low=-1e9, high=1e9):
    total = 0.0
    for b, t in moves(data):
        worth = sum(made.target_critic.model(row(data, b, t + 1), a) for a in acts[b, t + 1]).item() / acts.shape[2]
        goes_on = 0.0 if data.is_terminal[b, t + 1] else 1.0
        y = data.reward[b, t + 1].item() + GAMMA * goes_on * min(max(worth, low), high)
        total = total + data.weight[b] * (made.critic(row(data, b, t), data.action[b, t]) - y) ** 2
    return total / len(moves(data))


@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("bounds", [{}, {"low": -0.1, "high": 0.2}], ids=["free", "bounded"])
def test_loss_and_gradients_against_the_definition(draws, bounds):
    made, data = objective(ValueUnits(**bounds)), batch(size=8)
    acts = chosen(data, draws)
    losses = made(data, acts)
    expected = slow(made, data, acts, **bounds)
    close(losses.terms["critic"], expected)
    same_gradients(made, losses.terms["critic"], expected, "critic")


def test_rows_that_a_time_limit_ended_are_worth_what_others_are():
    made, data = objective(), batch(length=2, crossing=False)
    no = torch.zeros_like(data.is_last)
    cut = no.clone()
    cut[:, -1] = True
    acts = chosen(data)
    with_ends, without = (made(replace(data, is_last=x, is_terminal=no), acts).terms["critic"] for x in (cut, no))
    assert torch.equal(with_ends, without)
    assert not torch.equal(made(replace(data, is_last=cut, is_terminal=cut), acts).terms["critic"], without)


def test_the_target_follows():
    made = objective(tau=0.5)
    before = [p.clone() for p in made.target_critic.model.parameters()]
    made.target_critic.update()
    for old, new, source in zip(before, made.target_critic.model.parameters(), made.critic.parameters(), strict=True):
        torch.testing.assert_close(new, (old + source) / 2)


def learner(units=NO_UNITS, **settings):
    config = FQEConfig(batch_size=4, **settings).merge({"networks.units": (8,)})
    return config.build(OBS, MOVE, seed=1, units=units)


def shown(**more):
    data = batch(4, 2, crossing=False, dtype=torch.float32)
    return replace(data, extras={CHOSEN: chosen(data).float()} | more)


def test_units_change_what_is_expected_at_first_and_bound_what_is_next():
    data = shown()
    plain, shifted = learner(), learner(ValueUnits(shift=5.0, scale=2.0, low=4.9, high=5.1))
    critic, same = plain.objective.critic, shifted.objective.critic
    torch.testing.assert_close(same(data.obs, data.action), 5 + 2 * critic(data.obs, data.action))
    worth = shifted.value(data)
    assert worth.shape == (4, 2)
    assert 4.9 <= worth.min() <= worth.max() <= 5.1


@pytest.mark.parametrize("unit", [2.0**-90, 2.0**-30, 2.0**30, 2.0**90])
def test_the_unit_of_rewards_does_not_change_what_is_learned(unit):
    data = shown()
    one, other = learner(tau=0.5, lr=0.01), learner(ValueUnits(scale=unit), tau=0.5, lr=0.01)
    for _ in range(5):
        of_one = one.update(data)
        of_other = other.update(replace(data, reward=data.reward * unit))
        torch.testing.assert_close(of_other.priority, of_one.priority)
        torch.testing.assert_close(of_other.metrics, of_one.metrics)
    torch.testing.assert_close(other.value(data) / unit, one.value(data))


def test_weights_decay_beside_the_step_of_adam():
    data, found = shown(), []
    for decay in (0.0, 2.0):
        agent = learner(lr=0.01, weight_decay=decay)
        start = [weight.detach().clone() for weight in agent.objective.critic.parameters()]
        agent.update(data)
        found.append([weight.detach() for weight in agent.objective.critic.parameters()])
    for before, free, decayed in zip(start, *found, strict=True):
        torch.testing.assert_close(decayed, free - 0.01 * 2.0 * before)


def test_updates_lower_the_loss():
    agent, data = learner(tau=1e-6, lr=0.01, weight_decay=0.0), shown()
    losses = [agent.update(data).metrics for _ in range(200)]
    assert losses[-1]["loss/critic"] < 0.1 * losses[0]["loss/critic"]
