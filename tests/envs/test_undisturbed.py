"""Environments in this process leave PyTorch's generator to the learner, and signals to the run."""

from __future__ import annotations

import signal

import env_zoo
import numpy as np
import pytest
import torch

from reverie.core.signals import SIGNALS
from reverie.envs import undisturbed
from reverie.run.signals import heeded, listening


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


class Listening(env_zoo.Seeded):
    """Handles signals itself, from when it is made or reset on, as a simulator may; a step ``fails`` once."""

    def __init__(self, how, fails):
        super().__init__()
        self.how, self.fails = how, fails
        if how == "made":
            self.listen()

    def listen(self):
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)

    def reset(self, *, seed=None, options=None):
        if self.how == "reset":
            self.listen()
        return super().reset(seed=seed)

    def step(self, action):
        if self.fails:
            raise OSError(self.fails.pop())
        return super().step(action)


@pytest.mark.parametrize("how", ["reset", "made"])
def test_the_run_still_ends_with_signals(make, capfd, how):
    """It is said once of each signal, for all environments."""
    undisturbed._say_replaced.cache_clear()
    got = []
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        fails = ["no signal"] if how == "made" else []
        env = make(lambda: Listening(how, fails), num=2)
        wanted = heeded()
        with listening(lambda number, frame: got.append(number)):
            env.reset()
            env._restarts.lived = [True] * env.num_envs
            env.step(torch.zeros(env.num_envs, 2))
            env.reset()
            for number in SIGNALS:
                signal.raise_signal(number)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert got == wanted
    said = capfd.readouterr().err
    assert {said.count(f"a handler of {each.name} while it was reset or started again") for each in SIGNALS} == {1}
