"""Noise: its spread and memory, where it begins anew, schedules, that it is carried and not kept; epsilon-greedy."""

import pytest
import torch
from torch import nn

from reverie.core.errors import ConfigError
from reverie.core.types import Step
from reverie.nn.exploration import (
    ActionNoise,
    EpsilonGreedy,
    EpsilonSchedule,
    Gaussian,
    GreedyPolicy,
    NoisyPolicy,
    OrnsteinUhlenbeck,
)

CPU = torch.device("cpu")


def step(first, last=None) -> Step:
    no = torch.zeros(len(first), dtype=torch.bool)
    return Step(obs={"x": no[:, None].float()}, reward=no.float(), is_first=torch.tensor(first),
                is_last=no if last is None else torch.tensor(last), is_terminal=no)  # fmt: skip


@pytest.mark.parametrize(("noise", "kept", "scale"), [(OrnsteinUhlenbeck(), 0.85, 0.2), (Gaussian(0.3), 0.0, 0.3)])
def test_the_process_follows_its_equation(noise, kept, scale):
    """Gaussian noise is the one without memory."""
    state, found, expected, x = noise.initial(4, 3), [], [], 0.0
    torch.manual_seed(3)
    for _ in range(5):
        values, state = noise(state, step([False] * 4))
        found.append(values)
    torch.manual_seed(3)
    for _ in range(5):
        x = kept * x + torch.randn(4, 3)
        expected.append(scale * x)
    torch.testing.assert_close(found, expected)


def test_episodes_begin_without_a_past():
    noise = OrnsteinUhlenbeck()
    state = noise.initial(2, 3)
    for _ in range(5):
        _, state = noise(state, step((False, False)))
    torch.manual_seed(1)
    drawn = torch.randn(2, 3)
    torch.manual_seed(1)
    values, after = noise(state, step((True, False)))
    torch.testing.assert_close(values[0], 0.2 * drawn[0])
    torch.testing.assert_close(values[1], 0.2 * (0.85 * state.process[1] + drawn[1]))
    assert after.steps.tolist() == [6, 6]  # a schedule does not begin anew


class Fixed(nn.Module):
    def forward(self, obs):
        return torch.full((len(obs["x"]), 2), 0.9)


def test_a_policy_adds_it_within_bounds_and_only_where_it_explores():
    policy = NoisyPolicy(Fixed(), Gaussian(0.5), 2, CPU)
    state = policy.initial(200)
    action, after = policy.act(step([True] * 200), state, "explore")
    assert action.max() == 1
    assert action.min() < 0.5
    assert after.steps.sum() == 200
    action, same = policy.act(step([True] * 200), state, "eval")
    assert torch.equal(action, torch.full((200, 2), 0.9))
    assert same is state
    assert torch.equal(state.process, torch.zeros(200, 2))


BEST, CLASSES = torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0]), (2, 3)


def greedy(randomness: EpsilonSchedule) -> GreedyPolicy:
    """Prefers class 1 of 2, and class 2 of 3."""
    return GreedyPolicy(lambda obs: BEST.expand(len(obs["x"]), 5), randomness, CLASSES, CPU)


NOISE, EPSILON = Gaussian(1.0, final_sigma=0.2, anneal_steps=10), EpsilonGreedy(1.0, 0.2, 10)


@pytest.mark.parametrize(("policy", "level"), [
    (NoisyPolicy(Fixed(), NOISE, 2, CPU), NOISE.scale), (greedy(EPSILON), EPSILON.epsilon_at),
])  # fmt: skip
def test_schedules_move_linearly_over_the_actions_of_all_environments(policy, level):
    state, seen = policy.initial(2), []
    for last in ((False, False), (False, True), *[(False, False)] * 5):
        seen.append(float(level(state.steps)))
        _, state = policy.act(step((False, False), last), state, "explore")
    assert seen == pytest.approx([1.0, 0.84, 0.76, 0.6, 0.44, 0.28, 0.2])  # an is_last row takes no action
    assert float(level(torch.tensor(1000))) == pytest.approx(0.2)
    assert float(EpsilonGreedy(0.3).epsilon_at(torch.tensor(1000))) == pytest.approx(0.3)


@pytest.mark.parametrize("epsilon", [0.0, 0.25, 0.6, 1.0])
def test_each_of_several_choices_is_random_for_itself_with_probability_epsilon(epsilon):
    torch.manual_seed(0)
    policy, n = greedy(EpsilonGreedy(epsilon)), 20_000
    action, _ = policy.act(step([False] * n), policy.initial(n), "explore")
    assert all((part.sum(-1) == 1).all() for part in action.split(CLASSES, -1))
    expected = (1 - epsilon) * BEST + epsilon / torch.tensor([2, 2, 3, 3, 3])  # what is drawn may be the best one
    torch.testing.assert_close(action.mean(0), expected, rtol=0, atol=0.02)
    both = (action[:, 1] * action[:, 4]).mean()  # as often as independent choices are
    torch.testing.assert_close(both, expected[1] * expected[4], rtol=0, atol=0.02)


def test_evaluation_is_greedy_and_draws_nothing():
    policy = greedy(EpsilonGreedy(1.0))
    state, rng = policy.initial(50), torch.get_rng_state()
    action, same = policy.act(step([False] * 50), state, "eval")
    assert torch.equal(action, BEST.expand(50, 5))
    assert same is state
    assert torch.equal(rng, torch.get_rng_state())


def test_as_much_is_drawn_whatever_epsilon_is():
    """So that a schedule changes which actions are random, and nothing of who draws what afterwards."""
    after = []
    for epsilon in (0.0, 1.0):
        policy = greedy(EpsilonGreedy(epsilon))
        torch.manual_seed(4)
        policy.act(step([False] * 3), policy.initial(3), "explore")
        after.append(torch.rand(1))
    assert torch.equal(*after)


@pytest.mark.parametrize(("made", "said"), [
    (lambda: Gaussian(final_sigma=0.1), "anneal_steps = 0"), (lambda: Gaussian(anneal_steps=10), "final_sigma = None"),
    (lambda: EpsilonSchedule.parse("epsilon_greed(0.1)"), "Did you mean 'epsilon_greedy'"),
])  # fmt: skip
def test_settings_that_cannot_be(made, said):
    with pytest.raises(ConfigError, match=said):
        made()


def test_schedules_are_settings_in_words():
    assert ActionNoise.parse("ornstein_uhlenbeck(0.15, sigma=0.3)") == OrnsteinUhlenbeck(sigma=0.3)
    for made in (Gaussian(0.2, 0.1, 50), OrnsteinUhlenbeck(dt=0.01), EpsilonGreedy(1.0, 0.05, 1000)):
        assert (EpsilonSchedule if isinstance(made, EpsilonGreedy) else ActionNoise).parse(made.to_text()) == made
