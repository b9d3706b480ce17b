"""Cycles of three states with rewards 0, 0, 1, as vectors of torch tensors and in JAX; and what their rows must be."""

import functools

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from reverie.envs.config import EnvConfig
from roads import make_vector_env

SPACE = spaces.Box(-np.inf, np.inf, (4,), np.float32)
"""State, age of the episode in steps, the last action, and a number of the episode."""
CHANCES = (0.2, 0.1)
"""Of a truncation and of a termination in each step."""


class TorchCycle(VectorEnv):
    """The cycle in torch, with any autoreset mode; ``spoil(answer)`` changes what a step returns."""

    single_observation_space, single_action_space = SPACE, spaces.Discrete(2)

    def __init__(self, num_envs, mode=AutoresetMode.NEXT_STEP, chances=CHANCES, final="final_obs", spoil=tuple):
        self.num_envs, self.mode, self.chances, self.final, self.spoil = num_envs, mode, chances, final, spoil
        self.metadata = {"autoreset_mode": mode}
        self.device = torch.device("cpu")
        self.actions = []

    def _draw(self, mask):
        self.state = torch.where(mask, torch.randint(3, (self.num_envs,), generator=self.rng), self.state)
        self.age, self.act = self.age.masked_fill(mask, 0), self.act.masked_fill(mask, -1)
        self.number = self.number + mask

    def _obs(self):
        return torch.stack([self.state, self.age, self.act, self.number], 1).float()

    def reset(self, *, seed=None, options=None):
        if options:  # of the mode DISABLED
            self._draw(options["reset_mask"])
            return self._obs(), {}
        if seed is not None or not hasattr(self, "rng"):
            self.rng = torch.Generator().manual_seed(seed or 0)
        self.state = self.age = self.number = torch.zeros(self.num_envs, dtype=torch.int64)
        self.act = self.age - 1
        self.ended = self.age > 0
        self._draw(~self.ended)
        return self._obs(), {}

    def step(self, action):
        self.actions.append(action)
        fresh = self.ended if self.mode == AutoresetMode.NEXT_STEP else torch.zeros_like(self.ended)
        self.state, self.age, self.act = (self.state + 1) % 3, self.age + 1, action
        self._draw(fresh)
        reward = ((self.state == 0) & ~fresh).float()
        uniform = torch.rand(2, self.num_envs, generator=self.rng)
        truncated, terminal = (u < chance for u, chance in zip(uniform, self.chances, strict=True))
        truncated, terminal = truncated & ~fresh, terminal & ~fresh
        self.ended = truncated | terminal
        info = {}
        if self.mode == AutoresetMode.SAME_STEP:
            if self.ended.any() and self.final:
                info = {self.final: self._obs()}
            self._draw(self.ended)
        return tuple(self.spoil([self._obs(), reward, terminal, truncated, info]))


class Tensors(VectorWrapper):
    """A vector of arrays as one of tensors."""

    def reset(self, *, seed=None, options=None):
        obs, info = self.env.reset(seed=seed, options=options)
        return torch.tensor(obs), info

    def step(self, action):
        obs, *values, info = self.env.step(action.numpy())
        return (*(torch.tensor(x) for x in (obs, *values)), info)


def native(vector):
    """The environments of a vector that is made already."""
    config = EnvConfig(num=vector.num_envs, vectorization="native")
    return make_vector_env(config, seed=0, factory=lambda num_envs: vector)


@functools.cache
def jax_task(chances=CHANCES):
    """The cycle in JAX, whose state has leaves of uint32, int32, bool and float32, and a typed key.

    Its random numbers are squares modulo 2^32, which compile faster than JAX's.
    """
    import jax
    import jax.numpy as jnp

    from reverie.envs.jax_vector import JaxTask

    def show(state):
        return jnp.stack([state["state"], state["age"], state["act"], state["number"]]).astype(jnp.float32)

    def init(key):
        state = {"state": key[0] % 3, "age": 0, "act": -1, "flag": False, "raw": key[1] | 1}
        state |= {"number": (key[0] % 2**20).astype(jnp.float32), "key": jax.random.wrap_key_data(key)}
        return show(state), state

    def step(key, state, action):
        raw = state["raw"] * jnp.uint32(1664525) + jnp.uint32(1013904223)
        state = state | {"state": (state["state"] + 1) % 3, "age": state["age"] + 1, "act": action, "raw": raw}
        state |= {"flag": ~state["flag"]}
        uniform = (raw >> 8) / 2**24
        reward = (state["state"] == 0).astype(jnp.float32)
        end = uniform < chances[0] + chances[1]
        terminal = uniform < chances[1]
        return show(state), state, reward, terminal, end & ~terminal

    return JaxTask(init, step, SPACE, spaces.Discrete(2))


def match_task():
    """Choose the class that is shown, one of 3, in 8 steps: return 8, by chance 2.7; in JAX."""
    import jax

    from reverie.envs.jax_vector import JaxTask

    def show(state):
        return jax.nn.one_hot(state[0], 3)

    def init(key):
        state = (jax.random.randint(key, (), 0, 3), 0)
        return show(state), state

    def step(key, state, action):
        reward, after = (action == state[0]) * 1.0, ((state[0] * 2 + 1) % 3, state[1] + 1)
        return show(after), after, reward, after[0] < 0, after[1] >= 8

    return JaxTask(init, step, spaces.Box(0, 1, (3,), np.float32), spaces.Discrete(3), 8)


def jax_env(num, **options):
    from reverie.envs.jax_vector import JaxVector

    return native(JaxVector(jax_task(**options), num))
