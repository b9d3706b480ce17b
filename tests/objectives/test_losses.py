"""KL and policy losses against numbers by hand."""

import math

import pytest
import torch

from reverie.objectives.kl import dynamics_and_representation
from reverie.objectives.policy import reinforce
from reverie.objectives.td import Losses


def test_the_loss_in_the_log_is_the_one_that_is_trained_on():
    terms = {"critic": torch.tensor(2.0, requires_grad=True), "actor": torch.tensor(1.0)}
    update = Losses(terms, {"loss/critic": torch.tensor(0.5), "train/x": torch.tensor(3.0)}).update()
    assert update.metrics == {"loss/critic": 2.0, "loss/actor": 1.0, "train/x": 3.0}


def test_free_nats_clamp_the_sum_not_each_latent():
    """Ten latents of 0.2 nats are two nats: above one free nat, although each alone is below it."""
    p = torch.tensor([[0.5, 0.5]] * 10, dtype=torch.float64)
    share = 0.5 - 0.5 * math.sqrt(1 - math.exp(-0.4))  # KL(p || (share, 1 - share)) = 0.2
    q = torch.tensor([[share, 1 - share]] * 10, dtype=torch.float64)
    dyn, rep = dynamics_and_representation(p.log(), q.log(), 1.0)
    assert (float(dyn), float(rep)) == pytest.approx((2.0, 2.0))
    assert float(dynamics_and_representation(p.log(), q.log(), 3.0)[0]) == 3.0


def test_dynamics_teaches_the_prior_and_representation_the_posterior():
    post, prior = (torch.randn(4, 3, 5, requires_grad=True) for _ in range(2))
    dyn, rep = dynamics_and_representation(post.log_softmax(-1), prior.log_softmax(-1), 0.0)
    assert torch.autograd.grad(dyn.sum(), [post, prior], allow_unused=True, retain_graph=True)[0] is None
    assert torch.autograd.grad(rep.sum(), [post, prior], allow_unused=True)[1] is None


def test_reinforce_by_hand():
    loss = reinforce(
        log_prob=torch.tensor([-1.0, -2.0]), advantage=torch.tensor([3.0, -1.0]), entropy=torch.tensor([0.5, 0.1]),
        weight=torch.tensor([1.0, 0.5]), entropy_scale=0.1,
    )  # fmt: skip
    torch.testing.assert_close(loss, torch.tensor([3.0 - 0.05, 0.5 * (-2.0 - 0.01)]))


def test_reinforce_has_no_gradient_through_advantage_or_weight():
    parts = {k: torch.ones(3, requires_grad=True) for k in ("log_prob", "advantage", "entropy", "weight")}
    reinforce(**parts, entropy_scale=0.1).sum().backward()
    assert {name for name, x in parts.items() if x.grad is not None} == {"log_prob", "entropy"}
