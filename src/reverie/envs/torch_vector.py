"""Vector environments of tensors, as of ManiSkill, mjlab and Isaac Lab, whatever their autoreset mode, as rows."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from reverie.core.errors import DataError, EnvError, short_repr
from reverie.envs.make_native_vector import vector_limit, vector_mode
from reverie.envs.tensor_vector import TensorRows, TensorVector, first_leaf, is_tensor_vector, map_tensors
from reverie.envs.vector_steps import FINAL_INFO, FINAL_OBS, Vector, resets_in_same_step


class TorchVector:
    """A vector whose observations, rewards and flags are tensors; satisfies ``TensorVector``.

    A vector that resets in the step that ends an episode (``SAME_STEP``) has taken one action by the time that the
    first row is shown: zeros, see ``DeviceVectorEnv``. Its reward is added to the second row's. An episode that ends
    in this step is skipped. A vector that does not reset by itself (``DISABLED``) takes one more step after the end of
    an episode, and is then reset.
    """

    def __init__(self, vector: Vector) -> None:
        self.vector = vector
        self.num_envs: int = vector.num_envs
        self.observation_space: Any = vector.single_observation_space
        self.action_space: Any = vector.single_action_space
        self.max_episode_steps: int | None = vector_limit(vector)
        self.mode: AutoresetMode = vector_mode(vector)
        device = getattr(vector.unwrapped, "device", None)
        self.device: torch.device = torch.device(device) if device else first_leaf(self.reset(None).obs).device

    def reset(self, seed: int | None) -> TensorRows:
        obs, _ = self.vector.reset(seed=seed)
        none = torch.zeros(self.num_envs, dtype=torch.bool, device=first_leaf(obs).device)
        self._last, self._carried, self._fresh = none, none.float(), obs
        self.is_lost: Tensor = none.any()  # whether an episode has ended without its last observation
        return TensorRows(obs, self._carried, none, none)

    def step(self, action: Any) -> TensorRows:
        first = self._last
        obs, reward, terminal, truncated, info = self.vector.step(action)
        self._check(reward=reward, terminated=terminal, truncated=truncated)
        done, reward = terminal | truncated, reward.float()
        last = done & ~first
        if self.mode == AutoresetMode.NEXT_STEP and resets_in_same_step(info):
            self.mode = AutoresetMode.SAME_STEP  # its metadata do not say so
        if self.mode == AutoresetMode.SAME_STEP:
            fresh, late = obs, first & ~done
            obs = _where(late, self._fresh, _where(last, self._final(info, obs, last), obs))
            reward, self._carried = reward + self._carried, reward.where(late, 0.0)
            self._fresh = map_tensors(Tensor.clone, fresh)  # the vector may reuse its memory
        elif self.mode == AutoresetMode.DISABLED and bool(first.any()):  # these vectors wait for the device anyway
            obs = _where(first, self._reset_ended(first), obs)
        self._last = last
        success = info.get(FINAL_INFO, info).get("success", info.get("success")) if isinstance(info, Mapping) else None
        return TensorRows(obs, reward.masked_fill(first, 0.0), last, terminal & last, success)

    def _final(self, info: Mapping[str, Any], obs: Any, last: Tensor) -> Any:
        """Return the last observations of the episodes that ended, from the step's info, which may lack them."""
        for key in FINAL_OBS:
            if info.get(key) is not None:
                return info[key]
        self.is_lost = self.is_lost | last.any()
        return obs

    def _reset_ended(self, ended: Tensor) -> Any:
        """Reset the environments that have ``ended`` ``[N]``; return the observations of all."""
        numbers = ended.nonzero().squeeze(-1)
        if "env_ids" in inspect.signature(self.vector.unwrapped.reset).parameters:
            return self.vector.reset(env_ids=numbers)[0]  # type: ignore[call-arg]  # of mjlab
        return self.vector.reset(options={"reset_mask": ended, "env_idx": numbers})[0]

    def _check(self, **values: Any) -> None:
        """Raise DataError unless the reward is ``[N]`` and the flags are bool ``[N]``."""
        for name, x in values.items():
            is_fine = isinstance(x, Tensor) and x.shape == (self.num_envs,)
            if not is_fine or (name != "reward" and x.dtype is not torch.bool):
                actual = f"{list(x.shape)} of {x.dtype}" if isinstance(x, Tensor) else short_repr(x)
                kind = "numbers" if name == "reward" else "bool, as NaN in other types would count as true"
                source = type(self.vector.unwrapped).__name__
                raise DataError(f"{source}: {name} is {actual}: expected a tensor [{self.num_envs}] of {kind}.")

    def check(self) -> None:
        """Raise EnvError if an episode has ended without its last observation. Waits for the device."""
        if self.is_lost:
            raise EnvError(
                f"{type(self.vector.unwrapped).__name__} resets in the step that ends an episode, but its info lacks "
                "the last observations, from which learners bootstrap. Return them as info['final_obs'] (Isaac Lab: "
                "compute_final_obs=True), or turn its resets off (ManiSkill, mjlab: auto_reset=False)."
            )

    def state_dict(self) -> None:
        """Return None: simulators in torch cannot be saved."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        raise EnvError("vectors of tensors cannot be resumed in the middle of an episode.")

    def close(self) -> None:
        self.vector.close()


def to_tensor_vector(vector: Vector | TensorVector) -> TensorVector | None:
    """Return ``vector`` as a vector of tensors; None if it shows arrays."""
    if not isinstance(vector, VectorEnv):
        return vector
    return TorchVector(vector) if is_tensor_vector(vector) else None


def _where(flags: Tensor, values: Any, others: Any) -> Any:
    """Return nested tensors ``[N, ...]``: of ``values`` where ``flags`` ``[N]``, else of ``others``."""
    return map_tensors(lambda a, b: a.where(flags.view(-1, *[1] * (b.dim() - 1)), b), values, others)
