"""The roads on which rows of environments come in: one by one, as vectors of arrays or tensors, and in JAX."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers.vector import DictInfoToList

from reverie.core.columns import row_columns
from reverie.core.types import Window
from reverie.envs.config import EnvConfig
from reverie.envs.slot import derive_seeds
from reverie.envs.slot_vector_env import make_vector_env as make_vector_env
from reverie.envs.tensor_vector import TensorRows, map_tensors
from reverie.replay.build import build_replay
from reverie.replay.config import ReplayConfig
from reverie.replay.rollout import DeviceRollout
from reverie.run.collect import EnvCollector
from story_env import ACTION, LENGTHS, Story, is_legal, reward_at

NUM = 3
NEXT, SAME, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
SLOTS = ("slots", "workers")
ARRAYS = ("arrays_next", "arrays_same", "arrays_undeclared", "arrays_list_infos")
TENSORS = ("torch_next", "torch_same", "torch_disabled", "torch_ids", "user_tensors", "jax")
VECTORS = ARRAYS + TENSORS
ROADS = SLOTS + VECTORS
STORIES = ROADS[:-1]
"""Without JAX, whose story has no options."""
KINDS = ("slots", "arrays_next", "torch_next", "user_tensors")
"""One road of each kind, for what does not depend on when a vector resets and how it tells infos."""
HIDING = ("arrays_same", "arrays_undeclared", "arrays_list_infos", "torch_same", "torch_ids")
"""Where the step behind a reset is hidden."""


def to_tensors(value):
    """Return nested arrays as tensors."""
    if isinstance(value, dict):
        return {key: to_tensors(part) for key, part in value.items()}
    return tuple(map(to_tensors, value)) if isinstance(value, tuple) else torch.from_numpy(np.asarray(value))


def stack(values):
    """Return nested values as arrays."""
    if isinstance(values[0], dict):
        return {key: stack([value[key] for value in values]) for key in values[0]}
    if isinstance(values[0], tuple):
        return tuple(map(stack, zip(*values, strict=True)))
    return np.stack([np.asarray(value) for value in values])


def item(batch, i):
    return {key: item(part, i) for key, part in batch.items()} if isinstance(batch, dict) else batch[i]


def with_flags(info, flags):
    """Return the info as Gymnasium's vectors do: ``_key`` says whose entries of ``key`` count."""
    info = {key: with_flags(x, flags) if isinstance(x, dict) else x for key, x in info.items()}
    return info | {f"_{key}": flags for key in info}


class Stories(VectorEnv):
    """N stories as a vector: rewards and flags of resets are no ones' and mean nothing."""

    def __init__(self, num_envs, mode=NEXT, tensors=False, declared=True, batches=True, spoil=None, **options):
        """``batches``: last observations in one batch, else one by one. ``spoil``: changes what a step returns."""
        self.envs, self.num_envs = [Story(number, **options) for number in range(num_envs)], num_envs
        self.mode, self.tensors, self.batches, self.spoil = mode, tensors, batches, spoil or (lambda answer: answer)
        self.metadata = {"autoreset_mode": mode} if declared else {}
        self.single_observation_space, self.single_action_space = self.envs[0].observation_space, ACTION
        self.ended = [False] * num_envs
        if tensors:
            self.device = torch.device("cpu")

    def convert(self, value):
        return to_tensors(value) if self.tensors else value

    def batch(self, observations):
        """Return the observations; environments that use their memory again make their vector do so."""
        obs = stack(observations)
        if self.envs[0].reuses:
            self.memory = getattr(self, "memory", obs)
            self.memory["key"][...] = obs["key"]
            obs |= {"key": self.memory["key"]}
        return self.convert(obs)

    def reset(self, *, seed=None, options=None):
        chosen = [True] * self.num_envs if options is None else options["reset_mask"].tolist()
        for i, env in enumerate(self.envs):
            if chosen[i]:
                self.seen, self.ended[i] = getattr(self, "seen", [None] * self.num_envs), False
                self.seen[i], info = env.reset(seed=None if seed is None else seed + i)
        return self.batch(self.seen), self.convert(stack([info] * self.num_envs))

    def step(self, actions):
        rows, first = [], [self.mode != SAME and ended for ended in self.ended]
        for i, env in enumerate(self.envs):
            if not first[i]:
                rows.append(env.step(item(actions, i)))
            else:
                obs = self.seen[i] if self.mode == DISABLED else env.reset()[0]
                rows.append((obs, 9.0, True, True, self.infos[i] | {"is_success": True}))
        self.seen, reward, terminal, truncated, self.infos = map(list, zip(*rows, strict=True))
        flags, ends = np.ones(self.num_envs, bool), np.array(terminal) | np.array(truncated)
        self.ended = (ends & ~np.array(first)).tolist() if self.mode == NEXT else ends.tolist()
        info = stack(self.infos)
        if self.mode == SAME and ends.any():
            info = self._begin(ends, info)
        info = self.convert(
            info if self.tensors else with_flags(info, flags) | {k: info[k] for k in info if k[0] == "_"}
        )
        values = [self.convert(np.array(x)) for x in (reward, terminal, truncated)]
        return tuple(self.spoil([self.batch(self.seen), *values, info]))

    def _begin(self, ends, info):
        """Reset the environments that ``ends``; return the info of the step, in which only theirs is final."""
        if self.batches:
            final = {"final_obs" if self.tensors else "final_observation": stack(self.seen)}
        else:
            final = {"final_obs": np.array([seen if end else None for seen, end in zip(self.seen, ends, strict=True)])}
        for i in np.flatnonzero(ends):
            self.seen[i], _ = self.envs[i].reset()
        masks = {} if self.tensors else {f"_{key}": ends for key in (*final, "final_info")}
        final |= {"final_info": info if self.tensors else with_flags(info, ends)} | masks
        return info | {key: info[key] != ends for key in ("is_success", "is_intervention") if key in info} | final


class Simulator:
    """As of Isaac Lab, or of mjlab without its resets: no vector of Gymnasium, with memory that it uses again."""

    device = "cpu"

    def __init__(self, num_envs, auto_reset=False, spoil=None, **options):
        self.num_envs, self.cfg = num_envs, SimpleNamespace(auto_reset=auto_reset)
        self.spoil = spoil or (lambda answer: answer)
        self.vector = Stories(num_envs, SAME if auto_reset else DISABLED, tensors=True, **options)
        self.single_observation_space, self.single_action_space = self.vector.single_observation_space, ACTION
        self.flags = torch.zeros(2, num_envs, dtype=torch.bool)

    def reset(self, seed=None, env_ids=None):
        options = None
        if env_ids is not None:
            self.flags[:, env_ids] = False
            options = {"reset_mask": torch.zeros(self.num_envs).index_fill(0, env_ids, 1) > 0}
        obs, info = self.vector.reset(seed=seed, options=options)
        return self.keep(obs), info

    def keep(self, obs):
        """Return the observations in the memory of those before."""
        if not hasattr(self, "memory"):
            self.memory = map_tensors(torch.Tensor.clone, obs)
        return map_tensors(torch.Tensor.copy_, self.memory, obs)

    def step(self, action):
        assert self.cfg.auto_reset or not self.flags.any()  # ended environments have to be reset at once
        obs, reward, *flags, info = self.vector.step(action)
        self.flags[:] = torch.stack(flags)
        return tuple(self.spoil([self.keep(obs), reward, *self.flags, info]))

    @property
    def unwrapped(self):
        return self

    def get_observations(self):
        """As in mjlab 1.4, and in wrappers for rsl_rl."""

    def close(self):
        pass


class OwnTensors:
    """A user's ``TensorVector``."""

    device, max_episode_steps = torch.device("cpu"), None

    def __init__(self, num_envs, begins=(0.0, False), **options):
        """``begins``: the reward, and whether the episode has ended, where one begins."""
        self.vector, self.num_envs, self.begins = Stories(num_envs, tensors=True, **options), num_envs, begins
        self.observation_space, self.action_space = self.vector.single_observation_space, ACTION

    def reset(self, seed):
        obs, info = self.vector.reset(seed=seed)
        self.last = torch.zeros(self.num_envs, dtype=torch.bool)
        return self._rows(obs, torch.zeros(self.num_envs), self.last, self.last, ~self.last, info)

    def step(self, action):
        obs, reward, terminal, truncated, info = self.vector.step(action)
        first, ends = self.last, terminal | truncated
        self.last = ends & ~first
        return self._rows(obs, reward, ends, terminal, first, info)

    def _rows(self, obs, reward, last, terminal, first, info):
        reward, last, terminal = reward.clone(), last.clone(), terminal.clone()
        reward[first], last[first], terminal[first] = self.begins[0], self.begins[1], self.begins[1]
        return TensorRows(obs, reward, last, terminal, info.get("is_success"), info=info)

    def state_dict(self):
        return None

    def load_state_dict(self, state):
        raise AssertionError

    def close(self):
        pass


@functools.cache
def jax_story():
    """The story in JAX, whose numbers are float32."""
    import jax.numpy as jnp

    from reverie.envs.jax_vector import JaxTask

    lengths = jnp.array(LENGTHS)

    def show(state, terminal):
        number, episode, time, _, push = state
        legal = [is_legal(number, episode, time, k) & ~terminal for k in range(4)]
        mask = jnp.stack([*legal, jnp.array(True)]).astype(jnp.int8)
        return {"key": jnp.stack(state).astype(jnp.float32), "value": jnp.ones(2) * push, "action_mask": mask,
                "pair": (jnp.full(1, -time, jnp.float32),)}  # fmt: skip

    def init(key):
        number, episode = (key[0] % 3).astype(jnp.int32), (key[1] % 99).astype(jnp.int32)
        state = (number, episode, 0, 0, jnp.float32(0))
        return show(state, False), state

    def step(key, state, action):
        number, episode, time = state[0], state[1], state[2] + 1
        is_over = time == lengths[number, episode % 4]
        terminal = is_over & (episode % 3 != 1)
        after = (number, episode, time, action["choice"].astype(jnp.int32), action["push"][0])
        lucky = is_over & Story.is_lucky(number, episode)
        return show(after, terminal), after, reward_at(time), terminal, is_over & ~terminal, lucky

    return JaxTask(init, step, Story().observation_space, ACTION)


def jax_stories(num_envs):
    from reverie.envs.jax_vector import JaxVector

    return JaxVector(jax_story(), num_envs)


def declares_otherwise(num_envs, **options):
    """As ManiSkillVectorEnv without its resets, which always declares SAME_STEP."""
    vector = Stories(num_envs, DISABLED, True, **options)
    vector.metadata, vector.auto_reset = {"autoreset_mode": SAME}, False
    return vector


MAKERS = {
    "arrays_next": Stories,
    "arrays_same": functools.partial(Stories, mode=SAME, batches=False),
    "arrays_undeclared": functools.partial(Stories, mode=SAME, declared=False),
    "arrays_list_infos": lambda *args, **options: DictInfoToList(Stories(*args, mode=SAME, batches=False, **options)),
    "torch_next": functools.partial(Stories, tensors=True),
    "torch_same": functools.partial(Simulator, auto_reset=True),
    "torch_disabled": declares_otherwise,
    "torch_ids": Simulator,
    "user_tensors": OwnTensors,
    "jax": jax_stories,
}


def open_env(road, num=NUM, warns=False, settings=None, **options):
    """Make the environments of a road; ``options``: of the stories."""
    if road == "jax":
        pytest.importorskip("jax")
    if road in SLOTS:
        config = {"vectorization": "async" if road == "workers" else "sync", "restarts": 0}
        factory = functools.partial(Story, seeds=derive_seeds(0, num), **options)
    else:
        config, factory = {"vectorization": "native"}, lambda num_envs: MAKERS[road](num_envs, **options)
    config = EnvConfig(num=num).merge(config | (settings or {}))
    return make_vector_env(config, seed=0, factory=factory, warns=warns)


def check(env):
    """Raise the errors that were not raised in steps."""
    env.check()


def collector_of(env, policy, sink=None, turns=None, late=False, extras=None, **options):
    """Return the collector that fits the environments, and a replay for it without a ``sink``; ``turns``: rollouts.

    ``late``: rows are added one turn late, as on a GPU. ``extras``: the columns of the policy.
    """
    if sink is None and turns:
        columns = row_columns(env.obs_spec, env.action_spec, extras or {})
        window = Window(batch=1, length=1, rollout=turns, epochs=1)
        sink = DeviceRollout(columns, env.num_envs, window, env.device, seed=0)
    elif sink is None:
        sink = build_replay(
            ReplayConfig(capacity=4000), obs_spec=env.obs_spec, action_spec=env.action_spec, extra_spec=extras or {},
            num_envs=env.num_envs, window=Window(batch=1, length=2), seed=0,
        )  # fmt: skip
    return EnvCollector(env, policy, sink, rollout=turns or 0, late=late, on_policy=bool(turns), **options)


def stored_rows(collector):
    """All rows of its replay."""
    storage = collector.sink.storage
    return storage.read(storage.oldest, storage.count)


def totals(parts):
    """Return the number of the episodes, and the sums of their scores, lengths and successes."""
    success = [part.info.get("success_rate", 0 * part.score) for part in parts]
    columns = [[np.ones(len(part.count)), part.score, part.length] * part.count for part in parts]
    numbers = np.concatenate([np.zeros((3, 1)), *columns], 1).sum(1).tolist()
    return [*numbers, sum(float(np.nansum(x * part.count)) for x, part in zip(success, parts, strict=True))]


WRONG = (AssertionError, pytest.fail.Exception)


def cases(*groups):
    """Return a table of what rules a road breaks, from groups of rules, roads, the errors and the reason."""
    return {(rule, road): why for rules, roads, *why in groups for rule in rules.split(", ") for road in roads}


def marks(exceptions, *case):
    """Return the marks of a case that must raise its error if ``exceptions`` has it."""
    return [pytest.mark.raising(errors=exceptions[case][0])] if case in exceptions else []
