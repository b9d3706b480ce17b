"""Statistics of rows on a device: the operations there give the numbers of the host's."""

import torch

from reverie.nn import normalization, reward_scaling


def copies(*tensors):
    return [x.clone() for x in tensors]


def test_moments_shift_and_factor_equal_the_hosts():
    rng = torch.Generator().manual_seed(0)
    host = [torch.zeros(3, 4, dtype=torch.float64), torch.zeros(4), torch.ones(4)]
    device = copies(*host)
    for rows in (1, 7, 64):
        x = torch.randn(rows, 4, generator=rng) * torch.tensor([1.0, 100.0, 0.0, 1e-3]) + 5
        normalization.add_and_standardize(host[0], x, *host[1:])
        normalization._standardize_on_device(device[0], x, *device[1:])
        torch.testing.assert_close(device, host, rtol=1e-12, atol=1e-12)


def test_returns_and_their_factor_equal_the_hosts():
    rng = torch.Generator().manual_seed(0)
    double = torch.float64
    host = [torch.zeros(8, dtype=double), torch.zeros(3, 1, dtype=double), torch.ones(())]
    device = copies(*host)
    for turn in range(20):
        reward, first = torch.randn(8, generator=rng), torch.rand(8, generator=rng) < (0.2 if turn else 2)
        reward_scaling.add_returns(host[0], reward, first, 0.9, host[1], host[2])
        reward_scaling._add_returns_on_device(device[0], reward, first, 0.9, device[1], device[2])
        torch.testing.assert_close(device, host, rtol=1e-12, atol=1e-12)
