"""Independent choices among classes: probabilities, draws, modes."""

import math

import torch

from reverie.core.specs import ObsPart
from reverie.nn.actor_critic import ChoicesActor, NetworkConfig
from reverie.nn.distributions import Choices


def test_probabilities_are_of_each_choice_alone():
    logits = torch.tensor([[0.0, 1.0, 5.0, 2.0, 2.0]], dtype=torch.float64)
    found = Choices(logits, (2, 3)).log_probs.exp()[0].tolist()
    two, three = 1 + math.e, math.exp(5) + 2 * math.exp(2)
    expected = [1 / two, math.e / two, math.exp(5) / three, math.exp(2) / three, math.exp(2) / three]
    torch.testing.assert_close(found, expected)
    action = torch.tensor([[1.0, 0.0, 0.0, 0.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(Choices(logits, (2, 3)).log_prob(action).item(), math.log(expected[0] * expected[4]))
    assert Choices(logits, (2, 3)).mode().tolist() == [[0.0, 1.0, 1.0, 0.0, 0.0]]


def test_draws_have_their_probabilities():
    torch.manual_seed(0)
    made = Choices(torch.tensor([0.0, 1.0, 2.0, 0.0, 0.5]).expand(20_000, 5), (3, 2))
    action, log_pi = made.sample()
    assert torch.equal(action[:, :3].sum(-1), torch.ones(20_000))
    assert torch.equal(action[:, 3:].sum(-1), torch.ones(20_000))
    torch.testing.assert_close(action.mean(0), made.log_probs[0].exp(), rtol=0, atol=0.02)
    torch.testing.assert_close(log_pi, made.log_prob(action))
    both = (action[:, 0] * action[:, 3]).mean()
    torch.testing.assert_close(both, action[:, 0].mean() * action[:, 3].mean(), rtol=0, atol=0.01)


def test_expectations():
    made, values = Choices(torch.tensor([0.0, math.log(3.0)]), (2,)), torch.tensor([8.0, 4.0])
    torch.testing.assert_close(made.mean(values).item(), 0.25 * 8 + 0.75 * 4)


def test_an_actor_keeps_leading_axes():
    actor = ChoicesActor({"state": ObsPart(kind="vector", shape=(3,), dtype="float32")}, (2, 4), NetworkConfig())
    for lead in ((5,), (2, 5)):
        assert actor({"state": torch.randn(*lead, 3)}).log_probs.shape == (*lead, 6)
