"""Environments in this process leave PyTorch's generator to the learner."""

from __future__ import annotations

import env_zoo
import torch


class Drawing(env_zoo.Seeded):
    """Seeds PyTorch when it is made, and shows what it draws from it in ``reset``, or seeds it there as well."""

    def __init__(self, seed=None):
        super().__init__()
        self.seed = seed
        torch.manual_seed(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.seed is not None:
            torch.manual_seed(self.seed)
        return torch.rand(1).numpy(), {}


def test_making_and_resetting_environments_leaves_the_generator_as_it_was(make):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    for seed in (None, 0, 7):
        env = make(lambda seed=seed: Drawing(seed), num=2)
        rows = [env.reset()] + [env.step(torch.zeros(2, 2)) for _ in range(12)]
        numbers = {x for row in rows if row.is_first.all() for x in row.obs["observation"][:, 0].tolist()}
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.initial_seed() == 7
        assert len(numbers) == (6 if seed is None else 1)  # its own seed counts


def test_what_resets_draw_goes_on_from_a_snapshot(make):
    env, fresh = make(Drawing), make(Drawing)
    env.reset()
    for _ in range(8):
        step = env.step(torch.zeros(1, 2))
    assert not fresh.restore(env.snapshot(), step).is_last.any()
    one, two = ([each.step(torch.zeros(1, 2)).obs["observation"].item() for _ in range(9)] for each in (env, fresh))
    assert one == two
