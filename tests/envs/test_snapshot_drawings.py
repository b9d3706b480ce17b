"""Snapshots of environments that hold windows, surfaces and the like: these stay, and everything else is restored."""

from __future__ import annotations

import functools
import types

import env_zoo
import pytest
import torch
from matplotlib.figure import Figure

pygame = pytest.importorskip("pygame")


def after_three(env):
    env.reset()
    for _ in range(2):
        env.step(torch.zeros(1, 2))
    return env, env.step(torch.zeros(1, 2))


class PidViewer:
    """Draws nothing, whatever its name says."""

    seen = 0.0


class Pictured(env_zoo.Seeded):
    """Keeps its state beside pictures, and in classes of a package that draws."""

    def __init__(self):
        super().__init__()
        self.place, self.box, self.viewer = pygame.Vector2(0, 0), pygame.Rect(0, 0, 1, 1), PidViewer()
        self.robot = {"speed": 0.0}
        self.sprites = {"robot": [pygame.Surface((2, 2)), pygame.time.Clock()]}

    def step(self, action):
        self.place.x += 1
        self.box.x = self.viewer.seen = self.robot["speed"] = self.place.x
        return super().step(action)


def test_only_what_draws_is_left_behind(make):
    env, step = after_three(make(Pictured))
    fresh = make(Pictured)
    new = fresh._slots[0].env.unwrapped
    sprites = new.sprites
    assert not fresh.restore(env.snapshot(), step).is_last.any()
    assert (new.place.x, new.box.x, new.viewer.seen, new.robot["speed"]) == (3, 3, 3, 3)
    assert new.sprites is sprites


@pytest.mark.parametrize(
    ("hidden", "can"),
    [
        (lambda: [pygame.Surface((1, 1))], True),
        (lambda: (1, pygame.Surface((1, 1))), False),
        (lambda: types.SimpleNamespace(x=pygame.Surface((1, 1))), False),
        (lambda: pygame.mask.Mask((1, 1)), False),
        (lambda: Figure().add_subplot(), True),
    ],
)
def test_what_can_neither_be_pickled_nor_draws_cannot_be_saved(make, hidden, can):
    env, _ = after_three(make(functools.partial(env_zoo.Hiding, hidden)))
    assert (env.snapshot()[0] is not None) == can
