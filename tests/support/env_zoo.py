"""Environments that misbehave on purpose, in a module that worker processes import without PyTorch."""

import multiprocessing
import os
import random
import time

import gymnasium
import numpy as np
from gymnasium import spaces


class Scripted(gymnasium.Env):  # observations, rewards and ends from lists; row t of an episode shows entry t
    def __init__(self, space, obs, rewards=None, terminated=(), truncated=(), action_space=None):
        self.observation_space = space
        self.action_space = action_space or spaces.Discrete(2)
        self.obs, self.rewards, self.terminated_at, self.truncated_at = obs, rewards, terminated, truncated
        self.time = 0
        self.actions = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.obs[0], {"bulky": "info"}

    def step(self, action):
        self.actions.append(action)
        self.time += 1
        reward = self.rewards[self.time] if self.rewards else 1.0
        obs = self.obs[min(self.time, len(self.obs) - 1)]
        return obs, reward, self.time in self.terminated_at, self.time in self.truncated_at, {}


class Changing(Scripted):
    """Does ``change(env, method)`` in each reset and step, and returns the info that this returns, or {}."""

    def __init__(self, change, space=None):
        super().__init__(space or spaces.Discrete(2), [0, 1], truncated=(5,), action_space=spaces.Discrete(2))
        self.change, self.resets = change, 0

    def reset(self, *, seed=None, options=None):
        self.resets += 1
        return super().reset(seed=seed)[0], self.change(self, "reset") or {}

    def step(self, action):
        *answer, _ = super().step(action)
        return *answer, self.change(self, "step") or {}


class Unpicklable(Exception):  # needs two arguments to be rebuilt, so that unpickling it fails
    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def without_a_seat():
    """Fails to make an environment."""
    raise OSError("no seat")


class OldStep(Scripted):  # answers as Gym did up to 0.25
    def __init__(self):
        super().__init__(spaces.Discrete(3), [0, 1])

    def step(self, action):
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, info


class OldReset(OldStep):  # answers as Gym did up to 0.21
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options=options)[0]


class Seeded(Scripted):  # shows a number drawn from its generator
    level = height = 0

    def raise_to(self, level, *, twice=False):
        self.level = level * (1 + twice)
        return self.level

    def broken(self):
        raise ValueError("a wall")

    def __init__(self):
        super().__init__(spaces.Box(0, 1, (1,)), None, truncated=(5,))

    def _draw(self):
        return self.np_random.random(1).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        gymnasium.Env.reset(self, seed=seed)
        self.time = 0
        return self._draw(), {}

    def step(self, action):
        self.time += 1
        return self._draw(), 0.0, False, self.time == 5, {}


class Faulty(Seeded):
    """Goes wrong where ``plan`` says so: for its seed (or any), in an episode, at a step (0: its reset), how.

    Episodes have five steps. ``how``: raise, nan, die, sleep.
    """

    def __init__(self, plan):
        super().__init__()
        self.plan, self.fault, self.episode = plan, None, 0

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.fault, self.episode = self.plan.get(seed, self.plan.get("any")), 0
        self.episode += 1
        obs, info = super().reset(seed=seed)
        return obs * self._wrong(), info

    def step(self, action):
        obs, _, terminated, truncated, info = super().step(action)
        return obs * self._wrong(), 1.0, terminated, truncated, info

    def _wrong(self):
        how = self.fault[2] if self.fault and self.fault[:2] == (self.episode, self.time) else "no"
        if how == "raise":
            raise Unpicklable("a wheel", "an axle")
        if how == "die":
            os._exit(7)
        if how == "sleep":
            time.sleep(30.0)
        return np.float32(np.nan if how == "nan" else 1.0)


class Own(Seeded):  # has its own way of being taken up, and a field that cannot be pickled
    def __init__(self, answer="time"):
        super().__init__()
        self.lock = (i for i in ())
        self.answer = answer

    def snapshot(self):
        return {"time": self.time} if self.answer == "time" else None

    def restore(self, state):
        self.time = state["time"]


class Fragile(Own):  # refuses what it has said itself, once it is half restored
    def restore(self, state):
        self.time = 99
        raise KeyError("wheel")


class Rebuilt(gymnasium.utils.EzPickle):  # pickles as what it was when it was made
    def __init__(self):
        super().__init__()
        self.count = 0


class Hiding(Seeded):  # keeps ``hidden``, or what that makes, in a field
    def __init__(self, hidden):
        super().__init__()
        self.hidden = hidden()


class Slotted(Seeded):  # keeps a number in ``__slots__``, once it has been reset
    __slots__ = ("total",)

    def reset(self, *, seed=None, options=None):
        self.total = 0
        return super().reset(seed=seed, options=options)


class Global(Seeded):  # draws from the generators that everybody shares
    def _draw(self):
        return np.array([random.random() * np.random.random()], np.float32)  # noqa: NPY002


def nan_in_second():
    """NaN in the second component of key 'a' at step 2."""
    good, bad = {"a": np.zeros(3, np.float32)}, {"a": np.array([0, np.nan, 0], np.float32)}
    return Scripted(spaces.Dict({"a": spaces.Box(-1, 1, (3,))}), [good, good, bad])


def only_in_main():
    """Can be made in the parent process alone."""
    if multiprocessing.parent_process() is not None:
        raise OSError("no license for a second seat")
    return Seeded()


class Parent(Seeded):
    """Starts a process of its own."""

    def __init__(self):
        super().__init__()
        multiprocessing.get_context("fork").Process(target=len, args=("",)).start()


class Waiting(Scripted):  # steps only once the file ``gate`` exists; fails after 20 seconds without it
    def __init__(self, gate):
        super().__init__(spaces.Discrete(2), [0, 1])
        self.gate = gate

    def step(self, action):
        for _ in range(2000):
            if self.gate.exists():
                return super().step(action)
            time.sleep(0.01)
        raise TimeoutError("nobody came")


class Judged(Scripted):
    """Episodes of ``length`` steps with info: ``success`` in step 2 alone, ``cost`` the number of the step."""

    def __init__(self, length=4, more=None):
        super().__init__(spaces.Box(-np.inf, np.inf, (1,)), [np.zeros(1, np.float32)], terminated=(length,))
        self.more = more or {}

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], {"cost": 1000.0}

    def step(self, action):
        *told, _ = super().step(action)
        info = {"success": self.time == 2, "cost": np.float32(self.time), "inner": {"r": np.array([self.time])}}
        return *told, info | self.more


class Seen:  # steps a ``FlatEnv`` as if it were an environment of Gymnasium
    def __init__(self, flat):
        self.flat, self.rows = flat, {key: np.zeros(p.shape, p.dtype) for key, p in flat.obs_spec.items()}

    def reset(self, seed=None):
        self.flat.reset_into(seed, self.rows)
        return self.rows, {}

    def step(self, action):
        return self.rows, *self.flat.step_into(action, self.rows), {}
