"""Vectors of NumPy arrays, as of Gymnasium and EnvPool: their rows, and the codec that converts and checks them."""

from __future__ import annotations

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
from reverie.core.masks import MaskCodec, ensure_legal_choice, mask_in
from reverie.core.obs_codec import ObsCodec
from reverie.core.obs_conversion import is_surely_finite
from reverie.core.spaces import column, columns_to_nested, get_at_path
from reverie.core.specs import MASK_KEY, ActionSpec, ObsSpec
from reverie.core.types import ExecutedActions, Obs, no_flags
from reverie.envs.config import EnvConfig
from reverie.envs.episode_info import success_summary
from reverie.envs.interventions import POLICY, TAKEOVER, ExecutedActionReader, mentions_executed_action
from reverie.envs.limits import LimitCheck, declared_bounds
from reverie.envs.make_native_vector import vector_frames, vector_limit, vector_mode
from reverie.envs.suites import package_versions
from reverie.envs.tensor_vector import TensorRows, vector_method
from reverie.envs.vector_steps import (
    CLIPS,
    Vector,
    checked_vector_step,
    episode_info_at,
    final_obs,
    info_at,
    resets_in_same_step,
    warn_of_hidden_steps,
)
from reverie.envs.wrappers import wrapper_stack


class ArrayVector:
    """A vector whose observations are arrays, nested as its space; otherwise as ``TensorVector``."""

    device: torch.device = torch.device("cpu")

    def __init__(self, vector: Vector, max_episode_steps: int | None = None, warns: bool = False) -> None:
        """``vector``: of ``make_native_vector``. ``warns``: warn of steps that no row shows."""
        self.vector: Vector = vector
        self._warns = warns
        self.num_envs: int = vector.num_envs
        self.observation_space: spaces.Space[Any] = vector.single_observation_space
        self.action_space: spaces.Space[Any] = vector.single_action_space
        self.max_episode_steps: int | None = max_episode_steps or vector_limit(vector)
        self.frames_per_action: int = vector_frames(vector)
        self.packages: dict[str, str] = package_versions(vector)
        self._none = no_flags(self.num_envs)
        self._is_same_step = False
        if vector_mode(vector) == AutoresetMode.SAME_STEP:
            self._set_same_step()

    def reset(self, seed: int | None) -> TensorRows:
        obs, info = self.vector.reset(seed=seed)
        self._ended = np.zeros(self.num_envs, bool)
        return TensorRows(obs, torch.zeros(self.num_envs, dtype=torch.float64), self._none, self._none, info=info or {})

    def step(self, action: object) -> TensorRows:
        obs, reward, terminal, truncated, info = checked_vector_step(self.vector, action)
        done = terminal | truncated
        if not done.any():
            self._ended = done
            return TensorRows(obs, torch.from_numpy(reward), self._none, self._none, info=info)
        last, hidden_masks = done & ~self._ended, None
        self._ended = last
        if not self._is_same_step and resets_in_same_step(info):
            self._set_same_step()
        if self._is_same_step and last.any():
            hidden_masks = mask_in(obs)
            obs = final_obs(info, obs, last, self.vector)
        ends = np.flatnonzero(last).tolist() if info else ()
        summaries = {number: success_summary(episode_info_at(info, number, self.num_envs)) for number in ends}
        return TensorRows(
            obs, torch.from_numpy(reward), torch.from_numpy(last), torch.from_numpy(terminal),
            hidden_masks=hidden_masks, info=info, truncated=torch.from_numpy(truncated),
            summaries={number: summary for number, summary in summaries.items() if summary},
        )  # fmt: skip

    def _set_same_step(self) -> None:
        self._is_same_step = True
        if self._warns:
            warn_of_hidden_steps(type(self.vector.unwrapped).__name__)

    def call(self, name: str, *args: object, **kwargs: object) -> Any:
        """Call the method ``name`` of each environment, if the vector supports it, like Gymnasium's vectors."""
        return vector_method(self.vector.unwrapped, "call")(name, *args, **kwargs)

    def set_attr(self, name: str, value: object) -> None:
        """Set the attribute ``name`` of each environment to ``value``, if the vector supports it."""
        vector_method(self.vector.unwrapped, "get_attr")(name)  # AttributeError if there is none
        vector_method(self.vector.unwrapped, "set_attr")(name, [value] * self.num_envs)

    def state_dict(self) -> None:
        """Return None: vectors of arrays cannot be saved."""

    def load_state_dict(self, state: object) -> None:
        raise EnvError("vectors of arrays cannot be resumed in the middle of an episode.")

    def close(self) -> None:
        self.vector.close()


class ArrayCodec:
    """Converts the rows of an ``ArrayVector``, and checks them at once; satisfies ``RowCodec``."""

    defers: bool = False

    def __init__(self, vector: ArrayVector, config: EnvConfig, warns: bool = True) -> None:
        """``warns``: warn about observations outside of their space, which are used unchanged."""
        self._space, self._num = vector.action_space, vector.num_envs
        self._clip = CLIPS[config.clip_reward]
        self._actions = ActionCodec(self._space)
        space, self._mask = vector.observation_space, None
        if isinstance(space, spaces.Dict) and MASK_KEY in space.spaces and config.uses_key(MASK_KEY):
            self._mask = MaskCodec(self._space)
            space = spaces.Dict({**space.spaces, MASK_KEY: spaces.MultiBinary(self._mask.spec.width)})
        self._obs = ObsCodec(space, config.uses_key, config.channel_axis)
        self._options = ImageOptions(self._obs.spec, config.resize, config.grayscale, config.max_image_size)
        self.obs_spec: ObsSpec = self._options.spec
        self.action_spec: ActionSpec = self._actions.spec
        self._check_limits = LimitCheck(declared_bounds(self._obs) if warns else {})
        self._read_executed_action = ExecutedActionReader(
            self._space, wrapper_stack(vector.vector), config.filtered_action == "policy"
        )
        self._none = np.zeros(self._num, bool)

    def decode(self, action: Tensor) -> Any:
        flat = check_flat_actions(action, (self._num, self.action_spec.width))
        return columns_to_nested(self._space, self._actions.unflatten(flat, self._none), "action")

    def encode(self, rows: TensorRows) -> tuple[Obs, Tensor, np.ndarray]:
        obs, reward = rows.obs, self._clip(rows.reward.numpy())
        fits = np.abs(reward) <= FLOAT32_MAX
        if not fits.all():
            bad = int(np.argmin(fits))
            raise DataError(f"environment {bad}: the reward is {reward[bad]}: expected a finite float32 number")
        if self._mask is not None:
            flags = ensure_legal_choice(self._mask.batch(obs[MASK_KEY]), self._mask.spec, rows.terminal.numpy())
            if rows.hidden_masks is not None:
                ensure_legal_choice(self._mask.batch(rows.hidden_masks), self._mask.spec, terminal=False)
            obs = {**obs, MASK_KEY: flags.astype(np.int8)}
        if missing := self._obs.missing(obs):
            raise DataError(f"the observations lack '{missing[0]}', which their space declares.")
        columns = {column("obs", leaf.path): np.asarray(get_at_path(obs, leaf.path)) for leaf in self._obs.leaves}
        encoded = self._options(self._obs.encode(columns), "obs/")
        # the vector can reuse its memory
        copies = {key.removeprefix("obs/"): aligned_copy(values) for key, values in encoded.items()}
        self._check_limits({key: x.numpy() for key, x in copies.items()}, lambda number: f"environment {number}")
        return copies, torch.from_numpy(reward.astype(np.float32)), reward

    def read_executed(self, rows: TensorRows, first: Tensor, legal: Tensor | None) -> ExecutedActions | None:
        """Return what the info of a step says; the actions that have led to ``first`` rows belong to no row."""
        if not rows.info or not mentions_executed_action(rows.info):
            return None
        action = np.zeros((self._num, self.action_spec.width), np.float32)
        actors = np.full(self._num, POLICY)
        ended, masks = rows.last.tolist(), None if legal is None else legal.numpy()
        for number in (~first).nonzero().flatten().tolist():
            part = (episode_info_at if ended[number] else info_at)(rows.info, number, self._num)
            try:
                executed, actors[number] = self._read_executed_action(part, None if masks is None else masks[number])
            except DataError as error:
                raise DataError(f"environment {number}: {error}.") from None
            if actors[number] != POLICY:
                action[number] = executed
        flags = torch.from_numpy(actors)
        return ExecutedActions(torch.from_numpy(action), flags != POLICY, flags == TAKEOVER, TAKEOVER in actors)

    def check(self) -> None:
        """Do nothing: all is checked at once."""


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
