"""Environments in this process leave PyTorch's generator to the learner."""

from __future__ import annotations

import env_zoo
import numpy as np
import torch


class Drawing(env_zoo.Seeded):
    """Seeds PyTorch when it is made, and shows what it draws from it in ``reset``, or seeds it there as well."""

    def __init__(self, seed=None):
        super().__init__()
        self.seed = seed
        torch.manual_seed(3)
        torch.rand(1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.seed is not None:
            torch.manual_seed(self.seed)
        return torch.rand(1).numpy(), {}


def shown(env, episodes):
    """What the first rows of episodes show."""
    rows = [env.reset()]
    while len(rows) < episodes:
        step = env.step(torch.zeros(env.num_envs, 2))
        rows += [step] if step.is_first.any() else []
    return torch.cat([row.obs["observation"][:, 0] for row in rows]).tolist()


def test_making_and_resetting_environments_leaves_the_generator_as_it_was(make):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    for seed in (None, 0, 7):
        env = make(lambda seed=seed: Drawing(seed), num=2)
        numbers = shown(env, 3)
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.initial_seed() == 7
        assert len(set(numbers)) == (6 if seed is None else 1)  # its own seed counts


def test_what_resets_draw_goes_on_from_a_snapshot(make):
    env, fresh = make(Drawing), make(Drawing)
    env.reset()
    for _ in range(8):
        step = env.step(torch.zeros(1, 2))
    assert not fresh.restore(env.snapshot(), step).is_last.any()
    rows = [[each.step(torch.zeros(1, 2)).obs["observation"].item() for _ in range(9)] for each in (env, fresh)]
    np.testing.assert_array_equal(*rows)
