"""Environments written in JAX as a vector of tensors: pure functions that begin and step one of them.

The rows of a step are exact: an environment whose episode has ended is not stepped but begun anew, so that no final
observation is lost. Tensors and JAX arrays share their memory (DLPack).
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from reverie.core.errors import EnvError
from reverie.core.files import user_folder
from reverie.envs.tensor_vector import TensorRows

if TYPE_CHECKING:
    from jax import Array

PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"


class JaxTask(NamedTuple):
    """One environment as pure functions of JAX arrays, which :class:`JaxVector` maps over N environments.

    ``step`` also gets a random key, and returns ``terminal``: whether the episode ends in a state whose value is 0, and
    ``truncated``: whether it ends for another reason; both bool. It is never called after the end of an episode.
    """

    init: Callable[[Any], tuple[Any, Any]]
    """``init(key)`` returns ``(obs, state)``."""
    step: Callable[[Any, Any, Any], tuple[Any, ...]]
    """``step(key, state, action)`` returns ``(obs, state, reward, terminal, truncated)``; then ``success``, or None,
    and the dictionary ``info``, if there are any."""
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    max_episode_steps: int | None = None
    packages: Mapping[str, str] = MappingProxyType({})
    """Versions of its packages, by name."""
    frames_per_action: int = 1
    restart: Callable[[Any, Any, Any], tuple[Any, Any]] | None = None
    """``restart(key, obs, state)`` returns ``(obs, state)`` of a new episode, given what ``init`` returned for this
    environment, whose call simulators of physics take long for. None: new episodes call ``init``."""
    at_random_age: Callable[[Any, Any], Any] | None = None
    """``at_random_age(key, state)`` returns the state as if a random part of the time limit had passed."""


class Carry(NamedTuple):
    """Everything that the next step depends on."""

    key: Any  # uint32 [2]
    state: Any  # [N, ...]
    ended: Any  # [N] bool, whether the newest row is_last
    firsts: Any  # [N, ...], what init returned; () without a restart


class JaxVector:
    """N environments of a :class:`JaxTask` on one device; satisfies ``TensorVector``."""

    def __init__(
        self, task: JaxTask, num_envs: int, device: torch.device | str = "cpu", *, random_start: bool = False
    ) -> None:
        """Compile at the first step; ``device`` must be one of JAX's: EnvError if it has none of that kind.

        ``random_start``: the first episodes begin ``at_random_age``, so that not all end in the same turn.
        """
        self._jax: Any = import_jax()
        self._age = task.at_random_age if random_start else None
        if random_start and self._age is None:
            raise EnvError("env.kwargs: random_start is for environments of brax/ and playground/. Remove it.")
        self.num_envs = num_envs
        self.device: torch.device = torch.device(device)
        self.observation_space: gymnasium.Space[Any] = task.observation_space
        self.action_space: gymnasium.Space[Any] = task.action_space
        self.max_episode_steps: int | None = task.max_episode_steps
        self.frames_per_action: int = task.frames_per_action
        self.packages: dict[str, str] = dict(task.packages)
        self._place = _jax_device(self._jax, self.device)
        self._begin, self._turn = compiled(task.init, task.step, task.restart)
        self._carry: Carry | None = None
        self._sent: Any = None

    def reset(self, seed: int | None) -> TensorRows:
        """Begin N episodes; ``seed`` None continues the random numbers."""
        jax = self._jax
        with jax.default_device(self._place):
            if seed is not None or self._carry is None:
                key = jax.device_put(jax.random.PRNGKey((seed or 0) % 2**32), self._place)
            else:
                key = self._carry.key
            self._carry, rows = self._begin(key, self.num_envs)
            if self._age is not None:
                keys = jax.random.split(jax.random.fold_in(key, 1), self.num_envs)
                self._carry = self._carry._replace(state=jax.vmap(self._age)(keys, self._carry.state))
        return self._export(rows)

    def step(self, action: object) -> TensorRows:
        """Take the decoded ``action`` of N environments."""
        # Memory that JAX reads must not be freed, and reused by PyTorch, before JAX has read it.
        self._sent = self._jax.tree.map(_to_jax, action)
        self._carry, rows = self._turn(self._carry, self._sent)
        return self._export(rows)

    def _export(self, rows: object) -> TensorRows:
        obs, reward, last, terminal, *told = self._jax.tree.map(_to_torch, rows)
        success, info = (*told, None, None)[:2]
        return TensorRows(obs, reward, last, terminal, success, info=info or {})

    def state_dict(self) -> dict[str, Tensor]:
        """Return the states of the environments and the random key, by name."""
        leaves, _ = self._jax.tree_util.tree_flatten_with_path(self._carry)
        name = self._jax.tree_util.keystr
        return {name(path): from_dlpack(_key_data(self._jax, leaf)).clone() for path, leaf in leaves}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved state of the same task and N."""
        jax = self._jax
        if self._carry is None:
            self.reset(0)
        leaves, tree = jax.tree_util.tree_flatten_with_path(self._carry)
        loaded = []
        for path, leaf in leaves:
            value = jax.device_put(state[jax.tree_util.keystr(path)].cpu().numpy(), self._place)
            if value.shape != _key_data(jax, leaf).shape:
                raise EnvError(
                    f"the saved state of the environments has another shape in {jax.tree_util.keystr(path)}."
                )
            loaded.append(
                jax.random.wrap_key_data(value, impl=jax.random.key_impl(leaf)) if _is_key(jax, leaf) else value
            )
        self._carry = jax.tree_util.tree_unflatten(tree, loaded)

    def close(self) -> None:
        """Release the states."""
        self._carry = self._sent = None


@functools.lru_cache(maxsize=16)
def compiled(
    init: Callable[..., Any], step: Callable[..., Any], restart: Callable[..., Any] | None
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the functions ``begin(key, N)`` and ``turn(carry, action)`` of N environments, which return rows.

    They are compiled once for each N in a process: training and evaluation share them.
    """
    jax = import_jax()
    jnp = jax.numpy
    tree, each = jax.tree, jax.vmap

    def pick(flags: Array) -> Callable[[Any, Any], Any]:
        """Return the function that takes the first of two arrays ``[N, ...]`` where ``flags`` ``[N]``.

        Of arrays without the axis of environments, such as a simulator's scratch memory, it takes the second.
        """

        def choose(a: Array, b: Array) -> Any:
            is_batched = b.shape[:1] == flags.shape
            return jnp.where(flags.reshape(-1, *[1] * (b.ndim - 1)), a, b).astype(b.dtype) if is_batched else b

        return choose

    def begin(key: object, num: int) -> tuple[Carry, tuple[Any, ...]]:
        key, fresh = jax.random.split(key)
        # With definite dtypes, as after a step: Python's numbers in it would compile the first step apart.
        obs, state = tree.map(lambda x: jnp.asarray(x, x.dtype), each(init)(jax.random.split(fresh, num)))
        none = jnp.zeros(num, bool)
        return Carry(key, state, none, () if restart is None else (obs, state)), (obs, jnp.zeros(num), none, none)

    def turn(carry: Carry, action: object) -> tuple[Carry, tuple[Any, ...]]:
        key, *keys = jax.random.split(carry.key, 3)
        ended, num = carry.ended, len(carry.ended)
        obs, state, reward, terminal, truncated, *told = each(step)(jax.random.split(keys[0], num), carry.state, action)
        check_step((num,), reward=reward, terminal=terminal, truncated=truncated)
        fresh = jax.random.split(keys[1], num)
        begun = each(init)(fresh) if restart is None else each(restart)(fresh, *carry.firsts)
        obs, state = tree.map(pick(ended), begun, (obs, state))
        reward = pick(ended)(0.0, reward.astype(jnp.float32))
        last, terminal = (terminal | truncated) & ~ended, terminal & ~ended
        return Carry(key, state, last, carry.firsts), (obs, reward, last, terminal, *told)

    return jax.jit(begin, static_argnums=1), jax.jit(turn)


def check_step(batch: tuple[int, ...] = (), **values: Array) -> None:
    """Raise EnvError unless each environment has one reward, and flags of bool: in other types NaN counts as true."""
    for name, x in values.items():
        if x.shape != batch or (name != "reward" and x.dtype != bool):
            kind = "number" if name == "reward" else "bool"
            raise EnvError(
                f"step() of the JAX environment returned {name} of shape {[*x.shape[len(batch) :]]} and dtype "
                f"{x.dtype}: expected one {kind}, of shape []."
            )


def import_jax() -> Any:
    """Import JAX without its claim to most of a GPU's memory, and with compiled functions kept in the user's cache."""
    if "jax" not in sys.modules:
        os.environ.setdefault(PREALLOCATE, "false")
    try:
        import jax
    except ImportError as error:
        raise EnvError(f'environments in JAX need it ({error}): pip install "reverie-rl[jax]"') from error
    folder = user_folder("XDG_CACHE_HOME", "~/.cache")
    config: Any = jax.config
    if folder and not config.jax_compilation_cache_dir:
        config.update("jax_compilation_cache_dir", str(folder / "jax"))
    return jax


def _jax_device(jax: ModuleType, device: torch.device) -> Any:
    """Return JAX's device for PyTorch's ``device``; EnvError if JAX has none, or has reserved its memory."""
    kind = "gpu" if device.type == "cuda" else device.type
    try:
        place = jax.devices(kind)[device.index or 0]
    except (RuntimeError, IndexError) as error:
        raise EnvError(
            f"the learner is on {device}, but JAX has no such device ({error}). Install JAX with support for it, such "
            'as pip install "jax[cuda13]", or set device = cpu.'
        ) from error
    if kind == "gpu" and os.environ.get(PREALLOCATE, "true").lower() not in ("false", "0"):
        raise EnvError(
            f"JAX reserves three quarters of the GPU's memory, which PyTorch then lacks. Set {PREALLOCATE}=false in "
            "the environment, before JAX is imported."
        )
    return place


def _to_jax(x: Tensor) -> Any:
    """Return a tensor as an argument of a compiled function, of the same memory; JAX has no int64 by default."""
    x = x.detach().to(torch.int32) if x.dtype is torch.int64 else x.detach().contiguous()
    if x.is_cpu:  # at a fifth of the time
        return x.numpy()
    from jax.dlpack import from_dlpack as to_jax

    return to_jax(x)


def _to_torch(x: Any) -> Tensor:
    """Return JAX's array as a tensor of the same memory, which nobody may write to."""
    if x.dtype.kind in "biuf" and x.device.platform == "cpu":  # at a fifth of the time
        return torch.from_numpy(np.asarray(x))
    return from_dlpack(x)


with warnings.catch_warnings():  # PyTorch warns once that such memory is read only
    warnings.simplefilter("ignore")
    torch.from_numpy(np.broadcast_to(np.float32(0), 1))


def _is_key(jax: ModuleType, x: Array) -> bool:
    """Return whether ``x`` is an array of random keys, which has no memory to share."""
    return bool(jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key))


def _key_data(jax: ModuleType, x: Array) -> Any:
    return jax.random.key_data(x) if _is_key(jax, x) else x
