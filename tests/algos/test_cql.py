"""CQL's critics against equation 4, one transition at a time; the multiplier, the floor; the rest is SAC's."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from recorded import TinySquashed, close, lag, reaches, squashed_draw
from windows import ACTS, ESTIMATORS, TinyCritic, batch, moves, row, slow_target

from reverie.algos.cql import (
    RETURN,
    Best,
    CQLConfig,
    CQLObjective,
    Expected,
    Fixed,
    Lagrange,
    Mode,
    MonteCarlo,
    ReturnsInHindsight,
    Soft,
)
from reverie.algos.sac import SACObjective
from reverie.core.columns import Column
from reverie.core.errors import ConfigError, DataError
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Step
from reverie.nn.actor_critic import Stacked
from reverie.objectives.returns import returns_to_go
from reverie.replay.storage import HostStorage

GAMMA, ALPHA, N = 0.9, 0.7, 3


def objective(kind=CQLObjective, **settings):
    torch.manual_seed(0)
    config = CQLConfig(**{"discount": GAMMA, "temperature": ALPHA, "batch_length": 5, "samples": N} | settings)
    made = kind(TinySquashed(), Stacked(TinyCritic(), TinyCritic()), config, -1.5).double()
    lag(made.target_critic)
    return made


def worth(made, obs, noise):
    """What a next state is worth, and what its entropy counts; ``noise`` ``[n, A]``."""
    critics, policy = made.target_critic.model.critics, made.actor(obs)
    noise = torch.zeros_like(noise) if isinstance(made.cfg.backup, Mode) else noise
    drawn = [squashed_draw(policy, x) for x in noise]
    if isinstance(made.cfg.backup, Best):
        return min(max(c(obs, action).item() for action, _ in drawn) for c in critics), 0.0
    (action, density), *_ = drawn
    soft = isinstance(made.cfg.backup, Soft)
    entropy = -math.exp(made.log_temperature.item()) * density.detach().item() if soft else 0.0
    return min(c(obs, action).item() for c in critics), entropy


def slow_critic(made, data, estimator, uniform, here, there, after):
    """Equation 4, with each draw's noise: ``[B, T-1, n, A]``."""
    size, length = data.shape
    value, bonus = ([[0.0] * length for _ in range(size)] for _ in range(2))
    for b in range(size):
        for t in range(1, length):
            q, bonus[b][t] = worth(made, row(data, b, t), after[b, t - 1])
            value[b][t] = q + bonus[b][t]
    td, gaps = 0.0, 0.0
    for b, t in moves(data):
        obs, nxt = row(data, b, t), row(data, b, t + 1)
        drawn = [squashed_draw(made.actor(obs), x) for x in here[b, t]]
        drawn += [squashed_draw(made.actor(nxt), x) for x in there[b, t]]
        y = slow_target(estimator, data, value, b, t, GAMMA, bonus)
        for c in made.critic.critics:
            taken = c(obs, data.action[b, t])
            td = td + data.weight[b] * (taken - y) ** 2
            exponents = [c(obs, a) - math.log(0.5**ACTS) for a in uniform[b, t]]
            for action, density in drawn:
                q = c(obs, action.detach())
                if made.cfg.floor is not None:
                    floor = data.extras[RETURN][b, t]
                    q = q if q > floor else floor.clone()
                exponents.append(q - density.detach())
            total = sum(torch.exp(x / made.cfg.cql_temperature) for x in exponents)
            gaps = gaps + made.cfg.cql_temperature * torch.log(total) - taken
    return td / len(moves(data)), gaps / len(moves(data))


def drawn(draws=1):
    torch.manual_seed(7)
    uniform = torch.empty(8, 4, N, ACTS, dtype=torch.float64).uniform_(-1, 1)
    return uniform, *(torch.randn(8, 4, n, ACTS, dtype=torch.float64) for n in (N, N, draws))


def with_returns(data, seed=0):
    g = torch.Generator().manual_seed(seed)
    returns = torch.randn(*data.shape, generator=g, dtype=torch.float64)
    data.extras[RETURN] = torch.where(torch.rand(*data.shape, generator=g) < 0.3, -math.inf, returns)
    return data


@pytest.mark.parametrize("estimator", ESTIMATORS[:3], ids=str)
@pytest.mark.parametrize("backup", [Mode(), Expected(), Soft(), Best(2)], ids=str)
@pytest.mark.parametrize("more", [{}, {"cql_temperature": 0.3}, {"floor": MonteCarlo()}], ids=["", "soft", "floor"])
def test_critics_against_the_definition(estimator, backup, more):
    made = objective(value_estimator=estimator, backup=backup, conservatism=Fixed(2.0), **more)
    data = with_returns(batch(size=8))
    torch.manual_seed(7)
    losses = made.critic_loss(data)
    td, gaps = slow_critic(made, data, estimator, *drawn(2 if isinstance(backup, Best) else 1))
    close(losses, {"critic": td + 2.0 * gaps}, {"critic": made.critic.parameters()})
    torch.testing.assert_close(losses.metrics["train/gap"], gaps.detach() / 2, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(losses.metrics["loss/critic"], td.detach(), rtol=1e-10, atol=1e-12)


def test_a_multiplier_against_the_definition():
    """max over alpha' of min over Q: alpha' (gap - tau), summed over critics; half of that sum for alpha'."""
    made, data = objective(conservatism=Lagrange(threshold=1.25)), batch(size=8)
    made.log_multiplier.data.fill_(0.4)
    torch.manual_seed(7)
    losses = made.critic_loss(data)
    td, gaps = slow_critic(made, data, made.cfg.value_estimator, *drawn())
    beyond = gaps - 2 * 1.25
    slow = {
        "critic": td + math.exp(0.4) * beyond, "multiplier": -0.5 * made.log_multiplier.exp() * beyond.detach(),
    }  # fmt: skip
    close(losses, slow, {"critic": made.critic.parameters(), "multiplier": [made.log_multiplier]})


def test_the_actor_and_the_temperature_are_those_of_sac():
    data, terms = batch(size=8), []
    for kind in (CQLObjective, SACObjective):
        made = objective(kind)
        torch.manual_seed(3)
        terms.append(made.actor_loss(data).terms)
    torch.testing.assert_close(*terms, rtol=0, atol=0)


def test_each_term_reaches_its_own_parameters_alone():
    own = {"critic": {"critic"}, "actor": {"actor"}, "temperature": {"log_temperature"}}
    reaches(objective(), batch(), own)
    reaches(objective(conservatism=Lagrange()), batch(), own | {"multiplier": {"log_multiplier"}})


def test_random_actions_fill_all_bounds_at_their_density():
    """Not one corner, and at (1 / 2)^A, the density of the whole cube."""
    made, data = objective(samples=400), batch(size=8)
    action, density = made.sampled(data)
    assert action.shape == (8, 4, 1200, ACTS)
    uniform = action[..., :400, :]
    assert uniform.min() < -0.99
    assert uniform.max() > 0.99
    torch.testing.assert_close(uniform.std(), torch.tensor(1 / math.sqrt(3), dtype=torch.float64), rtol=0.02, atol=0)
    assert torch.equal(density[..., :400], torch.full_like(density[..., :400], ACTS * math.log(0.5)))


def test_with_a_constant_critic_the_gap_is_the_volume_of_the_bounds_three_times():
    """Ln of N (2^A + 2^A + 2^A) in expectation: each kind estimates the integral of exp(Q) over all actions."""
    made, data = objective(samples=4000), batch(size=8)
    for p in made.critic.parameters():
        p.data.zero_()
    gap = made.critic_loss(data).metrics["train/gap"]
    assert float(gap) == pytest.approx(math.log(3 * 4000 * 2**ACTS), abs=0.05)


# ---------------------------------------------------------------- learners


def agent(**settings):
    config = CQLConfig(batch_size=4, samples=2, **settings).merge({"networks.units": (8,)})
    vector = ObsPart(kind="vector", shape=(3,), dtype="float32")
    return config.build({"state": vector}, ActionSpec(parts={"move": ActionPart(kind="continuous", size=ACTS)}))


@pytest.mark.parametrize(("threshold", "rises"), [(-100.0, True), (100.0, False)])
def test_the_multiplier_rises_while_the_gap_is_too_wide(threshold, rises):
    learner = agent(conservatism=Lagrange(threshold))
    for i in range(3):
        learner.update(batch(4, 2, seed=i, crossing=False, dtype=torch.float32))
    assert (learner.objective.log_multiplier.item() > 0) == rises


def test_a_multiplier_at_its_end_comes_down_again():
    learner = agent(conservatism=Lagrange(threshold=1e9, initial=1e6), graph=False)
    learner.objective.log_multiplier.data.fill_(14.0)
    learner.update(batch(4, 2, crossing=False, dtype=torch.float32))
    at_its_end = learner.objective.log_multiplier.item()
    assert math.log(1e6) - 1e-5 < at_its_end < math.log(1e6)  # at the bound itself, clamp may have no gradient
    learner.update(batch(4, 2, seed=1, crossing=False, dtype=torch.float32))
    assert learner.objective.log_multiplier.item() < at_its_end


def test_a_multiplier_has_an_end():
    made = objective(conservatism=Lagrange(-1.0))
    made.log_multiplier.data.fill_(50.0)
    assert made.critic_loss(batch()).metrics["train/multiplier"].item() == pytest.approx(1e6)


def test_pressing_widens_the_distance_to_actions_of_the_data():
    gaps = {}
    for weight in (0.0, 5.0):
        learner = agent(conservatism=Fixed(weight), critic_lr=3e-3, normalise=None)
        torch.manual_seed(0)
        for _ in range(200):
            gap = learner.update(batch(4, 2, crossing=False, dtype=torch.float32)).metrics["train/gap"]
        gaps[weight] = float(gap)
    assert gaps[5.0] < gaps[0.0] - 0.5


def test_a_floor_needs_the_column_and_says_so():
    learner = agent(floor=MonteCarlo())
    assert learner.extra_spec.keys() == {RETURN}
    with pytest.raises(DataError, match=r"no extras\['return'\]"):
        learner.update(batch(4, 2, crossing=False, dtype=torch.float32))


def test_what_is_not_known_is_no_floor():
    """Then Cal-QL is CQL."""
    data, terms = batch(size=8), []
    data.extras[RETURN] = torch.full(data.shape, -math.inf, dtype=torch.float64)
    for floor in (None, MonteCarlo()):
        torch.manual_seed(7)
        terms.append(objective(floor=floor).critic_loss(data).terms["critic"])
    assert torch.equal(*terms)


def test_values_below_the_floor_are_not_pressed():
    made, data = objective(floor=MonteCarlo(), conservatism=Fixed(1.0)), batch(size=8)
    data.extras[RETURN] = torch.full(data.shape, 1e3, dtype=torch.float64)
    torch.manual_seed(7)
    losses = made.critic_loss(data)
    assert losses.metrics["train/floored"] == 1
    pressed = torch.autograd.grad(
        losses.metrics["train/floored"] * 0 + losses.terms["critic"], made.critic.parameters()
    )
    made.cfg = replace(made.cfg, conservatism=Fixed(0.0))
    torch.manual_seed(7)
    plain = made.critic_loss(data)
    taken = torch.autograd.grad(plain.terms["critic"], made.critic.parameters())
    risen = []  # what is left is to raise the values of the dataset's actions
    for c in made.critic.critics:
        mean = sum(c(row(data, b, t), data.action[b, t]) for b, t in moves(data)) / len(moves(data))
        risen += torch.autograd.grad(mean, list(c.parameters()))
    torch.testing.assert_close([p - q for p, q in zip(pressed, taken, strict=True)], [-g for g in risen])


def test_what_was_earned_counts_in_the_units_that_are_learned_from():
    for scale in ("factor(0.1)", "return_std(None)"):
        learner = CQLConfig(floor=MonteCarlo()).merge({"reward_scale": scale, "networks.units": (8,)}).build(
            {"state": ObsPart(kind="vector", shape=(3,), dtype="float32")},
            ActionSpec(parts={"move": ActionPart(kind="continuous", size=ACTS)}),
        )  # fmt: skip
        data = batch(4, 2, crossing=False, dtype=torch.float32)
        data.extras[RETURN] = torch.tensor([[3.0, -math.inf]]).expand(4, 2)
        factor = float(learner.preprocess.rewards.factor)
        torch.testing.assert_close(learner.scaled(data).extras[RETURN], data.extras[RETURN] * factor)
    assert agent().scaled(data) is data


def test_returns_to_go():
    """One episode ends by itself, one by the clock, one by a failure, and the stream stops in one."""
    reward = np.array([0, 1, 2, 0, 5, 0, 7, 0, 9], np.float32)
    first = np.array([1, 0, 0, 1, 0, 1, 0, 1, 0], bool)
    last = np.array([0, 0, 1, 0, 1, 0, 0, 0, 0], bool)
    terminal = np.array([0, 0, 1, 0, 0, 0, 0, 0, 0], bool)
    found = returns_to_go(reward=reward, first=first, last=last, terminal=terminal, discount=0.5)
    assert found.dtype == np.float32
    assert found.tolist() == [1 + 0.5 * 2, 2, 0] + [-math.inf] * 6
    whole = returns_to_go(reward=reward[:3], first=first[:3], last=last[:3], terminal=terminal[:3], discount=0.0)
    assert whole.tolist() == [1, 2, 0]


def test_what_a_failure_cut_off_does_not_earn_what_came_after_it():
    """An episode without a last row, and one behind it that ends by itself."""
    reward = np.array([0, 3, 0, 5], np.float32)
    first, terminal = np.array([1, 0, 1, 0], bool), np.array([0, 0, 0, 1], bool)
    found = returns_to_go(reward=reward, first=first, last=terminal, terminal=terminal, discount=0.5)
    assert found.tolist() == [-math.inf, -math.inf, 5, 0]


COLUMNS = {k: Column((), "bool") for k in ("is_first", "is_last", "is_terminal")}
COLUMNS |= {k: Column((), "float32") for k in ("reward", "extras/return")}


def test_returns_in_hindsight_are_those_of_all_rows():
    """Row by row, in a ring that forgets, and after it was filled again."""
    g = torch.Generator().manual_seed(0)
    storage = HostStorage(COLUMNS, 2, 12)
    hindsight, rows = ReturnsInHindsight(0.9), {name: [] for name in ("reward", "first", "last", "terminal")}
    last = torch.ones(2, dtype=torch.bool)
    for t in range(60):
        ends = torch.rand(2, generator=g) < (0.0 if 15 < t < 32 else 0.25)  # one is longer than the ring
        first, last = last, ends
        terminal, reward = last & (torch.rand(2, generator=g) < 0.7), torch.randn(2, generator=g)
        for name, value in zip(rows, (reward, first, last, terminal), strict=True):
            rows[name].append(value)
        storage.add({"reward": reward, "is_first": first, "is_last": last, "is_terminal": terminal,
                     "extras/return": torch.full((2,), -math.inf)})  # fmt: skip
        step = Step(obs={}, reward=reward, is_first=first, is_last=last, is_terminal=terminal)
        hindsight.added(storage, step)
        if t == 40:
            hindsight = ReturnsInHindsight(0.9)
            hindsight.filled(storage)
        held = storage.read(storage.oldest, storage.count)["extras/return"]
        for stream in range(2):
            whole = {name: torch.stack(values)[:, stream].numpy() for name, values in rows.items()}
            wanted = returns_to_go(**whole, discount=0.9)[-held.shape[1] :]
            np.testing.assert_array_equal(held[stream], wanted)


def test_the_best_of_each_critic_is_taken_before_the_lesser_of_both():
    """Two critics that like opposite actions: min max is above what any one action has, max min is not."""

    class Opposed(torch.nn.Module):
        def forward(self, obs, action):
            return torch.stack([action[..., 0], -action[..., 0]])

    made = objective(backup=Best(50))
    made.target_critic.model = Opposed()
    value, entropy = made.next_value({"state": torch.randn(6, 3, dtype=torch.float64)})
    assert (value > 0).all()
    assert not entropy.any()


def test_the_mode_is_worth_what_both_critics_say_of_the_mean():
    made, obs = objective(backup=Mode()), {"state": torch.randn(6, 3, dtype=torch.float64)}
    value, entropy = made.next_value(obs)
    assert torch.equal(value, made.target_critic(obs, made.actor(obs).mean.tanh()).amin(0))
    assert torch.equal(value, made.next_value(obs)[0])  # nothing is drawn
    assert not entropy.any()


def test_rows_that_are_lived_have_returns_that_nobody_knows():
    policy = agent(floor=MonteCarlo()).policy
    assert policy.extras(policy.initial(3))[RETURN].tolist() == [-math.inf] * 3


def test_a_floor_needs_rewards_that_are_not_cut():
    with pytest.raises(ConfigError, match=r"reward_scale = return_std\(clip=10\.0\), floor = monte_carlo"):
        CQLConfig(floor=MonteCarlo()).merge({"reward_scale": "return_std"})
    CQLConfig(floor=MonteCarlo()).merge({"reward_scale": "return_std(None)"})
