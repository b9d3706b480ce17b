"""Convert observations and actions between environments and networks, outside of a training environment."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import ArrayLike
from torch import Tensor

from reverie.core.action_codec import ActionCodec
from reverie.core.columns import aligned_copy
from reverie.core.errors import DataError, short_repr
from reverie.core.images import ImageOptions, frame_to_rgb, last_frame
from reverie.core.masks import ensure_legal_choice, mask_in
from reverie.core.spaces import classes_of, column, get_at_path, iter_leaves, map_leaves, replace_at_path
from reverie.core.specs import MASK_KEY, ObsPart, ObsSpec
from reverie.core.types import QValues, Step
from reverie.envs.config import EnvConfig
from reverie.envs.flat_env import FlatEnv, env_obs_codec
from reverie.envs.masks import ActionMask, read_mask
from reverie.envs.wrappers import FlatObs, FrameStack, wrapper_stack
from reverie.nn.functional import ILLEGAL


def to_numpy(values: Tensor) -> np.ndarray:
    """Return a tensor as float32 on the CPU."""
    out: np.ndarray = values.detach().float().cpu().numpy()
    return out


def obs_to_step(flat: FlatObs, first: np.ndarray, reward: ArrayLike) -> Step:
    """Return a copy of flat observations ``[N, ...]`` as rows, with ``first`` as their ``is_first``."""
    obs = {key: aligned_copy(x) for key, x in flat.items()}
    reward = torch.as_tensor(reward, dtype=torch.float32).expand(len(first))
    none = torch.zeros(len(first), dtype=torch.bool)
    return Step(obs=obs, reward=reward, is_first=torch.from_numpy(first), is_last=none, is_terminal=none)


def action_statistics(choice: Any, space: spaces.Space[Any], squashed: bool = True) -> dict[str, Tensor]:
    """Return the statistics of a ``PolicyOutput`` for ``space``, ``[N, ...]`` each: see ``Agent.distribution``.

    Not ``squashed``: mean and standard deviation of normals for actions in [-1, 1], before tanh or truncation.
    """
    name, blank = "probabilities", 0.0
    if isinstance(choice, QValues):
        name, blank = "values", -math.inf
        flat = choice.values.masked_fill(choice.values <= ILLEGAL, -math.inf)
        std = torch.zeros_like(flat)
    elif isinstance(choice, Tensor):
        flat, std = choice, torch.zeros_like(choice)
    else:
        flat, std = choice.summary(squashed)
    flat, std = (x.float().reshape(-1, x.shape[-1]) for x in (flat, std))  # [N, A]
    cuts, statistics = ActionCodec(space).spec.slices(), {}
    for path, leaf in iter_leaves(space):
        cut = cuts["/".join(map(str, path)) or "action"]
        if isinstance(leaf, spaces.Box):
            mean, deviation = flat[:, cut], std[:, cut]
            if squashed:
                half, middle = (torch.from_numpy(x).to(flat).reshape(-1) for x in action_bounds(leaf)[2:])
                mean, deviation = mean * half + middle, deviation * half
            statistics[column("mean", path)] = mean.reshape(-1, *leaf.shape)
            statistics[column("std", path)] = deviation.reshape(-1, *leaf.shape)
            continue
        counts = classes_of(leaf)[0]
        parts = torch.split(flat[:, cut], counts.reshape(-1).tolist(), -1)
        max_classes = int(counts.max())
        padded = [F.pad(part, (0, max_classes - part.shape[-1]), value=blank) for part in parts]
        statistics[column(name, path)] = torch.stack(padded, 1).reshape(-1, *counts.shape, max_classes)
    return statistics


def action_bounds(leaf: spaces.Box) -> list[np.ndarray]:
    """Return the lower and upper bounds of continuous actions, half of their range, and the midpoint."""
    low, high = (bound.astype(np.float64) for bound in (leaf.low, leaf.high))
    return [low, high, high / 2 - low / 2, high / 2 + low / 2]


class ObsConverter:
    """Converts one raw observation as the training environments do.

    For agents trained on rendered images (``env.pixels``), the observation is ``{"image": env.render()}``, in addition
    with ``"observation"`` if they use it.
    """

    def __init__(self, flat: FlatEnv, config: EnvConfig, unread: Collection[str] = ()) -> None:
        """``flat``: an environment made as for training.

        Its spaces and wrappers are read; it is not stepped. ``unread``: keys of observations that may be missing and
        are then zeros.
        """
        self._unread = unread
        self._depth = config.frame_stack
        self._mask_wrapper = next((x for x in wrapper_stack(flat.env) if isinstance(x, ActionMask)), None)
        self.space: spaces.Space[Any]
        self._wrappers, self.space = _own_wrappers(flat.env if self._mask_wrapper is None else self._mask_wrapper.env)
        self.learner_space: spaces.Space[Any] = flat.env.observation_space
        """Space of the observations that :meth:`to_learner_obs` returns."""
        self._codec = env_obs_codec(flat.env, config)
        spec: dict[str, ObsPart] = dict(self._codec.spec) if self._codec else {}
        self._lists = str(flat.env.render_mode).endswith("_list")
        self._uses_render = config.pixels != "none" and config.uses_key("image")
        if self._uses_render:
            spec["image"] = ObsPart(kind="image", shape=(*flat.obs_spec["image"].shape[:2], 3), dtype="uint8")
            image = spaces.Box(0, 255, (1, 1, 3), np.uint8)  # only the rank matters
            image_spaces: dict[str, spaces.Space[Any]] = {"image": image}
            self.space = spaces.Dict(image_spaces | {"observation": self.space} if self._codec else image_spaces)
        self.accepted: spaces.Space[Any] | None = None if self._uses_render else self.space
        """Space of the observations to convert; None with rendered frames, whose size no space declares."""
        self._options = ImageOptions(spec, config.resize, config.grayscale, config.max_image_size)
        self.spec: ObsSpec = flat.obs_spec
        self.single: ObsSpec = self._options.spec
        """``spec`` before frames are stacked."""

    def raw_input(self, env: gymnasium.Env[Any, Any], obs: Any) -> Any:
        """Return the agent's input for ``obs``, the latest observation of ``env``, with a frame if needed."""
        if not self._uses_render:
            return obs
        return {"image": last_frame(env.render())} | ({"observation": obs} if self._codec is not None else {})

    def read_mask(
        self, env: gymnasium.Env[Any, Any], info: Mapping[str, Any], terminated: bool = False, truncated: bool = False
    ) -> Any:
        """Return the action mask that ``env`` provided with its latest observation; None if there is none."""
        source = None if self._mask_wrapper is None else self._mask_wrapper.source
        return None if source in (None, "observation") else read_mask(env, source, info, terminated, truncated)

    def to_learner_obs(self, obs: Any, mask: Any = None, terminal: bool = False, count: int | None = None) -> Any:
        """Return the observation that a training environment yields for ``obs``.

        ``mask``: its action mask, which a ``terminal`` row can lack; if ``obs`` contains one, actions are legal that
        both allow. ``count``: number of observations in a batch, with one mask each.
        """
        for wrapper in self._wrappers:
            obs = wrapper.observation(obs)
        if self._mask_wrapper is None:
            if mask is not None:
                raise DataError(
                    "action_mask: the agent was trained without masks, and would choose illegal actions. Leave it out, "
                    "or train in an environment that has one."
                )
            return obs
        has_mask = mask is not None and (count is None or not any(entry is None for entry in mask))
        if not has_mask and self._mask_wrapper.source != "observation" and not terminal:
            source_text = "its info" if self._mask_wrapper.source == "info" else "action_masks()"
            raise DataError(
                f"this agent needs an action mask: pass action_mask, which the environment provides in {source_text}."
            )
        if count is not None and mask is not None and len(mask) != count:
            raise DataError(f"got {len(mask)} action masks for {count} observations: pass one mask per observation.")
        learner_obs, codec = self._mask_wrapper.observation(obs, mask, terminal, count), self._mask_wrapper.codec
        if has_mask and self._mask_wrapper.source == "observation":
            legal = learner_obs[MASK_KEY] & (codec(mask) if count is None else codec.batch(mask))
            learner_obs[MASK_KEY] = ensure_legal_choice(legal, codec.spec, terminal, None if count is None else 0)
        return learner_obs

    def reduced_view(self) -> tuple[spaces.Space[Any], Callable[[Any], Any]]:
        """Return :attr:`learner_space` with images after ``env.resize`` and ``env.grayscale``.

        The function converts an observation of :attr:`learner_space` to that space.
        """
        leaves = [] if self._codec is None else self._codec.leaves
        changed = {column("obs", leaf.path): leaf for leaf in leaves
                   if leaf.part.kind == "image" and self._options.applied_to(leaf.key)}  # fmt: skip

        def reduce_space(name: str, leaf: spaces.Space[Any]) -> spaces.Space[Any]:
            if name not in changed:
                return leaf
            part = self._options.spec[changed[name].key]
            return spaces.Box(part.low, part.high, part.shape, np.dtype(part.dtype).type)

        def convert(obs: Any) -> Any:
            for leaf in changed.values():
                image = self._options.image(leaf.key, leaf.encode(get_at_path(obs, leaf.path), 0))
                obs = replace_at_path(obs, leaf.path, image)
            return obs

        return map_leaves(self.learner_space, "obs", reduce_space), convert

    def stacks(self, count: int) -> tuple[FrameStack | None, ...]:
        """Return one frame stack for each of ``count`` environments; None for each if the agent stacks no frames."""
        return tuple(FrameStack(self._options.spec, self._depth) if self._depth > 1 else None for _ in range(count))

    def split_mask(self, obs: Any) -> tuple[Any, Any]:
        """Return ``obs`` without a mask that the environment gives in another place, and the mask; None without one."""
        has_own = self._mask_wrapper is not None and self._mask_wrapper.source != "observation"
        if not has_own or not isinstance(obs, Mapping) or MASK_KEY not in obs:
            return obs, None
        rest = {key: x for key, x in obs.items() if key != MASK_KEY}
        is_plain = not isinstance(self.space, spaces.Dict) and [*rest] == ["observation"]
        return rest["observation"] if is_plain else rest, obs[MASK_KEY]

    def find_mask(self, obs: Any) -> Any:
        """Return the action mask in ``obs``; None if the environment gives none, or in another place."""
        is_observed = self._mask_wrapper is not None and self._mask_wrapper.source == "observation"
        return mask_in(obs["observation"] if self._uses_render else obs) if is_observed else None

    def count_obs(self, obs: Any) -> tuple[int | None, Any]:
        """Return the number of observations in ``obs``, None for a single one; and ``obs`` with arrays for tensors.

        DataError if ``obs`` is the whole return value of ``reset`` or ``step``, or lacks the rendered frame.
        """
        if isinstance(obs, tuple | list):
            _refuse_others(self.space, obs)
        if self._unread and isinstance(self.space, spaces.Dict) and not isinstance(obs, Mapping):
            read = [key for key in self.spec if key not in self._unread]
            obs = {read[0]: obs} if len(read) == 1 else obs  # the environment's own
        if not self._uses_render:
            _check_kind(self.space, obs)
        if self._uses_render and not (isinstance(obs, Mapping) and set(obs) == set(self.space)):  # type: ignore[call-overload]  # a Dict
            raise DataError(
                f"this agent observes rendered frames: pass a dictionary of {' and '.join(map(repr, self.space))}, "  # type: ignore[call-overload]
                "where 'image' is env.render()."
            )
        if self._uses_render and self._lists:
            obs = {**obs, "image": last_frame(obs["image"])}
        obs = to_numpy_readable(obs)
        return count_obs(self.space, obs), obs

    def __call__(
        self, obs: Any, stack: FrameStack | None, first: bool, mask: Any = None, terminal: bool = False
    ) -> FlatObs:
        """Convert one observation to flat arrays; ``mask`` and ``terminal`` as in :meth:`to_learner_obs`."""
        flat = self._flat(obs, mask, terminal)
        return flat if stack is None else stack(flat, first)

    def batch(
        self, obs: Any, count: int, stacks: Sequence[FrameStack | None], first: np.ndarray, masks: Any = None
    ) -> FlatObs:
        """Convert ``count`` observations, checked by :meth:`count_obs`, to flat arrays ``[N, ...]``.

        ``stacks``: one for each, called in order; ``first`` ``[N]``: which observations begin an episode; ``masks``:
        one for each.
        """
        if self._wrappers:  # wrappers convert one observation at a time
            rows = iterate(batch_space(self.space, count), obs)
            env_masks = [None] * count if masks is None else masks
            flat = _stacked([self._flat(row, mask) for row, mask in zip(rows, env_masks, strict=True)])
        else:
            flat = self._flat(obs, masks, count=count)
        if stacks[0] is None:
            return flat
        per_env = ({key: values[number] for key, values in flat.items()} for number in range(count))
        calls = zip(stacks, per_env, first, strict=True)
        return _stacked([{k: x.copy() for k, x in stack(obs, start).items()} for stack, obs, start in calls if stack])

    def _flat(self, obs: Any, mask: Any, terminal: bool = False, count: int | None = None) -> FlatObs:
        """Convert one observation, or ``count`` of them, to flat arrays before frames are stacked."""
        flat: FlatObs = {}
        lead = () if count is None else (count,)
        if self._codec is not None:
            env_obs = self.to_learner_obs(obs["observation"] if self._uses_render else obs, mask, terminal, count)
            missing = self._codec.missing(env_obs)
            if needed := [key for key in missing if key not in self._unread]:
                read = ", ".join(repr(key) for key in self._codec.spec if key not in self._unread)
                raise DataError(f"observation '{needed[0]}' is missing: this agent uses {read}.")
            flat = self._codec(env_obs, missing) if count is None else self._codec.batch(env_obs, missing)
            for key in missing:
                flat[key] = np.zeros((*lead, *self._codec.spec[key].shape), self._codec.spec[key].dtype)
        if self._uses_render:
            images = obs["image"]
            flat["image"] = (
                frame_to_rgb(np.asarray(images))
                if count is None
                else np.stack([frame_to_rgb(np.asarray(x)) for x in images])
            )
        flat = self._options(flat)
        for key, part in self.single.items():
            if flat[key].shape != (*lead, *part.shape):
                raise DataError(f"observation '{key}' has shape {flat[key].shape}: expected {(*lead, *part.shape)}.")
        return flat

    def origin(self, key: str) -> dict[str, Any]:
        """Return the origin of an observation: its ``path`` and ``space`` in the environment, and its ``resize``."""
        leaf = next((leaf for leaf in self._codec.leaves if leaf.key == key), None) if self._codec else None
        origin: dict[str, Any] = {"from": "render()" if key == "image" else "the environment"}
        if leaf is not None:
            origin = {"path": list(leaf.path), "space": str(leaf.space)}
        return origin | self._options.applied_to(key)


def _refuse_others(space: spaces.Space[Any], obs: Sequence[Any]) -> None:
    """Raise DataError if ``obs`` is the whole return value of ``reset`` or ``step``."""
    if isinstance(space, spaces.Tuple) or not obs or not isinstance(obs[-1], Mapping):
        return
    raise DataError(
        f"obs has {len(obs)} values, the last of them a dictionary, as reset() or step() of an environment returns "
        "them: pass only the first value, the observation."
    )


def _check_kind(space: spaces.Space[Any], obs: Any) -> None:
    """Raise DataError if ``obs`` is a dictionary where ``space`` has none, or the other way round, or no value."""
    is_dict, takes_dict = isinstance(obs, Mapping), isinstance(space, spaces.Dict)
    has_no_value = obs is None or (isinstance(obs, str) and not isinstance(space, spaces.Text))
    if is_dict == takes_dict and not has_no_value:
        return
    array = str(space) if space.shape is None else f"an array of shape {space.shape}"
    keys = f"a dictionary with the keys {', '.join(map(repr, space))}" if isinstance(space, spaces.Dict) else array
    got = f"a dictionary with the keys {', '.join(map(repr, obs))}" if is_dict else short_repr(obs)
    raise DataError(f"obs: got {got}, but this agent takes {keys}.")


def _stacked(rows: Sequence[FlatObs]) -> FlatObs:
    """Return flat observations as arrays ``[N, ...]``."""
    return {key: np.stack([row[key] for row in rows]) for key in rows[0]}


def to_numpy_readable(obs: Any) -> Any:
    """Return ``obs`` with tensors that NumPy can read: without gradient, on the CPU."""
    if isinstance(obs, Tensor):
        return obs.detach().cpu()
    if isinstance(obs, Mapping):
        return {key: to_numpy_readable(part) for key, part in obs.items()}
    return tuple(map(to_numpy_readable, obs)) if isinstance(obs, tuple | list) else obs


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


def count_obs(space: spaces.Space[Any], obs: Any) -> int | None:
    """Return the batch size of observations of ``space``, from the first part whose shape determines it.

    None for a single observation.
    """
    for path, leaf in iter_leaves(space):
        if isinstance(leaf, spaces.Sequence | spaces.Graph | spaces.OneOf):
            continue
        try:
            values = get_at_path(obs, path)
        except DataError:  # missing
            continue
        if isinstance(leaf, spaces.Text):
            return None if isinstance(values, str) else len(values)
        array = np.asarray(values)
        return int(array.shape[0]) if array.ndim == len(leaf.shape or ()) + 1 else None
    return None
