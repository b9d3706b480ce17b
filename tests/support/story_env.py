"""An environment whose observations tell who shows them, when, and what was done last; workers import it."""

import gymnasium
import numpy as np
from gymnasium import spaces

LENGTHS = ((4, 1, 2, 5), (1, 2, 5, 4), (2, 5, 4, 1))
"""Of the episodes in turn, for each environment. Of three in turn, the last two are truncated, the last also ends."""
ACTION = spaces.Dict(choice=spaces.Discrete(4, start=1), push=spaces.Box(-2, 2, (1,)))
VALUE = spaces.Box(-9, 99, (2,), np.float32)


def is_legal(number, episode, time, choice):
    """Each state has one illegal choice of four, which the states around it allow."""
    return (number + episode + time + choice) % 4 > 0


def reward_at(time):
    """float32 rounds it."""
    return (time + 10) / 10


class Story(gymnasium.Env):
    """Options are plain values, which reach workers. What is ``bad`` or fails does so in number 1, from turn 5 on."""

    action_space = ACTION
    buffer = None

    def __init__(self, number=0, seeds=(), lengths=LENGTHS, space=VALUE, bad=None, bad_reward=None, fails=False,
                 masks="obs", no_choice="terminal", tells="", alternates=None, reuses=False):  # fmt: skip
        """``seeds``: that of the first reset tells the number. ``masks``: where they are. ``no_choice``: which states
        have none. ``tells``: who has replaced actions. ``alternates``: whether players do, of whom a game has two."""
        self.number, self.seeds, self.lengths, self.bad, self.bad_reward = number, seeds, lengths, bad, bad_reward
        self.fails, self.masks, self.no_choice, self.tells, self.alternates = fails, masks, no_choice, tells, alternates
        self.reuses, self.draws, self.episode, self.time, self.turn = reuses, space is VALUE, -1, 0, -1
        parts = {
            "key": spaces.Box(-9, 999, (5,), np.float32),
            "value": space,
            "pair": spaces.Tuple([spaces.Box(-999, 0, (1,))]),
        }
        parts |= {"action_mask": spaces.MultiBinary(5)} if masks == "obs" else {}
        self.observation_space = spaces.Dict(parts if alternates is None else parts | {"player": spaces.Discrete(2)})

    def _is_over(self):
        lengths = self.lengths[self.number % len(self.lengths)]
        return self.time > 0 and self.time == lengths[self.episode % len(lengths)]

    def _mask(self):
        is_terminal = self._is_over() and self.episode % 3 != 1
        state = {(True, True): "terminal", (True, False): "truncated"}.get((self._is_over(), is_terminal), "inside")
        state = "hidden" if not self.time and self.episode > 1 else state
        legal = [is_legal(self.number, self.episode, self.time, k) and state != self.no_choice for k in range(4)]
        return np.array([*legal, True], np.int8)

    def _show(self, choice=0, push=0.0):
        self.turn += 1
        space, is_bad = self.observation_space["value"], self.number == 1 and self.turn >= 5
        if self.fails and is_bad:
            raise OSError("lost")
        value = self.draw if self.draws else np.full(space.shape, getattr(space, "start", 0), space.dtype)
        if self.bad is not None and is_bad:
            value = np.full(space.shape, self.bad).astype(space.dtype)
        key = np.array([self.number, self.episode, self.time, choice, push], np.float32)
        if self.reuses:
            self.buffer = key if self.buffer is None else self.buffer
            self.buffer[:] = key
        obs = {"key": self.buffer if self.reuses else key, "value": value, "pair": (np.float32([-self.time]),)}
        obs |= {"action_mask": self._mask()} if self.masks == "obs" else {}
        return obs if self.alternates is None else obs | {"player": self.time % 2 * self.alternates}

    def _info(self):
        return {"action_mask": self._mask()} if self.masks == "info" or (self.masks == "late" and self.time) else {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = self.seeds.index(seed) if seed in self.seeds else self.number
        self.episode, self.time = 0 if seed is not None else self.episode + 1, 0
        self.draw = self.np_random.random(2).astype(np.float32)
        return self._show(), self._info()

    def step(self, action):
        is_told = self.tells == "filter" or bool(self.tells and self.time % 2 and self.number < 2)
        if is_told:
            wanted = self.tells != "illegal"
            choices = [k for k in range(4) if is_legal(self.number, self.episode, self.time, k) == wanted]
            action = {"choice": choices[-1] + 1, "push": np.float32([3 if self.tells == "beyond" else 1])}
        self.time += 1
        obs, is_over = self._show(int(action["choice"]), float(action["push"][0])), self._is_over()
        reward = self.bad_reward if self.bad_reward and self.number == 1 and self.turn >= 5 else reward_at(self.time)
        if self.alternates is not None:
            reward = float(is_over)
        info = {"is_success": is_over and self.is_lucky(self.number, self.episode), "cost": float(self.time)}
        info |= {"filter": {"executed_action": action}, "": {}}.get(
            self.tells, {"is_intervention": is_told, "intervene_action": action}
        )
        flags = is_over and self.episode % 3 != 1, is_over and self.episode % 3 != 0
        return obs, reward, *flags, info | self._info()

    @staticmethod
    def is_lucky(number, episode):
        """Whether an episode ends in success."""
        return (number + episode) % 2 > 0
