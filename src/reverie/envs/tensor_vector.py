"""Environments that are stepped together: the interface of those whose rows are tensors on a device, and helpers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import gymnasium
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from reverie.core.errors import EnvError, ReverieError, format_error
from reverie.core.signals import is_interrupt
from reverie.core.spaces import add_batch_axis
from reverie.envs.episode_info import SUCCESS_KEYS
from reverie.envs.vector_steps import episode_info_at, info_at


class TensorRows(NamedTuple):
    """The current rows of N environments, before their conversion for learners. Read only."""

    obs: Any
    """Tensors ``[N, *shape]``, nested as the observation space."""
    reward: Tensor  # [N] floating point, 0 where an episode begins
    last: Tensor  # [N] bool
    terminal: Tensor  # [N] bool
    success: Tensor | None = None  # [N], whether the episode has reached its goal so far; None: unknown
    hidden_masks: Tensor | None = None
    """The action masks ``[N, ...]`` of states that no row shows, since resets in the step that ended the episode have
    led there; None: there are none."""
    info: Any = MappingProxyType({})
    """The info of the step, if the vector has one: a mapping, or one of each environment."""
    truncated: Tensor | None = None
    """``[N]`` bool; None: where rows are last and not terminal."""
    summaries: Mapping[int, Mapping[str, float]] = MappingProxyType({})
    """Success and logged values of the episodes that end, by environment, in place of ``success``."""


@runtime_checkable
class TensorVector(Protocol):
    """N environments that show rows as in ``core/types.py``.

    A ``last`` row is followed by the first row of a new episode, and the action between them is ignored. An optional
    method ``check()`` raises errors that are known only on the device.
    """

    num_envs: int
    device: torch.device
    max_episode_steps: int | None
    observation_space: gymnasium.Space[Any]
    """The space of one environment."""
    action_space: gymnasium.Space[Any]

    def reset(self, seed: int | None) -> TensorRows:
        """Begin N episodes; ``seed`` None continues the random numbers."""

    def step(self, action: object) -> TensorRows:
        """Take an action ``[N, ...]`` of the action space: tensors of class indices or of numbers within the bounds."""

    def state_dict(self) -> Mapping[str, Tensor] | None:
        """Return the state of all environments, from which ``step`` continues bit for bit; None: it cannot be saved."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what ``state_dict`` returned."""

    def close(self) -> None:
        """Release memory. Can be called twice."""


def call_vector(method: Callable[..., Any], *args: object, **kwargs: object) -> Any:
    """Call a method of a vector; its exceptions, including SystemExit, become EnvErrors."""
    try:
        return method(*args, **kwargs)
    except BaseException as error:
        if isinstance(error, ReverieError) or is_interrupt(error):
            raise
        raise EnvError(f"the environments failed with {format_error(error)}") from error


def vector_method(vector: object, name: str) -> Callable[..., Any]:
    """Return a method of ``vector`` to access its environments; EnvError if it has none of this name."""
    if not hasattr(vector, name):
        raise EnvError(
            f"env.vectorization = native: {type(vector).__name__} has no method '{name}' to access its environments. "
            "Use env.vectorization = sync or async."
        )
    return getattr(vector, name)  # type: ignore[no-any-return]


def is_tensor_vector(vector: VectorEnv[Any, Any, Any]) -> bool:
    """Return whether a Gymnasium vector shows tensors.

    Simulators tell a device. Other vectors, unless Gymnasium has registered them, are reset to see.
    """
    if isinstance(getattr(vector.unwrapped, "device", None), torch.device | str):
        return True
    return vector.spec is None and isinstance(first_leaf(vector.reset()[0]), Tensor)


def attribute(vector: object, name: str) -> Any:
    """Return an attribute of ``vector``, or of what it wraps, as wrappers of single environments hide it; or None."""
    return getattr(vector, name, getattr(getattr(vector, "unwrapped", vector), name, None))


def is_batched_env(vector: object) -> bool:
    """Return whether ``vector`` is like a Gymnasium vector without being one, as those of Isaac Lab and mjlab."""
    return all(attribute(vector, f"single_{kind}_space") is not None for kind in ("observation", "action"))


def first_leaf(value: object) -> Any:
    """Return the first array of a nested observation."""
    while isinstance(value, Mapping | tuple):
        value = next(iter(value.values())) if isinstance(value, Mapping) else value[0]
    return value


def map_tensors(function: Callable[..., Any], *values: Any) -> Any:
    """Return ``function`` of the tensors of nested values of the same structure."""
    if isinstance(values[0], Mapping):
        return {key: map_tensors(function, *(value[key] for value in values)) for key in values[0]}
    if isinstance(values[0], tuple):
        return tuple(map_tensors(function, *parts) for parts in zip(*values, strict=True))
    return function(*values)


class VectorOfOne(gymnasium.Env[Any, Any]):
    """A vector of one as a single environment."""

    def __init__(self, vector: Any, has_tensors: bool) -> None:
        """``vector``: a ``TensorVector`` or an ``ArrayVector``."""
        self.vector: Any = vector
        self._has_tensors = has_tensors
        self.observation_space: gymnasium.Space[Any] = vector.observation_space
        self.action_space: gymnasium.Space[Any] = vector.action_space
        self.max_episode_steps: int | None = vector.max_episode_steps
        self._frameskip = getattr(vector, "frames_per_action", 1)  # as in Atari's environment
        self._check: Callable[[], None] = getattr(vector, "check", lambda: None)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        rows = self.vector.reset(seed)
        return map_tensors(_first_array, rows.obs), info_at(_on_host(rows.info), 0, 1)

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        batch = add_batch_axis(action)
        if self._has_tensors:
            batch = map_tensors(lambda x: torch.from_numpy(x).to(self.vector.device), batch)
        rows = self.vector.step(batch)
        self._check()
        terminal, last = bool(rows.terminal[0]), bool(rows.last[0])
        truncated = last and not terminal if rows.truncated is None else bool(rows.truncated[0])
        info = (episode_info_at if last else info_at)(_on_host(rows.info), 0, 1)
        success = {} if rows.success is None else {SUCCESS_KEYS[0]: bool(rows.success[0])}
        return map_tensors(_first_array, rows.obs), float(rows.reward[0]), terminal, truncated, info | success

    def close(self) -> None:
        self.vector.close()


def _first_array(x: Any) -> Any:
    return x[0].numpy(force=True) if isinstance(x, Tensor) else x[0]


def _on_host(info: Any) -> Any:
    """Return the info of a step with arrays instead of tensors."""
    if isinstance(info, Mapping):
        return {key: _on_host(value) for key, value in info.items()}
    return info.numpy(force=True) if isinstance(info, Tensor) else info
