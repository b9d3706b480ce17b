"""Steps a Gymnasium or EnvPool vector and returns rows (``Env``), without slots, processes and restarts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from torch import Tensor

from reverie.core.action_codec import ActionCodec
from reverie.core.columns import aligned_copy
from reverie.core.config import FLOAT32_MAX
from reverie.core.errors import ActionError, DataError, EnvError
from reverie.core.images import ImageOptions
from reverie.core.masks import MaskCodec, ensure_legal_choice, has_choices, refuse_info_mask
from reverie.core.obs_codec import ObsCodec
from reverie.core.obs_conversion import is_surely_finite
from reverie.core.spaces import column, columns_to_nested, get_at_path
from reverie.core.specs import MASK_KEY, ActionSpec, ObsSpec
from reverie.core.types import ExecutedActions, Step
from reverie.envs.config import EnvConfig
from reverie.envs.episode_info import success_summary
from reverie.envs.interventions import POLICY, TAKEOVER, ExecutedActionReader, mentions_executed_action
from reverie.envs.limits import EndCheck, LimitCheck, declared_bounds
from reverie.envs.make_native_vector import vector_frames, vector_limit, vector_mode
from reverie.envs.suites import package_versions
from reverie.envs.tensor_vector import VectorRows, call_vector
from reverie.envs.vector_steps import (
    CLIPS,
    Info,
    Vector,
    checked_vector_step,
    episode_info_at,
    final_obs,
    info_at,
    resets_in_same_step,
    warn_of_hidden_steps,
)
from reverie.envs.wrappers import find_instances, wrapper_stack


class NativeVectorEnv(VectorRows):
    """N environments stepped by one object; satisfies ``core.protocols.Env``.

    Rows are as in ``SlotVectorEnv``. The vector resets ended environments in the next step
    (``AutoresetMode.NEXT_STEP``), like rows. If it resets them in the same step (``SAME_STEP``), the first step of the
    next episode is hidden: it takes an action of zeros, or the first legal classes, instead of the action that follows
    the last row. The first row is the one behind it. An episode that ends in this step is skipped.
    """

    def __init__(self, config: EnvConfig, vector: Vector, seed: int, warns: bool = True) -> None:
        """``vector``: of ``make_native_vector``.

        ``warns``: warn about observations outside of their space, which are used unchanged.
        """
        self._vector = vector
        self._seed, self._clip = seed, CLIPS[config.clip_reward]
        self._actions = self._vector.single_action_space
        self._codec = ActionCodec(self._actions)
        space: Any = self._vector.single_observation_space
        self._mask = None
        if isinstance(space, spaces.Dict) and MASK_KEY in space.spaces and config.uses_key(MASK_KEY):
            self._mask = MaskCodec(self._actions)
            space = spaces.Dict({**space.spaces, MASK_KEY: spaces.MultiBinary(self._mask.spec.width)})
        self._obs = ObsCodec(space, config.uses_key, config.channel_axis)
        self._options = ImageOptions(self._obs.spec, config.resize, config.grayscale, config.max_image_size)
        self.num_envs: int = config.num
        self.can_end_one: bool = config.num == 1
        self.obs_spec: ObsSpec = self._options.spec
        self.action_spec: ActionSpec = self._codec.spec
        self.max_episode_steps: int | None = config.max_episode_steps or vector_limit(self._vector)
        self.frames_per_action: int = vector_frames(self._vector)
        self.packages: dict[str, str] = package_versions(self._vector)
        self.instances: set[int] = find_instances(vector)
        self._check_limits = LimitCheck(declared_bounds(self._obs) if warns else {})
        self._check_ends = EndCheck(config.num if warns else 0, self)
        self._unmasked = self._mask is None and config.uses_key(MASK_KEY) and has_choices(self._actions)
        self._none = np.zeros(self.num_envs, bool)
        self._ended = self._none
        self._is_same_step = vector_mode(self._vector) == AutoresetMode.SAME_STEP
        self._warns = warns
        self._hidden_masks: np.ndarray | None = None  # of the newest resets in the same step
        if self._is_same_step:
            self._warn_of_hidden_steps()
        keeps_filtered = config.filtered_action == "policy"
        self._read_executed_action = ExecutedActionReader(self._actions, wrapper_stack(vector), keeps_filtered)
        self._legal: np.ndarray | None = None  # [N, A], the masks of the current rows
        self.executed_actions: ExecutedActions | None = None
        self.exact_rewards: np.ndarray = np.zeros(0)
        self.episode_info: dict[int, dict[str, float]] = {}

    def reset(self, seed: int | None = None) -> Step:
        """Start N new episodes.

        Without a ``seed`` the generators continue; the first reset uses the seed of ``__init__``.
        """
        seed, self._seed = self._seed if seed is None else seed, None  # type: ignore[assignment]  # used up
        self._must_reset = False
        obs, info = call_vector(self._vector.reset, seed=seed)
        if self._unmasked:
            refuse_info_mask(info)
        self._ended, self.executed_actions = self._none, None
        return self._step(self._rows(obs, self._none), np.zeros(self.num_envs), ~self._none, self._none, self._none)

    def step(self, action: Tensor) -> Step:
        """Take ``action`` ``[N, A]``.

        An ``is_last`` row is followed by an ``is_first`` row, whose action is ignored.
        """
        flat = check_flat_actions(action, (self.num_envs, self.action_spec.width))
        if self._must_reset:
            return self.reset()
        first = self._ended
        if self._is_same_step and first.any():
            flat = self._hidden_actions(first, flat)
        actions = columns_to_nested(self._actions, self._codec.unflatten(flat, self._none), "action")
        obs, reward, terminal, truncated, info = call_vector(checked_vector_step, self._vector, actions)
        if self._unmasked:
            refuse_info_mask(info)
        done = terminal | truncated
        if not self._is_same_step and resets_in_same_step(info):
            self._is_same_step = True
            self._warn_of_hidden_steps()
        last = self._ended = done & ~first
        terminal &= last
        is_told = info and mentions_executed_action(info)
        self.executed_actions = self._read_executed_actions(info, first, last) if is_told else None
        self._check_ends(first, terminal, truncated & last)
        self.episode_info = {
            number: summary
            for number in (np.flatnonzero(last).tolist() if info else ())
            if (summary := success_summary(episode_info_at(info, number, self.num_envs)))
        }
        rows = self._same_step_rows(obs, info, last, terminal) if self._is_same_step else self._rows(obs, terminal)
        return self._step(rows, np.where(first, 0.0, reward), first, last, terminal)

    def _read_executed_actions(self, info: Info, first: np.ndarray, last: np.ndarray) -> ExecutedActions:
        """Return what the ``info`` of a step says; the actions that have led to ``first`` rows belong to no row."""
        action = np.zeros((self.num_envs, self.action_spec.width), np.float32)
        actors = np.full(self.num_envs, POLICY)
        for number in np.flatnonzero(~first).tolist():
            part = (episode_info_at if last[number] else info_at)(info, number, self.num_envs)
            try:
                executed, actors[number] = self._read_executed_action(
                    part, None if self._legal is None else self._legal[number]
                )
            except DataError as error:
                raise DataError(f"environment {number}: {error}.") from None
            if actors[number] != POLICY:
                action[number] = executed
        flags = torch.from_numpy(actors)
        return ExecutedActions(torch.from_numpy(action), flags != POLICY, flags == TAKEOVER, TAKEOVER in actors)

    def _warn_of_hidden_steps(self) -> None:
        if self._warns:
            warn_of_hidden_steps(type(self._vector.unwrapped).__name__)

    def _hidden_actions(self, first: np.ndarray, flat: np.ndarray) -> np.ndarray:
        """Return ``flat`` with zeros at ``first``, and with the first class of each choice that the mask allows."""
        flat = np.where(first[:, None], np.float32(0), flat)
        if self._hidden_masks is not None:
            for _, cut in self.action_spec.categorical_slices():
                flat[first, cut] = self._hidden_masks[first, cut]
        return flat

    def _same_step_rows(self, obs: object, info: Info, last: np.ndarray, terminal: np.ndarray) -> dict[str, np.ndarray]:
        """Return the rows of ``obs``, with the ``last`` rows of ended episodes from ``info``."""
        rows = self._rows(obs, self._none)
        if not last.any():
            return rows
        self._hidden_masks = rows.get(MASK_KEY)
        ends = self._rows(final_obs(info, obs, last, self._vector), terminal)
        for key, values in ends.items():
            values[~last] = rows[key][~last]
        return ends

    def _rows(self, obs: Any, terminal: np.ndarray) -> dict[str, np.ndarray]:
        if self._mask is not None:
            spec = self._mask.spec
            flags = [
                ensure_legal_choice(self._mask(mask), spec, over)
                for mask, over in zip(obs[MASK_KEY], terminal, strict=True)
            ]
            obs = {**obs, MASK_KEY: np.array(flags, np.int8)}
        if missing := self._obs.missing(obs):
            raise DataError(f"the observations lack '{missing[0]}', which their space declares.")
        columns = {column("obs", leaf.path): np.asarray(get_at_path(obs, leaf.path)) for leaf in self._obs.leaves}
        rows = self._options(self._obs.encode(columns), "obs/")
        # the vector can reuse its memory
        arrays = {key.removeprefix("obs/"): aligned_copy(values).numpy() for key, values in rows.items()}
        self._check_limits(arrays, lambda number: f"environment {number}")
        return arrays

    def _step(
        self, rows: dict[str, np.ndarray], reward: object, first: np.ndarray, last: np.ndarray, terminal: np.ndarray
    ) -> Step:
        reward = self._clip(np.asarray(reward, np.float64))
        fits = np.abs(reward) <= FLOAT32_MAX
        if not fits.all():
            bad = int(np.argmin(fits))
            raise DataError(f"environment {bad}: the reward is {reward[bad]}: expected a finite float32 number")
        self.exact_rewards, self._legal = reward, rows.get(MASK_KEY)
        return Step(
            obs={key: torch.from_numpy(values) for key, values in rows.items()},
            reward=torch.from_numpy(reward.astype(np.float32)),
            is_first=torch.from_numpy(first.copy()),
            is_last=torch.from_numpy(last.copy()),
            is_terminal=torch.from_numpy(terminal.copy()),
        )

    def call(self, name: str, *args: object, **kwargs: object) -> list[Any]:
        """Call the method ``name`` of each environment, if the vector supports it, like Gymnasium's vectors."""
        return list(self._vector_method("call")(name, *args, **kwargs))

    def set_attr(self, name: str, value: object) -> None:
        """Set the attribute ``name`` of each environment to ``value``, if the vector supports it."""
        self._vector_method("get_attr")(name)  # AttributeError if there is none
        self._vector_method("set_attr")(name, [value] * self.num_envs)

    def _vector_method(self, method: str) -> Callable[..., Any]:
        vector: Any = self._vector.unwrapped
        if not hasattr(vector, method):
            raise EnvError(
                f"env.vectorization = native: {type(vector).__name__} has no method '{method}' to access its "
                "environments. Use env.vectorization = sync or async."
            )
        return getattr(vector, method)  # type: ignore[no-any-return]

    def render(self) -> np.ndarray | None:
        """Return None: a native vector renders all environments at once, or none."""
        return None

    def close(self) -> None:
        """Close all environments. Can be called twice."""
        self._vector.close()


def check_flat_actions(action: Tensor, shape: tuple[int, int]) -> np.ndarray:
    """Return ``action`` as float32 ``[N, A]``; DataError if it has another ``shape``, ActionError if not finite."""
    if action.requires_grad or action.dtype is not torch.float32 or not action.is_cpu:
        action = action.detach().to("cpu", torch.float32)
    flat: np.ndarray = action.numpy()
    if flat.shape != shape:
        raise DataError(f"the action has shape {flat.shape}: expected [N, A] = {shape}.")
    if not is_surely_finite(flat) and not np.isfinite(flat).all():
        bad = int(np.argwhere(~np.isfinite(flat))[0, 0])
        raise ActionError(f"the action for environment {bad} is {flat[bad].tolist()}: expected finite numbers.")
    return flat
