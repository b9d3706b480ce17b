"""Vector environments of tensors, as of ManiSkill, mjlab and Isaac Lab, whatever their autoreset mode, as rows."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from reverie.core.errors import DataError, EnvError, short_repr
from reverie.core.specs import MASK_KEY
from reverie.envs.episode_info import SUCCESS_KEYS
from reverie.envs.interventions import FINAL_INFO
from reverie.envs.jax_suites import to_space
from reverie.envs.make_native_vector import vector_limit, vector_mode
from reverie.envs.tensor_vector import TensorRows, TensorVector, attribute, first_leaf, is_tensor_vector, map_tensors
from reverie.envs.vector_steps import FINAL_OBS, resets_in_same_step, warn_of_hidden_steps


class TorchVector:
    """A vector whose observations, rewards and flags are tensors; satisfies ``TensorVector``.

    A vector that resets in the step that ends an episode (``SAME_STEP``) has taken one action by the time that the
    first row is shown, see ``VectorEnv``. An episode that ends in this step is skipped. A vector that does not
    reset by itself (``DISABLED``) takes one more step after the end of an episode, and is then reset; if its ``reset``
    has ``env_ids``, as in mjlab, it is reset at once, with rows as of ``SAME_STEP``.
    """

    def __init__(self, vector: Any, warns: bool = True) -> None:
        """``vector``: a Gymnasium vector, or an object like it, see ``is_batched_env``.

        ``warns``: warn of steps that no row shows.
        """
        self.vector: Any = vector
        self._warns = warns
        inner = getattr(vector, "unwrapped", vector)
        self.name: str = type(inner).__name__
        self.num_envs: int = attribute(vector, "num_envs")
        self.observation_space: Any = to_space(attribute(vector, "single_observation_space"))
        self.action_space: Any = to_space(attribute(vector, "single_action_space"))
        self.max_episode_steps: int | None = vector_limit(vector) or getattr(inner, "max_episode_length", None)
        resets = getattr(vector, "auto_reset", getattr(getattr(inner, "cfg", None), "auto_reset", True))
        self.mode: AutoresetMode = vector_mode(vector, AutoresetMode.SAME_STEP) if resets else AutoresetMode.DISABLED
        self._resets_by_id = self.mode == AutoresetMode.DISABLED and "env_ids" in signature(inner.reset).parameters
        if self._resets_by_id or self.mode == AutoresetMode.SAME_STEP:
            self._set_same_step()
        device = getattr(inner, "device", None)
        self.device: torch.device = torch.device(device) if device else first_leaf(self.reset(None).obs).device

    def reset(self, seed: int | None) -> TensorRows:
        obs, info = self.vector.reset(seed=seed)
        obs = map_tensors(Tensor.clone, obs)
        none = torch.zeros(self.num_envs, dtype=torch.bool, device=first_leaf(obs).device)
        self._last = none
        self.is_lost: Tensor = none.any()  # whether an episode has ended without its last observation
        return TensorRows(obs, none.float(), none, none, info=info if isinstance(info, Mapping) else {})

    def step(self, action: object) -> TensorRows:
        first = self._last
        answer = self.vector.step(action)
        if not isinstance(answer, tuple | list) or len(answer) != 5:
            raise DataError(f"{self.name}.step() returned {short_repr(answer)}: expected 5 values.")
        obs, reward, terminal, truncated, info = answer
        self._check(reward=reward, terminated=terminal, truncated=truncated)
        info = info if isinstance(info, Mapping) else {}
        done = terminal | truncated
        last = done & ~first
        terminal = terminal & last  # in new memory, which a reset of the ended environments does not change
        if self._resets_by_id and bool(done.any()):
            info = {**info, FINAL_OBS[0]: map_tensors(Tensor.clone, obs)}
            obs = _where(done, self.vector.reset(env_ids=done.nonzero().squeeze(-1))[0], info[FINAL_OBS[0]])
        if self.mode == AutoresetMode.NEXT_STEP and resets_in_same_step(info):
            self._set_same_step()  # its metadata do not say so
        hidden_masks = None
        if self.mode == AutoresetMode.SAME_STEP:
            if isinstance(obs, Mapping) and MASK_KEY in obs:
                hidden_masks = obs[MASK_KEY].clone()  # the vector may reuse its memory
            obs = _where(last, self._final(info, obs, last), obs)
        elif self.mode == AutoresetMode.DISABLED and bool(first.any()):  # these vectors wait for the device anyway
            obs = _where(first, self._reset_ended(first), obs)
        self._last = last
        return TensorRows(obs, reward, last, terminal, self._success(info), hidden_masks, info)

    def _set_same_step(self) -> None:
        self.mode = AutoresetMode.SAME_STEP
        if self._warns:
            warn_of_hidden_steps(self.name)

    def _success(self, info: Mapping[str, Any]) -> Tensor | None:
        """Return whether each environment has reached its goal, ``[N]``, if the step's info says so."""
        sources = [source for source in (info.get(FINAL_INFO), info) if isinstance(source, Mapping)]
        for flags in (source.get(key) for source in sources for key in SUCCESS_KEYS):
            if isinstance(flags, Tensor) and flags.shape == (self.num_envs,):
                return flags.clone()
        return None

    def _final(self, info: Mapping[str, Any], obs: object, last: Tensor) -> Any:
        """Return the last observations of the episodes that ended, from the step's info, which may lack them."""
        for key in FINAL_OBS:
            if (final := info.get(key)) is not None:
                if first_leaf(final).shape != first_leaf(obs).shape:
                    raise DataError(
                        f"{self.name}: info['{key}'] has other shapes than observations: expected [N, ...]."
                    )
                return final
        self.is_lost = self.is_lost | last.any()
        return obs

    def _reset_ended(self, ended: Tensor) -> Any:
        """Reset the environments that have ``ended`` ``[N]``; return the observations of all."""
        return self.vector.reset(options={"reset_mask": ended, "env_idx": ended.nonzero().squeeze(-1)})[0]

    def _check(self, **values: object) -> None:
        """Raise DataError unless the reward is ``[N]`` and the flags are bool ``[N]``."""
        for name, x in values.items():
            is_flag, shape = name != "reward", (self.num_envs,)
            if not isinstance(x, Tensor) or x.shape != shape or (is_flag and x.dtype is not torch.bool):
                actual = f"{list(x.shape)} of {x.dtype}" if isinstance(x, Tensor) else short_repr(x)
                kind = "bool, as NaN in other types would count as true" if is_flag else "numbers"
                raise DataError(f"{self.name}: {name} is {actual}: expected a tensor [{self.num_envs}] of {kind}.")

    def check(self) -> None:
        """Raise EnvError if an episode has ended without its last observation. Waits for the device."""
        if self.is_lost:
            raise EnvError(
                f"{self.name} resets in the step that ends an episode, but its info lacks the last observations, from "
                "which learners bootstrap. Return them as info['final_obs'] (Isaac Lab: compute_final_obs=True), or "
                "turn its resets off (ManiSkill, mjlab: auto_reset=False). If it resets otherwise, declare this: "
                "metadata['autoreset_mode'] = gymnasium.vector.AutoresetMode.NEXT_STEP, or DISABLED."
            )

    def state_dict(self) -> None:
        """Return None: simulators in torch cannot be saved."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        raise EnvError("vectors of tensors cannot be resumed in the middle of an episode.")

    def close(self) -> None:
        self.vector.close()


def to_tensor_vector(vector: object, warns: bool = False) -> TensorVector | None:
    """Return what ``make_native_vector`` has made as a vector of tensors; None if it shows arrays."""
    if isinstance(vector, TensorVector):
        return vector
    return TorchVector(vector, warns) if not isinstance(vector, VectorEnv) or is_tensor_vector(vector) else None


def _where(flags: Tensor, values: object, others: object) -> Any:
    """Return nested tensors ``[N, ...]``: of ``values`` where ``flags`` ``[N]``, else of ``others``."""
    return map_tensors(lambda a, b: a.where(flags.view(-1, *[1] * (b.dim() - 1)), b), values, others)
