"""Representation losses against slow definitions."""

import numpy as np
import torch

from reverie.algos.r2dreamer import barlow_twins, infonce, sinkhorn


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_barlow_twins_is_what_its_equation_says():
    x, y = numbers(7, 3), numbers(7, 3, seed=1)
    a, b = ((z - z.mean(0)) / z.std(0, ddof=1) for z in (x.numpy(), y.numpy()))
    c = a.T @ b / 7
    expected = np.where(np.eye(3), (1 - c) ** 2, 0.25 * c**2).sum()
    np.testing.assert_allclose(barlow_twins(x, y, 0.25), expected, rtol=1e-5)


def test_infonce_is_the_share_of_the_own_row():
    x, y = numbers(5, 4), numbers(5, 4, seed=1)
    found = infonce(x.requires_grad_(), y)
    weights = np.exp(x.detach().numpy() @ y.numpy().T)
    np.testing.assert_allclose(found.detach(), -np.log(np.diag(weights) / weights.sum(1)), rtol=1e-5)


def test_sinkhorn_uses_all_prototypes_alike():
    found = sinkhorn(numbers(12, 3), 0.3, 200)
    torch.testing.assert_close(found.sum(1), torch.ones(12))
    torch.testing.assert_close(found.sum(0), torch.full((3,), 4.0))
    one = sinkhorn(torch.tensor([[1.0, 3.0], [1.0, 1.0]]).log(), 1.0, 1)  # prototypes first, then rows
    torch.testing.assert_close(one, torch.tensor([[0.4, 0.6], [2 / 3, 1 / 3]]))
