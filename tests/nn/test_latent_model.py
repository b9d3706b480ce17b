"""Regularizers of latents against quadrature and loops."""

import math

import numpy as np
import pytest
import torch

from reverie.nn.latent_model import covariance_loss, effective_rank, random_directions, sigreg, std_hinge


def statistic(x):
    """The statistic of Epps and Pulley of numbers ``[B]``, by the trapezoidal rule over [-3, 3]."""
    t = np.linspace(-3, 3, 33)
    phi = np.exp(-(t**2) / 2)
    error = (np.cos(t[:, None] * x).mean(1) - phi) ** 2 + np.sin(t[:, None] * x).mean(1) ** 2
    return len(x) * np.trapezoid(phi * error, t)


def test_sigreg_is_the_quadrature():
    g = torch.Generator().manual_seed(0)
    z = torch.randn(20, 3, 5, generator=g, dtype=torch.float64).float() * 2 + 0.5
    directions = random_directions(5, 7, z.device)
    torch.testing.assert_close(directions.norm(dim=0), torch.ones(7))
    x = (z @ directions).double().numpy()
    expected = np.mean([statistic(x[:, t, p]) for t in range(3) for p in range(7)])
    assert float(sigreg(z, directions)) == pytest.approx(expected, rel=1e-5)


def test_sigreg_of_a_point_and_of_normal_latents():
    directions = random_directions(4, 16, torch.device("cpu"))
    t = np.linspace(-3, 3, 33)
    phi = np.exp(-(t**2) / 2)
    point = float(sigreg(torch.zeros(32, 2, 4), directions))
    assert point == pytest.approx(32 * np.trapezoid(phi * (1 - phi) ** 2, t), rel=1e-4)
    g = torch.Generator().manual_seed(0)
    means = [np.mean([float(sigreg(torch.randn(size, 4, 4, generator=g), directions)) for _ in range(150)])
             for size in (64, 1024)]  # fmt: skip
    assert means[0] == pytest.approx(means[1], rel=0.05)
    assert means[0] < point / 10


def test_the_parts_of_vicreg():
    g = torch.Generator().manual_seed(0)
    z = torch.randn(6, 2, 3, generator=g) * torch.tensor([0.5, 1.0, 2.0])
    hinge = np.mean([max(0.0, 1 - math.sqrt(z[:, t, d].var() + 1e-4)) for t in range(2) for d in range(3)])
    assert float(std_hinge(z, 0)) == pytest.approx(hinge, rel=1e-5)
    pairs = [np.cov(z[:, t].numpy().T)[i, j] ** 2 for t in range(2) for i in range(3) for j in range(3) if i != j]
    assert float(covariance_loss(z)) == pytest.approx(np.mean(pairs), rel=1e-4)


def test_the_effective_rank_counts_dimensions():
    g = torch.Generator().manual_seed(0)
    z = torch.zeros(5000, 8)
    z[:, :3] = torch.randn(5000, 3, generator=g)
    assert float(effective_rank(z)) == pytest.approx(3, rel=0.05)
