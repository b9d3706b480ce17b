"""The story in JAX: each episode has a number of its own, drawn from its key, as pure functions know no instance."""

import jax.numpy as jnp
import numpy as np
import torch
from gymnasium import spaces
from story import ACTION_SPACES, CLASSES, Life, obs_space

from reverie.envs.jax_vector import JaxTask, JaxVector

NUMBERS = 2**23
"""Numbers of episodes: exact in float32, and too many to be drawn twice."""


def wide_space(options):
    """The observations, with room for the numbers."""
    space = obs_space(options)
    wide = spaces.Box(0, 1e7, (4,), np.float32)
    return spaces.Dict({**space.spaces, "story": wide}) if isinstance(space, spaces.Dict) else wide


def story_task(options):
    """The rules of ``story.py``, whose masks, rewards and ends are functions of (number, episode 0, step)."""
    kind, counts = options["action"], CLASSES[options["action"]]
    lengths = jnp.array([length for length, _ in options["ends"]])
    is_terminal = jnp.array([end in ("terminal", "both") for _, end in options["ends"]])
    is_truncated = jnp.array([end in ("limit", "both") for _, end in options["ends"]])

    def mask(who, t):
        shifts = jnp.array([k + d for d, n in enumerate(counts) for k in range(n)])
        return (shifts + who + t) % 3 != 0

    def show(state):
        who, t = state["who"], state["t"]
        story = jnp.stack([who, jnp.zeros_like(who), t, 3 * t % 7]).astype(jnp.float32)
        return {"story": story, "action_mask": mask(who, t).astype(jnp.int8)} if is_masked else story

    is_masked = options["mask"] == "observation"

    def replacement(state):
        if kind == "box":
            return jnp.array([-1.0, 1.0])
        legal = mask(state["who"], state["t"]) | (not is_masked)
        first = np.cumsum([0, *counts])
        each = [jnp.argmax(legal[int(first[d]) : int(first[d]) + n]) for d, n in enumerate(counts)]
        return each[0] + 2 if kind == "discrete" else jnp.stack(each)

    def init(key):
        state = {"who": (key[0] % NUMBERS).astype(jnp.int32), "t": jnp.int32(0)}
        return show(state), state

    def step(key, state, action):
        is_replaced = (state["t"] % 3 == 1) & (options["replaced"] != "never")
        executed = jnp.where(is_replaced, replacement(state), action).astype(action.dtype)
        who, t = state["who"], state["t"] + 1
        total = (executed - 2 if kind == "discrete" else executed).sum()
        reward = (7 * who + 5 * t) % 11 - 5 + 0.25 * total
        which = who % len(options["ends"])
        is_over = t >= lengths[which]
        state = {"who": who, "t": t}
        info = {} if options["replaced"] == "never" else {"executed_action": executed}
        info |= {"is_intervention": is_replaced} if options["replaced"] in ("hil_serl", "gym_hil") else {}
        flags = is_over & is_terminal[which], is_over & is_truncated[which]
        return show(state), state, reward.astype(jnp.float32), *flags, None, info

    return JaxTask(init, step, wide_space(options), ACTION_SPACES[kind]())


class JaxStory(JaxVector):
    """Environments in JAX. A plain ``Life`` takes the same steps beside each, and writes the log."""

    def __init__(self, num_envs, folder, options):
        super().__init__(story_task(options), num_envs)
        self.folder, self.options = folder, options

    def reset(self, seed):
        rows = super().reset(seed)
        self.lives = [self._begin_life(who) for who in self._whos(rows)]
        self.is_over = [False] * self.num_envs
        return rows

    def _whos(self, rows):
        story = rows.obs["story"] if isinstance(rows.obs, dict) else rows.obs
        return story[:, 0].long().tolist()

    def _begin_life(self, who):
        life = Life.__new__(Life)
        life.folder, life.options, life.who, life.episode = self.folder, self.options, who, -1
        life.reset()
        return life

    def step(self, action):
        rows, space = super().step(action), self.action_space
        executed = rows.info.get("executed_action", action)
        for i, who in enumerate(self._whos(rows)):
            if self.is_over[i]:
                self.lives[i] = self._begin_life(who)
            else:
                taken, chosen = (np.asarray(x[i], space.dtype) for x in (executed, action))
                self.lives[i].step(taken, chosen)
        self.is_over = rows.last.tolist()
        return rows

    def state_dict(self):
        lives = torch.tensor([[life.who, life.t, over] for life, over in zip(self.lives, self.is_over, strict=True)])
        return {**super().state_dict(), "lives": lives}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        for life, (who, t, over) in zip(self.lives, state["lives"].tolist(), strict=True):
            life.who, life.t, life.is_over = who, t, bool(over)
        self.is_over = [bool(over) for *_, over in state["lives"].tolist()]
