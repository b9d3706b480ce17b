"""Noise: its spread and memory, where it begins anew, schedules, that it is carried and not kept; epsilon-greedy."""

import pytest
import torch
from torch import nn

from reverie.core.errors import ConfigError
from reverie.core.types import Step
from reverie.nn.exploration import (
    EpsilonGreedy,
    EpsilonSchedule,
    Gaussian,
    GreedyPolicy,
    Noise,
    NoisyPolicy,
    OrnsteinUhlenbeck,
)


def step(first=(False,), last=None) -> Step:
    n = len(first)
    no = torch.zeros(n, dtype=torch.bool)
    last = no if last is None else torch.tensor(last)
    return Step(obs={"x": torch.zeros(n, 1)}, reward=torch.zeros(n), is_first=torch.tensor(first), is_last=last,
                is_terminal=no)  # fmt: skip


def run(noise, steps, envs=2000):
    """Noise ``[steps, envs]`` from the beginning of an episode."""
    state, out = noise.initial(envs, 1), []
    for _ in range(steps):
        values, state = noise(state, step([False] * envs))
        out.append(values[:, 0])
    return torch.stack(out)


def test_the_process_follows_its_equation():
    torch.manual_seed(3)
    got = run(OrnsteinUhlenbeck(), 5, envs=1)[:, 0]
    torch.manual_seed(3)
    x, expected = 0.0, []
    for _ in range(5):
        x = x - 0.15 * x + 1.0 * float(torch.randn(1, 1))
        expected.append(0.2 * x)
    torch.testing.assert_close(got, torch.tensor(expected), rtol=1e-5, atol=1e-7)


def test_gaussian_noise_is_the_process_without_memory():
    torch.manual_seed(3)
    got = run(Gaussian(0.3), 4, envs=5)
    torch.manual_seed(3)
    expected = torch.stack([0.3 * torch.randn(5, 1)[:, 0] for _ in range(4)])
    torch.testing.assert_close(got, expected)


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


def test_schedules_count_the_actions_of_all_environments():
    noise = Gaussian(1.0, final_sigma=0.2, anneal_steps=10)
    state, seen = noise.initial(2, 1), []
    for last in ((False, False), (False, True), (False, False), *[(False, False)] * 4):
        seen.append(float(noise.scale(state.steps)))
        _, state = noise(state, step((False, False), last))
    assert seen == pytest.approx([1.0, 0.84, 0.76, 0.6, 0.44, 0.28, 0.2])  # an is_last row takes no action
    assert float(noise.scale(torch.tensor(1000))) == pytest.approx(0.2)


class Fixed(nn.Module):
    def forward(self, obs):
        return torch.full((len(obs["x"]), 2), 0.9)


def test_a_policy_adds_it_within_bounds_and_only_where_it_explores():
    policy = NoisyPolicy(Fixed(), Gaussian(0.5), 2, torch.device("cpu"))
    state = policy.initial(200)
    action, after = policy.act(step([True] * 200), state, "explore")
    assert action.max() == 1
    assert action.min() < 0.5
    assert after.steps.sum() == 200
    action, same = policy.act(step([True] * 200), state, "eval")
    assert torch.equal(action, torch.full((200, 2), 0.9))
    assert same is state
    assert torch.equal(state.process, torch.zeros(200, 2))


# ---------------------------------------------------------------- epsilon-greedy


def greedy(randomness: EpsilonSchedule, classes: int = 4) -> GreedyPolicy:
    """Prefers class 1."""
    return GreedyPolicy(
        lambda obs: torch.eye(classes)[[1]].repeat(len(obs["x"]), 1), randomness, (classes,), torch.device("cpu")
    )


def test_epsilon_moves_linearly_over_the_steps_of_all_environments():
    policy = greedy(EpsilonGreedy(1.0, 0.2, 10))
    state, seen = policy.initial(2), []
    for last in ((False, False), (False, True), (False, False), *[(False, False)] * 4):
        seen.append(float(policy.randomness.chance(state.steps)))
        _, state = policy.act(step((False, False), last), state, "explore")
    assert seen == pytest.approx([1.0, 0.84, 0.76, 0.6, 0.44, 0.28, 0.2])  # an is_last row takes no action
    assert float(policy.randomness.chance(torch.tensor(1000))) == pytest.approx(0.2)
    assert float(EpsilonGreedy(0.3).chance(torch.tensor(1000))) == pytest.approx(0.3)


@pytest.mark.parametrize("epsilon", [0.0, 0.25, 1.0])
def test_each_environment_acts_at_random_with_probability_epsilon(epsilon):
    torch.manual_seed(0)
    policy, n = greedy(EpsilonGreedy(epsilon)), 20_000
    action, _ = policy.act(step([False] * n), policy.initial(n), "explore")
    assert torch.equal(action.sum(-1), torch.ones(n))
    share = epsilon / 4  # of each class; what is drawn may be the best one
    expected = torch.tensor([share, 1 - epsilon + share, share, share])
    torch.testing.assert_close(action.mean(0), expected, rtol=0, atol=0.02)


def test_each_of_several_choices_is_random_for_itself():
    torch.manual_seed(0)
    best, n = torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0]), 20_000
    policy = GreedyPolicy(lambda obs: best.expand(n, 5), EpsilonGreedy(0.6), (2, 3), torch.device("cpu"))
    assert torch.equal(policy.act(step([False] * n), policy.initial(n), "eval")[0], best.expand(n, 5))
    action, _ = policy.act(step([False] * n), policy.initial(n), "explore")
    expected = torch.tensor([0.3, 0.7, 0.2, 0.2, 0.6])
    torch.testing.assert_close(action.mean(0), expected, rtol=0, atol=0.02)
    both = (action[:, 1] * action[:, 4]).mean()  # as often as independent choices are
    torch.testing.assert_close(both, expected[1] * expected[4], rtol=0, atol=0.02)


def test_evaluation_is_greedy_and_draws_nothing():
    policy = greedy(EpsilonGreedy(1.0))
    state, rng = policy.initial(50), torch.get_rng_state()
    action, same = policy.act(step([False] * 50), state, "eval")
    assert torch.equal(action, torch.eye(4)[[1]].repeat(50, 1))
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


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Gaussian(final_sigma=0.1), "anneal_steps = 0"),
        (lambda: Gaussian(anneal_steps=10), "final_sigma = None"),
        (lambda: EpsilonSchedule.parse("epsilon_greed(0.1)"), r"unknown name .* Did you mean 'epsilon_greedy'"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be(made, said):
    with pytest.raises(ConfigError, match=said):
        made()


def test_schedules_are_settings_in_words():
    assert Noise.parse("ornstein_uhlenbeck(0.15, sigma=0.3)") == OrnsteinUhlenbeck(sigma=0.3)
    for made in (Gaussian(0.2, 0.1, 50), OrnsteinUhlenbeck(dt=0.01), EpsilonGreedy(1.0, 0.05, 1000)):
        assert (EpsilonSchedule if isinstance(made, EpsilonGreedy) else Noise).parse(made.text()) == made
