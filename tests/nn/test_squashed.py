"""The squashed normal distribution: draws and densities against numbers."""

import torch

from reverie.nn.normals import LOG_STD, SquashedNormal


def test_density_of_a_draw_is_that_of_its_action():
    torch.manual_seed(0)
    policy = SquashedNormal(torch.randn(100, 3).double(), torch.randn(100, 3).double())
    action, density = policy.sample_and_log_prob()
    torch.testing.assert_close(policy.log_prob(action), density, rtol=1e-6, atol=1e-6)


def test_several_draws_are_of_the_same_distribution():
    policy = SquashedNormal(torch.tensor([[0.3, -1.0], [2.0, 0.0]]), torch.tensor([[-1.0, 0.5], [0.0, -2.0]]))
    action, density = policy.repeat(20_000).sample_and_log_prob()
    assert action.shape == (2, 20_000, 2)
    torch.testing.assert_close(action.atanh().mean(1), policy.mean, atol=0.05, rtol=0)
    torch.testing.assert_close(action.double().atanh().std(1).float(), policy.log_std.exp(), atol=0.05, rtol=0)
    torch.testing.assert_close(policy.repeat(20_000).log_prob(action), density, rtol=1e-2, atol=1e-2)


def test_ln_sigma_is_kept_within_limits_beyond_which_it_has_no_gradient():
    torch.manual_seed(0)
    raw = torch.tensor([[-50.0, -1.0, 3.0]], requires_grad=True)
    policy = SquashedNormal(torch.zeros(1, 3), raw)
    torch.testing.assert_close(policy.log_std, torch.tensor([[LOG_STD[0], -1.0, LOG_STD[1]]]))
    action, density = policy.sample_and_log_prob()
    (grad,) = torch.autograd.grad(density.sum() + action.sum(), [raw])
    assert (grad != 0).tolist() == [[False, True, False]]
    assert action[0, 0].abs() < 1e-6


def test_far_out_everything_is_finite():
    mean = torch.tensor([[-300.0, 300.0, 20.0]], requires_grad=True)
    action, density = SquashedNormal(mean, torch.zeros(1, 3)).sample_and_log_prob()
    torch.testing.assert_close(action, torch.tensor([[-1.0, 1.0, 1.0]]))
    assert density.isfinite().all()
    (grad,) = torch.autograd.grad(density.sum(), [mean])
    torch.testing.assert_close(grad, torch.tensor([[-2.0, 2.0, 2.0]]))  # d ln pi / du = 2 tanh(u)
