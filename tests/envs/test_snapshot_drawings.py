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

    def __init__(self, late=False):
        super().__init__()
        self.place, self.box, self.viewer = pygame.Vector2(0, 0), pygame.Rect(0, 0, 1, 1), PidViewer()
        self.robot = {"speed": 0.0, "sprites": [pygame.Surface((2, 2)), None]}
        self.robot["parts"] = [self.robot, (1, pygame.time.Clock())]
        self.cache = {}
        self.late = {"speed": 0.0} if late else None

    def step(self, action):
        self.place.x += 1
        self.box.x = self.viewer.seen = self.robot["speed"] = self.robot["parts"][0]["speed"] = self.place.x
        self.cache["robot"] = [self.robot["sprites"][0]]
        if self.late:
            self.late["sprite"] = pygame.Surface((2, 2))
        return super().step(action)


def test_only_what_draws_is_left_behind(make):
    env, step = after_three(make(Pictured))
    fresh = make(Pictured)
    new = fresh._slots[0].inside.env.unwrapped
    sprite, clock = new.robot["sprites"][0], new.robot["parts"][1][1]
    assert not fresh.restore(env.snapshot(), step).is_last.any()
    assert (new.place.x, new.box.x, new.viewer.seen, new.robot["speed"]) == (3, 3, 3, 3)
    assert new.robot["parts"][0] is new.robot
    assert new.robot["sprites"] == [sprite, None]
    assert new.robot["parts"][1] == (1, clock)
    assert new.cache == {}


def test_what_draws_must_have_a_place(make):
    env, step = after_three(make(functools.partial(Pictured, late=True)))
    fresh, said = make(functools.partial(Pictured, late=True)), []
    fresh._say = said.append
    assert fresh.restore(env.snapshot(), step).is_last.all()
    assert "there is nothing to draw with at late['sprite'] in the new environment" in said[0]


@pytest.mark.parametrize(
    ("hidden", "can"),
    [
        (lambda: [pygame.Surface((1, 1))], True),
        (lambda: (1, pygame.Surface((1, 1))), True),
        (lambda: types.SimpleNamespace(x=pygame.Surface((1, 1))), False),
        (lambda: pygame.mask.Mask((1, 1)), False),
        (lambda: Figure().add_subplot(), True),
    ],
)
def test_what_can_neither_be_pickled_nor_draws_cannot_be_saved(make, hidden, can):
    env, _ = after_three(make(functools.partial(env_zoo.Hiding, hidden)))
    assert (env.snapshot()[0] is not None) == can
