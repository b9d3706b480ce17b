"""Convert what a Gymnasium environment returns into what the networks see, outside of a training environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate
from torch import Tensor

from reverie.core.errors import DataError
from reverie.core.images import ImageOptions, latest, rgb
from reverie.core.spaces import follow, leaves_of
from reverie.core.specs import ObsPart, ObsSpec
from reverie.envs.config import EnvConfig
from reverie.envs.flat import FlatEnv, codec_of
from reverie.envs.masks import ActionMask, told
from reverie.envs.wrappers import FlatObs, FrameStack


class Observer:
    """Converts one raw observation as the training environments do.

    Agents trained on rendered images (``env.pixels``) get these as ``{"image": env.render()}``, with ``"observation"``
    beside it if they see that too.
    """

    def __init__(self, flat: FlatEnv, config: EnvConfig) -> None:
        """``flat``: an environment made as for training. Its spaces and wrappers are read; it is not stepped."""
        self._depth = config.frame_stack
        self._masks = flat.env if isinstance(flat.env, ActionMask) else None
        self.space: spaces.Space[Any]
        self._wrappers, self.space = _own_wrappers(flat.env if self._masks is None else self._masks.env)
        self.shown: spaces.Space[Any] = flat.env.observation_space
        """Space of what :meth:`readable` returns."""
        self._codec = codec_of(flat.env, config)
        spec: dict[str, ObsPart] = dict(self._codec.spec) if self._codec else {}
        self._lists = str(flat.env.render_mode).endswith("_list")
        self._drawn = config.pixels != "none" and config.keeps("image")
        if self._drawn:
            spec["image"] = ObsPart(kind="image", shape=(*flat.obs_spec["image"].shape[:2], 3), dtype="uint8")
            image = spaces.Box(0, 255, (1, 1, 3), np.uint8)  # only the rank matters
            both: dict[str, spaces.Space[Any]] = {"image": image}
            self.space = spaces.Dict(both | {"observation": self.space} if self._codec else both)
        self.accepted: spaces.Space[Any] | None = None if self._drawn else self.space
        """Space of the observations to be converted; None with rendered frames, whose size no space declares."""
        self._options = ImageOptions(spec, config.resize, config.grayscale)
        self.spec: ObsSpec = flat.obs_spec
        self.single: ObsSpec = self._options.spec
        """``spec`` before frames are stacked."""

    def given(self, env: gymnasium.Env[Any, Any], obs: Any) -> Any:
        """Return what the agent must be given for ``obs``, the latest observation of ``env``: a frame too if needed."""
        if not self._drawn:
            return obs
        return {"image": latest(env.render())} | ({"observation": obs} if self._codec is not None else {})

    def told(self, env: gymnasium.Env[Any, Any], info: Mapping[str, Any]) -> Any:
        """Return what ``env`` told of legal actions beside its latest observation; None if nothing."""
        return None if self._masks is None else told(env, self._masks.source, info)

    def readable(self, obs: Any, mask: Any = None, last: bool = False) -> Any:
        """Return what learners' environments show for ``obs``; ``mask`` is told beside it, ``last`` if it is an end."""
        for wrapper in self._wrappers:
            obs = wrapper.observation(obs)
        if self._masks is None:
            return obs
        if mask is None and self._masks.source != "observation" and not last:
            where = "its info" if self._masks.source == "info" else "action_masks()"
            raise DataError(
                f"this agent chooses among legal actions: pass action_mask, as the environment tells it in {where}."
            )
        return self._masks.observation(obs, mask, last)

    def stacks(self, count: int) -> tuple[FrameStack | None, ...]:
        """Return one frame stack for each of ``count`` environments, or None for each if the agent has no stacks."""
        return tuple(FrameStack(self._options.spec, self._depth) if self._depth > 1 else None for _ in range(count))

    def split(self, obs: Any) -> tuple[bool, list[Any]]:
        """Return whether ``obs`` is a single observation, and the list of observations in it."""
        if isinstance(obs, tuple | list):
            _refuse_others(self.space, obs)
        if self._drawn and not (isinstance(obs, Mapping) and set(obs) == set(self.space)):  # type: ignore[call-overload]  # a Dict
            raise DataError(
                f"this agent observes rendered frames: pass a dictionary of {' and '.join(map(repr, self.space))}, "  # type: ignore[call-overload]
                "where 'image' is env.render()."
            )
        if self._drawn and self._lists:
            obs = {**obs, "image": latest(obs["image"])}
        obs = _detached(obs)
        count = _count(self.space, obs)
        return count is None, [obs] if count is None else list(iterate(batch_space(self.space, count), obs))

    def __call__(
        self, obs: Any, stack: FrameStack | None, first: bool, mask: Any = None, last: bool = False
    ) -> FlatObs:
        """Convert one observation to flat arrays; ``mask`` and ``last`` as in :meth:`readable`."""
        flat: FlatObs = {}
        if self._codec is not None:
            flat = self._codec(self.readable(obs["observation"] if self._drawn else obs, mask, last))
        if self._drawn:
            flat["image"] = rgb(np.asarray(obs["image"]))
        flat = self._options(flat)
        if stack is not None:
            flat = stack(flat, first)
        for key, part in self.spec.items():
            if flat[key].shape != part.shape:
                raise DataError(f"observation '{key}' has shape {flat[key].shape}: expected {part.shape}.")
        return flat

    def origin(self, key: str) -> dict[str, Any]:
        """Return where an observation comes from: its ``path`` and ``space`` in the environment; and its ``resize``."""
        leaf = next((leaf for leaf in self._codec.leaves if leaf.key == key), None) if self._codec else None
        about: dict[str, Any] = {"from": "render()" if key == "image" else "the environment"}
        if leaf is not None:
            about = {"path": list(leaf.path), "space": str(leaf.space)}
        return about | self._options.changes(key)


def _refuse_others(space: spaces.Space[Any], obs: Sequence[Any]) -> None:
    """Raise DataError if ``obs`` is all that ``reset`` or ``step`` returned."""
    if isinstance(space, spaces.Tuple) or not obs or not isinstance(obs[-1], Mapping):
        return
    raise DataError(
        f"obs has {len(obs)} values, the last of them a dictionary, as reset() or step() of an environment returns "
        "them: pass the first value alone, which is the observation."
    )


def _detached(obs: Any) -> Any:
    """Return ``obs`` with tensors that NumPy can read: without gradient, on the CPU."""
    if isinstance(obs, Tensor):
        return obs.detach().cpu()
    if isinstance(obs, Mapping):
        return {key: _detached(part) for key, part in obs.items()}
    return tuple(map(_detached, obs)) if isinstance(obs, tuple | list) else obs


def _own_wrappers(env: gymnasium.Env[Any, Any]) -> tuple[list[Any], spaces.Space[Any]]:
    """Return reverie's observation wrappers around the environment, innermost first, and the space below them."""
    wrappers: list[Any] = []
    space = env.observation_space
    layer: Any = env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, gymnasium.ObservationWrapper) and type(layer).__module__ == "reverie.envs.minigrid":
            wrappers.insert(0, layer)
            space = layer.env.observation_space
        layer = layer.env
    return wrappers, space


def _count(space: spaces.Space[Any], obs: Any) -> int | None:
    """Return how many observations of ``space`` a batch holds, by its first part whose shape tells; None for one."""
    for path, leaf in leaves_of(space):
        if isinstance(leaf, spaces.Sequence | spaces.Graph | spaces.OneOf):
            continue
        try:
            values = follow(obs, path)
        except (LookupError, TypeError):  # it is not there
            continue
        if isinstance(leaf, spaces.Text):
            return None if isinstance(values, str) else len(values)
        array = np.asarray(values)
        return int(array.shape[0]) if array.ndim == len(leaf.shape or ()) + 1 else None
    return None
