"""GAIL's discriminator against its definition; what the agent learns from, and what it does not."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from batches import ACTS, WIDE, batch, close, moves, row, same_gradients
from reverie.algos.gail import REWARDS, DiscriminatorObjective, GAILConfig
from reverie.core.errors import ConfigError
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Batch

OBS = {"state": ObsPart(kind="vector", shape=(WIDE,), dtype="float32")}
MOVES = ActionSpec(parts={"move": ActionPart(kind="continuous", size=ACTS)})
CHOICE = ActionSpec(parts={"jump": ActionPart(kind="categorical", classes=(ACTS,))})
PENALTY = 3.0


class TinyDiscriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(WIDE + ACTS, 5, dtype=torch.float64)
        self.two = nn.Linear(5, 1, dtype=torch.float64)

    def encode(self, obs, action):
        return torch.cat([obs["state"], action], -1)

    def logits(self, x):
        return self.two(self.one(x).tanh()).squeeze(-1)

    def slope(self, x):
        """The gradient of f by hand: W1^T ((1 - tanh^2) w2)."""
        return ((1 - self.one(x).tanh() ** 2) * self.two.weight[0]) @ self.one.weight


def slow(made, expert, agent, share):
    d, total = made.discriminator, torch.zeros((), dtype=torch.float64)
    for data, sign in ((expert, 1.0), (agent, -1.0)):
        for b, t in moves(data):
            f = d.logits(torch.cat([row(data, b, t)["state"], data.action[b, t]]))
            total = total - data.weight[b] * torch.log(1 / (1 + torch.exp(-sign * f))) / len(moves(data))
    pairs, length = [], expert.shape[1]
    for n in range(max(len(expert.weight), len(agent.weight))):
        i, j = n % len(expert.weight), n % len(agent.weight)
        for t in range(length - 1):
            if not (expert.is_last[i, t] or agent.is_last[j, t]):
                x = torch.cat([row(expert, i, t)["state"], expert.action[i, t]])
                y = torch.cat([row(agent, j, t)["state"], agent.action[j, t]])
                point = share[n, t] * y + (1 - share[n, t]) * x
                pairs.append((d.slope(point).square().sum().sqrt() - 1) ** 2)
    return total + PENALTY * sum(pairs) / len(pairs)


@pytest.mark.parametrize(("recorded", "lived"), [(6, 6), (3, 7), (5, 2)])
def test_loss_and_gradients_against_the_definition(recorded, lived):
    torch.manual_seed(0)
    made = DiscriminatorObjective(TinyDiscriminator(), GAILConfig(gradient_penalty=PENALTY))
    expert, agent = batch(recorded, seed=1), batch(lived, seed=2)
    torch.manual_seed(7)
    losses = made(expert, agent)
    torch.manual_seed(7)
    share = torch.rand(max(recorded, lived), 4, 1, dtype=torch.float64)
    expected = slow(made, expert, agent, share)
    close(losses.terms["discriminator"], expected)
    same_gradients(made, losses.terms["discriminator"], expected, "discriminator")


def test_rewards():
    f = torch.tensor([-1.3, 0.0, 2.1], dtype=torch.float64)
    d = f.sigmoid()
    torch.testing.assert_close(REWARDS["airl"](f), d.log() - (1 - d).log())
    torch.testing.assert_close(REWARDS["positive"](f), -(1 - d).log())
    torch.testing.assert_close(REWARDS["negative"](f), d.log())


def agent(spec=MOVES, **settings):
    config = GAILConfig(batch_size=8, normalize_obs=None).merge({"networks.units": (8,), "discriminator.units": (8,)})
    return config.merge(settings).build(OBS, spec, seed=1)


def rows(seed=0, discrete=False, size=8, length=2) -> Batch:
    data = batch(size, length, seed=seed, crossing=False, dtype=torch.float32)
    if not discrete:
        return data
    return replace(data, action=nn.functional.one_hot(data.action.argmax(-1), ACTS).float())


both = pytest.mark.parametrize("spec", [MOVES, CHOICE], ids=["continuous", "choice"])


def learned(made):
    return dict(made.state_dict()["model"])


@both
def test_the_environments_reward_has_no_influence(spec):
    found = []
    for factor in (1.0, -100.0):
        made = agent(spec)
        torch.manual_seed(5)
        for i in range(3):
            data = rows(i, spec is CHOICE)
            update = made.update(replace(data, reward=data.reward * factor))
        found.append((update.metrics, update.priority, learned(made)))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


@both
@pytest.mark.parametrize("kind", REWARDS)
def test_sac_learns_what_the_discriminator_says_of_lived_rows(spec, kind, monkeypatch):
    from reverie.algos.sac import SAC

    made, seen = agent(spec, reward_form=kind, batch_length=3), []
    learn = SAC.learn
    monkeypatch.setattr(SAC, "learn", lambda self, data, **more: seen.append(data) or learn(self, data, **more))
    data = rows(discrete=spec is CHOICE, length=3)
    made.set_num_offline(3)
    update = made.update(data)
    (given,) = seen
    assert torch.equal(given.obs["state"], data.obs["state"][3:])
    f = made.imitation.discriminator(
        {"state": data.obs["state"][3:, :-1]}, data.action[3:, :-1]
    )  # the one that has just learned
    torch.testing.assert_close(given.reward[:, 1:], REWARDS[kind](f).detach())
    assert (given.reward[:, 0] == 0).all()
    assert update.priority.shape == (8,)
    torch.testing.assert_close(update.metrics["train/gail_reward"], REWARDS[kind](f).mean().detach())


def test_rewards_of_the_environment_are_not_scaled():
    with pytest.raises(ConfigError, match="gail does not learn from the environment"):
        GAILConfig().merge({"reward_scale": "return_std"})
