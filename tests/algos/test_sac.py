"""SAC's losses against the paper, one transition at a time; where gradients go; the temperature."""

import math

import pytest
import torch
from recorded import close
from torch import nn
from windows import ACTS, ESTIMATORS, TinyActor, TinyCritic, batch, gradients, moves, row, slow_target

from reverie.algos.sac import SACConfig, SACObjective
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.nn.actor_critic import Stacked
from reverie.nn.distributions import SquashedNormal, log_density

GAMMA, ALPHA, ENTROPY = 0.9, 0.7, -1.5


class TinyGaussian(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = TinyActor(2 * ACTS)

    def forward(self, obs):
        return SquashedNormal(*self.body(obs).chunk(2, -1))


def objective(target_entropy=ENTROPY, **settings) -> SACObjective:
    torch.manual_seed(0)
    given = {"discount": GAMMA, "temperature": ALPHA, "batch_length": 5} | settings
    critics = Stacked(TinyCritic(), TinyCritic())
    made = SACObjective(TinyGaussian(), critics, SACConfig(**given), target_entropy).double()
    for p in made.target_critic.parameters():
        p.data.add_(torch.randn_like(p) * 0.3)  # targets lag behind
    return made


def slow_sample(actor, obs, noise):
    """An action and its log-density, by the change of variables written out."""
    policy = actor(obs)
    u = policy.mean + policy.log_std.exp() * noise
    density = torch.distributions.Normal(policy.mean, policy.log_std.exp()).log_prob(u)
    return torch.tanh(u), (density - torch.log(1 - torch.tanh(u) ** 2)).sum()


def slow_losses(made, data, estimator, after, before):
    """Equations 2 to 9 and 18, for each transition on its own; noise of rows 1 ... T-1 and of 0 ... T-2."""
    size, length = data.shape
    alpha = math.exp(float(made.log_temperature))
    value, bonus = ([[0.0] * length for _ in range(size)] for _ in range(2))
    for b in range(size):
        for t in range(1, length):
            action, log_pi = slow_sample(made.actor, row(data, b, t), after[b, t - 1])
            q = min(c(row(data, b, t), action).item() for c in made.target_critic.model.critics)
            bonus[b][t] = -alpha * log_pi.item()
            value[b][t] = q + bonus[b][t]
    sums = {"critic": 0.0, "actor": 0.0, "temperature": 0.0}
    for b, t in moves(data):
        y = slow_target(estimator, data, value, b, t, GAMMA, bonus)
        for c in made.critic.critics:
            sums["critic"] += 0.5 * data.weight[b] * (c(row(data, b, t), data.action[b, t]) - y) ** 2
        action, log_pi = slow_sample(made.actor, row(data, b, t), before[b, t])
        q = min(c(row(data, b, t), action) for c in made.critic.critics)
        sums["actor"] += alpha * log_pi - q
        sums["temperature"] += -made.log_temperature.exp() * (log_pi.item() + ENTROPY)
    return {name: x / len(moves(data)) for name, x in sums.items()}


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_losses_and_gradients_against_the_definition(estimator):
    made, data = objective(value_estimator=estimator), batch(size=8)
    torch.manual_seed(7)
    losses = made(data)
    torch.manual_seed(7)
    after, before = (torch.randn(8, 4, ACTS, dtype=torch.float64) for _ in range(2))
    slow = slow_losses(made, data, estimator, after, before)
    own = {"critic": made.critic.parameters(), "actor": made.actor.parameters(), "temperature": [made.log_temperature]}
    close(losses, slow, own)


def test_each_term_reaches_its_own_parameters_alone():
    own = {"critic": {"critic"}, "actor": {"actor"}, "temperature": {"log_temperature"}}
    for term, names in own.items():
        made = objective()
        made(batch()).terms[term].backward()
        reached = gradients(made)
        assert {k.split(".")[0] for k in reached} == names
        assert len(reached) == sum(k.split(".")[0] in names for k, _ in made.named_parameters())


def agent(**settings):
    config = SACConfig(batch_size=4, **settings).merge({"networks.units": (8,)})
    return config.build(
        {"state": ObsPart(kind="vector", shape=(3,), dtype="float32")},
        ActionSpec(parts={"move": ActionPart(kind="continuous", size=ACTS)}),
    )


@pytest.mark.parametrize(("target", "rises"), [(100.0, True), (-100.0, False), (None, False)])
def test_the_temperature_rises_while_there_is_too_little_entropy(target, rises):
    learner = agent(target_entropy=target)
    assert learner.objective.target_entropy == (-ACTS if target is None else target)
    for i in range(3):
        learner.update(batch(4, 2, seed=i, crossing=False, dtype=torch.float32))
    assert (float(learner.objective.temperature) > 1) == rises


def test_a_temperature_without_a_learning_rate_stays():
    learner = agent(temperature=0.25, temperature_lr=0.0)
    learner.update(batch(4, 2, crossing=False, dtype=torch.float32))
    assert float(learner.objective.temperature) == pytest.approx(0.25, rel=1e-6)
    assert "temperature_optim" not in learner.state_dict()


# ---------------------------------------------------------------- the distribution


def test_density_integrates_to_one():
    a = torch.linspace(-1, 1, 200_001, dtype=torch.float64)[:, None]
    for mean, log_std in ((0.3, -0.5), (-1.0, 0.4), (2.0, -1.0)):
        policy = SquashedNormal(torch.full_like(a, mean), torch.full_like(a, log_std))
        assert float(torch.trapezoid(policy.log_prob(a).exp(), a[:, 0])) == pytest.approx(1, abs=1e-3)


def test_sampling_and_log_prob_agree():
    torch.manual_seed(0)
    policy = SquashedNormal(torch.randn(50, 3, dtype=torch.float64), torch.randn(50, 3, dtype=torch.float64) * 0.3)
    action, log_pi = policy.sample()
    assert action.abs().max() <= 1
    torch.testing.assert_close(policy.log_prob(action), log_pi, rtol=1e-6, atol=1e-6)
    assert torch.equal(policy.mode(), policy.mean.tanh())


def test_density_is_finite_and_right_where_tanh_is_one():
    u = torch.tensor([[-80.0], [-20.0], [0.0], [20.0], [80.0]])
    policy = SquashedNormal(u.clone().requires_grad_(), torch.zeros(5, 1))
    _, log_pi = policy.sample()
    assert torch.isfinite(log_pi).all()
    log_pi.sum().backward()
    assert torch.isfinite(policy.mean.grad).all()
    assert torch.isfinite(policy.log_prob(torch.ones(5, 1))).all()
    exact = -0.5 * math.log(2 * math.pi) - (math.log(4) - 160)  # ln(1 - tanh(80)^2) is ln 4 - 160
    far = torch.full((1, 1), 80.0)
    density = log_density(torch.zeros(1, 1), far, torch.zeros(1, 1))
    assert float(density) == pytest.approx(exact, rel=1e-6)


def test_deviations_are_bounded():
    policy = SquashedNormal(torch.zeros(1, 2), torch.tensor([[-50.0, 50.0]]))
    assert policy.log_std.tolist() == [[-20.0, 2.0]]
